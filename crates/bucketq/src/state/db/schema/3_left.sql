-- Version 3, for the ids of jobs that have left (docs/decisions/0024-ids-of-jobs-that-left.md).

-- Ids that are taken although their job is no longer here: an enqueue that is repeated must not make a second job.
CREATE TABLE left_ids (
  place    INTEGER PRIMARY KEY,  -- rows come at the end and go at the beginning
  bucket   INTEGER NOT NULL,     -- the first 5 bytes of the ids: for UUIDv7 their time in steps of 256 ms
  until_ms INTEGER NOT NULL,     -- when the row may go
  ids      BLOB    NOT NULL      -- 15 bytes for each job: the other 11 bytes of its id, then 4 that say how it ended
) STRICT;
CREATE INDEX left_bucket ON left_ids (bucket);
