"""One process of the comparison: so many callers in a closed loop of enqueue, claim, ack.

Usage: caller.py ORDERS, as `run.py` writes them. It opens the queue, says `ready`, and answers lines of its standard
input with lines of JSON: `go` runs the loop, `wait S` waits for jobs on an empty queue, `left` tells what is there.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections import Counter
from time import perf_counter
from typing import Any

from adapters import ALL, Peer

# Longer than this no cell waits for its last calls.
PATIENCE = 10.0


class Tally:
    """What the callers of this process saw."""

    def __init__(self) -> None:
        self.times: dict[str, list[float]] = {"enqueue": [], "claim": [], "ack": []}
        self.enqueued: list[str] = []
        self.acked: list[str] = []
        self.doubtful: list[str] = []
        self.errors: Counter[str] = Counter()
        self.stopped = False

    def failed(self, op: str, error: Exception) -> None:
        self.errors[f"{op}: {type(error).__name__}"] += 1

    def told(self, seconds: float, begun: int) -> dict[str, Any]:
        return {
            "jobs_s": begun / seconds,
            "times_ms": {op: [round(t * 1000, 3) for t in times] for op, times in self.times.items()},
            "enqueued": self.enqueued,
            "acked": self.acked,
            "doubtful": self.doubtful,
            "errors": dict(self.errors),
        }


async def with_tasks(peer: Peer, callers: int, seconds: float, tally: Tally) -> dict[str, Any]:
    async def loop() -> None:
        while not tally.stopped:
            op, began = "enqueue", perf_counter()
            try:
                tally.enqueued.append(await peer.enqueue(os.urandom(200)))
                tally.times[op].append(perf_counter() - began)
                op, began = "claim", perf_counter()
                job = await peer.claim()
                tally.times[op].append(perf_counter() - began)
                if job is None:
                    continue
                op, began = "ack", perf_counter()
                tally.doubtful.append(job.id)
                await peer.ack(job)
                tally.times[op].append(perf_counter() - began)
                tally.acked.append(job.id)
            except Exception as error:
                tally.failed(op, error)
                await asyncio.sleep(0.01)

    tasks = [asyncio.create_task(loop()) for _ in range(callers)]
    began, before = perf_counter(), len(tally.acked)
    await asyncio.sleep(seconds)
    took, done = perf_counter() - began, len(tally.acked) - before
    tally.stopped = True
    _, late = await asyncio.wait(tasks, timeout=PATIENCE)
    for task in late:
        task.cancel()
        tally.errors["never answered"] += 1
    return tally.told(took, done)


def with_threads(peer: Peer, callers: int, seconds: float, tally: Tally) -> dict[str, Any]:
    def loop() -> None:
        while not tally.stopped:
            op, began = "enqueue", perf_counter()
            try:
                tally.enqueued.append(peer.enqueue(os.urandom(200)))
                tally.times[op].append(perf_counter() - began)
                op, began = "claim", perf_counter()
                job = peer.claim()
                tally.times[op].append(perf_counter() - began)
                if job is None:
                    continue
                op, began = "ack", perf_counter()
                tally.doubtful.append(job.id)
                peer.ack(job)
                tally.times[op].append(perf_counter() - began)
                tally.acked.append(job.id)
            except Exception as error:
                tally.failed(op, error)
                pause.wait(0.01)

    pause = threading.Event()
    threads = [threading.Thread(target=loop, daemon=True) for _ in range(callers)]
    began, before = perf_counter(), len(tally.acked)
    for thread in threads:
        thread.start()
    pause.wait(seconds)
    took, done = perf_counter() - began, len(tally.acked) - before
    tally.stopped = True
    until = perf_counter() + PATIENCE
    for thread in threads:
        thread.join(max(0.0, until - perf_counter()))
        tally.errors["never answered"] += thread.is_alive()
    return tally.told(took, done)


def line() -> list[str]:
    """The next command; none at the end."""
    return sys.stdin.readline().split()


def tell(what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


async def over_tasks(peer: Peer, orders: dict[str, Any]) -> None:
    await peer.open()
    if orders["fill"]:
        await peer.fill(orders["fill"])
    tell("ready")
    while command := await asyncio.to_thread(line):
        match command:
            case ["go"]:
                tell(await with_tasks(peer, orders["callers"], orders["seconds"], Tally()))
            case ["wait", seconds]:
                tell(await waiting(peer, float(seconds)))
            case _:
                tell(await peer.left())
    await peer.close()


async def waiting(peer: Peer, seconds: float) -> int:
    """Ask for jobs as often as the peer's own documentation does. Answers how often it asked."""
    until, polls = perf_counter() + seconds, 0
    while perf_counter() < until:
        polls += 1
        job = await peer.claim()
        if job is not None:
            await peer.ack(job)
        elif not peer.waits:
            await asyncio.sleep(min(peer.poll, max(0, until - perf_counter())))
    return polls


def over_threads(peer: Peer, orders: dict[str, Any]) -> None:
    peer.open()
    if orders["fill"]:
        peer.fill(orders["fill"])
    tell("ready")
    while command := line():
        match command:
            case ["go"]:
                tell(with_threads(peer, orders["callers"], orders["seconds"], Tally()))
            case ["wait", seconds]:
                tell(0 if peer.wait is None else peer.wait(float(seconds)))
            case _:
                tell(peer.left())
    peer.close()


def main() -> None:
    orders = json.loads(sys.argv[1])
    store = orders["store"]
    os.environ |= {
        "AWS_ACCESS_KEY_ID": store["access_key"],
        "AWS_SECRET_ACCESS_KEY": store["secret_key"],
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": store["endpoint"],
        "AWS_ENDPOINT": store["endpoint"],
        "AWS_ALLOW_HTTP": "true",
    }
    peer = ALL[orders["peer"]](store, orders["place"])
    if peer.tasks:
        asyncio.run(over_tasks(peer, orders))
    else:
        over_threads(peer, orders)


if __name__ == "__main__":
    main()
