-- The whole state of a queue file. One writer changes it; every library version reads the same pages.
--
-- A commit's size in the bucket is the XOR of the pages it changed, and b-tree pages filled by appending are full.
-- So a row of jobs never grows during its life: whatever a claim, an ack or a nack changes has, from the enqueue on,
-- a value of the width it will have later (states 2 to 7 and not 0 or 1, which take no byte; times at once; a token
-- of zeros). Then SQLite overwrites the row in place and a page changes by a few bytes.

-- Facts about the file itself.
CREATE TABLE meta (
  name  TEXT PRIMARY KEY,
  value ANY NOT NULL
) STRICT, WITHOUT ROWID;

-- A queue and its jobs by state. The counts are exact at every commit. Queues are never deleted.
CREATE TABLE queues (
  id        INTEGER PRIMARY KEY,
  name      TEXT    NOT NULL UNIQUE,
  paused    INTEGER NOT NULL DEFAULT 0,
  retain    INTEGER NOT NULL DEFAULT 1000,  -- done and cancelled jobs kept, newest first
  scheduled INTEGER NOT NULL DEFAULT 0,
  ready     INTEGER NOT NULL DEFAULT 0,
  leased    INTEGER NOT NULL DEFAULT 0,
  done      INTEGER NOT NULL DEFAULT 0,
  dead      INTEGER NOT NULL DEFAULT 0,
  cancelled INTEGER NOT NULL DEFAULT 0
) STRICT;

-- Texts that many jobs share: workers, content types, back-off policies (as JSON). Ids begin at 65536, so that all of
-- them take three bytes and a job's worker can change in place; 65536 itself is the empty text, nobody.
CREATE TABLE names (
  id   INTEGER PRIMARY KEY,
  name TEXT NOT NULL UNIQUE
) STRICT;

CREATE TABLE jobs (
  seq          INTEGER PRIMARY KEY,  -- commit_seq * 2^24 + ordinal: enqueues append, and order is age
  queue        INTEGER NOT NULL,     -- queues.id
  state        INTEGER NOT NULL,     -- 2 scheduled, 3 ready, 4 leased, 5 done, 6 dead, 7 cancelled
  held         INTEGER NOT NULL,     -- 1: lives behind the head of its group; else 0
  tries        INTEGER NOT NULL,     -- claims in this life plus 2, so that the first ones take a byte too
  run_at_ms    INTEGER NOT NULL,     -- when it may run, or became claimable again
  claimed_ms   INTEGER NOT NULL,     -- newest claim; the enqueue until then
  ends_ms      INTEGER NOT NULL,     -- leased: when the lease ends; finished: when that was; else without meaning
  fence        INTEGER NOT NULL,     -- commit_seq of the newest claim; of the enqueue until then
  worker       INTEGER NOT NULL,     -- names.id of the newest claim's worker
  token        BLOB    NOT NULL,     -- newest claim's token; zeros until then; all bits flipped when its lease expired
  -- What follows never changes while the job keeps its seq.
  priority     INTEGER NOT NULL,
  run          INTEGER NOT NULL,
  max_attempts INTEGER NOT NULL,
  enqueued_ms  INTEGER NOT NULL,
  backoff      INTEGER NOT NULL,     -- names.id
  content_type INTEGER NOT NULL,     -- names.id
  id           BLOB    NOT NULL,
  group_name   TEXT,
  dedup        TEXT,
  headers      TEXT,                 -- JSON object; NULL for none
  payload_kind INTEGER NOT NULL,     -- 0 in this row, 1 in bodies, 2 reserved: an object in the bucket
  payload_len  INTEGER NOT NULL,
  body         INTEGER,              -- bodies.id
  payload      BLOB
) STRICT;

CREATE UNIQUE INDEX jobs_id ON jobs (id);
-- What a claim takes, best first; the rowid at the end of every index is seq.
CREATE INDEX jobs_ready ON jobs (queue, priority) WHERE state = 3 AND held = 0;
-- Ready jobs that came back or came due: their waiting time cannot be told from their age.
CREATE INDEX jobs_returned ON jobs (queue, run_at_ms) WHERE state = 3 AND held = 0 AND run_at_ms > enqueued_ms;
CREATE INDEX jobs_scheduled ON jobs (queue, held, run_at_ms) WHERE state = 2;
CREATE INDEX jobs_leased ON jobs (queue, ends_ms) WHERE state = 4;
-- What retention deletes, oldest first.
CREATE INDEX jobs_finished ON jobs (queue, ends_ms) WHERE state IN (5, 7);
CREATE INDEX jobs_dead ON jobs (queue) WHERE state = 6;
-- Live members of groups; the first one of each is its head.
CREATE INDEX jobs_group ON jobs (queue, group_name) WHERE group_name IS NOT NULL AND state <= 4;

-- Payloads over 1 KiB. No op between enqueue and deletion touches them. The id is the seq of the first enqueue.
CREATE TABLE bodies (
  id    INTEGER PRIMARY KEY,
  bytes BLOB NOT NULL
) STRICT;

CREATE TABLE results (
  seq          INTEGER PRIMARY KEY,  -- jobs.seq
  content_type INTEGER NOT NULL,     -- names.id
  bytes        BLOB    NOT NULL
) STRICT;

-- What the newest failure that said something said.
CREATE TABLE errors (
  seq  INTEGER PRIMARY KEY,  -- jobs.seq
  text TEXT NOT NULL
) STRICT;

-- Keys that keep second jobs out.
CREATE TABLE dedup (
  queue    INTEGER NOT NULL,
  key      TEXT    NOT NULL,
  id       BLOB    NOT NULL,  -- jobs.id of the first
  seq      INTEGER NOT NULL,  -- its seq then
  until_ms INTEGER,           -- NULL: while that job is unfinished
  PRIMARY KEY (queue, key)
) STRICT, WITHOUT ROWID;

CREATE INDEX dedup_until ON dedup (until_ms) WHERE until_ms IS NOT NULL;
