"""Executors as the worker pool."""

from __future__ import annotations

from typing import Any

from kit import archive

import bucketq
from bucketq.spark import process


def test_executors_work_until_the_queue_is_drained(place, spark):
    # Functions of a module that executors cannot import travel with the task only from inside of another one.
    def square(job: Any) -> Any:
        if job.data["n"] == 13 and job.attempt == 1:
            raise ValueError("unlucky")
        return {"square": job.data["n"] ** 2}

    def squares(frame: Any) -> Any:
        return [data["n"] ** 2 for data in frame["data"]]

    with place.open() as file:
        archive(file, "mail", keep=10, backoff=bucketq.Backoff.none())
        q = file.queue("mail")
        q.enqueue_many([bucketq.New({"n": n}) for n in range(40)])
        done = process(spark, place.url, "mail", square, batch=7, settings=place.settings)
        assert (done.acked, done.failed, done.lost) == (40, 1, 0)
        counts = q.counts().counts
        assert sum(counts[state] for state in ("ready", "scheduled", "leased", "dead")) == 0
        file.archive()
        rows = done.results().collect()
        assert sorted(bytes(row["result"]) for row in rows) == sorted(
            b'{"square":%d}' % n**2 for n in range(40)
        )
        q.enqueue_many([bucketq.New({"n": n}) for n in range(10)])
        again = process(spark, place.url, "mail", squares, how="pandas", settings=place.settings)
        assert again.acked == 10
        assert again.run != done.run
        assert {bytes(row["result"]) for row in again.results().collect()} == {
            b"%d" % n**2 for n in range(10)
        }
