"""Processes that look at the file directly on the server, during the faults and after them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import bucketq
from diary import Diary
from faces import drive, pause
from task import PASSES, Task


def witness(orders: dict[str, Any], diary: Diary) -> None:
    """Open the file again and again as a new process would, and store an image of it."""
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
        except PASSES as error:
            diary.note("ans", n=asked, err=type(error).__name__, code=error.code)


def drain(orders: dict[str, Any], diary: Diary) -> None:
    """After the faults: finish every job that is left, check the file, and export it."""
    with bucketq.open(orders["url"], **orders["settings"]) as file:
        task = Task(file, orders, diary, 0)
        drive(task.asked("settle", lambda: file.settle()))
        until = time.monotonic() + orders["patience"]
        while any(q.counts[s] for q in file.queues() for s in ("scheduled", "ready", "leased")):
            if time.monotonic() > until:
                diary.note("!", why="jobs are left that nobody can claim")
                break
            jobs = drive(task.asked("claim", lambda: file.claim(200, lease=60), most=200)) or ()
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
    """Check that a store that ignores conditions is refused."""
    try:
        bucketq.open(orders["url"], **orders["settings"]).close()
        diary.note("!", why="a store without compare-and-swap was trusted")
    except bucketq.Unavailable as error:
        diary.note("refused", code=error.code)


LAST = {"witness": witness, "drain": drain, "refused": refused}
