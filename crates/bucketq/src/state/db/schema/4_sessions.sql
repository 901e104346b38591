-- Version 4, for ops that reach the writer over a connection (docs/protocol.md, P29 to P33).

-- The results of such ops, one row for each session. Each result is written in the commit of its op, so an op that
-- arrives again is not executed again.
CREATE TABLE sessions (
  id      BLOB    PRIMARY KEY,
  born    INTEGER NOT NULL,  -- the newest commit when the session began
  floor   INTEGER NOT NULL,  -- the client has the results of all ops up to this number
  used_ms INTEGER NOT NULL,  -- the commit that last wrote this row
  results BLOB    NOT NULL   -- of ops above the floor, in no order
) STRICT, WITHOUT ROWID;
-- A row may be dropped in any commit that also raises meta.forgotten to its `born`. A session that has no row and was
-- not born later may be one of those: none of its ops is executed.
