"""The synchronous handle on a queue file. ``bucketq.aio`` has the same API for asyncio."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, Unpack, overload

from bucketq import _convert as convert
from bucketq import _listening, _native, _op, _policy, _show
from bucketq._atomic import AtomicBase
from bucketq._lease import Lease
from bucketq._listening import Listening, Thread, watch
from bucketq._native import Op
from bucketq._spelled import spelled
from bucketq.events import OnEvent
from bucketq.measured import Workload, workload_of
from bucketq.metrics import METRICS_AGE, Metrics, metrics_of
from bucketq.queue import Batch, Job, OnLeaseLost, Queue
from bucketq.settings import Source, resolve
from bucketq.types import (
    POLICY,
    Archives,
    Collected,
    Commit,
    Exported,
    FromPolicy,
    HostRole,
    JobDetail,
    JobInfo,
    Lives,
    Page,
    QueueInfo,
    ScheduleInfo,
    Seconds,
    Settings,
    State,
    Stats,
    Synced,
    Unsynced,
)

__all__ = ["Atomic", "QueueFile", "open"]


@spelled(Settings)
def open(
    url: str | PathLike[str] | None = None,
    *,
    settings: Source | None = None,
    on_event: OnEvent | None = None,
    **arguments: Unpack[Settings],
) -> QueueFile:
    """Open a queue file: ``s3://bucket/path/name``, a path, or ``memory://name``. Create it if it does not exist.

    ``on_event`` is called with each event of this process; ``bucketq.events`` lists them.

    Arguments win over a dict as ``settings``, that over BUCKETQ_* variables, and those over a file as ``settings``.

    >>> import bucketq
    >>> with bucketq.open("memory://opened") as file:
    ...     receipt = file.queue("emails").enqueue({"to": "ada@example.org"})
    ...     file.queue("emails").counts().counts["ready"]
    1
    """
    url, options = resolve(url, settings, arguments)
    return QueueFile(_listening.start(_native.open(url, options).wait(), on_event, Thread), url)


class Atomic(AtomicBase):
    """Several changes in one commit: all or none. They are sent when the block ends without an exception."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        call = self._call(error)
        if call is not None:
            self._committed(call.wait())

    def repeat(self) -> None:
        """Send the same changes again after the block raised ``OutcomeUnknown``; none is applied twice."""
        self._committed(self._repeat().wait())


