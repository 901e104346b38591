"""The program of a child process: runs one task after the other until its parent closes the pipe or ends."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bucketq._threads import TIMED_OUT
from bucketq.worker import TimedOut

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from bucketq.tasks.execute import Outcome

__all__ = ["INTERRUPT", "READY", "Request", "main"]

READY = "ready"
"""Sent once a child can run tasks."""
INTERRUPT: int | None = getattr(signal, "SIGUSR1", None)
"""The signal that interrupts a task, where there is one."""
ORPHANED = 1
"""The exit code of a child whose parent has ended."""


@dataclass(frozen=True, slots=True)
class Request:
    """A task to run: where it is defined, the payload of its job, the facts of the job, and the trace it belongs to."""

    module: str
    qualname: str
    payload: bytes
    job: tuple[Any, ...]
    trace: dict[str, str]


def main(
    pipe: Connection[Any, Any],
    modules: tuple[str, ...],
    setup: tuple[Callable[..., None], tuple[Any, ...]] | None,
) -> None:
    """Run tasks. The pipe carries plain values only, so that nothing a task makes is unpickled by the parent."""
    ignore_signals()
    threading.Thread(target=end_with_parent, name="bucketq-parent", daemon=True).start()
    if setup is not None:
        setup[0](*setup[1])
    warm(modules)
    pipe.send(READY)
    turn = Turn()
    while True:
        try:
            request: Request | None = pipe.recv()
        except (EOFError, OSError):
            return
        if request is None:
            return
        outcome = turn.run(request)
        if sys.stdout is not None:  # pyright: ignore[reportUnnecessaryComparison]
            with suppress(OSError, ValueError):
                sys.stdout.flush()
        then = outcome.then
        try:
            pipe.send((outcome.what, outcome.result, then, outcome.summary, outcome.traceback, memory()))
        except (BrokenPipeError, OSError):
            return


class Turn:
    """The task that runs now. The parent interrupts it with a signal when it takes too long."""

    def __init__(self) -> None:
        self._running = False
        if INTERRUPT is not None:
            signal.signal(INTERRUPT, self._interrupted)

    def run(self, request: Request) -> Outcome:
        """Run the task and return its outcome."""
        from bucketq.tasks import execute

        outcome: Outcome | None = None
        while True:
            # The signal may come between any two steps.
            try:
                if outcome is None:
                    outcome = execute.Outcome("failed", summary=TIMED_OUT)
                    self._running = True
                    outcome = run(request)
                self._running = False
                return outcome
            except TimedOut:
                continue

    def _interrupted(self, _number: int, _frame: object) -> None:
        if self._running:
            self._running = False
            raise TimedOut


def ignore_signals() -> None:
    """Leave SIGINT and SIGTERM to the parent: a terminal and a service manager send them to the children too.

    A handler of our own, because ignored signals would stay ignored in programs that a task starts.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: None)


def end_with_parent() -> None:
    """End this process as soon as its parent has ended, whatever its task does."""
    from multiprocessing import parent_process
    from multiprocessing.connection import wait

    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(ORPHANED)


def warm(modules: tuple[str, ...]) -> None:
    """Import the modules of the tasks. An error shows when a task of the module runs."""
    from importlib import import_module

    for module in modules:
        if module not in {"__main__", "__mp_main__"}:
            with suppress(Exception):
                import_module(module)


def run(request: Request) -> Outcome:
    """Run the task in its own context and return how it ended."""
    import asyncio

    from bucketq.tasks import execute
    from bucketq.tasks.context import CurrentJob
    from bucketq.tasks.message import message
    from bucketq.tasks.task import resolve

    try:
        task = resolve(request.module, request.qualname)
        call = message(task.app.codec.loads(request.payload))
    except Exception as error:
        summary = f"a child process cannot import the task: {type(error).__name__}: {error}"
        return execute.Outcome("failed", summary=summary, traceback=execute.trace(error))
    job = CurrentJob(*request.job)
    try:
        with continued(request.trace):
            if execute.is_async(task):
                return asyncio.run(execute.run_async(task, call, job))
            return execute.run(task, call, job)
    except BaseException as error:
        return execute.failed(task, error)


def continued(trace: dict[str, str]) -> AbstractContextManager[None]:
    """Return a context in which spans belong to the trace of the worker, if it has one."""
    if not trace:
        return nullcontext()
    from bucketq.otel import continued

    return continued(trace)


def memory() -> int:
    """Return the resident memory of this process in bytes, or 0 where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
