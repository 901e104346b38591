"""The processes of the demo: what a producer and a worker are in a program of one's own."""

from __future__ import annotations

import hashlib
import logging
import os
import signal
import sys
import time

import bucketq
from bucketq import Backoff, Job, New, Worker

LEASE = 2.0
"""Seconds. Short, so that the job of the process that is killed comes back while somebody watches."""
WORK = 0.05
"""Seconds that a job takes."""


def produce(url: str, who: str, count: int) -> None:
    """Enqueue this many reports to make."""
    with bucketq.open(url) as file:
        q = file.queue("reports")
        for first in range(0, count, 10):
            numbers = range(first, min(first + 10, count))
            q.enqueue_many(
                [New({"report": f"{who}-{n}", "fate": fate(who, n)}, backoff=Backoff(1.0)) for n in numbers]
            )


def fate(who: str, number: int) -> str:
    """What happens to this job at its first attempt: the first producer's make one fail and one crash."""
    return {("p1", 5): "fails", ("p1", 15): "crashes"}.get((who, number), "works")


def work(url: str, name: str) -> None:
    """Work until told to end."""
    # The one who watches tells what happens; the log would get in its way.
    logging.getLogger("bucketq").setLevel(logging.CRITICAL)
    with bucketq.open(url) as file:
        worker = Worker(file, concurrency=2, lease=LEASE, name=name)

        @worker.handles("reports")
        def report(job: Job) -> str:
            if job.attempt == 1 and job.data["fate"] == "fails":
                raise ConnectionError("no answer from the printer")
            if job.attempt == 1 and job.data["fate"] == "crashes":
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(WORK)
            return hashlib.sha256(job.payload).hexdigest()[:12]

        worker.run()


if __name__ == "__main__":
    part, url, name, *count = sys.argv[1:]
    if part == "produce":
        produce(url, name, int(count[0]))
    else:
        work(url, name)
