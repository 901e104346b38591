"""One program for both APIs of bucketq: written as coroutines, it runs on the blocking API without an event loop."""

from __future__ import annotations

import inspect
import select
from collections.abc import Coroutine
from typing import Any


async def settled(answer: Any) -> Any:
    """Return the value of a call: immediate on the blocking API, awaited on the async one."""
    return await answer if inspect.isawaitable(answer) else answer


def drive(program: Coroutine[Any, Any, Any]) -> Any:
    """Run a program on the blocking API, where it never waits for an event loop."""
    try:
        program.send(None)
    except StopIteration as end:
        return end.value
    raise RuntimeError("a blocking program waits for an event loop")


def pause(seconds: float) -> None:
    """Sleep. `time.sleep` fails when libfaketime sets the wall clock meanwhile."""
    select.select((), (), (), max(seconds, 0.0))
