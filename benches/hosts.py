"""One process of `make bench-hosts` in Python: `hosts.py blocking|async`. The program `hosts` starts it.

It speaks the protocol of `benches/src/hosts/child.rs`: a line of JSON names the queue file, each further line is an
order for a stretch of callers that enqueue, and the reply to each is a line of JSON. The process ends with its input.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from time import perf_counter, sleep
from typing import Any

import bucketq
from bucketq import aio

QUEUE = "bench"
PAYLOAD = 200
AFTER_ERROR = 0.01


def settings(place: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a process. Nothing else decides whether it shares a writer with the others."""
    return {"endpoint": place["endpoint"], "region": "us-east-1", "share": place["share"]}


class Seen:
    """The results of a stretch."""

    def __init__(self, order: dict[str, Any]) -> None:
        began = perf_counter()
        self.since = began + order["warm_ms"] / 1e3
        self.until = self.since + order["window_ms"] / 1e3
        self.callers = order["groups"][0]["callers"]
        self.times: list[tuple[float, float]] = []
        self.errors: list[str] = []

    def told(self) -> dict[str, Any]:
        """Return the results as JSON for the parent."""
        counted = [(began, ended) for began, ended in self.times if ended >= self.since]
        return {
            "all": len(self.times),
            "ops": sum(ended <= self.until for _, ended in counted),
            "times_us": [round((ended - began) * 1e6) for began, ended in counted],
            "errors": len(self.errors),
            "error": self.errors[0] if self.errors else None,
        }


def say(told: dict[str, Any]) -> None:
    """Reply with one line."""
    print(json.dumps(told), flush=True)


def with_threads(file: bucketq.QueueFile, seen: Seen) -> None:
    """Enqueue with threads until the stretch ends."""
    q = file.queue(QUEUE)

    def loop() -> None:
        while (began := perf_counter()) < seen.until:
            try:
                q.enqueue(os.urandom(PAYLOAD))
                seen.times.append((began, perf_counter()))
            except bucketq.Error as error:
                seen.errors.append(str(error))
                sleep(AFTER_ERROR)

    threads = [threading.Thread(target=loop) for _ in range(seen.callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


async def with_tasks(file: aio.QueueFile, seen: Seen) -> None:
    """Enqueue with tasks until the stretch ends."""
    q = file.queue(QUEUE)

    async def loop() -> None:
        while (began := perf_counter()) < seen.until:
            try:
                await q.enqueue(os.urandom(PAYLOAD))
                seen.times.append((began, perf_counter()))
            except bucketq.Error as error:
                seen.errors.append(str(error))
                await asyncio.sleep(AFTER_ERROR)

    await asyncio.gather(*(loop() for _ in range(seen.callers)))


def blocking(place: dict[str, Any]) -> None:
    """Carry out orders with threads."""
    began = perf_counter()
    with bucketq.open(place["url"], **settings(place)) as file:
        say({"open_us": round((perf_counter() - began) * 1e6)})
        for line in sys.stdin:
            seen = Seen(json.loads(line))
            with_threads(file, seen)
            say(seen.told())


async def awaiting(place: dict[str, Any]) -> None:
    """Carry out orders with tasks."""
    began = perf_counter()
    async with await aio.open(place["url"], **settings(place)) as file:
        say({"open_us": round((perf_counter() - began) * 1e6)})
        while line := await asyncio.to_thread(sys.stdin.readline):
            seen = Seen(json.loads(line))
            await with_tasks(file, seen)
            say(seen.told())


if __name__ == "__main__":
    first = json.loads(sys.stdin.readline())
    if sys.argv[1] == "async":
        asyncio.run(awaiting(first))
    else:
        blocking(first)
