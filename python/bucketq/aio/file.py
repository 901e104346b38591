"""The awaitable handle on a queue file, as ``bucketq.file``."""

from __future__ import annotations

import builtins
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Self, Unpack

from bucketq import _convert as convert
from bucketq import _listening, _native, _op, _policy, _show
from bucketq._atomic import AtomicBase
from bucketq._listening import Task, watch
from bucketq.aio.queue import Batch, Job, OnLeaseLost, Queue
from bucketq.events import OnEvent
from bucketq.measured import Measured, Progress, Workload, measured_of, workload_of
from bucketq.metrics import METRICS_AGE, Metrics, metrics_of
from bucketq.settings import Source, resolve
from bucketq.types import (
    POLICY,
    Archives,
    CheckReport,
    Collected,
    Commit,
    Exported,
    FromPolicy,
    JobDetail,
    Lives,
    Page,
    ProbeReport,
    QueueInfo,
    Restored,
    ScheduleInfo,
    Seconds,
    Settings,
    State,
    Stats,
    Synced,
    Unsynced,
)


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


async def probe(
    url: str | PathLike[str] | None = None,
    *,
    thorough: bool = True,
    settings: Source | None = None,
    **arguments: Unpack[Settings],
) -> ProbeReport:
    """Test the compare-and-swap of the store at this URL, as ``bucketq.probe``."""
    url, options = resolve(url, settings, arguments)
    return _show.report(await _native.probe(url, thorough, options))


async def check(
    url: str | PathLike[str] | None = None, *, settings: Source | None = None, **arguments: Unpack[Settings]
) -> CheckReport:
    """Read everything a queue file consists of, as ``bucketq.check``."""
    url, options = resolve(url, settings, arguments)
    return _show.checked(await _native.check(url, options))


async def restore(
    url: str | PathLike[str] | None,
    image: str | PathLike[str],
    *,
    settings: Source | None = None,
    **arguments: Unpack[Settings],
) -> Restored:
    """Make an exported image the newest state of the queue file, as ``bucketq.restore``."""
    url, options = resolve(url, settings, arguments)
    return _show.restored(await _native.restore(url, image, options))


async def measure(
    url: str | PathLike[str] | None = None,
    *,
    samples: int = 100,
    progress: Progress | None = None,
    settings: Source | None = None,
    **arguments: Unpack[Settings],
) -> Measured:
    """Measure the store at this URL, as ``bucketq.measure``."""
    url, options = resolve(url, settings, arguments)
    return measured_of(await _native.measure(url, samples, progress, options))


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


