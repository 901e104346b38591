
-- Version 2, for the archive (docs/decisions/0016-archive.md).

-- How many finished jobs a queue keeps is a matter of its policy.
ALTER TABLE queues DROP COLUMN retain;

-- finish_seq: the place in the order of finishes, commit_seq * 2^24 + ordinal; until then seq, which has its width. Of
-- jobs that finished before there was such a place, the rank: commit 0.
ALTER TABLE jobs ADD COLUMN finish_seq INTEGER NOT NULL DEFAULT 0;
-- When this life was first claimed; the enqueue until then.
ALTER TABLE jobs ADD COLUMN first_ms INTEGER NOT NULL DEFAULT 0;
-- When it was first to run, if that was after its enqueue. Never changes.
ALTER TABLE jobs ADD COLUMN due_ms INTEGER;
DROP INDEX jobs_finished;
DROP INDEX jobs_dead;
UPDATE jobs SET finish_seq = seq, first_ms = claimed_ms,
  due_ms = iif(state = 2 AND token = zeroblob(16), run_at_ms, NULL);
UPDATE jobs SET finish_seq = old.place
  FROM (SELECT seq AS of, row_number() OVER (ORDER BY ends_ms, seq) AS place FROM jobs WHERE state >= 5) AS old
  WHERE seq = old.of;

-- What leaves the file, oldest first. Finished later is never at an earlier ends_ms.
CREATE INDEX jobs_finished ON jobs (queue, finish_seq) WHERE state IN (5, 7);
CREATE INDEX jobs_dead ON jobs (queue, finish_seq) WHERE state = 6;

-- The archive objects. What is not here belongs to nobody.
CREATE TABLE archives (
  id          INTEGER PRIMARY KEY,
  queue       INTEGER NOT NULL,  -- queues.id
  file        BLOB    NOT NULL,  -- the first four bytes of the file id in its key
  seq         INTEGER NOT NULL,  -- the commit its rows were read at, in its key
  rand        BLOB    NOT NULL,  -- the random part of its key
  bytes       INTEGER NOT NULL,
  hash        BLOB    NOT NULL,  -- XXH3-128 of the object
  jobs        INTEGER NOT NULL,  -- rows in it
  first_seq   INTEGER NOT NULL,  -- the smallest finish_seq in it
  last_seq    INTEGER NOT NULL,  -- the largest
  first_ms    INTEGER NOT NULL,  -- when the first of them finished
  last_ms     INTEGER NOT NULL,  -- and the last
  listed_seq  INTEGER NOT NULL,  -- the commit that put it here
  listed_ms   INTEGER NOT NULL,
  dropped_seq INTEGER            -- the commit that gave it up; the object stays until the floor has passed that
) STRICT;

CREATE INDEX archives_queue ON archives (queue, last_ms) WHERE dropped_seq IS NULL;
CREATE INDEX archives_dropped ON archives (dropped_seq) WHERE dropped_seq IS NOT NULL;
