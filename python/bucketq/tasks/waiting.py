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

__all__ = ["finished", "run"]

T = TypeVar("T")
AT_ONCE = 100
"""Jobs that one call waits for side by side."""


async def finished(
    file: aio.QueueFile, ids: Iterable[str], timeout: Seconds | None
) -> AsyncGenerator[tuple[str, JobDetail | NotFound | None]]:
    """Return jobs as they finish: None in place of one that is not finished in time, NotFound for one that has left."""
    limit = convert.maybe_millis(timeout, "timeout")
    end = None if limit is None else time.monotonic() + limit / 1000
    places = asyncio.Semaphore(AT_ONCE)

    async def one(id: str) -> tuple[str, JobDetail | NotFound | None]:
        async with places:
            left = None if end is None else max(0.0, end - time.monotonic())
            try:
                return id, await file.queue(ANY_QUEUE).wait(id, timeout=left)
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
