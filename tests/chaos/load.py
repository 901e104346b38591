"""One Python process of a soak: producers at a steady rate, workers, and a report at regular times. See `soak.py`.

Usage: load.py ORDERS. Lines of its standard input end a part of it: `rest` the producers, `stop` the workers.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import random
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine
from typing import Any

import bucketq
from bucketq import New, aio
from faces import drive, pause, settled

PRODUCERS, WORKERS = 6, 8
LEASE = 30.0


class Tally:
    """The counts so far, and the times since the last report."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.took: defaultdict[str, list[float]] = defaultdict(list)

    def report(self) -> dict[str, Any]:
        took, self.took = self.took, defaultdict(list)
        return {"done": dict(self.done), "errors": dict(self.errors)} | {
            f"{op}_ms": [round(share(times, part) * 1000, 3) for part in (0.5, 0.99)]
            for op, times in took.items()
        }


def share(times: list[float], part: float) -> float:
    return sorted(times)[min(int(len(times) * part), len(times) - 1)]


class MallInfo(ctypes.Structure):
    """glibc's statistics of its heaps."""

    _fields_ = (
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd")),
        *((name, ctypes.c_size_t) for name in ("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")),
    )


def live_mb() -> float | None:
    """Return the memory in use, without Python's small objects; the process may have got more from the system."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallinfo2"):
        return None
    library.mallinfo2.restype = MallInfo
    told = library.mallinfo2()
    return float(told.uordblks + told.hblkhd) / 2**20


class Load:
    """The work of one process, on either API."""

    def __init__(self, file: Any, orders: dict[str, Any], sleep: Callable[[float], Any]) -> None:
        self.file, self.orders, self.sleep = file, orders, sleep
        self.dice = random.Random(orders["seed"])
        self.queue = file.queue("soak")
        self.tally = Tally()
        self.rest, self.stop = threading.Event(), threading.Event()
        self.hoard: list[bytes] | None = [] if orders["broken"] == "memory" else None

    async def asked(self, op: str, call: Callable[[], Any]) -> Any:
        begin = time.perf_counter()
        try:
            answer = await settled(call())
        except bucketq.Error as error:
            self.tally.errors[f"{op}: {error.code}"] += 1
            return None
        self.tally.took[op].append(time.perf_counter() - begin)
        return answer

    def job(self) -> New:
        dice, beat = self.dice, self.orders["beat"]
        extras: dict[str, Any] = {"priority": dice.randrange(-1, 2)}
        if dice.random() < 0.25:
            extras["delay"] = dice.uniform(0, 2 * beat)
        if dice.random() < 0.3:
            extras["group"] = f"g{dice.randrange(20)}"
        if dice.random() < 0.1:
            extras["dedup"] = f"k{dice.randrange(200)}"
        return New(dice.randbytes(dice.choice((60, 200, 200, 1500, 6000))), **extras)

    async def produce(self) -> None:
        period = PRODUCERS / self.orders["rate"]
        due = time.monotonic() + self.dice.uniform(0, period)
        while not self.rest.is_set():
            await settled(self.sleep(due - time.monotonic()))
            many = 5 if self.dice.random() < 0.02 else 1
            due = max(due + many * period, time.monotonic() - 5)
            jobs = [self.job() for _ in range(many)]
            told = await self.asked("enqueue", lambda jobs=jobs: self.queue.enqueue_many(jobs))
            for one in told or ():
                self.tally.done["deduplicated" if one.deduplicated else "enqueued"] += 1

    async def work(self) -> None:
        while not self.stop.is_set():
            try:
                jobs = await settled(self.queue.claim(8, lease=LEASE, wait=1))
            except bucketq.Error as error:
                self.tally.errors[f"claim: {error.code}"] += 1
                continue
            for job in jobs:
                await self.finish(job)

    async def finish(self, job: Any) -> None:
        roll = self.dice.randrange(100)
        if self.hoard is not None:
            self.hoard.append(bytes(job.payload) * 4)
        if roll == 0:
            done, call = "rejected", lambda: job.reject("no good")
        elif roll == 1:
            done, call = "released", job.release
        elif roll < 7:
            done, call = "nacked", lambda: job.nack("not yet", delay=self.orders["beat"] / 10)
        elif roll < 10:
            then = [New("soak", b"the next step")]
            done, call = "acked", lambda: job.ack(then=then)
        else:
            result = {"it": "is done"} if roll < 40 else None
            done, call = "acked", lambda: job.ack(result=result)
        before = sum(self.tally.errors.values())
        await self.asked("ack", call)
        if sum(self.tally.errors.values()) > before:
            return
        self.tally.done[done] += 1
        if 7 <= roll < 10:
            self.tally.done["enqueued"] += 1
        if done in ("acked", "rejected") and "bucketq-schedule" in job.headers:
            self.tally.done["fired"] += 1

    async def report(self) -> None:
        """Print a line at regular times, and one at the end."""
        due = time.monotonic()
        while not self.stop.is_set():
            due += self.orders["every"]
            await settled(self.sleep(due - time.monotonic()))
            told = self.tally.report()
            try:
                stats = await settled(self.file.stats(max_age=60))
            except bucketq.Error as error:
                self.tally.errors[f"stats: {error.code}"] += 1
                continue
            told["pages"], told["free_pages"] = stats.pages, stats.free_pages
            told["live_mb"] = live_mb()
            told["backlog"] = sum(q.counts[s] for q in stats.queues for s in ("scheduled", "ready", "leased"))
            print(json.dumps(told), flush=True)

    def programs(self) -> list[Coroutine[Any, Any, None]]:
        return [
            self.report(),
            *(self.produce() for _ in range(PRODUCERS)),
            *(self.work() for _ in range(WORKERS)),
        ]

    def listen(self) -> None:
        for line in sys.stdin:
            {"rest": self.rest, "stop": self.stop}[line.strip()].set()


async def opened(orders: dict[str, Any], face: Any) -> Any:
    while True:
        try:
            return await settled(face.open(orders["url"], **orders["settings"]))
        except bucketq.Contended:
            # The other processes have already started, and are faster.
            continue


def blocking(orders: dict[str, Any]) -> Tally:
    with drive(opened(orders, bucketq)) as file:
        load = Load(file, orders, pause)
        threads = [threading.Thread(target=drive, args=(one,)) for one in load.programs()]
        threading.Thread(target=load.listen, daemon=True).start()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return load.tally


async def awaiting(orders: dict[str, Any]) -> Tally:
    async with await opened(orders, aio) as file:
        load = Load(file, orders, lambda seconds: asyncio.sleep(max(seconds, 0)))
        threading.Thread(target=load.listen, daemon=True).start()
        await asyncio.gather(*load.programs())
    return load.tally


def main() -> None:
    orders = json.loads(sys.argv[1])
    tally = asyncio.run(awaiting(orders)) if orders["face"] == "aio" else blocking(orders)
    print(json.dumps(tally.report() | {"last": True}), flush=True)


if __name__ == "__main__":
    main()
