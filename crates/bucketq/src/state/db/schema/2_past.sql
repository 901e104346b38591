-- Version 2, for lives that ended while their job went on (docs/decisions/0016-archive.md).

-- Lives of jobs that were requeued, or went to a dead-letter queue, of queues with an archive; until they are archived.
-- No payload: the job has it still.
CREATE TABLE past (
  queue        INTEGER NOT NULL,  -- queues.id of then
  place        INTEGER NOT NULL,  -- jobs.seq of the next life: what is added stands behind
  finish_seq   INTEGER NOT NULL,
  id           BLOB    NOT NULL,  -- jobs.id
  run          INTEGER NOT NULL,
  group_name   TEXT,
  state        INTEGER NOT NULL,  -- 5 done, 6 dead, 7 cancelled
  priority     INTEGER NOT NULL,
  tries        INTEGER NOT NULL,
  max_attempts INTEGER NOT NULL,
  worker       INTEGER NOT NULL,  -- names.id
  enqueued_ms  INTEGER NOT NULL,
  due_ms       INTEGER,
  first_ms     INTEGER NOT NULL,
  claimed_ms   INTEGER NOT NULL,
  ends_ms      INTEGER NOT NULL,
  seq          INTEGER NOT NULL,  -- jobs.seq of this life
  fence        INTEGER NOT NULL,
  token        BLOB    NOT NULL,
  payload_len  INTEGER NOT NULL,
  result_type  INTEGER,           -- names.id
  result       BLOB,
  error        TEXT,              -- what its newest failure that said something said
  PRIMARY KEY (queue, place)
) STRICT, WITHOUT ROWID;

CREATE INDEX past_finished ON past (queue, finish_seq);
