"""Daemon threads that run functions for an event loop; one that never returns does not keep the process alive."""

from __future__ import annotations

import threading
from asyncio import AbstractEventLoop, CancelledError, Future, get_running_loop
from collections.abc import Callable
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any

Outcome = tuple[Any, BaseException | None]
Task = tuple[Callable[[], Any], "Future[Outcome]", AbstractEventLoop]


class Threads:
    """Up to ``most`` threads, each started when the others are busy."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._started = 0
        self._busy = 0

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run the function, and return or raise what it does. Cancelling stops the waiting, not the function."""
        context = copy_context()
        loop = get_running_loop()
        answer: Future[Outcome] = loop.create_future()
        self._tasks.put((lambda: context.run(function, *args), answer, loop))
        self._busy += 1
        if self._busy > self._started and self._started < self._most:
            self._started += 1
            name = f"{self._name}-{self._started}"
            threading.Thread(target=self._work, name=name, daemon=True).start()
        try:
            result, error = await answer
        except CancelledError:
            # The function continues, perhaps without end: others need a thread in place of its own.
            self._most += 1
            raise
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        """End the threads, each after the function it runs now."""
        for _ in range(self._started):
            self._tasks.put(None)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            function, answer, loop = task
            outcome: Outcome
            try:
                outcome = function(), None
            except BaseException as error:
                # A StopIteration cannot pass through a future, and would be lost.
                outcome = None, RuntimeError(repr(error)) if isinstance(error, StopIteration) else error
            try:
                loop.call_soon_threadsafe(self._answer, answer, outcome)
            except RuntimeError:  # The loop has ended, and nothing waits for the result.
                return

    def _answer(self, answer: Future[Outcome], outcome: Outcome) -> None:
        self._busy -= 1
        if not answer.done():
            answer.set_result(outcome)
