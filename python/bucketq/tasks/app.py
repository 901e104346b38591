"""An app: tasks, and the queue file in which their jobs are."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Coroutine, Iterable
from datetime import tzinfo
from os import PathLike
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, Self, TypeVar, Unpack, cast, overload

from bucketq import _convert as convert
from bucketq._spelled import spelled
from bucketq.errors import Invalid
from bucketq.tasks import join
from bucketq.tasks.codec import JSON, Codec
from bucketq.tasks.message import Options
from bucketq.tasks.task import AsyncTask, Call, Task, TaskBase, checked, name_of
from bucketq.types import Settings
from bucketq.types.policy import POLICY

if TYPE_CHECKING:
    from bucketq import aio
    from bucketq.events import OnEvent
    from bucketq.file import QueueFile
    from bucketq.settings import Source
    from bucketq.tasks.compose import GroupResult
    from bucketq.tasks.eager import Eager
    from bucketq.tasks.periodic import Periodic
    from bucketq.tasks.pool import StartMethod
    from bucketq.tasks.result import Result
    from bucketq.tasks.worker import AppWorker
    from bucketq.types import Backoff, FromPolicy, Missed, Seconds

__all__ = ["App"]

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T", bound=TaskBase[..., Any])


class Decorator(Protocol):
    """Makes a task of a function or a coroutine function."""

    @overload
    def __call__(  # pyright: ignore[reportOverlappingOverload]
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


class PeriodicDecorator(Protocol):
    """Makes a task of a function that needs no arguments, or takes one that is a task already."""

    @overload
    def __call__(self, function: T, /) -> T: ...
    @overload
    def __call__(  # pyright: ignore[reportOverlappingOverload]
        self, function: Callable[[], Coroutine[Any, Any, R]], /
    ) -> AsyncTask[[], R]: ...
    @overload
    def __call__(self, function: Callable[[], R], /) -> Task[[], R]: ...


class App:
    """Tasks and their queue file. Making one does no I/O: the file is opened by the first call that needs it.

    >>> import bucketq
    >>> app = bucketq.App("memory://app-example")
    >>> @app.task(queue="sums")
    ... def add(a: int, b: int) -> int:
    ...     return a + b
    >>> result = add.enqueue(1, b=2)
    >>> worked = app.worker().run(wait=0)
    >>> result.result(timeout=30)
    3
    >>> app.close()
    """

    @spelled(Settings)
    def __init__(
        self,
        url: str | PathLike[str] | None = None,
        *,
        settings: Source | None = None,
        on_event: OnEvent | None = None,
        codec: Codec = JSON,
        **arguments: Unpack[Settings],
    ) -> None:
        """Take the arguments of ``bucketq.open``. ``codec`` turns arguments and results into bytes."""
        self._url = url
        self._settings = settings
        self._on_event = on_event
        self._arguments = arguments
        self._lock = threading.Lock()
        self._file: QueueFile | None = None
        self._pid = 0
        self.codec = codec
        """How arguments and results are stored."""
        self.tasks: dict[str, TaskBase[..., Any]] = {}
        """The tasks by name."""
        self.periodic: list[Periodic] = []
        """The tasks that are enqueued periodically."""
        self.eager: Eager | None = None
        """Set by ``bucketq.testing.eager``: tasks run when they are enqueued."""

    @overload
    def task(  # pyright: ignore[reportOverlappingOverload]
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self,
        /,
        *,
        name: str | None = None,
        queue: str = "default",
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
        max_run: Seconds | None = None,
        expires: Seconds | None = None,
        priority: int | None = None,
        retry_on: type[BaseException] | tuple[type[BaseException], ...] | None = None,
    ) -> Decorator: ...
    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        queue: str = "default",
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
        max_run: Seconds | None = None,
        expires: Seconds | None = None,
        priority: int | None = None,
        retry_on: type[BaseException] | tuple[type[BaseException], ...] | None = None,
    ) -> Any:
        """Make a task of a function: calls of it can be enqueued.

        ``name`` is stored with each job, by default module and function. ``retry_on`` names the exceptions that lead
        to another attempt: after any other exception the job is dead. After ``max_run`` an attempt has failed with
        "timed out": a coroutine is cancelled, and ``bucketq.TimedOut`` is raised in a function. The other options apply
        to each of its jobs too.
        """
        options: dict[str, Any] = {"queue": queue, "max_attempts": max_attempts, "backoff": backoff}
        options |= {"max_run": max_run, "expires": expires, "priority": priority}
        given = cast("Options", {key: value for key, value in options.items() if value is not None})
        checked(given)
        kinds = classes(retry_on)

        def register(function: Callable[..., Any]) -> TaskBase[..., Any]:
            return self._register(function, name, given, kinds)

        return register if function is None else register(function)

    def _register(
        self,
        function: Callable[..., Any],
        name: str | None,
        options: Options,
        retry_on: tuple[type[BaseException], ...] | None,
    ) -> TaskBase[..., Any]:
        from inspect import iscoroutinefunction, isgeneratorfunction

        if not callable(function) or isinstance(function, TaskBase) or isgeneratorfunction(function):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise Invalid(f"{function!r} cannot be a task: give a function or a coroutine function")
        name = name or name_of(function)
        before = self.tasks.get(name)
        if name == join.NAME or (before is not None and where(before.function) != where(function)):
            raise Invalid(f"the name {name!r} is taken by another task: give one of them name=...")
        kind = AsyncTask[..., Any] if iscoroutinefunction(function) else Task[..., Any]
        made = kind(self, function, name=name, options=options, retry_on=retry_on)
        self.tasks[name] = made
        self.periodic = [one for one in self.periodic if one.task.name != name]
        return made

    def every(
        self,
        when: str | Seconds,
        *,
        timezone: str | tzinfo | None = None,
        missed: Missed = "skip",
        name: str | None = None,
        queue: str = "default",
    ) -> PeriodicDecorator:
        """Enqueue a task periodically: by a cron expression, ``"0 2 * * *"``, or at an interval, ``"5min"``.

        The worker creates the schedule when it starts. A function that is not a task yet becomes one, with ``name``
        and ``queue``.
        """
        from bucketq.tasks.periodic import Periodic

        def register(function: Callable[..., Any]) -> TaskBase[..., Any]:
            if isinstance(function, TaskBase):
                found = cast("TaskBase[..., Any]", function)
            else:
                options: Options = {"queue": queue}
                found = self._register(function, name, options, None)
            self.periodic.append(Periodic(found, when, timezone, missed))
            return found

        return cast("PeriodicDecorator", register)

    def chain(self, *calls: *tuple[*tuple[Call[Any], ...], Call[R]]) -> Result[R]:
        """Enqueue the first call; the commit that acks it enqueues the second, and so on. Returns the last result.

        ``bucketq.PREVIOUS`` as an argument stands for the result of the call before.
        """
        from bucketq.tasks.compose import Chain

        chain = Chain[R](self, calls)
        if self.eager is not None:
            return self.eager.run_chain(chain)
        queue, payload, extras = chain.first()
        self.file.queue(queue).enqueue(payload, **extras)
        return chain.result()

    async def achain(self, *calls: *tuple[*tuple[Call[Any], ...], Call[R]]) -> Result[R]:
        """Do what ``chain`` does, awaitable."""
        from bucketq.tasks.compose import Chain

        chain = Chain[R](self, calls)
        if self.eager is not None:
            return await self.eager.arun_chain(chain)
        queue, payload, extras = chain.first()
        file = await self.afile()
        await file.queue(queue).enqueue(payload, **extras)
        return chain.result()

    def group(self, calls: Iterable[Call[Any]], *, then: Call[R] | None = None) -> GroupResult[R]:
        """Enqueue all calls in one commit. Once they are all done, ``then`` is enqueued, exactly once.

        ``bucketq.PREVIOUS`` as an argument of ``then`` stands for the list of their results.
        """
        from bucketq.tasks.compose import Group

        group = Group[R](self, calls, then)
        if self.eager is not None:
            return self.eager.run_group(group)
        with self.file.atomic() as tx:
            for queue, payload, extras in group.jobs():
                tx.enqueue(queue, payload, **extras)
        return group.result()

    async def agroup(self, calls: Iterable[Call[Any]], *, then: Call[R] | None = None) -> GroupResult[R]:
        """Do what ``group`` does, awaitable."""
        from bucketq.tasks.compose import Group

        group = Group[R](self, calls, then)
        if self.eager is not None:
            return await self.eager.arun_group(group)
        async with (await self.afile()).atomic() as tx:
            for queue, payload, extras in group.jobs():
                tx.enqueue(queue, payload, **extras)
        return group.result()

    def worker(
        self,
        *,
        concurrency: int | None = None,
        prefetch: int = 0,
        processes: int = 0,
        queues: Iterable[str] | None = None,
        max_jobs: int | None = None,
        lease: Seconds | FromPolicy | None = POLICY,
        name: str | None = None,
        jobs_per_child: int | None = None,
        memory_per_child: int | None = None,
        kill_after: Seconds | None = None,
        start_method: StartMethod = "spawn",
    ) -> AppWorker:
        """Return a worker for the tasks of this app: ``app.worker().run()``.

        ``queues``: by default those of all tasks. ``prefetch``: claim up to this many jobs ahead, so that the next one
        is there when a task ends. ``processes``: run tasks in this many child processes, one at a time each.
        ``max_jobs``: end after this many. A child is replaced after ``jobs_per_child`` jobs, or when it uses more than
        ``memory_per_child`` bytes after a job; one whose task runs longer than ``kill_after`` is killed.
        """
        from bucketq.tasks.worker import AppWorker, WorkerOptions

        return AppWorker(
            self,
            WorkerOptions(
                concurrency=concurrency,
                prefetch=prefetch,
                processes=processes,
                queues=None if queues is None else tuple(convert.names(queues, "queues")),
                max_jobs=max_jobs,
                lease=lease,
                name=name,
                jobs_per_child=jobs_per_child,
                memory_per_child=memory_per_child,
                kill_after=kill_after,
                start_method=start_method,
            ),
        )

    def result(self, id: str) -> Result[Any]:
        """Return the handle on the result of a job with this id."""
        from bucketq.tasks import codec
        from bucketq.tasks.result import Result

        return Result(
            self,
            id,
            lambda detail: codec.value(self.codec, detail.result_payload, detail.result_content_type),
        )

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues of its tasks."""
        return tuple(dict.fromkeys(task.queue for task in self.tasks.values()))

    @property
    def file(self) -> QueueFile:
        """The queue file; opened at the first use in each process."""
        file = self._file
        if file is not None and self._pid in {0, os.getpid()}:
            return file
        from bucketq.file import open

        with self._lock:
            if self._file is None or self._pid not in {0, os.getpid()}:
                opened = open(self._url, settings=self._settings, on_event=self._on_event, **self._arguments)
                self._file, self._pid = opened, os.getpid()
            return self._file

    async def afile(self) -> aio.QueueFile:
        """Return the queue file for ``bucketq.aio``; opens it at the first use."""
        from bucketq._other_api import awaitable

        file = self._file
        if file is None or self._pid not in {0, os.getpid()}:
            from asyncio import to_thread

            file = await to_thread(lambda: self.file)
        return awaitable(file)

    def use(self, file: QueueFile | None) -> QueueFile | None:
        """Use an open queue file instead, for example that of a test. Returns the one used before."""
        with self._lock:
            before, self._file = self._file, file
            self._pid = 0 if file is not None else os.getpid()
            return before

    def close(self) -> None:
        """Close the queue file, if it is open. A later call opens it again."""
        with self._lock:
            file, self._file = self._file, None
        if file is not None:
            file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._url!r}, {len(self.tasks)} tasks>"


def classes(retry_on: Any) -> tuple[type[BaseException], ...] | None:
    """Return the exceptions as a tuple."""
    kinds = (retry_on,) if isinstance(retry_on, type) else retry_on
    if kinds is None:
        return None
    if not isinstance(kinds, tuple) or not all(
        isinstance(kind, type) and issubclass(kind, BaseException) for kind in cast("tuple[Any, ...]", kinds)
    ):
        raise Invalid(f"retry_on is {retry_on!r}: give exception classes, (ConnectionError,)")
    return cast("tuple[type[BaseException], ...]", kinds)


def where(function: Callable[..., Any]) -> tuple[str, str]:
    """Return the place of a function: a program that is run again defines the same one again."""
    return function.__module__, function.__qualname__
