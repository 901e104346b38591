"""One Python process of a chaos run: it enqueues, claims and finishes jobs, or keeps house, until it is killed.

Usage: worker.py ORDERS, with ORDERS as `run.py` writes them. What it asks and what it is told stands in its diary.
"""

from __future__ import annotations

import json
import random
import select
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import bucketq
from bucketq import New
from diary import Diary, now

LEASE = 4.0


def pause(seconds: float) -> None:
    """`time.sleep` fails when the wall clock is set meanwhile by libfaketime."""
    select.select((), (), (), seconds)


class Task:
    """One caller at work."""

    def __init__(self, file: bucketq.QueueFile, orders: dict[str, Any], diary: Diary, number: int) -> None:
        self.file, self.orders, self.diary = file, orders, diary
        self.dice = random.Random(f"{orders['seed']} {orders['life']} {number}")
        self.queue = file.queue(f"q{orders['number'] % 3}")
        self.mine: list[str] = []
        self.doubtful: list[list[str]] = []

    def asked(self, op: str, call: Any, **facts: Any) -> Any:
        """Make a call between two lines of the diary. None if it failed."""
        number = self.diary.ask(op, **facts)
        try:
            answer = call()
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

    @staticmethod
    def told(job: bucketq.Job) -> list[Any]:
        return [job.id, job.fence, job.attempt, now() + int(job.remaining * 1e9)]

    def job(self) -> New:
        return New(
            self.dice.randbytes(self.dice.choice((50, 200, 200, 3000))), id=str(uuid4()), max_attempts=10_000
        )

    def enqueue(self) -> None:
        jobs = [self.job() for _ in range(self.dice.choice((1, 1, 1, 2, 4)))]
        ids = [job.extras["id"] for job in jobs]
        if self.asked("enqueue", lambda: self.queue.enqueue_many(jobs), jobs=ids):
            self.mine += ids

    def cancel(self) -> None:
        if self.mine:
            job = self.mine.pop(self.dice.randrange(len(self.mine)))
            self.asked("cancel", lambda: self.queue.cancel(job), job=job)

    def claim(self) -> None:
        most = self.dice.choice((1, 2, 4))
        jobs = self.asked("claim", lambda: self.file.claim(most, lease=LEASE), most=most)
        for job in jobs or ():
            if self.dice.random() < 0.1:
                pause(self.dice.uniform(0, 0.3))
            self.finish(job)

    def finish(self, job: bucketq.Job) -> None:
        # Stopped between the look and the note, it must not claim to have held the job all the while.
        at = now()
        if not job.lost and job.remaining > 0:
            self.diary.note("held", job=job.id, fence=job.fence, at=at)
        facts = {"job": job.id, "fence": job.fence, "word": uuid4().hex}
        word = facts["word"]
        match self.dice.randrange(20):
            case n if n < 9:
                self.asked("ack", lambda: job.ack(result=word), **facts)
            case n if n < 13:
                then = [self.job() for _ in range(2)]
                ids = [one.extras["id"] for one in then]
                self.asked("ack", lambda: job.ack(result=word, then=then), then=ids, **facts)
            case n if n < 16:
                self.asked("nack", lambda: job.nack(word, delay=self.dice.uniform(0, 1)), **facts)
            case n if n < 18:
                self.asked("release", job.release, **facts)
            case 18:
                self.asked("reject", lambda: job.reject(word), **facts)
            # Forgotten: nobody extends it any more, and the lease runs out by itself.
            case _:
                self.diary.note("dropped", job=job.id, fence=job.fence)

    def read(self) -> None:
        self.asked("read", lambda: self.file.stats().commit_seq)

    def step(self) -> None:
        roll = self.dice.randrange(100)
        if roll < 34:
            self.enqueue()
        elif roll < 90:
            self.claim()
        elif roll < 94:
            self.cancel()
        else:
            self.read()
        pause(self.dice.uniform(0, 0.05))


