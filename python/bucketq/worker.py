"""Workers: functions and coroutines that handle the jobs of queues, several at a time.

>>> import bucketq
>>> from bucketq import Worker
>>> with bucketq.open("memory://worker-example") as file:
...     worker = Worker(file, concurrency=4)
...     @worker.handles("sums")
...     def add(job):
...         return sum(job.data)
...     receipt = file.queue("sums").enqueue([1, 2, 3])
...     worked = worker.run(wait=0)  # until there is nothing to do; without ``wait``, until it is drained
...     file.queue("sums").wait(receipt.id).result
6

``bucketq.aio`` has the same worker for an event loop that already runs. See docs/workers.md for more.
"""

from __future__ import annotations

import inspect
import os
import socket
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, overload

from bucketq import _convert as convert
from bucketq._other_api import awaitable
from bucketq.errors import Closed, Invalid
from bucketq.types.policy import POLICY

if TYPE_CHECKING:
    from bucketq import aio
    from bucketq._listening import OnLost
    from bucketq._working import Working
    from bucketq.file import QueueFile
    from bucketq.queue import Job
    from bucketq.types import FromPolicy, Seconds

__all__ = ["Reject", "TimedOut", "Worked", "Worker"]

Handler = Callable[[Any], Any]
Outcome = bool | int | float | str | bytes | bytearray | memoryview | Mapping[Any, Any] | Sequence[Any] | None
"""The return value of a handler, stored as the job's result. A coroutine is none."""
F = TypeVar("F", bound="Callable[[Job], Outcome]")
C = TypeVar("C", bound="Callable[[aio.Job], Coroutine[Any, Any, Outcome]]")


class Register(Protocol):
    """Registers a function that takes a ``bucketq.Job``, or a coroutine function that takes a ``bucketq.aio.Job``."""

    @overload
    def __call__(self, handler: F, /) -> F: ...
    @overload
    def __call__(self, handler: C, /) -> C: ...


class Reject(Exception):
    """Raise it in a handler when the job can never succeed: the job is dead at once, with this text as its error."""


class TimedOut(BaseException):
    """Raised in a function whose work on a job takes longer than ``max_run``: clean up and return.

    The attempt has failed already. Not an ``Exception``, so that no broad ``except`` stops it by accident. A function
    that is inside a call such as ``time.sleep`` gets it when that call returns. A coroutine is cancelled instead.
    """


@dataclass(frozen=True, slots=True)
class Worked:
    """Counts of the jobs that a worker has worked on."""

    done: int = 0
    """Handled without an exception."""
    failed: int = 0
    """Attempts that ended with an exception."""
    rejected: int = 0
    """Dead at once because the handler raised Reject."""
    released: int = 0
    """Given back when the worker was stopped; the attempt does not count."""
    lost: int = 0
    """Lease lost before the end: another worker has the job, or it was purged."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings of a worker."""

    concurrency: int
    prefetch: int
    lease: Seconds | FromPolicy | None
    name: str
    queues: tuple[str, ...]
    handlers: dict[str, Handler]
    max_run: dict[str, int]
    on_lease_lost: OnLost | None


