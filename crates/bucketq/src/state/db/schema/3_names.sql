
-- Version 3, for shared texts that go when nothing refers to them (docs/decisions/0024-ids-of-jobs-that-left.md has the
-- ids; passes.rs says how a pass works).

-- names.pass: the newest pass that found the text in use, or in which it was stored.
ALTER TABLE names ADD COLUMN pass INTEGER NOT NULL DEFAULT 0;
-- One row: the pass at work, or the last one.
CREATE TABLE passes (
  pass  INTEGER PRIMARY KEY,
  stage INTEGER NOT NULL,  -- 0 at rest; 1 jobs, 2 results, 3 attempts, 4 past, 5 names
  major INTEGER NOT NULL,  -- how far it is: a seq or an id; of past the queue
  minor INTEGER NOT NULL,  -- of past the place
  known INTEGER NOT NULL   -- the highest names.id at its end
) STRICT;
INSERT INTO passes VALUES (0, 0, 0, 0, 65536);
