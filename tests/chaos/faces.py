"""One program for both faces of bucketq: written as coroutines, it runs on the blocking face without an event loop."""

from __future__ import annotations

import inspect
import select
from collections.abc import Coroutine
from typing import Any


async def settled(answer: Any) -> Any:
    """What a call answered: at once on the blocking face, awaited on the other."""
    return await answer if inspect.isawaitable(answer) else answer


def drive(program: Coroutine[Any, Any, Any]) -> Any:
    """Run a program on the blocking face, where nothing it awaits is ever pending."""
    try:
        program.send(None)
    except StopIteration as end:
        return end.value
    raise RuntimeError("a blocking program waits for an event loop")


def pause(seconds: float) -> None:
    """`time.sleep` fails when the wall clock is set meanwhile by libfaketime."""
    select.select((), (), (), max(seconds, 0.0))
