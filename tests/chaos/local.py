"""The process in Local mode: rounds of changes on this machine, each published by a sync or dropped.

The directory acknowledges an op (`loc`) long before a sync publishes it (`synced`), or before it is dropped because
another writer was faster (`discarded`). If the process is killed in between, the directory must still have the op: each
process begins with an image of the directory that it finds (`woke`).
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import bucketq
from diary import Diary
from faces import drive, pause, settled
from task import PASSES as NETWORK
from task import Task

# Includes a full disk: work continues once there is room.
PASSES = (*NETWORK, bucketq.QueueFull)


class Local(Task):
    """The one caller, who owns the directory."""

    def __init__(self, file: bucketq.QueueFile, orders: dict[str, Any], diary: Diary) -> None:
        super().__init__(file, orders, diary, 0)
        self.shown = 0

    async def asked(self, op: str, call: Any, **facts: Any) -> Any:
        number = self.diary.ask(op, local=True, **facts)
        try:
            answer = await settled(call())
        except bucketq.Error as error:
            self.diary.note("ans", n=number, err=type(error).__name__, code=error.code, why=error.message)
            if isinstance(error, bucketq.Corrupt | bucketq.Closed):
                self.diary.note("!", why=str(error))
            return None
        self.diary.note("loc", n=number)
        return answer if answer is not None else True

    async def round(self) -> None:
        """Start from the newest state, make some changes, and sync. Short rounds publish, long ones lose the race."""
        if not self.file.dirty:
            self.file.snapshot()
        for _ in range(self.dice.choice((1, 1, 1, 2, 4))):
            if self.dice.random() < 0.6:
                await self.enqueue()
            else:
                await self.claim()
        if self.dice.random() < 0.9:
            self.publish()

    def publish(self) -> None:
        try:
            self.diary.note("synced", seq=self.file.sync().commit_seq)
        except bucketq.Diverged as error:
            self.diary.note("trouble", code=error.code, why=error.message)
            if self.dice.random() < 0.3:
                self.show()
            self.diary.note("discarding")
            self.file.snapshot(discard=True)
            self.diary.note("discarded")

    def show(self) -> None:
        """Export the state of this machine, published or not."""
        path = f"{self.orders['images']}/{Path(self.orders['diary']).stem}-{self.shown}.sqlite"
        self.shown += 1
        asked = self.diary.ask("woke", path=path)
        self.file.export_pending(path)
        self.diary.note("ans", n=asked, ok=True)

    async def step(self) -> None:
        try:
            await self.round()
        except (*PASSES, bucketq.Diverged) as error:
            # A discard failed half way: its changes are either still Diverged, or dropped.
            self.diary.note("trouble", code=error.code, why=error.message)
            await self.pause(0.2)
        await self.pause(0.05)


def local(orders: dict[str, Any], diary: Diary) -> None:
    while True:
        try:
            file = bucketq.open(orders["url"], mode="local", **orders["settings"])
            break
        except PASSES as error:
            diary.note("trouble", code=error.code, why=error.message)
            pause(0.2)
    task = Local(file, orders, diary)
    try:
        task.show()
        while not Path(orders["idle"]).exists():
            drive(task.step())
        until = time.monotonic() + 30
        while file.dirty and time.monotonic() < until:
            drive(come_to_rest(task))
        if file.dirty:
            diary.note("!", why=f"what is pending is neither published nor dropped: {file.dirty}")
    except BaseException as error:
        diary.note("!", why=repr(error))
    diary.note("idle")
    threading.Event().wait()


async def come_to_rest(task: Local) -> None:
    try:
        task.publish()
    except PASSES as error:
        task.diary.note("trouble", code=error.code, why=error.message)
        await task.pause(0.2)
