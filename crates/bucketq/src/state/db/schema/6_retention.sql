-- Version 6, for done and cancelled jobs that are kept apart (docs/decisions/0033-retention.md).

-- The finished jobs that leave the file, oldest first: one index for each state with its own limits.
DROP INDEX jobs_finished;
CREATE INDEX jobs_done ON jobs (queue, finish_seq) WHERE state = 5;
CREATE INDEX jobs_cancelled ON jobs (queue, finish_seq) WHERE state = 7;

-- names: a back-off may have max_run_ms beside it, the time that an attempt of such a job may take.

-- 1: behind the first jobs of its group. "Held" is said of jobs that a worker has claimed.
ALTER TABLE jobs RENAME COLUMN held TO blocked;
