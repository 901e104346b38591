"""One Python process of a chaos run: it enqueues, claims and finishes jobs, or does maintenance, until killed.

Usage: worker.py ORDERS, with ORDERS as `run.py` writes them. Its diary records its calls and their outcomes.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from pathlib import Path
from typing import Any

import bucketq
from bucketq import aio
from diary import Diary
from faces import drive, pause, settled
from last import LAST
from local import local
from task import PASSES, Janitor, Task

TASKS = 3


async def opened(orders: dict[str, Any], diary: Diary) -> Any:
    """Return the file, once it can be opened."""
    while True:
        try:
            return await settled(
                (aio if orders["face"] == "aio" else bucketq).open(orders["url"], **orders["settings"])
            )
        except PASSES as error:
            diary.note("trouble", code=error.code, why=error.message)
            await (asyncio.sleep(0.2) if orders["face"] == "aio" else settled(pause(0.2)))


async def work(task: Task) -> None:
    idle = Path(task.orders["idle"])
    try:
        # Looking for a file takes hardly any time.
        while not idle.exists():  # noqa: ASYNC240
            await task.step()
    except BaseException as error:
        task.diary.note("!", why=repr(error))


async def up(orders: dict[str, Any], diary: Diary) -> list[Task]:
    """Return the callers of this process, on an open file."""
    number = diary.ask("open")
    while True:
        file = await opened(orders, diary)
        try:
            seq = (await settled(file.stats())).commit_seq
            break
        except PASSES as error:
            diary.note("trouble", code=error.code, why=error.message)
    diary.note("up", n=number, seq=seq)
    if orders["role"] == "janitor":
        return [Janitor(file, orders, diary, 0)]
    return [Task(file, orders, diary, number) for number in range(TASKS)]


async def awaiting(orders: dict[str, Any], diary: Diary) -> None:
    await asyncio.gather(*(work(task) for task in await up(orders, diary)))
    diary.note("idle")
    await asyncio.Event().wait()


def blocking(orders: dict[str, Any], diary: Diary) -> None:
    tasks = drive(up(orders, diary))
    threads = [threading.Thread(target=drive, args=(work(task),), daemon=True) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    diary.note("idle")
    threading.Event().wait()


def main() -> None:
    orders = json.loads(sys.argv[1])
    diary = Diary(orders["diary"])
    if orders["face"] == "aio":
        asyncio.run(awaiting(orders, diary))
    else:
        (LAST | {"local": local}).get(orders["role"], blocking)(orders, diary)


if __name__ == "__main__":
    main()
