-- Version 5, for dead letters, deleted queues, and jobs that expire when nobody claims them.

-- attempts.ended: 8 moved to another queue, 9 moved and a dead letter still, 10 not claimed in time.
-- queues.paused: 3 deleted. Its row stays, because other rows refer to it.
-- meta.strict_queues: 1 if only an op for that creates queues.

-- When jobs expire that nobody has claimed by then. A row stays when its job is claimed, until its time comes.
CREATE TABLE expiries (
  seq   INTEGER PRIMARY KEY,  -- jobs.seq
  at_ms INTEGER NOT NULL,
  ends  INTEGER NOT NULL      -- 6: the job is then dead; 0: it is deleted. 16 more: also if it was claimed; 32 more:
                              -- its time has come, and a worker held it
) STRICT;
CREATE INDEX expiries_at ON expiries (at_ms);