class Janitor(Task):
    """Keeps house at a frantic pace: collections without grace, checks, exports, settling."""

    def step(self) -> None:
        match self.dice.randrange(8):
            case 0:
                self.asked("check", self.check)
            case 1:
                with tempfile.TemporaryDirectory() as folder:
                    image = Path(folder) / "image.sqlite"
                    self.asked("export", lambda: self.file.export(image))
            case 2:
                self.asked("settle", lambda: self.file.settle())
            case _:
                self.asked("collect", lambda: self.file.collect(grace=0))
        pause(self.dice.uniform(0, 0.1))

    def check(self) -> None:
        report = bucketq.check(self.orders["url"], **self.orders["settings"])
        if not report.clean or (report.foreign and report.foreign.count):
            self.diary.note("!", why=f"a check found {report.problems} {report.foreign}")


def witness(orders: dict[str, Any], diary: Diary) -> None:
    """Again and again, open the file as somebody who has never seen it, and keep what it shows."""
    for number in range(10_000):
        pause(orders["every"])
        if Path(orders["idle"]).exists():
            return
        path = f"{orders['images']}/image-{number:04}.sqlite"
        asked = diary.ask("witness", path=path)
        try:
            with bucketq.open(orders["url"], **orders["settings"]) as file:
                seq = file.export(path).commit_seq
            diary.note("ans", n=asked, ok=True, seq=seq)
        except (bucketq.Unavailable, bucketq.Contended, bucketq.OutcomeUnknown) as error:
            diary.note("ans", n=asked, err=type(error).__name__, code=error.code)


def drain(orders: dict[str, Any], diary: Diary) -> None:
    """Afterwards: finish every job that is left, look at the file, and export it."""
    with bucketq.open(orders["url"], **orders["settings"]) as file:
        task = Task(file, orders, diary, 0)
        task.asked("settle", lambda: file.settle())
        until = time.monotonic() + orders["patience"]
        while any(q.counts[s] for q in file.queues() for s in ("scheduled", "ready", "leased")):
            if time.monotonic() > until:
                diary.note("!", why="jobs are left that nobody can claim")
                break
            jobs = task.asked("claim", lambda: file.claim(200, lease=60), most=200) or ()
            for part in (jobs[i : i + 100] for i in range(0, len(jobs), 100)):
                with file.atomic() as tx:
                    for job in part:
                        tx.ack(job)
            if not jobs:
                pause(0.2)
        report = bucketq.check(orders["url"], **orders["settings"])
        collected = file.collect(grace=0)
        seq = file.export(orders["image"]).commit_seq
    if not report.clean or collected.left:
        diary.note("!", why=f"in the end: {report.problems} {collected}")
    diary.note("drained", seq=seq, jobs=report.jobs)


def refused(orders: dict[str, Any], diary: Diary) -> None:
    """A store that ignores conditions must not be used."""
    try:
        bucketq.open(orders["url"], **orders["settings"]).close()
        diary.note("!", why="a store without compare-and-swap was trusted")
    except bucketq.Unavailable as error:
        diary.note("refused", code=error.code)


LAST = {"witness": witness, "drain": drain, "refused": refused}


def main() -> None:
    orders = json.loads(sys.argv[1])
    diary = Diary(orders["diary"])
    if orders["role"] in LAST:
        LAST[orders["role"]](orders, diary)
        return
    idle = Path(orders["idle"])
    number = diary.ask("open")
    while True:
        try:
            file = bucketq.open(orders["url"], **orders["settings"])
            seq = file.stats().commit_seq
            break
        except (bucketq.Unavailable, bucketq.Contended, bucketq.OutcomeUnknown) as error:
            diary.note("trouble", code=error.code, why=error.message)
            pause(0.2)
    diary.note("up", n=number, seq=seq)
    kind = Janitor if orders["role"] == "janitor" else Task
    tasks = [kind(file, orders, diary, i) for i in range(1 if kind is Janitor else 3)]

    def work(task: Task) -> None:
        try:
            while not idle.exists():
                task.step()
        except BaseException as error:
            diary.note("!", why=repr(error))

    threads = [threading.Thread(target=work, args=(task,), daemon=True) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    diary.note("idle")
    threading.Event().wait()


if __name__ == "__main__":
    main()
