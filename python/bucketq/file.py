"""The blocking handle on a queue file. ``bucketq.aio`` has the same, awaitable."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Mapping
from os import PathLike
from types import TracebackType
from typing import Self, Unpack

from bucketq import _convert as convert
from bucketq import _native, _op, _show
from bucketq._atomic import AtomicBase
from bucketq._job import LEASE
from bucketq.queue import Batch, Job, Queue
from bucketq.settings import Source, resolve
from bucketq.types import JobDetail, Page, ProbeReport, QueueInfo, Seconds, Settings, State, Stats

__all__ = ["Atomic", "QueueFile", "open", "probe"]


def open(
    url: str | PathLike[str] | None = None, *, settings: Source | None = None, **arguments: Unpack[Settings]
) -> QueueFile:
    """Open a queue file, made if there is none: ``s3://bucket/path/name``, a path, or ``memory://name``.

    What the arguments do not say comes from ``settings``, a dict or the path of a file, then from BUCKETQ_* variables.

    >>> import bucketq
    >>> with bucketq.open("memory://opened") as file:
    ...     receipt = file.queue("emails").enqueue({"to": "ada@example.org"})
    ...     file.queue("emails").counts().counts["ready"]
    1
    """
    url, options = resolve(url, settings, arguments)
    return QueueFile(_native.open(url, options).wait(), url)


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
        lease: Seconds = LEASE,
        wait: Seconds | None = 0,
        worker: str | None = None,
        swallow: bool = False,
    ) -> Batch:
        """Claim up to ``max`` jobs of these queues, or of any. ``wait`` 0 looks once, None waits for one."""
        call = _op.claim(self._file, queues, max, lease, wait, worker)
        return Batch(self._file, [Job(self._file, held, swallow=swallow) for held in call.wait()])

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
        after: int | None = None,
        limit: int = 100,
    ) -> Page:
        """A page of jobs in the order of their enqueues. No states means all."""
        return _show.page(_op.page(self._file, queue, states, group, expired, after, limit).wait())

    def stats(self, *, max_age: Seconds | None = None) -> Stats:
        """The queue file as a whole; with ``max_age``, state of that age will do."""
        return _show.stats(self._file.stats(convert.maybe_millis(max_age, "max_age")).wait())

    def settle(self) -> int:
        """After OutcomeUnknown: make sure that nothing sent before can still land. Answers the commit reached."""
        return self._file.settle().wait()

    def metrics(self) -> Mapping[str, int]:
        """What the writer of this process has done: commits, puts, gets and more."""
        return self._file.metrics()

    def close(self) -> None:
        """Answer everything sent before, and end. Waiting claims get Closed."""
        self._file.close().wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url!r}>"
