"""The blocking handle on a queue file. ``bucketq.aio`` has the same, awaitable."""

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
from bucketq._listening import Thread, watch
from bucketq.events import OnEvent
from bucketq.measured import Measured, Progress, Workload, measured_of, workload_of
from bucketq.metrics import METRICS_AGE, Metrics, metrics_of
from bucketq.queue import Batch, Job, OnLeaseLost, Queue
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

__all__ = ["Atomic", "QueueFile", "check", "measure", "open", "probe", "restore"]


def open(
    url: str | PathLike[str] | None = None,
    *,
    settings: Source | None = None,
    on_event: OnEvent | None = None,
    **arguments: Unpack[Settings],
) -> QueueFile:
    """Open a queue file, made if there is none: ``s3://bucket/path/name``, a path, or ``memory://name``.

    ``on_event`` is told what happens through this process, as ``bucketq.events`` has it.

    What the arguments do not say comes from ``settings``, a dict or the path of a file, then from BUCKETQ_* variables.

    >>> import bucketq
    >>> with bucketq.open("memory://opened") as file:
    ...     receipt = file.queue("emails").enqueue({"to": "ada@example.org"})
    ...     file.queue("emails").counts().counts["ready"]
    1
    """
    url, options = resolve(url, settings, arguments)
    return QueueFile(_listening.start(_native.open(url, options).wait(), on_event, Thread), url)


def probe(
    url: str | PathLike[str] | None = None,
    *,
    thorough: bool = True,
    settings: Source | None = None,
    **arguments: Unpack[Settings],
) -> ProbeReport:
    """Test the compare-and-swap of the store at this URL, as is done less thoroughly before a queue file is made.

    Raises Unavailable with what the store did if it fails. Objects ``name.probe-...`` are made and removed.
    """
    url, options = resolve(url, settings, arguments)
    return _show.report(_native.probe(url, thorough, options).wait())


def check(
    url: str | PathLike[str] | None = None, *, settings: Source | None = None, **arguments: Unpack[Settings]
) -> CheckReport:
    """Read everything a queue file consists of and say what is wrong with it. Writes nothing; others may go on.

    >>> import bucketq
    >>> with bucketq.open("memory://checked") as file:
    ...     receipt = file.queue("emails").enqueue("hello")
    ...     bucketq.check("memory://checked").problems
    ()
    """
    url, options = resolve(url, settings, arguments)
    return _show.checked(_native.check(url, options).wait())


def restore(
    url: str | PathLike[str] | None,
    image: str | PathLike[str],
    *,
    settings: Source | None = None,
    **arguments: Unpack[Settings],
) -> Restored:
    """Make an exported image the newest state of the queue file, whatever is there. Stop the workers first.

    What was committed after the image is undone, and leases given since then are forgotten.
    With ``url`` None the settings name it.
    """
    url, options = resolve(url, settings, arguments)
    return _show.restored(_native.restore(url, image, options).wait())


def measure(
    url: str | PathLike[str] | None = None,
    *,
    samples: int = 100,
    progress: Progress | None = None,
    settings: Source | None = None,
    **arguments: Unpack[Settings],
) -> Measured:
    """Measure what the store at this URL is like to commit to: latencies by size, throughput, clocks.

    ``progress`` is called with what comes next, how many requests are done, and of how many; what it raises ends the
    measurement. Objects ``name.probe-...`` are made and removed.
    """
    url, options = resolve(url, settings, arguments)
    return measured_of(_native.measure(url, samples, progress, options).wait())