class QueueFile:
    """An open queue file, as ``bucketq.QueueFile``."""

    __slots__ = ("_file", "url")

    def __init__(self, file: _native.File, url: str) -> None:
        self._file = file
        self.url = url
        """What it was opened with."""

    def queue(self, name: str) -> Queue:
        """The queue of this name; it is made by its first job."""
        self._file.check_queue(name)
        return Queue(self._file, name)

    async def queues(self, *, max_age: Seconds | None = None) -> builtins.list[QueueInfo]:
        """Every queue with its counts; with ``max_age``, state of that age will do."""
        return [_show.queue(one) for one in await self._file.queues(convert.maybe_millis(max_age, "max_age"))]

    async def claim(
        self,
        max: int = 1,
        *,
        queues: Iterable[str] | None = None,
        lease: Seconds | FromPolicy | None = POLICY,
        wait: Seconds | None = 0,
        worker: str | None = None,
        swallow: bool = False,
        on_lease_lost: OnLeaseLost | None = None,
    ) -> Batch:
        """Claim up to ``max`` jobs of these queues, or of any. ``wait`` 0 looks once, None waits for one."""
        call = _op.claim(self._file, queues, max, lease, wait, worker)
        jobs = [Job(self._file, held, swallow=swallow) for held in await call]
        return Batch(self._file, watch(self._file, jobs, on_lease_lost, Task))

    async def sync(self) -> Synced:
        """Local mode: publish what was changed here, in one commit. Costs nothing when nothing was.

        Raises Diverged when somebody else committed meanwhile: nothing is lost; ``export_pending`` saves it, and
        ``snapshot(discard=True)`` drops it.
        """
        return Synced(**await self._file.sync())

    async def snapshot(self, *, discard: bool = False) -> int:
        """Bring what others published, and answer the number of the newest commit.

        In Local mode refused with the code ``unsynced`` while something is not published, unless ``discard`` drops it.
        """
        return await self._file.snapshot(discard)

    @property
    def dirty(self) -> Unsynced:
        """What is not published; false when that is nothing, and always in Durable mode."""
        return Unsynced(**self._file.dirty())

    def atomic(self) -> Atomic:
        """Several changes in one commit: ``async with file.atomic() as tx: tx.ack(job)``."""
        return Atomic(self._file)

    async def get(self, id: str) -> JobDetail | None:
        """One job with its bytes, or None."""
        return _show.detail(await self._file.get(id))

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
    ) -> Page:
        """A page of jobs in the order of their enqueues. No states means all; ``error`` is text of the last error."""
        return _show.page(await _op.page(self._file, queue, states, group, expired, error, after, limit))

    async def requeue_all(
        self,
        states: Iterable[State] = (),
        *,
        queue: str | None = None,
        group: str | None = None,
        error: str | None = None,
    ) -> int:
        """Give the finished jobs that match fresh lives, oldest first; no states means the dead. Answers how many."""
        return await _op.requeue_all(self._file, queue, states, group, error)

    async def schedules(self) -> builtins.list[ScheduleInfo]:
        """The schedules of every queue."""
        return [_policy.schedule(one) for one in await self._file.schedules(None)]

    async def archive(self) -> int:
        """Write every finished job that may leave its queue to the archive now. Answers how many that were.

        Archive objects that are too old are given up.
        """
        return await self._file.archive()

    async def archives(self, *, queue: str | None = None, after: int = 0) -> Archives:
        """The objects of the archive that hold lives with a ``finish_seq`` larger than ``after``."""
        return _policy.archives(await _op.archives(self._file, queue, after))

    async def lives(
        self, *, queue: str | None = None, after: int = 0, until: int | None = None, limit: int = 1000
    ) -> Lives:
        """The finished lives that are still in the file, by ``finish_seq``: from behind ``after`` up to ``until``."""
        return _policy.lives(await _op.lives(self._file, queue, after, until, limit))

    async def stats(self, *, max_age: Seconds | None = None) -> Stats:
        """The queue file as a whole; with ``max_age``, state of that age will do."""
        return _show.stats(await self._file.stats(convert.maybe_millis(max_age, "max_age")))

    async def history(self, *, limit: int = 100) -> builtins.list[Commit]:
        """The newest commits that the log still has, newest first."""
        limit = convert.whole(limit, "limit", 1, 2**32 - 1)
        return _show.history(await self._file.history(limit))

    async def workload(self) -> Workload:
        """What the file still knows of its own workload, for ``bucketq.fit``. Reads every job and the whole log."""
        return workload_of(await self._file.workload())

    async def settle(self) -> int:
        """After OutcomeUnknown: make sure that nothing sent before can still land. Answers the commit reached."""
        return await self._file.settle()

    async def export(self, path: str | PathLike[str], *, replace: bool = False) -> Exported:
        """Write the newest published state to a file that ``sqlite3`` opens, whole or not at all."""
        return _show.exported(await self._file.export(path, replace))

    async def export_pending(self, path: str | PathLike[str]) -> None:
        """Local mode: the same with what is not published.

        Beside it, in ``path`` with ``.jsonl`` added, stands a line of JSON for each job that differs.
        """
        await self._file.export_pending(path)

    async def collect(self, *, grace: Seconds) -> Collected:
        """Delete what the queue file has not needed for so long, now. Without this it happens by itself, later."""
        return Collected(**await self._file.collect(convert.millis(grace, "grace")))

    @property
    def directory(self) -> Path | None:
        """Where the local state lies: in Local mode, or in Durable mode with a ``cache``."""
        return self._file.directory()

    async def metrics(self, *, max_age: Seconds | None = METRICS_AGE) -> Metrics:
        """Everything that is measured; counts of jobs are at most ``max_age`` old."""
        return metrics_of(await self._file.metrics(convert.maybe_millis(max_age, "max_age")))

    async def close(self) -> None:
        """Answer everything sent before, and end. Waiting claims get Closed.

        Local mode: this does not sync; the log warns of what is not published.
        """
        try:
            _show.closed(self.url, await self._file.close())
        finally:
            await _listening.aend(self._file)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url!r}>"
