"""The asyncio handle on a queue file, as ``bucketq.file``."""

from __future__ import annotations

import builtins
from collections.abc import Awaitable, Callable, Iterable
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, Unpack, overload

from bucketq import _convert as convert
from bucketq import _listening, _native, _op, _policy, _show
from bucketq._atomic import AtomicBase
from bucketq._lease import Lease
from bucketq._listening import Listening, Task, watch
from bucketq._native import Op
from bucketq._spelled import spelled
from bucketq.aio.queue import Batch, Job, OnLeaseLost, Queue
from bucketq.events import OnEvent
from bucketq.measured import Workload, workload_of
from bucketq.metrics import METRICS_AGE, Metrics, metrics_of
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


@spelled(Settings)
async def open(
    url: str | PathLike[str] | None = None,
    *,
    settings: Source | None = None,
    on_event: OnEvent | None = None,
    **arguments: Unpack[Settings],
) -> QueueFile:
    """As ``bucketq.open``: ``async with await open(...) as file``."""
    url, options = resolve(url, settings, arguments)
    return QueueFile(_listening.start(await _native.open(url, options), on_event, Task), url)


class Atomic(AtomicBase):
    """Several changes in one commit, as ``bucketq.Atomic``."""

    __slots__ = ()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        call = self._call(error)
        if call is not None:
            self._committed(await call)

    async def repeat(self) -> None:
        """Send the same changes again after the block raised ``OutcomeUnknown``; none is applied twice."""
        self._committed(await self._repeat())


