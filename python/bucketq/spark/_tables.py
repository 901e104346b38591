"""The tables of the pipeline as Spark SQL over its own views. docs/spark.md describes each."""

# pyright: basic
from __future__ import annotations

__all__ = ["BY_HOUR", "LIFE_COLUMNS", "MARKED", "TABLES", "VIEWS"]

VIEWS = {
    name: f"bucketq_pipeline_{name}"
    for name in ("lives_all", "lives", "suspects", "superseded", "finished", "hours")
}
"""Prefixed names that do not clash with other views of the session."""

LIFE_COLUMNS = (
    "finish_seq,id,run,queue,group,state,attempts,worker,enqueued_at,claimed_at,finished_at,wait_ms,run_ms,"
    "enqueue_commit_seq,claim_commit_seq,finish_commit_seq,payload_len,last_error"
)
"""The columns that the pipeline stores of a run: no payloads, no results."""

MARKED = "bucketq-writes"
"""The queue of the marks that writes leave; they are no jobs to analyse."""

SUSPECTS = """
SELECT xxhash64(id, queue) AS hash FROM {lives} GROUP BY 1 HAVING count(*) > 1
"""
"""Jobs with several runs in a queue, and hash collisions; hashes are small enough to compare all of them."""

SUPERSEDED = """
SELECT finish_seq FROM (
  SELECT l.finish_seq, row_number() OVER (PARTITION BY l.id, l.queue ORDER BY l.finish_seq DESC) AS newest
  FROM {lives} l LEFT SEMI JOIN {suspects} s ON xxhash64(l.id, l.queue) = s.hash
) WHERE newest > 1
"""
"""Runs whose job has a later run: few, and identified by a number, which is cheaper to compare than ids."""

FINISHED = "SELECT l.* FROM {lives} l LEFT ANTI JOIN {superseded} s ON l.finish_seq = s.finish_seq"
"""Each job once per queue, by its newest run there: a requeued job counts where it ended last, and a job that moved
to a dead-letter queue counts in both queues.
"""

AFFECTED = """
SELECT DISTINCT to_date(enqueued_at) AS day FROM {lives} WHERE day IN ({days})
UNION
SELECT explode(array(to_date(l.enqueued_at), l.day)) FROM {lives} l
LEFT SEMI JOIN (
  SELECT DISTINCT n.id, n.queue FROM {lives} n LEFT SEMI JOIN {suspects} s ON xxhash64(n.id, n.queue) = s.hash
  WHERE n.day IN ({days})
) r ON l.id = r.id AND l.queue = r.queue
"""
"""Days whose hours have changed: those of new runs, and of earlier runs of the same jobs."""

BY_HOUR = """
WITH arrived AS (
  SELECT queue, date_trunc('HOUR', enqueued_at) AS hour, count(*) AS arrivals
  FROM {finished} WHERE to_date(enqueued_at) IN ({days}) GROUP BY ALL
), ended AS (
  SELECT queue, date_trunc('HOUR', finished_at) AS hour,
    count_if(state = 'done') AS completed, count_if(state = 'dead') AS dead, count_if(state = 'cancelled') AS cancelled,
    count_if(state = 'dead' OR attempts > 1) AS troubled,
    sum(greatest(attempts - 1, 0)) AS retries,
    percentile(wait_ms, array(0.5, 0.95, 0.99)) AS wait, percentile(run_ms, array(0.5, 0.95, 0.99)) AS run,
    sum(run_ms) AS busy_ms, sum(payload_len) AS payload_bytes
  FROM {finished} WHERE to_date(finished_at) IN ({days}) GROUP BY ALL
)
SELECT queue, hour, coalesce(arrivals, 0) AS arrivals, coalesce(completed, 0) AS completed, coalesce(dead, 0) AS dead,
  coalesce(cancelled, 0) AS cancelled, coalesce(troubled, 0) AS failures, coalesce(retries, 0) AS retries,
  wait[0] AS wait_p50_ms, wait[1] AS wait_p95_ms, wait[2] AS wait_p99_ms,
  run[0] AS run_p50_ms, run[1] AS run_p95_ms, run[2] AS run_p99_ms,
  coalesce(completed, 0) / 3600D AS throughput, coalesce(busy_ms, 0) AS busy_ms,
  coalesce(payload_bytes, 0) AS payload_bytes, to_date(hour) AS day
FROM arrived FULL JOIN ended USING (queue, hour)
"""

BACKLOG = """
SELECT queue, hour, arrivals, completed + dead + cancelled AS ended,
  sum(arrivals - completed - dead - cancelled) OVER (PARTITION BY queue ORDER BY hour) AS backlog
FROM {hours}
"""
"""Jobs enqueued but not finished at the end of the hour, among those that have finished since."""

WORKERS = """
SELECT worker, hour, sum(ms) AS busy_ms, least(sum(ms) / 3600000D, 1D) AS utilisation, count(*) AS jobs FROM (
  SELECT worker, hour,
    least(unix_millis(hour) + 3600000, unix_millis(finished_at)) - greatest(unix_millis(hour), unix_millis(claimed_at)) AS ms
  FROM (
    SELECT worker, claimed_at, finished_at,
      explode(sequence(date_trunc('HOUR', claimed_at), date_trunc('HOUR', finished_at), INTERVAL 1 HOUR)) AS hour
    FROM {finished} WHERE worker IS NOT NULL AND claimed_at <= finished_at
  )
) GROUP BY ALL
"""

GROUPS = """
SELECT queue, `group`, count(*) AS jobs, count_if(state = 'dead') AS dead, sum(greatest(attempts - 1, 0)) AS retries,
  percentile_approx(run_ms, 0.95, 1000) AS run_p95_ms, sum(run_ms) AS busy_ms
FROM {finished} GROUP BY ALL ORDER BY dead DESC, busy_ms DESC LIMIT 1000
"""

ERRORS = r"""
SELECT queue, error, count(*) AS jobs, count_if(state = 'dead') AS dead, max(finished_at) AS newest FROM (
  SELECT queue, state, finished_at, substr(regexp_replace(split(last_error, '\n')[0], '[0-9a-f]{{8,}}|[0-9]+', '#'), 1, 200) AS error
  FROM {finished} WHERE last_error IS NOT NULL
) GROUP BY ALL ORDER BY jobs DESC LIMIT 1000
"""

COMMITS = """
WITH seen AS (
  SELECT hour, max(last) AS last, sum(ops) AS ops, sum(jobs) AS jobs FROM (
    SELECT date_trunc('HOUR', enqueued_at) AS hour, max(enqueue_commit_seq) AS last, count(*) AS ops, 0 AS jobs FROM {lives} GROUP BY 1
    UNION ALL
    SELECT date_trunc('HOUR', claimed_at), max(claim_commit_seq), sum(attempts), 0 FROM {lives} WHERE claimed_at IS NOT NULL GROUP BY 1
    UNION ALL
    SELECT date_trunc('HOUR', finished_at), max(finish_commit_seq), count(*), count(*) FROM {lives} GROUP BY 1
  ) GROUP BY hour
)
SELECT hour, commits, ops, ops / commits AS ops_per_commit, commits / nullif(jobs, 0) AS puts_per_job,
  commits * {price_put} / 1000000D AS usd FROM (
  SELECT hour, ops, jobs, greatest(last - coalesce(max(last) OVER (ORDER BY hour ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0), 1) AS commits FROM seen
)
"""
"""Commit numbers have no gaps, so differences count commits; each commit is at least one PUT."""

TABLES = {"backlog": BACKLOG, "workers": WORKERS, "groups": GROUPS, "errors": ERRORS, "commits": COMMITS}
