"""Measure the overhead of Python over the engine. `make bench-python`; `--quick` only shows that it runs.

A table with the aims goes to standard error, JSON to the last line of standard output. README.md explains each
key. The Rust side is the program `callers`; both take turns on stores of 25 ms, so that a slow moment hits both.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from resource import RUSAGE_CHILDREN, getrusage
from time import perf_counter, process_time

import bucketq
from bucketq import _native, aio

ROUND_TRIP_US = 25_000
WARM = 0.2
PAYLOAD = 200
AIMS = {
    "latency_ratio_1": ("at most", 1.05),
    "async64": ("at least", 0.90),
    "async512": ("at least", 0.65),
    "threads64": ("at least", 0.80),
    "call_overhead_us": ("under", 20),
    "async_overhead_us": ("under", 20),
    "enqueue_many_cpu_s": ("under", 0.5),
    "ack_claim_puts_per_job": ("at most", 1.05),
    "enqueue_work_puts_per_job": ("at most", 2.05),
    "import_ms": ("under", 80),
}


class Rust:
    """The engine without Python, in a process of its own."""

    def __init__(self, program: str) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([program], stdin=pipe, stdout=pipe, text=True, bufsize=1)

    def ops_s(self, callers: int, window: float) -> float:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(f"{callers} {round(window * 1000)}\n")
        ops, seconds = self.process.stdout.readline().split()
        return int(ops) / float(seconds)

    def close(self) -> None:
        self.process.communicate()


class Count:
    """Ops that returned, and when to stop."""

    def __init__(self) -> None:
        self.done = 0
        self.stopped = False


def far() -> _native.File:
    """Open a queue file behind a round trip, with a backlog."""
    file = _native.open_test({}, None, ROUND_TRIP_US).wait()
    bucketq.QueueFile(file, "bench").queue("bench").enqueue_many([os.urandom(PAYLOAD) for _ in range(100)])
    return file


def with_threads(file: _native.File, callers: int, window: float) -> float:
    """Return ops per second of this number of threads."""
    q, counts, stop = bucketq.Queue(file, "bench"), [0] * callers, threading.Event()

    def loop(me: int) -> None:
        while not stop.is_set():
            q.enqueue(os.urandom(PAYLOAD))
            counts[me] += 1
            job = q.claim_one(lease=600)
            counts[me] += 1
            assert job is not None
            job.ack()
            counts[me] += 1

    threads = [threading.Thread(target=loop, args=(me,)) for me in range(callers)]
    for thread in threads:
        thread.start()
    stop.wait(WARM)
    began, before = perf_counter(), sum(counts)
    stop.wait(window)
    done, seconds = sum(counts) - before, perf_counter() - began
    stop.set()
    for thread in threads:
        thread.join()
    return done / seconds


def with_tasks(file: _native.File, callers: int, window: float) -> float:
    """Return ops per second of this number of tasks."""
    q, count = aio.Queue(file, "bench"), Count()

    async def loop() -> None:
        while not count.stopped:
            await q.enqueue(os.urandom(PAYLOAD))
            count.done += 1
            job = await q.claim_one(lease=600)
            count.done += 1
            assert job is not None
            await job.ack()
            count.done += 1

    async def run() -> float:
        tasks = [asyncio.create_task(loop()) for _ in range(callers)]
        await asyncio.sleep(WARM)
        began, before = perf_counter(), count.done
        await asyncio.sleep(window)
        done, seconds = count.done - before, perf_counter() - began
        count.stopped = True
        await asyncio.gather(*tasks)
        return done / seconds

    return asyncio.run(run())


def efficiency(rust: Rust, run: Callable[..., float], callers: int, window: float, rounds: int) -> float:
    """Return ops per second over those of Rust with as many callers, taking turns."""
    file = far()
    pairs = [(run(file, callers, window), rust.ops_s(callers, window)) for _ in range(rounds)]
    file.close().wait()
    return sum(python for python, _ in pairs) / sum(engine for _, engine in pairs)


def least(measure: Callable[[], float], times: int) -> float:
    """Return the lowest of several measurements: the one that the rest of the machine disturbed least."""
    return min(measure() for _ in range(times))


def call_overhead_us(calls: int) -> float:
    """Measure a blocking call without any work in the engine."""
    file = _native.open_test({}).wait()

    def once() -> float:
        began = perf_counter()
        for _ in range(calls):
            file.flush().wait()
        return (perf_counter() - began) / calls * 1e6

    result = least(once, 5)
    file.close().wait()
    return result


def async_overhead_us(calls: int, tasks: int = 64) -> float:
    """Measure the same call awaited, by many tasks at once."""
    file = _native.open_test({}).wait()

    async def loop() -> None:
        for _ in range(calls // tasks):
            await file.flush()

    async def once() -> float:
        began = perf_counter()
        await asyncio.gather(*(loop() for _ in range(tasks)))
        return (perf_counter() - began) / (calls // tasks * tasks) * 1e6

    result = least(lambda: asyncio.run(once()), 5)
    file.close().wait()
    return result


def enqueue_many_cpu_s() -> float:
    """Measure the processor time of enqueueing ten thousand small jobs, all threads of the process together."""
    with bucketq.QueueFile(_native.open_test({}).wait(), "many") as file:
        q = file.queue("q")

        def once() -> float:
            began = process_time()
            q.enqueue_many({"n": n} for n in range(10_000))
            return process_time() - began

        return least(once, 3)


def ack_claim_puts_per_job(jobs: int) -> dict[str, float]:
    """Count the commits for each job of a worker that works alone: on a backlog, and with its enqueue."""
    with bucketq.QueueFile(_native.open_test({}).wait(), "alone") as file:
        q = file.queue("q")

        def puts() -> int:
            return file.metrics().requests["put"]

        q.enqueue_many(range(jobs))
        worker, before = bucketq.Worker(file, concurrency=1), puts()
        worker.handles("q")(lambda job: None)
        assert worker.run(wait=0).done == jobs
        alone, before = puts() - before, puts()
        q.enqueue(0)
        job = q.claim_one(lease=600)
        for n in range(jobs):
            q.enqueue(n)
            assert job is not None
            job = job.ack(next=True)
        return {"alone": alone / jobs, "enqueued": (puts() - before) / jobs}


def import_ms(times: int) -> float:
    """Measure the processor time of importing the package in a fresh interpreter, minus that of an empty one."""

    def fresh(code: str) -> float:
        def once() -> float:
            before = getrusage(RUSAGE_CHILDREN)
            subprocess.run([sys.executable, "-c", code], check=True)
            after = getrusage(RUSAGE_CHILDREN)
            return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e3

        return least(once, times)

    return fresh("import bucketq") - fresh("")


def main() -> None:
    program, *flags = sys.argv[1:]
    quick = flags == ["--quick"]
    window, rounds, calls = (0.3, 1, 640) if quick else (2.0, 3, 6400)
    rust = Rust(program)
    alone = ack_claim_puts_per_job(100)
    told = {
        "latency_ratio_1": 1 / efficiency(rust, with_threads, 1, window, rounds),
        "efficiency": {
            "async64": efficiency(rust, with_tasks, 64, window, rounds),
            "async512": efficiency(rust, with_tasks, 512, window, rounds),
            "threads64": efficiency(rust, with_threads, 64, window, rounds),
        },
        "call_overhead_us": call_overhead_us(calls),
        "async_overhead_us": async_overhead_us(calls),
        "enqueue_many_cpu_s": enqueue_many_cpu_s(),
        "ack_claim_puts_per_job": alone["alone"],
        "enqueue_work_puts_per_job": alone["enqueued"],
        "import_ms": import_ms(3 if quick else 15),
    }
    rust.close()
    flat = {**told, **told["efficiency"]}
    for name, (words, aim) in AIMS.items():
        value = flat[name]
        met = value >= aim if words == "at least" else value <= aim
        print(f"{name:20} {value:10.3f}   {words} {aim}{'' if met else '   MISSED'}", file=sys.stderr)
    print(json.dumps(told))


if __name__ == "__main__":
    main()
