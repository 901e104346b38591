"""huey, on Redis or on SQLite with a sync of each commit."""

from __future__ import annotations

import os

import done
from huey import RedisHuey, SqliteHuey

if "BENCH_SQLITE" in os.environ:
    huey = SqliteHuey("bench", filename=os.environ["BENCH_SQLITE"], fsync=True, results=False)
else:
    huey = RedisHuey("bench", url=os.environ["BENCH_REDIS"], results=False)
TASKS = {kind: huey.task(name=kind)(getattr(done, kind)) for kind in ("nothing", "nap")}


def enqueue(kind: str, tag: str) -> None:
    TASKS[kind](tag)


def bulk(kind: str, tags: list[str]) -> None:
    for tag in tags:
        TASKS[kind](tag)
