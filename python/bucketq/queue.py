"""Blocking handles on a queue and its jobs. ``bucketq.aio`` has the same, awaitable."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, tzinfo
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from bucketq import _convert as convert
from bucketq import _op, _policy, _show
from bucketq._job import BatchBase, JobBase
from bucketq._listening import Thread, watch
from bucketq._native import Op
from bucketq._op import swallowed
from bucketq.errors import Error
from bucketq.events import Loss
from bucketq.types import (
    POLICY,
    Changes,
    Enqueued,
    Extras,
    FromPolicy,
    JobDetail,
    Missed,
    New,
    Page,
    Policy,
    QueueInfo,
    ScheduleInfo,
    Seconds,
    State,
)

if TYPE_CHECKING:
    from bucketq import _native

__all__ = ["Batch", "Job", "Jobs", "Queue"]


class Job(JobBase):
    """A claimed job. Its lease is kept extended until it is ended or nobody refers to it.

    As a context manager it is acked at the end of the block; an exception nacks it and goes on.
    """

    __slots__ = ()

    def ack(self, *, result: Any = None, then: Iterable[New] = ()) -> None:
        """The job is done. ``result`` is kept with it, ``then`` is enqueued in the same commit."""
        self._ack(result, then).wait()

    def nack(self, error: object = None, *, delay: Seconds | None = None) -> State:
        """The attempt failed: the job runs again after its back-off, or after ``delay``; or is dead."""
        return self._nack(error, delay).wait()

    def release(self) -> None:
        """Give the job back unharmed: the attempt does not count."""
        self._release().wait()

    def reject(self, error: object = None) -> None:
        """The job can never succeed: it is dead at once."""
        self._reject(error).wait()

    def extend(self, lease: Seconds) -> None:
        """Hold the job for this long from now, and keep it with leases of this length."""
        self._extend(lease).wait()

    def __enter__(self) -> Self:
        self._enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        try:
            call = self._left(error)
            if call is not None:
                call.wait()
        except Error as failure:
            if error is None:
                raise
            error.add_note(f"and job {self.id} could not be given back: {failure}")
        finally:
            self._leave(error)
        return swallowed(self, error, self._swallow)


OnLeaseLost = Callable[[Job, Loss], object]
"""A function or a coroutine function that gets the job and how its lease was lost."""


class Batch(BatchBase[Job]):
    """The jobs of one claim, a sequence. Leaving its block gives back those that nobody has looked at."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        call = self._give_back()
        if call is not None:
            call.wait()


