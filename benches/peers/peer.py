"""What every adapter has: the same three calls. `enqueue` answers an id, `claim` a handle with that id or None, `ack`
ends it.

One class a configuration. `tasks` says whether callers are tasks of one loop or threads. `fill` brings in a backlog as
fast as it can, before anything is measured; `left` tells the ids that are still in the queue afterwards; `wait` waits
at most so long for a job, in the way its documentation has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

LEASE = 300


class Peer:
    """What every adapter has. `place` is the queue's own name or directory, `store` how to reach the server."""

    tasks: ClassVar[bool] = True
    # Whether it works on the server at all, or on this machine.
    remote: ClassVar[bool] = True
    # What it answered is in the store. Those that publish later are no match for those that do not.
    durable: ClassVar[bool] = True
    # Several processes may use it at once.
    shared: ClassVar[bool] = True
    # Seconds between two claims on an empty queue.
    poll: ClassVar[float] = 1.0

    def __init__(self, store: dict[str, str], place: str) -> None:
        self.store, self.place = store, place

    # Pyright would have these abstract; half of them are async, half are not.
    open: Callable[..., Any]
    enqueue: Callable[[bytes], Any]
    claim: Callable[[], Any]
    ack: Callable[[Any], Any]
    fill: Callable[[int], Any]
    left: Callable[[], Any]
    wait: Callable[[float], Any]
    close: Callable[[], Any]


class Polled(Peer):
    """Asked again and again while the queue is empty."""

    async def wait(self, seconds: float) -> Any:
        await asyncio.sleep(min(self.poll, seconds))
        return await self.claim()


async def at_once(count: int, one: Callable[[], Awaitable[Any]]) -> None:
    """So many calls, 64 of them at a time."""
    limit = asyncio.Semaphore(64)

    async def limited() -> None:
        async with limit:
            await one()

    await asyncio.gather(*(limited() for _ in range(count)))
