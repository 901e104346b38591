"""The processes of the demo: a producer and a worker, as in a program of your own."""

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
"""Seconds. Short, so that the job of the killed process comes back during the demo."""
WORK = 0.05
"""Seconds that a job takes."""


def produce(url: str, who: str, count: int) -> None:
    """Enqueue ``count`` reports to make."""
    with bucketq.open(url) as file:
        q = file.queue("reports")
        for first in range(0, count, 10):
            numbers = range(first, min(first + 10, count))
            q.enqueue_many(
                [New({"report": f"{who}-{n}", "fate": fate(who, n)}, backoff=Backoff(1.0)) for n in numbers]
            )


def fate(who: str, number: int) -> str:
    """Return what this job does at its first attempt: one of the first producer fails, and one crashes."""
    return {("p1", 5): "fails", ("p1", 15): "crashes"}.get((who, number), "works")


def work(url: str, name: str) -> None:
    """Work until SIGTERM."""
    # The main process reports what happens; log lines would disturb its display.
    logging.getLogger("bucketq").setLevel(logging.CRITICAL)
    with bucketq.open(url) as file:
        worker = Worker(file, concurrency=2, lease=LEASE, name=name)

        @worker.handles("reports")
        def report(job: Job) -> str:
            if job.attempt == 1 and job.data["fate"] == "fails":
                raise ConnectionError("no reply from the printer")
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