class Jobs:
    """Jobs one after the other, claimed ``prefetch`` at a time. What was claimed and not handed out is given back."""

    __slots__ = ("_batch", "_claim")

    def __init__(self, claim: Callable[[], Batch]) -> None:
        self._claim = claim
        self._batch: list[Job] = []

    def __iter__(self) -> Iterator[Job]:
        return self

    def __next__(self) -> Job:
        if not self._batch:
            self._batch = list(reversed(self._claim()))
        if not self._batch:
            raise StopIteration
        return self._batch.pop()

    def close(self) -> None:
        """Give back what was claimed and not handed out."""
        batch, self._batch = self._batch, []
        if batch:
            with Batch(batch[0]._file, batch):
                pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Queue:
    """A named line of jobs. It is made by its first job."""

    __slots__ = ("_file", "name")

    def __init__(self, file: _native.File, name: str) -> None:
        self._file = file
        self.name = name
        """Its name."""

    def enqueue(self, data: Any, **extras: Unpack[Extras]) -> Enqueued:
        """Put a job into the queue. It is in the bucket once this returns."""
        return _show.enqueued(_op.send(self._file, self.name, [(data, extras)]).wait())[0]

    def enqueue_many(
        self,
        jobs: Iterable[Any],
        *,
        chunk: int = 1000,
        progress: Callable[[int], object] | None = None,
    ) -> builtins.list[Enqueued]:
        """Put many jobs into the queue: ``New``, or data alone. One commit per chunk, each chunk all or nothing.

        ``progress`` is called with the number of jobs enqueued so far. An error's ``enqueued`` has those that were
        enqueued before it.
        """
        done: list[Enqueued] = []
        with _op.telling(done):
            for call in _op.chunks(self._file, self.name, jobs, chunk):
                done += _show.enqueued(call.wait())
                if progress is not None:
                    progress(len(done))
        return done

    def jobs(
        self,
        *,
        lease: Seconds | FromPolicy | None = POLICY,
        prefetch: int = 1,
        wait: Seconds | None = None,
        worker: str | None = None,
        swallow: bool = False,
        on_lease_lost: OnLeaseLost | None = None,
    ) -> Jobs:
        """Jobs as they come, for a ``for`` loop; ends when there is none within ``wait``."""

        def claim() -> Batch:
            return self.claim(
                prefetch, lease=lease, wait=wait, worker=worker, swallow=swallow, on_lease_lost=on_lease_lost
            )

        return Jobs(claim)

    def claim(
        self,
        max: int = 1,
        *,
        lease: Seconds | FromPolicy | None = POLICY,
        wait: Seconds | None = 0,
        worker: str | None = None,
        swallow: bool = False,
        on_lease_lost: OnLeaseLost | None = None,
    ) -> Batch:
        """Claim up to ``max`` jobs. ``wait`` 0 looks once, None waits until there is one.

        They are held for ``lease``, unless told as long as the policy says. None is without end (at most once).
        ``on_lease_lost`` is called with a job and "ran_out" or "taken" as soon as its lease is lost, on a thread.
        """
        call = _op.claim(self._file, [self.name], max, lease, wait, worker)
        jobs = [Job(self._file, held, swallow=swallow) for held in call.wait()]
        return Batch(self._file, watch(self._file, jobs, on_lease_lost, Thread))

    def claim_one(
        self,
        *,
        lease: Seconds | FromPolicy | None = POLICY,
        wait: Seconds | None = 0,
        worker: str | None = None,
        swallow: bool = False,
        on_lease_lost: OnLeaseLost | None = None,
    ) -> Job | None:
        """Claim one job, or get None when there is none within ``wait``."""
        batch = self.claim(
            1, lease=lease, wait=wait, worker=worker, swallow=swallow, on_lease_lost=on_lease_lost
        )
        return batch[0] if batch else None

    def get(self, id: str) -> JobDetail | None:
        """One job of the queue file with its bytes, or None."""
        return _show.detail(self._file.get(id).wait())

    def list(
        self,
        states: Iterable[State] = (),
        *,
        group: str | None = None,
        expired: bool = False,
        error: str | None = None,
        after: int | None = None,
        limit: int = 100,
    ) -> Page:
        """A page of jobs in the order of their enqueues. No states means all; ``error`` is text of the last error."""
        return _show.page(_op.page(self._file, self.name, states, group, expired, error, after, limit).wait())

    def counts(self, *, max_age: Seconds | None = None) -> QueueInfo:
        """How many jobs there are in each state; with ``max_age``, state of that age will do."""
        call = self._file.queues(convert.maybe_millis(max_age, "max_age"))
        return _show.counts(self.name, call.wait())

    def wait(self, id: str, *, timeout: Seconds | None = None) -> JobDetail | None:
        """The job once it is finished, with its result; None when it is not within ``timeout``."""
        return _show.detail(self._file.finished(id, convert.maybe_millis(timeout, "timeout")).wait())

    def cancel(self, id: str, *, leased: bool = False) -> State:
        """Take a job back that nobody works on yet, or any unfinished one. Answers the state it was in."""
        return self._file.call(Op.cancel(id, leased)).wait()

    def requeue(self, id: str, *, run: int | None = None) -> int:
        """Give a finished job a fresh life, if need be only after life ``run``. Answers its number."""
        return self._file.call(Op.requeue(id, run)).wait()

    def requeue_all(
        self, states: Iterable[State] = (), *, group: str | None = None, error: str | None = None
    ) -> int:
        """Give the finished jobs that match fresh lives, oldest first; no states means the dead. Answers how many."""
        return _op.requeue_all(self._file, self.name, states, group, error).wait()

    def purge(self, states: Iterable[State]) -> int:
        """Delete the jobs in these states. Answers how many there were."""
        return self._file.call(Op.purge(self.name, convert.names(states, "states"))).wait()

    def pause(self) -> None:
        """Claims get nothing from this queue until it is resumed."""
        self._file.call(Op.pause(self.name)).wait()

    def resume(self) -> None:
        """Claims get jobs again."""
        self._file.call(Op.resume(self.name)).wait()

    def drain(self, *, timeout: Seconds | None = None) -> int:
        """Take in no more jobs and give none out, until resumed; and wait until nobody works on any.

        Answers how many are still worked on after ``timeout``.
        """
        return self._file.drain(self.name, convert.maybe_millis(timeout, "timeout")).wait()

    def configure(self, **changes: Unpack[Changes]) -> Policy:
        """Change the policy, in one commit for all processes: what is named. Answers the policy as it is then."""
        return _policy.policy(self._file.call(_op.configure(self.name, changes)).wait())

    def policy(self) -> Policy:
        """What applies to all jobs of this queue."""
        return _policy.policy(self._file.policy(self.name).wait())

    def schedule(
        self,
        name: str,
        data: Any,
        *,
        cron: str | None = None,
        every: Seconds | None = None,
        start: datetime | None = None,
        timezone: str | tzinfo | None = None,
        missed: Missed = "skip",
        **extras: Unpack[Extras],
    ) -> datetime:
        """Enqueue such a job again and again: by a cron expression in a time zone, or every so often from ``start`` on.

        In place of what had that name; the same again moves nothing. Answers the next time.
        """
        op = _op.schedule(self._file, self.name, name, data, cron, every, start, timezone, missed, extras)
        return _show.result(self._file.call(op).wait())

    def unschedule(self, name: str) -> bool:
        """Take a schedule away; what it has enqueued stays. True if it was there."""
        return self._file.call(Op.unschedule(self.name, name)).wait()

    def schedules(self) -> builtins.list[ScheduleInfo]:
        """The schedules of this queue."""
        return [_policy.schedule(one) for one in self._file.schedules(self.name).wait()]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"
