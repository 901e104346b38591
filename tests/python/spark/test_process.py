"""Executors as workers."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from kit import archive

import bucketq
from bucketq.spark import process
from patience import PATIENCE


def test_executors_work_until_the_queue_is_drained(place, spark):
    # Functions of a module that executors cannot import are sent with the task only if they are nested.
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


def killed_with_a_job(place: Any) -> None:
    """Claim a job and die, as a worker that is killed."""
    script = (
        "import json, os, sys, bucketq; url, settings = json.loads(sys.argv[1])\n"
        "with bucketq.open(url, **settings) as file:\n"
        "    held = file.queue('mail').claim_one(lease=1)\n"
        "    os._exit(0 if held else 1)"
    )
    asked = json.dumps([place.url, place.settings])
    subprocess.run([sys.executable, "-c", script, asked], check=True, timeout=PATIENCE)


def test_what_a_killed_worker_had_is_not_waited_for_while_the_queue_is_closed(place, spark):
    def never(job: Any) -> Any:
        return None

    with place.open() as file:
        q = file.queue("mail")
        q.enqueue({"n": 0})
        for close in (q.pause, lambda: q.drain(timeout=0)):
            killed_with_a_job(place)
            close()
            assert process(spark, place.url, "mail", never, tasks=2, settings=place.settings).acked == 0
            assert q.counts(max_age=0).expired == 1
            q.resume()
        assert process(spark, place.url, "mail", never, settings=place.settings).acked == 1


def test_a_result_that_is_refused_when_its_job_is_gone_costs_no_other_job(place, spark):
    url, settings = place.url, place.settings

    def odd(job: Any) -> Any:
        import bucketq

        if job.data["n"] not in (1, 2):
            return job.data["n"]
        with bucketq.open(url, **settings) as file:
            if job.data["n"] == 1:
                job.release()
                with file.queue("mail").claim_one() as taken:
                    assert taken.id == job.id
            else:
                file.queue("mail").purge(["leased"])
        return object()

    with place.open() as file:
        q = file.queue("mail")
        q.enqueue_many([bucketq.New({"n": n}) for n in range(4)])
        done = process(spark, url, "mail", odd, tasks=1, batch=1, settings=settings)
        assert (done.acked, done.failed, done.lost) == (2, 0, 2)
        counts = q.counts(max_age=0).counts
        assert {state: n for state, n in counts.items() if n} == {"done": 3}
