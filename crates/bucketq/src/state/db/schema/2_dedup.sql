-- Version 2, for dedup keys that cost no page each (docs/decisions/0018-dedup-keys.md).

-- Keys that keep second jobs out, in the order of enqueues: each once in its queue. Who looks for one knows its place.
ALTER TABLE dedup RENAME TO dedup_1;
CREATE TABLE dedup (
  seq      INTEGER PRIMARY KEY,  -- jobs.seq of the first, as long as that is there
  queue    INTEGER NOT NULL,     -- queues.id
  key      TEXT    NOT NULL,
  id       BLOB    NOT NULL,     -- jobs.id of the first
  until_ms INTEGER               -- NULL: while that job is unfinished
) STRICT;
INSERT INTO dedup
  SELECT ifnull((SELECT j.seq FROM jobs j WHERE j.id = d.id AND j.dedup = d.key AND j.queue = d.queue), d.seq) AS place,
         d.queue, d.key, d.id, d.until_ms
  FROM dedup_1 d ORDER BY place;
DROP TABLE dedup_1;
CREATE INDEX dedup_until ON dedup (until_ms) WHERE until_ms IS NOT NULL;
