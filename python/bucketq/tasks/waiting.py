"""Waits for several jobs side by side: together they read the store once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from bucketq import _convert as convert
from bucketq.errors import NotFound
from bucketq.tasks.result import ANY_QUEUE

if TYPE_CHECKING:
    from bucketq import aio
    from bucketq.types import JobDetail, Seconds

__all__ = ["Limit", "finished", "run"]

T = TypeVar("T")
AT_ONCE = 100
"""Jobs that one call waits for side by side."""


class Limit:
    """A time limit for several waits together."""

    def __init__(self, timeout: Seconds | None) -> None:
        ms = convert.maybe_millis(timeout, "timeout")
        self._end = None if ms is None else time.monotonic() + ms / 1000

    def left(self) -> float | None:
        """Return the seconds that are left."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())


async def finished(
    file: aio.QueueFile, ids: Iterable[str], limit: Limit
) -> AsyncGenerator[tuple[str, JobDetail | NotFound | None]]:
    """Return jobs as they finish: None in place of one that is not finished in time, NotFound for one that has left."""
    places = asyncio.Semaphore(AT_ONCE)

    async def one(id: str) -> tuple[str, JobDetail | NotFound | None]:
        async with places:
            try:
                return id, await file.queue(ANY_QUEUE).wait(id, timeout=limit.left())
            except NotFound as gone:
                return id, gone

    tasks = [asyncio.create_task(one(id)) for id in ids]
    try:
        for task in asyncio.as_completed(tasks):
            yield await task
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine for a synchronous call."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    # A synchronous call in a coroutine blocks its loop, as others do.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()
