"""Measure workers and tasks. `make bench-workers`; `--quick` only shows that it runs.

A table with the aims goes to standard error, JSON to the last line of standard output. README.md explains each key. The
store is memory behind 25 ms. The two sides of a ratio take turns.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import bucketq
from bucketq import _native

ROUND_TRIP_US = 25_000
HANDLER = 0.05
LOOPS = 3_000_000
AIMS = {
    "lone_worker_jobs_per_put": 0.95,
    "busy_worker": 0.97,
    "pool_scaling": 1.8,
    "task_overhead_us": 60,
}

app = bucketq.App()


@app.task(queue="cpu")
def burn(loops: int) -> int:
    total = 0
    for n in range(loops):
        total += n
    return total


@app.task(queue="nothing")
def nothing() -> None:
    return None


def far(request_us: int = ROUND_TRIP_US) -> bucketq.QueueFile:
    """Open a queue file behind a round trip."""
    return bucketq.QueueFile(_native.open_test({}, None, request_us).wait(), "bench")


def put_s() -> float:
    """Return the median time of one commit, which is one PUT."""
    with far() as file:
        q, times = file.queue("puts"), []
        for n in range(20):
            began = time.perf_counter()
            q.enqueue(n)
            times.append(time.perf_counter() - began)
    return statistics.median(times[5:])


def jobs_s(jobs: int, handler: Callable[[Any], object], prefetch: int = 0) -> float:
    """Return the jobs per second of a worker with concurrency 1, from the first handler to the last."""
    stamps: list[float] = []

    def stamped(job: Any) -> None:
        stamps.append(time.perf_counter())
        handler(job)

    with far() as file:
        file.queue("q").enqueue_many(range(jobs))
        worker = bucketq.Worker(file, concurrency=1, prefetch=prefetch)
        worker.handles("q")(stamped)
        worker.run(wait=0, signals=False)
    return (len(stamps) - 1) / (stamps[-1] - stamps[0])


def lone(jobs: int, rounds: int) -> float:
    """Return the jobs that a worker with a handler that does nothing ends in the time of a PUT."""
    return statistics.median(jobs_s(jobs, lambda _: None) * put_s() for _ in range(rounds))


def busy(jobs: int, rounds: int) -> float:
    """Return the jobs of 50 ms per second over those without a queue."""
    return statistics.median(
        jobs_s(jobs, lambda _: time.sleep(HANDLER), prefetch=1) * HANDLER for _ in range(rounds)
    )


def pool_s(processes: int, jobs: int, loops: int) -> float:
    """Return the seconds for CPU-bound tasks in this many processes that are up already."""
    with far() as file:
        before = app.use(file)
        try:
            for _ in range(jobs):
                burn.enqueue(loops)
            firsts = [burn.options(priority=-1).enqueue(1) for _ in range(processes)]
            with app.worker(processes=processes, concurrency=2 * processes, queues=["cpu"]) as worker:
                for one in firsts:
                    one.result()
                began, left = time.perf_counter(), jobs + processes
                # Not by the results: each is read from the store, one after the other.
                while worker.worked.done < left:
                    time.sleep(0.001)
                return time.perf_counter() - began
        finally:
            app.use(before)


def scaling(jobs: int, loops: int, rounds: int) -> float:
    """Return how much faster two processes are than one."""
    pairs = [(pool_s(1, jobs, loops), pool_s(2, jobs, loops)) for _ in range(rounds)]
    return statistics.median(one / two for one, two in pairs)


def overhead_us(jobs: int, rounds: int) -> float:
    """Return the processor time of a task over that of a bare handler, on a store without delay."""

    def bare() -> float:
        with far(0) as file:
            file.queue("q").enqueue_many([None] * jobs)
            worker = bucketq.Worker(file, concurrency=8)
            worker.handles("q")(lambda _: None)
            began = time.process_time()
            worker.run(wait=0, signals=False)
            return (time.process_time() - began) / jobs

    def task() -> float:
        with far(0) as file:
            before = app.use(file)
            try:
                payload = nothing.job().message.payload(app.codec)
                new = [bucketq.New(payload, content_type=payload.content_type) for _ in range(jobs)]
                file.queue("nothing").enqueue_many(new)
                worker = app.worker(concurrency=8, queues=["nothing"])
                began = time.process_time()
                worker.run(wait=0, signals=False)
                return (time.process_time() - began) / jobs
            finally:
                app.use(before)

    # The first run of each warms up.
    pairs = [(bare(), task()) for _ in range(rounds + 1)][1:]
    return statistics.median(with_task - without for without, with_task in pairs) * 1e6


def main() -> None:
    quick = sys.argv[1:] == ["--quick"]
    rounds = 1 if quick else 3
    told = {
        "lone_worker_jobs_per_put": lone(20 if quick else 200, rounds),
        "busy_worker": busy(10 if quick else 60, rounds),
        "pool_scaling": scaling(4 if quick else 60, LOOPS, rounds),
        "task_overhead_us": overhead_us(200 if quick else 3000, 1 if quick else 5),
    }
    for name, aim in AIMS.items():
        value, most = told[name], name.endswith("_us")
        met = value <= aim if most else value >= aim
        words = "at most" if most else "at least"
        print(f"{name:26} {value:10.3f}   {words} {aim}{'' if met else '   MISSED'}", file=sys.stderr)
    print(f"{os.cpu_count()} processors", file=sys.stderr)
    print(json.dumps(told))


if __name__ == "__main__":
    main()
