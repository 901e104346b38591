"""The worker of an app. It can run several times; each run is a ``bucketq.Worker`` of its own."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

from bucketq import _convert as convert
from bucketq.errors import Closed, Invalid
from bucketq.worker import Worked, Worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from bucketq import aio
    from bucketq.tasks.app import App
    from bucketq.tasks.pool import Pool, StartMethod
    from bucketq.tasks.runner import Runner
    from bucketq.types import FromPolicy, Seconds

__all__ = ["AppWorker", "WorkerOptions"]

CONCURRENCY = 8


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """The arguments of ``App.worker``."""

    concurrency: int | None
    prefetch: int
    processes: int
    queues: tuple[str, ...] | None
    max_jobs: int | None
    lease: Seconds | FromPolicy | None
    name: str | None
    jobs_per_child: int | None
    memory_per_child: int | None
    kill_after: Seconds | None
    start_method: StartMethod

    def __post_init__(self) -> None:
        convert.whole(self.processes, "processes", 0, 1000)
        convert.whole(self.prefetch, "prefetch", 0, 10_000)
        for name in ("concurrency", "max_jobs", "jobs_per_child", "memory_per_child"):
            if getattr(self, name) is not None:
                convert.whole(getattr(self, name), name, 1, 10_000 if name == "concurrency" else 2**62)
        convert.maybe_millis(self.kill_after, "kill_after")
        if self.start_method not in {"spawn", "forkserver"}:
            raise Invalid(f'start_method is {self.start_method!r}: give "spawn" or "forkserver"')
        for name in ("jobs_per_child", "memory_per_child", "kill_after"):
            if getattr(self, name) is not None and not self.processes:
                raise Invalid(f"{name} needs child processes: give processes too")

    @property
    def jobs_at_once(self) -> int:
        """The number of jobs that are claimed at a time; those without a free child wait."""
        return self.concurrency or self.processes or CONCURRENCY


class AppWorker:
    """Runs the tasks of an app: functions in threads or child processes, coroutines in its own event loop.

    ``run`` blocks the calling thread; as a context manager the worker runs in the background until the block ends.
    """

    def __init__(self, app: App, options: WorkerOptions) -> None:
        self.app = app
        """The app whose tasks it runs."""
        self.options = options
        """The arguments of ``app.worker``."""
        self.child_setup: tuple[Callable[..., None], tuple[Any, ...]] | None = None
        """A function and its arguments, called first in each child process: to set up its log, for example."""
        self._lock = threading.Lock()
        self._worker: Worker | None = None
        self._pool: Pool | None = None
        self._runner: Runner | None = None
        self._worked = Worked()
        self._ran = 0
        self._drained = False

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues it claims from."""
        return self.app.queues if self.options.queues is None else self.options.queues

    @property
    def worked(self) -> Worked:
        """The jobs of the current run, or of the last one."""
        worker = self._worker
        return self._worked if worker is None else worker.worked

    def _responds(self, seconds: float) -> bool:
        """Return whether its loop reacts within this time, or does not run."""
        worker = self._worker
        return worker is None or worker._responds(seconds)

    @property
    def drained(self) -> bool:
        """True once it was drained or closed: it claims no more jobs."""
        return self._drained

    @property
    def children(self) -> list[int]:
        """The process ids of its children."""
        pool = self._pool
        return [] if pool is None else pool.pids

    def run(self, *, wait: Seconds | None = None, signals: bool = True) -> Worked:
        """Work until drained; with ``wait``, until no job came for that long. It can run again afterwards.

        In the main thread SIGTERM and SIGINT drain; a second one stops and gives running jobs back.
        """
        worker = self._begin()
        try:
            return worker.run(wait=wait, signals=signals)
        finally:
            self._finish(worker)

    def drain(self) -> None:
        """Claim no more jobs, and end when running jobs finish. Returns at once; a task may call it."""
        with self._lock:
            self._drained = True
            worker = self._worker
        if worker is not None:
            worker.drain()

    def close(self, timeout: Seconds | None = None) -> None:
        """Drain and wait. After ``timeout``, stop and give running jobs back."""
        self.drain()
        worker = self._worker
        if worker is not None:
            worker.close(timeout)

    def __enter__(self) -> Self:
        worker = self._begin()
        try:
            worker.__enter__()
        except BaseException:
            self._finish(worker)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        worker = self._worker
        if worker is not None:
            try:
                worker.close()
            finally:
                self._finish(worker)

    def _begin(self) -> Worker:
        from bucketq._other_api import awaitable
        from bucketq.tasks.periodic import register

        options = self.options
        with self._lock:
            if self._drained:
                raise Closed("this worker is drained and takes no more jobs: make a new one", "closed")
            if self._worker is not None:
                raise Invalid("this worker is already running")
            file, queues = self.app.file, self.queues
            if not queues:
                raise Invalid("this app has nothing to do: make a task with @app.task")
            register(self.app, file, queues)
            if options.processes:
                from bucketq.tasks.pool import Pool, PoolOptions

                limit = convert.maybe_millis(options.kill_after, "kill_after")
                self._pool = Pool(
                    PoolOptions(
                        options.processes,
                        options.jobs_per_child,
                        options.memory_per_child,
                        None if limit is None else limit / 1000,
                        options.start_method,
                        self.child_setup,
                    ),
                    list(self.app.tasks.values()),
                )
            self._ran = 0
            self._runner = self._new_runner(awaitable(file))
            worker = Worker(
                file,
                concurrency=options.jobs_at_once,
                prefetch=options.prefetch,
                lease=options.lease,
                name=options.name,
            )
            # It ends the jobs itself: no user's handler returns that.
            worker.handles(*queues)(cast("Any", self._runner))
            if self._pool is not None:
                self._pool.start()
            self._worker = worker
            return worker

    def _new_runner(self, file: aio.QueueFile) -> Runner:
        from bucketq.tasks.runner import Runner

        return Runner(self.app, file, self.options.jobs_at_once, self._pool, self._one_ran)

    def _one_ran(self) -> None:
        self._ran += 1
        if self._ran == self.options.max_jobs and self._worker is not None:
            self._drained = True
            self._worker.drain()

    def _finish(self, worker: Worker) -> None:
        with self._lock:
            if self._worker is not worker:
                return
            self._worked, self._worker = worker.worked, None
            pool, self._pool = self._pool, None
            runner, self._runner = self._runner, None
        if runner is not None:
            runner.close()
        if pool is not None:
            pool.close()

    def __repr__(self) -> str:
        stage = "drained" if self._drained else "ready" if self._worker is None else "running"
        return f"<{type(self).__name__} for {', '.join(self.queues) or 'nothing'}, {stage}>"