class QueueFile:
    """An open queue file, as ``bucketq.QueueFile``."""

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

    async def queues(self, *, max_age: Seconds | None = None) -> builtins.list[QueueInfo]:
        """Return every queue with its counts; ``max_age`` allows state that is this old."""
        return [_show.queue(one) for one in await self._file.queues(convert.maybe_millis(max_age, "max_age"))]

    async def create_queue(self, name: str) -> bool:
        """Create a queue. Returns False if it exists. Its first job creates it too, unless queues are strict."""
        self._file.check_queue(name)
        return await self._file.call(Op.create_queue(name))

    async def delete_queue(self, name: str) -> int | None:
        """Delete a queue with its jobs, leased ones too, its policy and its schedules. Its archive stays.

        Returns how many jobs it had; None if there was no such queue. Many jobs take several commits.
        """
        return await self._file.delete_queue(name)

    async def strict_queues(self, strict: bool = True) -> None:
        """Refuse queues that ``create_queue`` has not created, in every process: a misspelt name is then an error."""
        await self._file.call(Op.strict_queues(strict))

    async def claim(
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
        jobs = [Job(self._file, held, request, swallow=swallow) for held in await call]
        return Batch(self._file, watch(self._file, jobs, on_lease_lost, Task))

    @overload
    async def ack(self, id: str, token: str, *, result: Any = None, next: Literal[False] = False) -> None: ...
    @overload
    async def ack(self, id: str, token: str, *, result: Any = None, next: bool) -> Job | None: ...
    async def ack(self, id: str, token: str, *, result: Any = None, next: bool = False) -> Job | None:
        """Mark a job done by its id and ``Job.token``, from any process.

        The token counts even after the lease has run out, as long as nobody has claimed the job again. With ``next``,
        that commit also claims one more job of the same queue; returns it, or None when there is none now.
        """
        lease = Lease(self._file, id, token)
        done = await self.get(id) if next else None
        if done is None:
            await lease._ack(result)
            return None
        request = _op.Request([done.queue], POLICY, None)
        held = await lease._ack_next(result, request)
        jobs = [Job(self._file, one, request, swallow=False) for one in held]
        return watch(self._file, jobs, None, Task)[0] if jobs else None

    async def ack_late(self, id: str, *, run: int = 0, result: Any = None) -> None:
        """Mark a job done without its token, for a worker that has lost its lease.

        Ends this run of the job unless it has ended already. A worker that holds the job by now loses it, so the work
        is done twice: prefer ``ack``, which fails when the lease is lost.
        """
        await self._file.call(_op.ack_late(id, run, result))

    async def nack(self, id: str, token: str, error: object = None, *, delay: Seconds | None = None) -> State:
        """End a failed attempt by id and token: as ``Job.nack``."""
        return await Lease(self._file, id, token)._nack(error, delay)

    async def release(self, id: str, token: str) -> None:
        """Give a job back by its id and token: the attempt does not count."""
        await Lease(self._file, id, token)._release()

    async def reject(self, id: str, token: str, error: object = None) -> None:
        """Mark a job dead at once by its id and token: it can never succeed."""
        await Lease(self._file, id, token)._reject(error)

    async def extend(self, id: str, token: str, lease: Seconds) -> None:
        """Set the lease of a job to this long from now, by its id and token."""
        await Lease(self._file, id, token)._extend(lease)

    async def sync(self) -> Synced:
        """Local mode: publish the unpublished changes in one commit. Sends no request when there are none.

        Raises Diverged when another writer committed meanwhile. Nothing is lost: ``export_pending`` saves the changes,
        and ``snapshot(discard=True)`` drops them.
        """
        return Synced(**await self._file.sync())

    async def snapshot(self, *, discard: bool = False) -> int:
        """Fetch the commits of other writers. Returns the number of the newest commit.

        In Local mode, fails with the code ``unsynced`` while changes are unpublished; ``discard`` drops them.
        """
        return await self._file.snapshot(discard)

    @property
    def dirty(self) -> Unsynced:
        """The unpublished changes; false when there are none, and always in Durable mode."""
        return Unsynced(**self._file.dirty())

    def atomic(self) -> Atomic:
        """Several changes in one commit: ``async with file.atomic() as tx: tx.ack(job)``."""
        return Atomic(self._file)

    async def get(self, id: str, *, max_age: Seconds | None = None) -> JobDetail | None:
        """Return one job with its payload and result, or None; ``max_age`` allows state that is this old."""
        return _show.detail(await self._file.get(id, convert.maybe_millis(max_age, "max_age")))

    async def get_many(
        self, ids: Iterable[str], *, max_age: Seconds | None = None
    ) -> builtins.list[JobDetail | None]:
        """Return these jobs with their payloads and results, in this order; None for each that does not exist."""
        call = self._file.get_many(convert.names(ids, "ids"), convert.maybe_millis(max_age, "max_age"))
        return _show.details(await call)

    @overload
    async def list(
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
    async def list(
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

    async def list(
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
        return _show.page(await call, payloads)

    async def requeue_all(
        self,
        states: Iterable[State] = (),
        *,
        queue: str | None = None,
        group: str | None = None,
        error: str | None = None,
    ) -> int:
        """Requeue the finished jobs that match, oldest first. No states: the dead ones. Returns how many."""
        return await _op.requeue_all(self._file, queue, states, group, error)

    async def schedules(self) -> builtins.list[ScheduleInfo]:
        """Return the schedules of every queue."""
        return [_policy.schedule(one) for one in await self._file.schedules(None)]

    async def archive(self) -> int:
        """Archive now every finished job that its queue no longer retains. Returns how many.

        Archive objects that are too old expire.
        """
        return await self._file.archive()

    async def archives(self, *, queue: str | None = None, after: int = 0) -> Archives:
        """Return the archive objects that hold runs with a ``finish_seq`` larger than ``after``."""
        return _policy.archives(await _op.archives(self._file, queue, after))

    async def lives(
        self, *, queue: str | None = None, after: int = 0, until: int | None = None, limit: int = 1000
    ) -> Lives:
        """Return the finished runs still in the file, by ``finish_seq``: above ``after``, up to and with ``until``."""
        return _policy.lives(await _op.lives(self._file, queue, after, until, limit))

    async def stats(self, *, max_age: Seconds | None = None) -> Stats:
        """Return the state of the queue file as a whole; ``max_age`` allows state that is this old."""
        return _show.stats(await self._file.stats(convert.maybe_millis(max_age, "max_age")))

    async def history(self, *, limit: int = 100) -> builtins.list[Commit]:
        """Return the newest commits that the log still has, newest first."""
        limit = convert.whole(limit, "limit", 1, 2**32 - 1)
        return _show.history(await self._file.history(limit))

    async def workload(self) -> Workload:
        """Return the workload that the file still shows, for ``bucketq.fit``. Reads every job and the whole log."""
        return workload_of(await self._file.workload())

    async def settle(self) -> int:
        """After OutcomeUnknown: make sure that no earlier request can still be applied. Returns the commit reached."""
        return await self._file.settle()

    async def export(self, path: str | PathLike[str], *, replace: bool = False) -> Exported:
        """Write the newest published state to a file that ``sqlite3`` opens. On failure no file is left."""
        return _show.exported(await self._file.export(path, replace))

    async def export_pending(self, path: str | PathLike[str]) -> None:
        """Local mode: export the state with the unpublished changes.

        Also writes ``path`` with ``.jsonl`` added: a line of JSON for each job that differs.
        """
        await self._file.export_pending(path)

    async def collect(self, *, grace: Seconds) -> Collected:
        """Delete now the objects that were not needed for ``grace``. Maintenance does this by itself, later."""
        return Collected(**await self._file.collect(convert.millis(grace, "grace")))

    @property
    def directory(self) -> Path | None:
        """The directory of the local state: in Local mode, or in Durable mode with a ``cache``."""
        return self._file.directory()

    @property
    def host_role(self) -> HostRole:
        """Which process of this host writes for this handle. Sends no request."""
        return _show.host_role(*self._file.host_role())

    async def metrics(self, *, max_age: Seconds | None = METRICS_AGE) -> Metrics:
        """Return all metrics; counts of jobs are at most ``max_age`` old."""
        return metrics_of(await self._file.metrics(convert.maybe_millis(max_age, "max_age")))

    def on_event(self, callback: OnEvent) -> Callable[[], Awaitable[None]]:
        """Call this with each event of this process from now on. Returns the function that ends it.

        That function waits until the events before it are delivered.
        """
        listening = Task(self._file, callback)
        self._listening.append(listening)

        async def end() -> None:
            await listening.aend()
            if listening in self._listening:
                self._listening.remove(listening)

        return end

    async def close(self) -> None:
        """Wait for the calls sent before, then close the handle. Waiting claims raise Closed.

        Local mode: this does not sync; it logs a warning if changes are not published.
        """
        try:
            _show.closed(self.url, await self._file.close())
        finally:
            await _listening.aend(self._file)
            for one in self._listening:
                await one.aend()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url!r}>"
