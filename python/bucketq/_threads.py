"""Daemon threads that run functions for an event loop; one that never returns does not keep the process alive.

A function that takes too long is interrupted with TimedOut; its thread then ends, and another one takes its place.
"""

from __future__ import annotations

import threading
import time
from asyncio import AbstractEventLoop, CancelledError, Future, get_running_loop
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass
from logging import getLogger
from queue import SimpleQueue
from typing import Any

from bucketq.worker import TimedOut

__all__ = ["GRACE", "TIMED_OUT", "Threads"]

log = getLogger("bucketq.worker")

TIMED_OUT = "timed out"
"""The message of the cancellation of work that takes too long."""
GRACE = 5.0
"""Seconds that interrupted work has for cleaning up."""

Outcome = tuple[Any, BaseException | None]


@dataclass(eq=False)
class Call:
    """A function to run for the event loop that waits for it."""

    function: Callable[[], Any]
    reply: Future[Outcome]
    loop: AbstractEventLoop
    thread: threading.Thread | None = None
    """The thread that runs it now."""
    interrupted: bool = False
    """Set before its thread is read and interrupted."""
    settled: bool = False
    """Its thread will not be interrupted any more."""


class Threads:
    """Up to ``most`` threads, each started when the others are busy."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._calls: SimpleQueue[Call | None] = SimpleQueue()
        self._number = 0
        self._started = 0
        self._busy = 0

    async def run(self, function: Callable[..., Any], *args: Any, interrupts: bool = True) -> Any:
        """Run the function, and return or raise what it does.

        Cancelling stops the waiting. It stops the function too if it takes too long, unless ``interrupts`` is False.
        """
        context = copy_context()
        loop = get_running_loop()
        reply: Future[Outcome] = loop.create_future()
        call = Call(lambda: context.run(function, *args), reply, loop)
        self._calls.put(call)
        self._busy += 1
        self._start_if_needed()
        try:
            result, error = await reply
        except CancelledError as cancelled:
            # The function continues, perhaps without end: others need a thread in place of its own.
            self._most += 1
            if interrupts and TIMED_OUT in cancelled.args:
                interrupt(call)
            raise
        if error is not None:
            raise error
        return result

    def close(self) -> None:
        """End the threads, each after the function it runs now."""
        for _ in range(self._started):
            self._calls.put(None)

    def _start_if_needed(self) -> None:
        if self._busy > self._started and self._started < self._most:
            self._started += 1
            self._number += 1
            threading.Thread(target=self._work, name=f"{self._name}-{self._number}", daemon=True).start()

    def _work(self) -> None:
        ends = False
        while not ends and (call := self._calls.get()) is not None:
            outcome = run_here(call)
            ends = call.interrupted
            try:
                call.loop.call_soon_threadsafe(self._reply, call.reply, outcome, ends)
            except RuntimeError:  # The loop has ended, and nothing waits for the result.
                return

    def _reply(self, reply: Future[Outcome], outcome: Outcome, ends: bool) -> None:
        self._busy -= 1
        if ends:
            self._started -= 1
            self._most -= 1
            self._start_if_needed()
        if not reply.done():
            reply.set_result(outcome)


def run_here(call: Call) -> Outcome:
    """Run the function in this thread and return its outcome. An interrupt that comes too late is dropped."""
    outcome: Outcome | None = None
    call.thread = threading.current_thread()
    while True:
        try:
            if outcome is None:
                outcome = None, TimedOut()
                # Nobody waits for one that was cancelled before it began.
                outcome = outcome if call.reply.cancelled() else outcome_of(call.function)
            call.thread = None
            # Locks are of no use here: an interrupt may come between any two steps, and leave them locked.
            while call.interrupted and not call.settled:
                time.sleep(0.001)
            if call.interrupted:
                raise_in(threading.current_thread(), None)
            return outcome
        except TimedOut:
            continue


def outcome_of(function: Callable[[], Any]) -> Outcome:
    """Call the function and return what it returns or raises."""
    try:
        return function(), None
    except BaseException as error:
        # A StopIteration cannot pass through a future, and would be lost.
        return None, RuntimeError(repr(error)) if isinstance(error, StopIteration) else error


def interrupt(call: Call) -> None:
    """Raise TimedOut in the thread that runs the function, unless it has just returned."""
    call.interrupted = True
    thread = call.thread
    if thread is not None and raise_in(thread, TimedOut):
        call.loop.call_later(GRACE, name_if_running, call, thread)
    call.settled = True


def name_if_running(call: Call, thread: threading.Thread) -> None:
    """Warn if the thread still runs the function."""
    if call.thread is not None:
        log.warning(
            "thread %s still runs a function that took too long and was interrupted %g s ago: "
            "it is left alone until it returns",
            thread.name,
            GRACE,
        )


def raise_in(thread: threading.Thread, error: type[BaseException] | None) -> bool:
    """Raise the error in the thread, at its next step in Python; or drop one that has not been raised yet.

    Returns False where that is not possible.
    """
    try:
        import ctypes

        number = ctypes.c_ulong(thread.ident or 0)
        what = ctypes.py_object() if error is None else ctypes.py_object(error)
        return ctypes.pythonapi.PyThreadState_SetAsyncExc(number, what) == 1
    except (ImportError, AttributeError):
        return False
