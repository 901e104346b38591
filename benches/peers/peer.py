"""The interface of every adapter: the same three calls. `enqueue` returns an id, `claim` a handle with that id or None,
and `ack` finishes it.

There is one class per configuration. `tasks` says whether callers are tasks of one loop or threads. `fill` enqueues a
backlog as fast as it can, before the measurement; `left` returns the ids that are still in the queue afterwards; `wait`
waits up to a number of seconds for a job, in the way the queue's documentation recommends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

LEASE = 300


class Peer:
    """The base of every adapter. `place` is the queue's own name or directory, `store` how to reach the server."""

    tasks: ClassVar[bool] = True
    # Whether it works on the server, or on this machine.
    remote: ClassVar[bool] = True
    # A call returns once the change is in the store. Queues that publish later are not compared with those that do not.
    durable: ClassVar[bool] = True
    # Whether several processes may use it at once.
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
    """An adapter that polls while the queue is empty."""

    async def wait(self, seconds: float) -> Any:
        await asyncio.sleep(min(self.poll, seconds))
        return await self.claim()


async def at_once(count: int, one: Callable[[], Awaitable[Any]]) -> None:
    """Make `count` calls, 64 of them at a time."""
    limit = asyncio.Semaphore(64)

    async def limited() -> None:
        async with limit:
            await one()

    await asyncio.gather(*(limited() for _ in range(count)))
