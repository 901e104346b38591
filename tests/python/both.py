"""Blocking handles that look like those of ``bucketq.aio``: a test written once runs on both.

A coroutine of ``bucketq.aio`` runs the blocking call in its own thread here, so ``gather`` is as concurrent.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import bucketq
from bucketq import aio

PAIRS = {
    getattr(bucketq, name): getattr(aio, name) for name in aio.__all__ if inspect.isclass(getattr(aio, name))
}
END = object()


def lift(value: Any) -> Any:
    """Return the value as aio would return it."""
    return Lifted(value) if type(value) in PAIRS else value


def lower(value: Any) -> Any:
    """Return the value as the blocking side needs it."""
    return value.blocking if isinstance(value, Lifted) else value


async def in_thread(function: Any, *args: Any, **options: Any) -> Any:
    args, options = tuple(map(lower, args)), {name: lower(value) for name, value in options.items()}
    return lift(await asyncio.to_thread(function, *args, **options))


class Lifted:
    """A blocking object with the interface of its counterpart in aio."""

    def __init__(self, blocking: Any) -> None:
        self.blocking = blocking

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.blocking, name)
        if not inspect.ismethod(found):
            return found
        if inspect.iscoroutinefunction(getattr(PAIRS[type(self.blocking)], name)):
            return lambda *args, **options: in_thread(found, *args, **options)
        return lambda *args, **options: lift(found(*map(lower, args), **options))

    async def __aenter__(self) -> Any:
        await asyncio.to_thread(self.blocking.__enter__)
        return self

    async def __aexit__(self, *error: object) -> Any:
        return await asyncio.to_thread(self.blocking.__exit__, *error)

    def __aiter__(self) -> Any:
        return self

    async def __anext__(self) -> Any:
        job = await asyncio.to_thread(next, self.blocking, END)
        if job is END:
            raise StopAsyncIteration
        return lift(job)

    def __len__(self) -> int:
        return len(self.blocking)

    def __iter__(self) -> Any:
        return map(lift, self.blocking)

    def __getitem__(self, index: int) -> Any:
        return lift(self.blocking[index])

    def __repr__(self) -> str:
        return repr(self.blocking)


def either(name: str) -> dict[str, Any]:
    """Return the function of this name by API."""

    async def blocking(*args: Any, **options: Any) -> Any:
        return await in_thread(getattr(bucketq, name), *args, **options)

    return {"blocking": blocking, "aio": getattr(aio, name)}


OPEN, PROBE, MEASURE, CHECK, RESTORE, FIX_TIME, SET_MAX_SKEW = map(
    either, ("open", "probe", "measure", "check", "restore", "fix_time", "set_max_skew")
)
