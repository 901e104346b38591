-- Version 2, for the policies of queues (docs/decisions/0015-policies.md).

-- Turns are numbers of four bytes. Where the line of a queue is: the highest turn that was claimed; 8388608 as long as
-- no job of a group was ever in the queue.
ALTER TABLE queues ADD COLUMN turn INTEGER NOT NULL DEFAULT 8388608;
-- Rate limit: until when, in nanoseconds, the claims so far have used it up.
ALTER TABLE queues ADD COLUMN rate_ns INTEGER NOT NULL DEFAULT 1000000000000000000;
-- Jobs cancelled to make room.
ALTER TABLE queues ADD COLUMN dropped INTEGER NOT NULL DEFAULT 0;
-- queues.paused: 0 no, 1 paused, 2 draining.

-- The round in which a job is claimed: among jobs of one priority, lower turns first, then lower seqs.
ALTER TABLE jobs ADD COLUMN turn INTEGER NOT NULL DEFAULT 8388608;
-- 1: in a queue that makes room by cancelling its oldest jobs.
ALTER TABLE jobs ADD COLUMN bounded INTEGER NOT NULL DEFAULT 0;

-- jobs.ends_ms of a lease that never runs out: 140737488355327.
DROP INDEX jobs_ready;
CREATE INDEX jobs_ready ON jobs (queue, priority, turn) WHERE state = 3 AND held = 0;
-- What is cancelled to make room, oldest first.
CREATE INDEX jobs_bounded ON jobs (queue) WHERE bounded = 1 AND state <= 3;

-- The policy of a queue, as JSON: what differs from the defaults. None for a queue that was never configured.
CREATE TABLE policies (
  queue  INTEGER PRIMARY KEY,  -- queues.id
  policy TEXT NOT NULL
) STRICT;

-- Attempts that did not succeed, and how earlier lives ended; the newest hundred of a job.
CREATE TABLE attempts (
  seq        INTEGER NOT NULL,  -- jobs.seq
  run        INTEGER NOT NULL,
  attempt    INTEGER NOT NULL,
  queue      INTEGER NOT NULL,  -- queues.id of then
  ended      INTEGER NOT NULL,  -- 2 nacked, 3 expired, 4 rejected, 5 acked, 6 cancelled, 7 dropped
  worker     INTEGER NOT NULL,  -- names.id
  claimed_ms INTEGER,           -- NULL if it was not claimed
  ended_ms   INTEGER NOT NULL,
  error      TEXT,
  PRIMARY KEY (seq, run, attempt)
) STRICT, WITHOUT ROWID;

-- Version 1 kept the newest text of a failure and nothing of when and whose.
INSERT INTO attempts
  SELECT e.seq, j.run, j.tries - 2 - (j.state = 4), j.queue, 2, 65536, NULL, j.claimed_ms, e.text
  FROM errors e JOIN jobs j ON j.seq = e.seq;
DROP TABLE errors;

-- Jobs that are enqueued again and again.
CREATE TABLE schedules (
  queue    INTEGER NOT NULL,  -- queues.id
  name     TEXT    NOT NULL,
  next_ms  INTEGER NOT NULL,  -- when it enqueues next
  last_ms  INTEGER,           -- the newest time it enqueued for
  fired    INTEGER NOT NULL,  -- jobs it has enqueued
  schedule TEXT    NOT NULL,  -- JSON, with the job without its payload
  payload  BLOB    NOT NULL,
  PRIMARY KEY (queue, name)
) STRICT, WITHOUT ROWID;

CREATE INDEX schedules_next ON schedules (queue, next_ms);
