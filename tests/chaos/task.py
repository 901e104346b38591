"""The work of a Python process of a chaos run: random calls on either API, each between two lines of the diary."""

from __future__ import annotations

import asyncio
import random
import tempfile
from pathlib import Path
from typing import Any
from uuid import uuid4

import bucketq
from bucketq import New
from diary import Diary, now
from faces import pause, settled

LEASE = 4.0
# Errors after which a process continues; others must not occur.
PASSES = (bucketq.Unavailable, bucketq.Contended, bucketq.OutcomeUnknown)


class Task:
    """One caller at work."""

    def __init__(self, file: Any, orders: dict[str, Any], diary: Diary, number: int) -> None:
        self.file, self.orders, self.diary = file, orders, diary
        self.awaits = orders["face"] == "aio"
        self.dice = random.Random(f"{orders['seed']} {orders['life']} {number}")
        self.queue = file.queue(f"q{orders['number'] % 3}")
        self.mine: list[str] = []

    async def asked(self, op: str, call: Any, **facts: Any) -> Any:
        """Make a call between two lines of the diary. Return None if it failed."""
        number = self.diary.ask(op, **facts)
        try:
            answer = await self.perhaps_cancelled(call)
        except TimeoutError:
            self.diary.note("ans", n=number, err="Cancelled", code="cancelled")
            return None
        except bucketq.Error as error:
            self.diary.note("ans", n=number, err=type(error).__name__, code=error.code, why=error.message)
            if isinstance(error, bucketq.Corrupt | bucketq.Closed | bucketq.Diverged):
                self.diary.note("!", why=str(error))
            return None
        told = {"jobs": [self.told(job) for job in answer]} if op == "claim" else {}
        if op in ("enqueue", "read"):
            told["seq"] = answer if op == "read" else max(one.commit_seq for one in answer)
        self.diary.note("ans", n=number, ok=True, **told)
        return answer if answer is not None else True

    async def perhaps_cancelled(self, call: Any) -> Any:
        """Cancel some calls of the async API in the middle: their jobs must come back by themselves."""
        if not self.awaits:
            return await settled(call())
        async with asyncio.timeout(self.dice.uniform(0, 0.1) if self.dice.random() < 0.05 else None):
            return await settled(call())

    async def pause(self, most: float) -> None:
        seconds = self.dice.uniform(0, most)
        await (asyncio.sleep(seconds) if self.awaits else settled(pause(seconds)))

    @staticmethod
    def told(job: bucketq.Job) -> list[Any]:
        return [job.id, job.fence, job.attempt, now() + int(job.remaining * 1e9)]

    def job(self) -> New:
        return New(
            self.dice.randbytes(self.dice.choice((50, 200, 200, 3000))), id=str(uuid4()), max_attempts=10_000
        )

    async def enqueue(self) -> None:
        jobs = [self.job() for _ in range(self.dice.choice((1, 1, 1, 2, 4)))]
        ids = [job.extras["id"] for job in jobs]
        if await self.asked("enqueue", lambda: self.queue.enqueue_many(jobs), jobs=ids):
            self.mine += ids

    async def cancel(self) -> None:
        if self.mine:
            job = self.mine.pop(self.dice.randrange(len(self.mine)))
            await self.asked("cancel", lambda: self.queue.cancel(job), job=job)

    async def claim(self) -> None:
        most = self.dice.choice((1, 2, 4))
        jobs = await self.asked("claim", lambda: self.file.claim(most, lease=LEASE), most=most)
        for job in jobs or ():
            if self.dice.random() < 0.1:
                await self.pause(0.3)
            await self.finish(job)

    async def finish(self, job: Any) -> None:
        # Read before the check: a process stopped in between must not claim to have held the job all the while.
        at = now()
        if not job.lost and job.remaining > 0:
            self.diary.note("held", job=job.id, fence=job.fence, at=at)
        facts = {"job": job.id, "fence": job.fence, "word": uuid4().hex}
        word = facts["word"]
        match self.dice.randrange(20):
            case n if n < 9:
                await self.asked("ack", lambda: job.ack(result=word), **facts)
            case n if n < 13:
                then = [self.job() for _ in range(2)]
                ids = [one.extras["id"] for one in then]
                await self.asked("ack", lambda: job.ack(result=word, then=then), then=ids, **facts)
            case n if n < 16:
                await self.asked("nack", lambda: job.nack(word, delay=self.dice.uniform(0, 1)), **facts)
            case n if n < 18:
                await self.asked("release", job.release, **facts)
            case 18:
                await self.asked("reject", lambda: job.reject(word), **facts)
            # Forgotten: its lease is no longer renewed, and ends by itself.
            case _:
                self.diary.note("dropped", job=job.id, fence=job.fence)

    async def read(self) -> None:
        await self.asked("read", self.newest)

    async def newest(self) -> int:
        return (await settled(self.file.stats())).commit_seq

    async def step(self) -> None:
        roll = self.dice.randrange(100)
        if roll < 34:
            await self.enqueue()
        elif roll < 90:
            await self.claim()
        elif roll < 94:
            await self.cancel()
        else:
            await self.read()
        await self.pause(0.05)


class Janitor(Task):
    """A caller that only does maintenance, very often: collections without grace, checks, exports, settling."""

    async def step(self) -> None:
        match self.dice.randrange(8):
            case 0:
                await self.asked("check", self.check)
            case 1:
                with tempfile.TemporaryDirectory() as folder:
                    image = Path(folder) / "image.sqlite"
                    await self.asked("export", lambda: self.file.export(image))
            case 2:
                await self.asked("settle", lambda: self.file.settle())
            case _:
                await self.asked("collect", lambda: self.file.collect(grace=0))
        await self.pause(0.1)

    async def check(self) -> None:
        report = bucketq.check(self.orders["url"], **self.orders["settings"])
        if not report.clean or (report.foreign and report.foreign.count):
            self.diary.note("!", why=f"a check found {report.problems} {report.foreign}")
