"""One process of the comparison: a number of callers in a closed loop of enqueue, claim, ack.

Usage: caller.py ORDERS, as `run.py` writes them. It opens the queue, says `ready`, and replies to lines of its standard
input with lines of JSON: `go` runs the loop, `drain` empties the queue, `wait S` waits for jobs, `left` lists the ids
in the queue.
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

from adapters import ALL
from peer import Peer

# Seconds that a cell waits for its last calls.
PATIENCE = 5.0


class Tally:
    """The results of this process's callers. Times and speed are from after the warm-up, the rest from the start."""

    def __init__(self, orders: dict[str, Any]) -> None:
        self.callers: int = orders["callers"]
        self.warm: float = orders["warm"]
        self.seconds: float = orders["seconds"]
        self.times: dict[str, list[float]] = {"enqueue": [], "claim": [], "ack": []}
        self.enqueued: list[str] = []
        self.claimed: list[str] = []
        self.acked: list[str] = []
        self.errors: Counter[str] = Counter()
        self.examples: dict[str, str] = {}
        self.measuring = False
        self.stopped = False

    def took(self, op: str, began: float, measuring: bool) -> None:
        if measuring:
            self.times[op].append(perf_counter() - began)

    def failed(self, op: str, error: Exception) -> None:
        name = f"{op}: {type(error).__name__}"
        self.errors[name] += 1
        self.examples.setdefault(name, str(error)[:200])

    def told(self, jobs_s: float) -> dict[str, Any]:
        return {
            "jobs_s": jobs_s,
            "times_ms": {op: [round(t * 1000, 3) for t in times] for op, times in self.times.items()},
            "enqueued": self.enqueued,
            "claimed": self.claimed,
            "acked": self.acked,
            "errors": dict(+self.errors),
            "examples": self.examples,
        }


async def with_tasks(peer: Peer, tally: Tally) -> dict[str, Any]:
    async def loop() -> None:
        while not tally.stopped:
            op, began, measuring = "enqueue", perf_counter(), tally.measuring
            try:
                tally.enqueued.append(await peer.enqueue(os.urandom(200)))
                tally.took(op, began, measuring)
                op, began, measuring = "claim", perf_counter(), tally.measuring
                job = await peer.claim()
                tally.took(op, began, measuring)
                if job is None:
                    continue
                tally.claimed.append(str(job.id))
                op, began, measuring = "ack", perf_counter(), tally.measuring
                await peer.ack(job)
                tally.took(op, began, measuring)
                tally.acked.append(str(job.id))
            except Exception as error:
                tally.failed(op, error)
                await asyncio.sleep(0.01)

    tasks = [asyncio.create_task(loop()) for _ in range(tally.callers)]
    await asyncio.sleep(tally.warm)
    tally.measuring = True
    began, before = perf_counter(), len(tally.acked)
    await asyncio.sleep(tally.seconds)
    jobs_s = (len(tally.acked) - before) / (perf_counter() - began)
    tally.stopped = True
    _, late = await asyncio.wait(tasks, timeout=PATIENCE)
    for task in late:
        task.cancel()
        tally.errors["never answered"] += 1
    return tally.told(jobs_s)


def with_threads(peer: Peer, tally: Tally) -> dict[str, Any]:
    def loop() -> None:
        while not tally.stopped:
            op, began, measuring = "enqueue", perf_counter(), tally.measuring
            try:
                tally.enqueued.append(peer.enqueue(os.urandom(200)))
                tally.took(op, began, measuring)
                op, began, measuring = "claim", perf_counter(), tally.measuring
                job = peer.claim()
                tally.took(op, began, measuring)
                if job is None:
                    continue
                tally.claimed.append(str(job.id))
                op, began, measuring = "ack", perf_counter(), tally.measuring
                peer.ack(job)
                tally.took(op, began, measuring)
                tally.acked.append(str(job.id))
            except Exception as error:
                tally.failed(op, error)
                pause.wait(0.01)

    pause = threading.Event()
    threads = [threading.Thread(target=loop, daemon=True) for _ in range(tally.callers)]
    for thread in threads:
        thread.start()
    pause.wait(tally.warm)
    tally.measuring = True
    began, before = perf_counter(), len(tally.acked)
    pause.wait(tally.seconds)
    jobs_s = (len(tally.acked) - before) / (perf_counter() - began)
    tally.stopped = True
    until = perf_counter() + PATIENCE
    for thread in threads:
        thread.join(max(0.0, until - perf_counter()))
        tally.errors["never answered"] += thread.is_alive()
    return tally.told(jobs_s)


def line() -> list[str]:
    """Return the next command; empty at the end."""
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
                tell(await with_tasks(peer, Tally(orders)))
            case ["drain"]:
                while (job := await peer.claim()) is not None:
                    await peer.ack(job)
                tell("empty")
            case ["wait", seconds]:
                until = perf_counter() + float(seconds)
                while (left := until - perf_counter()) > 0:
                    await peer.wait(left)
                tell("waited")
            case _:
                tell(await peer.left())
    await peer.close()


def over_threads(peer: Peer, orders: dict[str, Any]) -> None:
    peer.open()
    if orders["fill"]:
        peer.fill(orders["fill"])
    tell("ready")
    while command := line():
        match command:
            case ["go"]:
                tell(with_threads(peer, Tally(orders)))
            case ["drain"]:
                while (job := peer.claim()) is not None:
                    peer.ack(job)
                tell("empty")
            case ["wait", seconds]:
                until = perf_counter() + float(seconds)
                while (left := until - perf_counter()) > 0:
                    peer.wait(left)
                tell("waited")
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