class QueueFile:
    """An open queue file. Close it, or use it as a context manager. Threads may share a handle."""

    __slots__ = ("_file", "_listening", "url")

    def __init__(self, file: _native.File, url: str) -> None:
        self._file = file
        self._listening: builtins.list[Listening] = []
        self.url = url
        """The URL it was opened with."""

    def queue(self, name: str) -> Queue:
        """Return the queue of this name. Its first job creates it."""
        self._file.check_queue(name)
        return Queue(self._file, name)

    def queues(self, *, max_age: Seconds | None = None) -> builtins.list[QueueInfo]:
        """Return every queue with its counts; ``max_age`` allows state that is this old."""
        return [
            _show.queue(one) for one in self._file.queues(convert.maybe_millis(max_age, "max_age")).wait()
        ]

    def create_queue(self, name: str) -> bool:
        """Create a queue. Returns False if it exists. Its first job creates it too, unless queues are strict."""
        self._file.check_queue(name)
        return self._file.call(Op.create_queue(name)).wait()

    def delete_queue(self, name: str) -> int | None:
        """Delete a queue with its jobs, leased ones too, its policy and its schedules. Its archive stays.

        Returns how many jobs it had; None if there was no such queue. Many jobs take several commits.
        """
        return self._file.delete_queue(name).wait()

    def strict_queues(self, strict: bool = True) -> None:
        """Refuse queues that ``create_queue`` has not created, in every process: a misspelt name is then an error."""
        self._file.call(Op.strict_queues(strict)).wait()

    def claim(
        self,
        max: int = 1,
        *,
        queues: Iterable[str] | None = None,
        lease: Seconds | FromPolicy | None = POLICY,
        wait: Seconds | None = 0,
        worker: str | None = None,
        extend: bool = True,
        ack: bool = False,
        swallow: bool = False,
        on_lease_lost: OnLeaseLost | None = None,
    ) -> Batch:
        """Claim up to ``max`` jobs of these queues, or of any. ``wait`` 0 looks once; None waits for a job."""
        request = _op.Request(queues, lease, worker, extend=extend, on_lost=on_lease_lost)
        call = _op.claim(self._file, request, max, wait, ack=ack)
        jobs = [Job(self._file, held, request, swallow=swallow) for held in call.wait()]
        return Batch(self._file, watch(self._file, jobs, on_lease_lost, Thread))

    @overload
    def ack(self, id: str, token: str, *, result: Any = None, next: Literal[False] = False) -> None: ...
    @overload
    def ack(self, id: str, token: str, *, result: Any = None, next: bool) -> Job | None: ...
    def ack(self, id: str, token: str, *, result: Any = None, next: bool = False) -> Job | None:
        """Mark a job done by its id and ``Job.token``, from any process.

        The token counts even after the lease has run out, as long as nobody has claimed the job again. With ``next``,
        that commit also claims one more job of the same queue; returns it, or None when there is none now.
        """
        lease = Lease(self._file, id, token)
        done = self.get(id) if next else None
        if done is None:
            lease._ack(result).wait()
            return None
        request = _op.Request([done.queue], POLICY, None)
        held = lease._ack_next(result, request).wait()
        jobs = [Job(self._file, one, request, swallow=False) for one in held]
        return watch(self._file, jobs, None, Thread)[0] if jobs else None

    def ack_late(self, id: str, *, run: int = 0, result: Any = None) -> None:
        """Mark a job done without its token, for a worker that has lost its lease.

        Ends this run of the job unless it has ended already. A worker that holds the job by now loses it, so the work
        is done twice: prefer ``ack``, which fails when the lease is lost.
        """
        self._file.call(_op.ack_late(id, run, result)).wait()

    def nack(self, id: str, token: str, error: object = None, *, delay: Seconds | None = None) -> State:
        """End a failed attempt by id and token: as ``Job.nack``."""
        return Lease(self._file, id, token)._nack(error, delay).wait()

    def release(self, id: str, token: str) -> None:
        """Give a job back by its id and token: the attempt does not count."""
        Lease(self._file, id, token)._release().wait()

    def reject(self, id: str, token: str, error: object = None) -> None:
        """Mark a job dead at once by its id and token: it can never succeed."""
        Lease(self._file, id, token)._reject(error).wait()

    def extend(self, id: str, token: str, lease: Seconds) -> None:
        """Set the lease of a job to this long from now, by its id and token."""
        Lease(self._file, id, token)._extend(lease).wait()

    def sync(self) -> Synced:
        """Local mode: publish the unpublished changes in one commit. Sends no request when there are none.

        Raises Diverged when another writer committed meanwhile. Nothing is lost: ``export_pending`` saves the changes,
        and ``snapshot(discard=True)`` drops them.
        """
        return Synced(**self._file.sync().wait())

    def snapshot(self, *, discard: bool = False) -> int:
        """Fetch the commits of other writers. Returns the number of the newest commit.

        In Local mode, fails with the code ``unsynced`` while changes are unpublished; ``discard`` drops them.
        """
        return self._file.snapshot(discard).wait()

    @property
    def dirty(self) -> Unsynced:
        """The unpublished changes; false when there are none, and always in Durable mode."""
        return Unsynced(**self._file.dirty())

    def atomic(self) -> Atomic:
        """Several changes in one commit: ``with file.atomic() as tx: tx.ack(job); tx.enqueue("next", data)``."""
        return Atomic(self._file)

    def get(self, id: str, *, max_age: Seconds | None = None) -> JobDetail | None:
        """Return one job with its payload and result, or None; ``max_age`` allows state that is this old."""
        return _show.detail(self._file.get(id, convert.maybe_millis(max_age, "max_age")).wait())

    def get_many(
        self, ids: Iterable[str], *, max_age: Seconds | None = None
    ) -> builtins.list[JobDetail | None]:
        """Return these jobs with their payloads and results, in this order; None for each that does not exist."""
        call = self._file.get_many(convert.names(ids, "ids"), convert.maybe_millis(max_age, "max_age"))
        return _show.details(call.wait())

    @overload
    def list(
        self,
        states: Iterable[State] = (),
        *,
        queue: str | None = None,
        group: str | None = None,
        expired: bool = False,
        error: str | None = None,
        after: int | None = None,
        limit: int = 100,
        payloads: Literal[False] = False,
    ) -> Page[JobInfo]: ...

    @overload
    def list(
        self,
        states: Iterable[State] = (),
        *,
        queue: str | None = None,
        group: str | None = None,
        expired: bool = False,
        error: str | None = None,
        after: int | None = None,
        limit: int = 100,
        payloads: Literal[True],
    ) -> Page[JobDetail]: ...

    def list(
        self,
        states: Iterable[State] = (),
        *,
        queue: str | None = None,
        group: str | None = None,
        expired: bool = False,
        error: str | None = None,
        after: int | None = None,
        limit: int = 100,
        payloads: bool = False,
    ) -> Page[Any]:
        """Return a page of jobs in the order they were enqueued.

        No states: all. ``error``: text in the last error. ``payloads=True`` reads payloads, results and attempts too;
        such a page ends early when it has 4 MiB. To get the jobs enqueued since, pass ``page.last`` as ``after``.
        """
        call = _op.page(self._file, queue, states, group, expired, error, after, limit, payloads)
        return _show.page(call.wait(), payloads)

    def requeue_all(
        self,
        states: Iterable[State] = (),
        *,
        queue: str | None = None,
        group: str | None = None,
        error: str | None = None,
    ) -> int:
        """Requeue the finished jobs that match, oldest first. No states: the dead ones. Returns how many."""
        return _op.requeue_all(self._file, queue, states, group, error).wait()

    def schedules(self) -> builtins.list[ScheduleInfo]:
        """Return the schedules of every queue."""
        return [_policy.schedule(one) for one in self._file.schedules(None).wait()]

    def archive(self) -> int:
        """Archive now every finished job that its queue no longer retains. Returns how many.

        Archive objects that are too old expire.
        """
        return self._file.archive().wait()

    def archives(self, *, queue: str | None = None, after: int = 0) -> Archives:
        """Return the archive objects that hold runs with a ``finish_seq`` larger than ``after``."""
        return _policy.archives(_op.archives(self._file, queue, after).wait())

    def lives(
        self, *, queue: str | None = None, after: int = 0, until: int | None = None, limit: int = 1000
    ) -> Lives:
        """Return the finished runs still in the file, by ``finish_seq``: above ``after``, up to and with ``until``."""
        return _policy.lives(_op.lives(self._file, queue, after, until, limit).wait())

    def stats(self, *, max_age: Seconds | None = None) -> Stats:
        """Return the state of the queue file as a whole; ``max_age`` allows state that is this old."""
        return _show.stats(self._file.stats(convert.maybe_millis(max_age, "max_age")).wait())

    def history(self, *, limit: int = 100) -> builtins.list[Commit]:
        """Return the newest commits that the log still has, newest first."""
        limit = convert.whole(limit, "limit", 1, 2**32 - 1)
        return _show.history(self._file.history(limit).wait())

    def workload(self) -> Workload:
        """Return the workload that the file still shows, for ``bucketq.fit``. Reads every job and the whole log."""
        return workload_of(self._file.workload().wait())

    def settle(self) -> int:
        """After OutcomeUnknown: make sure that no earlier request can still be applied. Returns the commit reached."""
        return self._file.settle().wait()

    def export(self, path: str | PathLike[str], *, replace: bool = False) -> Exported:
        """Write the newest published state to a file that ``sqlite3`` opens. On failure no file is left."""
        return _show.exported(self._file.export(path, replace).wait())

    def export_pending(self, path: str | PathLike[str]) -> None:
        """Local mode: export the state with the unpublished changes.

        Also writes ``path`` with ``.jsonl`` added: a line of JSON for each job that differs.
        """
        self._file.export_pending(path).wait()

    def collect(self, *, grace: Seconds) -> Collected:
        """Delete now the objects that were not needed for ``grace``. Maintenance does this by itself, later."""
        return Collected(**self._file.collect(convert.millis(grace, "grace")).wait())

    @property
    def directory(self) -> Path | None:
        """The directory of the local state: in Local mode, or in Durable mode with a ``cache``."""
        return self._file.directory()

    @property
    def host_role(self) -> HostRole:
        """Which process of this host writes for this handle. Sends no request."""
        return _show.host_role(*self._file.host_role())

    def metrics(self, *, max_age: Seconds | None = METRICS_AGE) -> Metrics:
        """Return all metrics; counts of jobs are at most ``max_age`` old."""
        return metrics_of(self._file.metrics(convert.maybe_millis(max_age, "max_age")).wait())

    def on_event(self, callback: OnEvent) -> Callable[[], None]:
        """Call this with each event of this process from now on. Returns the function that ends it.

        That function waits until the events before it are delivered.
        """
        listening = Thread(self._file, callback)
        self._listening.append(listening)

        def end() -> None:
            listening.end()
            if listening in self._listening:
                self._listening.remove(listening)

        return end

    def close(self) -> None:
        """Wait for the calls sent before, then close the handle. Waiting claims raise Closed.

        Local mode: this does not sync; it logs a warning if changes are not published.
        """
        try:
            _show.closed(self.url, self._file.close().wait())
        finally:
            _listening.end(self._file)
            for one in self._listening:
                one.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url!r}>"
