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


def test_a_lease_is_extended_while_its_job_is_worked_on_and_time_can_be_limited(place, spark):
    url, settings = place.url, place.settings

    def slow(job: Any) -> Any:
        import bucketq

        with bucketq.open(url, **settings) as file:
            first = file.get(job.id).expires_at
            while (now := file.get(job.id).expires_at) == first:
                pass
        return now > first

    with place.open() as file:
        q = file.queue("mail")
        id = q.enqueue({"n": 0}).id
        done = process(spark, url, "mail", slow, lease=3, tasks=1, settings=settings)
        assert (done.acked, done.failed, done.lost) == (1, 0, 0)
        assert file.get(id).attempt == 1
        assert bytes(done.results().collect()[0]["result"]) == b"true"
        later = q.enqueue({"n": 1}, delay=3600).id
        done = process(spark, url, "mail", slow, seconds=0.5, tasks=1, settings=settings)
        assert (done.acked, done.results().count()) == (0, 0)
        assert file.get(later).state == "scheduled"
        q.pause()
        q.enqueue({"n": 2})
        assert process(spark, url, "mail", slow, tasks=1, settings=settings).acked == 0
