"""Several changes in one commit: the part that the synchronous and async API share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING, Any, Unpack

from bucketq import _convert as convert
from bucketq import _op, _policy, _show
from bucketq._native import Op
from bucketq._spelled import spelled
from bucketq.errors import Invalid
from bucketq.types import Changes, Extras, Missed, Seconds, State

if TYPE_CHECKING:
    from bucketq import _native
    from bucketq._job import JobBase


class AtomicBase:
    """Several changes in one commit: all or none. They are sent when the block ends without an exception."""

    __slots__ = ("_file", "_held", "_ops", "_results", "_shows")

    def __init__(self, file: _native.File) -> None:
        self._file = file
        self._ops: list[Op[Any]] = []
        # For each op, what converts its outcome.
        self._shows: list[Callable[[Any], Any]] = []
        self._results: tuple[Any, ...] | None = None
        # The first job that this atomic ends.
        self._held: _native.Held | None = None

    @spelled(Extras)
    def enqueue(self, queue: str, data: Any, **extras: Unpack[Extras]) -> str:
        """Enqueue a job. Returns the id it will have, unless it is deduplicated.

        After an ack, nack, release or reject in the same block, the id is derived from that job: running the block
        again after ``OutcomeUnknown`` enqueues the same jobs. Before the end of a job the id is a new one each time:
        if the first block took effect, the second raises ``LeaseLost`` and changes nothing.
        """
        new = _op.new(self._file, data, _op.following(self._held, len(self._ops), extras))
        self._add(_op.enqueue(queue, [new]), _show.receipt)
        return new.id

    def ack(self, job: JobBase, *, result: Any = None) -> None:
        """Mark the job done."""
        self._end(job, Op.ack(job, None if result is None else convert.encode(result)))

    def nack(self, job: JobBase, error: object = None, *, delay: Seconds | None = None) -> None:
        """End a failed attempt."""
        self._end(job, Op.nack(job, convert.maybe_millis(delay, "delay"), _op.words(error)))

    def release(self, job: JobBase) -> None:
        """Give the job back: the attempt does not count."""
        self._end(job, Op.release(job))

    def reject(self, job: JobBase, error: object = None) -> None:
        """Mark the job dead at once: it can never succeed."""
        self._end(job, Op.reject(job, _op.words(error)))

    def ack_late(self, id: str, *, run: int = 0, result: Any = None) -> None:
        """Mark a job done without its token: as ``QueueFile.ack_late``."""
        self._add(_op.ack_late(id, run, result))

    def cancel(self, id: str, *, leased: bool = False) -> None:
        """Cancel an unfinished job; one that a worker holds only with ``leased``."""
        self._add(Op.cancel(id, leased))

    def requeue(self, id: str, *, run: int | None = None) -> None:
        """Requeue a finished job; with ``run``, at most once after that run."""
        self._add(Op.requeue(id, run))

    def move(self, id: str, to: str, *, run: int | None = None) -> None:
        """Move a job that no worker holds to another queue; with ``run``, at most once after that run."""
        self._add(Op.move(id, to, run))

    def delete(self, id: str, *, leased: bool = False) -> None:
        """Delete a job; one that a worker holds only with ``leased``."""
        self._add(Op.delete(id, leased))

    def purge(self, queue: str, states: Iterable[State]) -> None:
        """Delete the jobs of a queue that are in these states."""
        self._add(Op.purge(queue, convert.names(states, "states")))

    def pause(self, queue: str) -> None:
        """Stop handing out jobs of this queue until ``resume``."""
        self._add(Op.pause(queue))

    def resume(self, queue: str) -> None:
        """Hand out jobs again; after ``drain``, accept them again too."""
        self._add(Op.resume(queue))

    def drain(self, queue: str) -> None:
        """Stop accepting and handing out jobs until ``resume``. Its result is the number of leased jobs."""
        self._add(Op.drain(queue))

    @spelled(Changes)
    def configure(self, queue: str, **changes: Unpack[Changes]) -> None:
        """Change the named fields of a queue's policy."""
        self._add(_op.configure(queue, changes), _policy.policy)

    @spelled(Extras, without=("delay", "at", "id"))
    def schedule(
        self,
        queue: str,
        name: str,
        data: Any,
        *,
        cron: str | None = None,
        every: Seconds | None = None,
        start: datetime | None = None,
        timezone: str | tzinfo | None = None,
        missed: Missed = "skip",
        **extras: Unpack[Extras],
    ) -> None:
        """Enqueue such a job periodically."""
        op = _op.schedule(self._file, queue, name, data, cron, every, start, timezone, missed, extras)
        self._add(op, _policy.next_time)

    def unschedule(self, queue: str, name: str) -> None:
        """Delete a schedule."""
        self._add(Op.unschedule(queue, name))

    @property
    def results(self) -> tuple[Any, ...]:
        """The result of each change, in order; available after the block."""
        if self._results is None:
            raise Invalid("the results are available after the block", "state")
        return self._results

    def _end(self, job: JobBase, op: Op[Any]) -> None:
        self._add(op)
        self._held = job if self._held is None else self._held

    def _add(self, op: Op[Any], show: Callable[[Any], Any] = _show.same) -> None:
        if self._results is not None:
            raise Invalid("this atomic has been committed: begin another one", "state")
        self._ops.append(op)
        self._shows.append(show)

    def _call(self, error: object) -> _native.Call[list[Any]] | None:
        if error is not None or not self._ops:
            self._results = ()
            return None
        return self._file.call(Op.atomic(self._ops))

    def _repeat(self) -> _native.Call[list[Any]]:
        if self._results is not None:
            raise Invalid("this atomic has been committed, or is empty: begin another one", "state")
        return self._file.call(Op.atomic(self._ops))

    def _committed(self, results: list[Any]) -> None:
        self._results = tuple(show(one) for show, one in zip(self._shows, results, strict=True))