class Atomic(AtomicBase):
    """Changes that happen together or not at all, when the block is left without an exception."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        call = self._call(error)
        if call is not None:
            self._committed(call.wait())


class QueueFile:
    """An open queue file. Close it, or use it as a context manager; handles may be used from several threads."""

    __slots__ = ("_file", "url")

    def __init__(self, file: _native.File, url: str) -> None:
        self._file = file
        self.url = url
        """What it was opened with."""

    def queue(self, name: str) -> Queue:
        """The queue of this name; it is made by its first job."""
        self._file.check_queue(name)
        return Queue(self._file, name)

    def queues(self, *, max_age: Seconds | None = None) -> builtins.list[QueueInfo]:
        """Every queue with its counts; with ``max_age``, state of that age will do."""
        return [
            _show.queue(one) for one in self._file.queues(convert.maybe_millis(max_age, "max_age")).wait()
        ]

    def claim(
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
        jobs = [Job(self._file, held, swallow=swallow) for held in call.wait()]
        return Batch(self._file, watch(self._file, jobs, on_lease_lost, Thread))

    def sync(self) -> Synced:
        """Local mode: publish what was changed here, in one commit. Costs nothing when nothing was.

        Raises Diverged when somebody else committed meanwhile: nothing is lost; ``export_pending`` saves it, and
        ``snapshot(discard=True)`` drops it.
        """
        return Synced(**self._file.sync().wait())

    def snapshot(self, *, discard: bool = False) -> int:
        """Bring what others published, and answer the number of the newest commit.

        In Local mode refused with the code ``unsynced`` while something is not published, unless ``discard`` drops it.
        """
        return self._file.snapshot(discard).wait()

    @property
    def dirty(self) -> Unsynced:
        """What is not published; false when that is nothing, and always in Durable mode."""
        return Unsynced(**self._file.dirty())

    def atomic(self) -> Atomic:
        """Several changes in one commit: ``with file.atomic() as tx: tx.ack(job); tx.enqueue("next", data)``."""
        return Atomic(self._file)

    def get(self, id: str) -> JobDetail | None:
        """One job with its bytes, or None."""
        return _show.detail(self._file.get(id).wait())

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
    ) -> Page:
        """A page of jobs in the order of their enqueues. No states means all; ``error`` is text of the last error."""
        return _show.page(_op.page(self._file, queue, states, group, expired, error, after, limit).wait())

    def requeue_all(
        self,
        states: Iterable[State] = (),
        *,
        queue: str | None = None,
        group: str | None = None,
        error: str | None = None,
    ) -> int:
        """Give the finished jobs that match fresh lives, oldest first; no states means the dead. Answers how many."""
        return _op.requeue_all(self._file, queue, states, group, error).wait()

    def schedules(self) -> builtins.list[ScheduleInfo]:
        """The schedules of every queue."""
        return [_policy.schedule(one) for one in self._file.schedules(None).wait()]

    def archive(self) -> int:
        """Write every finished job that may leave its queue to the archive now. Answers how many that were.

        Archive objects that are too old are given up.
        """
        return self._file.archive().wait()

    def archives(self, *, queue: str | None = None, after: int = 0) -> Archives:
        """The objects of the archive that hold lives with a ``finish_seq`` larger than ``after``."""
        return _policy.archives(_op.archives(self._file, queue, after).wait())

    def lives(
        self, *, queue: str | None = None, after: int = 0, until: int | None = None, limit: int = 1000
    ) -> Lives:
        """The finished lives that are still in the file, by ``finish_seq``: from behind ``after`` up to ``until``."""
        return _policy.lives(_op.lives(self._file, queue, after, until, limit).wait())

    def stats(self, *, max_age: Seconds | None = None) -> Stats:
        """The queue file as a whole; with ``max_age``, state of that age will do."""
        return _show.stats(self._file.stats(convert.maybe_millis(max_age, "max_age")).wait())

    def history(self, *, limit: int = 100) -> builtins.list[Commit]:
        """The newest commits that the log still has, newest first."""
        limit = convert.whole(limit, "limit", 1, 2**32 - 1)
        return _show.history(self._file.history(limit).wait())

    def workload(self) -> Workload:
        """What the file still knows of its own workload, for ``bucketq.fit``. Reads every job and the whole log."""
        return workload_of(self._file.workload().wait())

    def settle(self) -> int:
        """After OutcomeUnknown: make sure that nothing sent before can still land. Answers the commit reached."""
        return self._file.settle().wait()

    def export(self, path: str | PathLike[str], *, replace: bool = False) -> Exported:
        """Write the newest published state to a file that ``sqlite3`` opens, whole or not at all."""
        return _show.exported(self._file.export(path, replace).wait())

    def export_pending(self, path: str | PathLike[str]) -> None:
        """Local mode: the same with what is not published.

        Beside it, in ``path`` with ``.jsonl`` added, stands a line of JSON for each job that differs.
        """
        self._file.export_pending(path).wait()

    def collect(self, *, grace: Seconds) -> Collected:
        """Delete what the queue file has not needed for so long, now. Without this it happens by itself, later."""
        return Collected(**self._file.collect(convert.millis(grace, "grace")).wait())

    @property
    def directory(self) -> Path | None:
        """Where the local state lies: in Local mode, or in Durable mode with a ``cache``."""
        return self._file.directory()

    def metrics(self, *, max_age: Seconds | None = METRICS_AGE) -> Metrics:
        """Everything that is measured; counts of jobs are at most ``max_age`` old."""
        return metrics_of(self._file.metrics(convert.maybe_millis(max_age, "max_age")).wait())

    def close(self) -> None:
        """Answer everything sent before, and end. Waiting claims get Closed.

        Local mode: this does not sync; the log warns of what is not published.
        """
        try:
            _show.closed(self.url, self._file.close().wait())
        finally:
            _listening.end(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url!r}>"
