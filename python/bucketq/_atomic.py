"""Several changes in one commit: what blocking and asyncio have in common."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING, Any, Unpack

from bucketq import _convert as convert
from bucketq import _op, _show
from bucketq._native import Op
from bucketq.errors import Invalid
from bucketq.types import Changes, Extras, Missed, Seconds, State

if TYPE_CHECKING:
    from bucketq import _native
    from bucketq._job import JobBase


class AtomicBase:
    """Changes that happen together or not at all, when the block is left without an exception."""

    __slots__ = ("_file", "_ops", "_results")

    def __init__(self, file: _native.File) -> None:
        self._file = file
        self._ops: list[Op] = []
        self._results: tuple[Any, ...] | None = None

    def enqueue(self, queue: str, data: Any, **extras: Unpack[Extras]) -> str:
        """Put a job into a queue. Answers the id it will have, unless it is deduplicated."""
        new = _op.new(self._file, data, extras)
        self._add(_op.enqueue(queue, [new]))
        return new.id

    def ack(self, job: JobBase, *, result: Any = None) -> None:
        """The job is done."""
        self._add(Op.ack(job._held, None if result is None else convert.encode(result)))

    def nack(self, job: JobBase, error: object = None, *, delay: Seconds | None = None) -> None:
        """The attempt failed."""
        self._add(Op.nack(job._held, convert.maybe_millis(delay, "delay"), _op.words(error)))

    def release(self, job: JobBase) -> None:
        """Give the job back unharmed."""
        self._add(Op.release(job._held))

    def reject(self, job: JobBase, error: object = None) -> None:
        """The job can never succeed."""
        self._add(Op.reject(job._held, _op.words(error)))

    def cancel(self, id: str, *, leased: bool = False) -> None:
        """Take a job back that nobody works on yet, or any unfinished one."""
        self._add(Op.cancel(id, leased))

    def requeue(self, id: str, *, run: int | None = None) -> None:
        """Give a finished job a fresh life."""
        self._add(Op.requeue(id, run))

    def purge(self, queue: str, states: Iterable[State]) -> None:
        """Delete the jobs of a queue that are in these states."""
        self._add(Op.purge(queue, convert.names(states, "states")))

    def pause(self, queue: str) -> None:
        """Claims get nothing from this queue until it is resumed."""
        self._add(Op.pause(queue))

    def resume(self, queue: str) -> None:
        """Claims get jobs again."""
        self._add(Op.resume(queue))

    def drain(self, queue: str) -> None:
        """No more jobs go in or out of this queue until it is resumed. Answers how many are worked on."""
        self._add(Op.drain(queue))

    def configure(self, queue: str, **changes: Unpack[Changes]) -> None:
        """Change the policy of a queue."""
        self._add(_op.configure(queue, changes))

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
        """Enqueue such a job again and again."""
        op = _op.schedule(self._file, queue, name, data, cron, every, start, timezone, missed, extras)
        self._add(op)

    def unschedule(self, queue: str, name: str) -> None:
        """Take a schedule away."""
        self._add(Op.unschedule(queue, name))

    @property
    def results(self) -> tuple[Any, ...]:
        """What each change answered, in order; there once the block was left."""
        if self._results is None:
            raise Invalid("the results are there after the block", "state")
        return self._results

    def _add(self, op: Op) -> None:
        if self._results is not None:
            raise Invalid("this atomic has been committed: begin another one", "state")
        self._ops.append(op)

    def _call(self, error: object) -> _native.Call[list[Any]] | None:
        if error is not None or not self._ops:
            self._results = ()
            return None
        return self._file.call(Op.atomic(self._ops))

    def _committed(self, results: list[Any]) -> None:
        self._results = tuple(map(_show.result, results))