class WorkerBase:
    """The handlers and settings that synchronous and asyncio workers share."""

    def __init__(
        self,
        file: Any,
        *,
        concurrency: int = 8,
        prefetch: int = 0,
        queues: Iterable[str] | None = None,
        lease: Seconds | FromPolicy | None = POLICY,
        name: str | None = None,
        on_lease_lost: OnLost | None = None,
    ) -> None:
        """Run ``concurrency`` jobs at a time, of ``queues`` or of all that have a handler.

        Up to ``prefetch`` more are claimed ahead, so that the next handler need not wait for the store.
        ``on_lease_lost`` is called with the job that a handler works on, and how its lease was lost.
        """
        self._file = file
        self._concurrency = convert.whole(concurrency, "concurrency", 1, 10_000)
        self._prefetch = convert.whole(prefetch, "prefetch", 0, 10_000)
        self._queues = None if queues is None else tuple(convert.names(queues, "queues"))
        self._lease = lease
        if lease is not POLICY:
            convert.maybe_millis(lease, "lease")
        self._name = name or f"{socket.gethostname()}:{os.getpid()}"
        self._on_lease_lost = on_lease_lost
        self._handlers: dict[str, Handler] = {}
        self._max_run: dict[str, int] = {}
        self._working: Working | None = None
        self._drained = False

    def handles(self, *queues: str, max_run: Seconds | None = None) -> Register:
        """Register a function or coroutine function that is called with each job of these queues.

        A function gets a ``bucketq.Job``, a coroutine function a ``bucketq.aio.Job``, whichever worker runs it.
        Its return value is stored as the job's result. An exception nacks the job with its text; Reject rejects it.
        After ``max_run``, or that of the queue's policy if it is shorter, the attempt has failed with "timed out": a
        coroutine is cancelled, and TimedOut is raised in a function.
        """
        limit = convert.maybe_millis(max_run, "max_run")
        if not queues or not all(isinstance(queue, str) for queue in queues):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise Invalid('name the queues: @worker.handles("emails")')

        def register(handler: Any) -> Any:
            for queue in queues:
                if queue in self._handlers:
                    raise Invalid(f"queue {queue!r} already has a handler: register only one")
                self._file.queue(queue)
                self._handlers[queue] = handler
                if limit is not None:
                    self._max_run[queue] = limit
            return handler

        return register

    @property
    def worked(self) -> Worked:
        """The jobs it has worked on so far."""
        return Worked() if self._working is None else self._working.worked

    def _responds(self, seconds: float) -> bool:
        """Return whether its loop reacts within this time, or does not run."""
        return self._working is None or self._working.responds(seconds)

    @property
    def drained(self) -> bool:
        """True once it was drained or closed: it claims no more jobs."""
        return self._drained

    def drain(self) -> None:
        """Claim no more jobs, and end when running jobs finish. Returns at once; a handler may call it."""
        self._drained = True
        if self._working is not None:
            self._working.drain()

    def _plan(self) -> Plan:
        """Return the settings for a run; raise if it cannot start."""
        if self._drained:
            raise Closed("this worker is drained and takes no more jobs: make a new one", "closed")
        if self._working is not None:
            raise Invalid("this worker is already running")
        queues = tuple(self._handlers) if self._queues is None else self._queues
        if not queues:
            raise Invalid('this worker has nothing to do: register a handler with @worker.handles("emails")')
        for queue in queues:
            if queue not in self._handlers:
                raise Invalid(f"queue {queue!r} has no handler: {convert.nearest(queue, self._handlers)}")
        return Plan(
            self._concurrency,
            self._prefetch,
            self._lease,
            self._name,
            queues,
            dict(self._handlers),
            dict(self._max_run),
            self._on_lease_lost,
        )

    def __repr__(self) -> str:
        stage = "drained" if self._drained else "new" if self._working is None else "running"
        return f"<{type(self).__module__}.{type(self).__name__} for {', '.join(self._handlers) or 'nothing'}, {stage}>"


def is_coroutine(handler: Handler) -> bool:
    """Return True for a coroutine function, or an object whose ``__call__`` is one."""
    return any(map(inspect.iscoroutinefunction, (handler, type(handler).__call__)))


class Worker(WorkerBase):
    """Runs handlers: functions in threads, coroutines in its own event loop.

    ``run`` blocks the calling thread; as a context manager the worker runs in the background until the block ends.
    """

    def __init__(
        self,
        file: QueueFile,
        *,
        concurrency: int = 8,
        prefetch: int = 0,
        queues: Iterable[str] | None = None,
        lease: Seconds | FromPolicy | None = POLICY,
        name: str | None = None,
        on_lease_lost: OnLost | None = None,
    ) -> None:
        """Run ``concurrency`` jobs at a time, of ``queues`` or of all that have a handler.

        Up to ``prefetch`` more are claimed ahead, so that the next handler need not wait for the store.
        """
        super().__init__(
            file,
            concurrency=concurrency,
            prefetch=prefetch,
            queues=queues,
            lease=lease,
            name=name,
            on_lease_lost=on_lease_lost,
        )
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._error: BaseException | None = None

    def run(self, *, wait: Seconds | None = None, signals: bool = True) -> Worked:
        """Work until drained; with ``wait``, until no job came for that long.

        In the main thread SIGTERM and SIGINT drain; a second one stops and gives running jobs back.
        """
        working = self._begin(wait)
        return self._go(working, signals and threading.current_thread() is threading.main_thread())

    def close(self, timeout: Seconds | None = None) -> None:
        """Drain and wait. After ``timeout``, stop and give running jobs back.

        A coroutine is cancelled. A function cannot be: it continues in its thread and can check ``job.ended``.
        """
        limit = convert.maybe_millis(timeout, "timeout")
        self.drain()
        working = self._working
        if working is None:
            return
        if working.is_inside():
            raise Invalid("a handler cannot wait for its own end: call worker.drain()")
        if not self._ended.wait(None if limit is None else limit / 1000):
            working.stop()
            self._ended.wait()
        if self._thread is not None:
            self._thread.join()
            error, self._error = self._error, None
            if error is not None:
                raise error

    def __enter__(self) -> Self:
        working = self._begin(None)

        def work() -> None:
            try:
                self._go(working, False)
            except BaseException as error:
                self._error = error

        self._thread = threading.Thread(target=work, name="bucketq-worker", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _begin(self, wait: Seconds | None) -> Working:
        plan = self._plan()
        convert.maybe_millis(wait, "wait")
        from bucketq._working import Working

        self._working = Working(awaitable(self._file), plan, wait)
        return self._working

    def _go(self, working: Working, signals: bool) -> Worked:
        import asyncio

        try:
            return asyncio.run(working.run(signals=signals))
        finally:
            self._drained = True
            self._ended.set()
