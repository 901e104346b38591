"""Synchronous handles on a queue and its jobs. ``bucketq.aio`` has the same API for asyncio."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, tzinfo
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, overload

from bucketq import _convert as convert
from bucketq import _op, _policy, _show
from bucketq._job import BatchBase, JobBase
from bucketq._listening import Thread, watch
from bucketq._native import Leave, Op
from bucketq._op import swallowed
from bucketq._spelled import spelled
from bucketq.errors import Error
from bucketq.events import Loss
from bucketq.types import (
    POLICY,
    Changes,
    Enqueued,
    Extras,
    FromPolicy,
    JobDetail,
    JobInfo,
    Missed,
    New,
    Page,
    Policy,
    QueueInfo,
    Rate,
    ScheduleInfo,
    Seconds,
    State,
)

if TYPE_CHECKING:
    from bucketq import _native

__all__ = ["Batch", "Job", "Jobs", "Queue"]


class Job(JobBase):
    """A claimed job. Its lease is renewed until the job is ended or no longer referenced.

    As a context manager it acks the job at the end of the block; an exception nacks the job and propagates.
    """

    __slots__ = ()

    @overload
    def ack(self, *, result: Any = None, then: Iterable[New] = (), next: Literal[False] = False) -> None: ...
    @overload
    def ack(self, *, result: Any = None, then: Iterable[New] = (), next: bool) -> Self | None: ...
    def ack(self, *, result: Any = None, then: Iterable[New] = (), next: bool = False) -> Self | None:
        """Mark the job done. ``result`` is stored with it; the jobs in ``then`` are enqueued in the same commit.

        With ``next``, that commit also claims one more job, with the arguments of the claim that got this one; returns
        it, or None when there is none now. A repeat after OutcomeUnknown returns the same job.
        """
        if next:
            return self._next(self._ack_next(result, then).wait(), Thread)
        self._ack(result, then).wait()
        return None

    def nack(self, error: object = None, *, delay: Seconds | None = None) -> State:
        """End a failed attempt: the job runs again after its back-off or ``delay``, or is dead. Returns its state."""
        return self._nack(error, delay).wait()

    def release(self) -> None:
        """Give the job back: the attempt does not count."""
        self._release().wait()

    def reject(self, error: object = None) -> None:
        """Mark the job dead at once: it can never succeed."""
        self._reject(error).wait()

    def extend(self, lease: Seconds) -> None:
        """Set the lease to this long from now, even if that is shorter; later renewals use this length too.

        A lease that never ends stays so.
        """
        self._extend(convert.millis(lease, "lease")).wait()

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
"""A function or coroutine function, called with the job and how its lease was lost."""


class Batch(BatchBase[Job]):
    """The jobs of one claim, a sequence. The end of its block releases the jobs that were neither read nor entered."""

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
    """Jobs one after the other, claimed ``prefetch`` at a time. ``close`` gives back those not handed out."""

    __slots__ = ("_batch", "_claim", "_leave")

    def __init__(self, claim: Callable[[], Batch], leave: Leave) -> None:
        self._claim = claim
        self._leave = leave
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
        """End the loop, also one that waits in another thread, and give back the jobs that were not handed out."""
        self._leave.leave()
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
    """A named queue of jobs. Its first job creates it."""

    __slots__ = ("_file", "name")

    def __init__(self, file: _native.File, name: str) -> None:
        self._file = file
        self.name = name
        """The queue's name."""

    @spelled(Extras)
    def enqueue(self, data: Any, **extras: Unpack[Extras]) -> Enqueued:
        """Enqueue a job. It is in the bucket once this returns."""
        return _show.enqueued(_op.send(self._file, self.name, [(data, extras)]).wait())[0]

    def enqueue_many(
        self,
        jobs: Iterable[Any],
        *,
        chunk: int = 1000,
        progress: Callable[[int], object] | None = None,
    ) -> builtins.list[Enqueued]:
        """Enqueue many jobs: ``New``, or data alone. One commit per chunk, each chunk all or nothing.

        ``progress`` is called with the number of jobs enqueued so far. The ``enqueued`` of an error lists the jobs
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
        extend: bool = True,
        swallow: bool = False,
        on_lease_lost: OnLeaseLost | None = None,
    ) -> Jobs:
        """Claim jobs in a ``for`` loop, which ends when no job comes within ``wait``. None: it does not end."""
        request = _op.Request([self.name], lease, worker, extend=extend, on_lost=on_lease_lost)
        leave = Leave()

        def claim() -> Batch:
            call = _op.claim(self._file, request, prefetch, wait, leave=leave)
            jobs = [Job(self._file, held, request, swallow=swallow) for held in call.wait()]
            return Batch(self._file, watch(self._file, jobs, on_lease_lost, Thread))

        return Jobs(claim, leave)

    def claim(
        self,
        max: int = 1,
        *,
        lease: Seconds | FromPolicy | None = POLICY,
        wait: Seconds | None = 0,
        worker: str | None = None,
        extend: bool = True,
        ack: bool = False,
        swallow: bool = False,
        on_lease_lost: OnLeaseLost | None = None,
    ) -> Batch:
        """Claim up to ``max`` jobs. ``wait`` 0 looks once; None waits until there is a job.

        The lease lasts ``lease``, by default as long as the policy says; with None it never ends (at most once). It is
        renewed until the job ends, unless ``extend`` is False. ``ack`` ends the jobs in the commit that claims them.
        ``on_lease_lost`` is called on a thread as soon as a lease is lost, with the job and "ran_out" or "taken".

        Closing the handle ends a claim that waits; ``jobs`` makes a loop that another thread can end by itself.
        """
        request = _op.Request([self.name], lease, worker, extend=extend, on_lost=on_lease_lost)
        call = _op.claim(self._file, request, max, wait, ack=ack)
        jobs = [Job(self._file, held, request, swallow=swallow) for held in call.wait()]
        return Batch(self._file, watch(self._file, jobs, on_lease_lost, Thread))

    def claim_one(
        self,
        *,
        id: str | None = None,
        lease: Seconds | FromPolicy | None = POLICY,
        wait: Seconds | None = 0,
        worker: str | None = None,
        extend: bool = True,
        ack: bool = False,
        swallow: bool = False,
        on_lease_lost: OnLeaseLost | None = None,
    ) -> Job | None:
        """Claim one job, or the one with this ``id``. Returns None when it cannot be claimed within ``wait``."""
        request = _op.Request([self.name], lease, worker, extend=extend, on_lost=on_lease_lost)
        call = _op.claim(self._file, request, 1, wait, id=id, ack=ack)
        jobs = [Job(self._file, held, request, swallow=swallow) for held in call.wait()]
        return next(iter(watch(self._file, jobs, on_lease_lost, Thread)), None)

    def get(self, id: str, *, max_age: Seconds | None = None) -> JobDetail | None:
        """Return a job of the queue file, of any queue, with its payload and result; or None.

        ``max_age`` allows state that is this old.
        """
        return _show.detail(self._file.get(id, convert.maybe_millis(max_age, "max_age")).wait())

    @overload
    def list(
        self,
        states: Iterable[State] = (),
        *,
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
        call = _op.page(self._file, self.name, states, group, expired, error, after, limit, payloads)
        return _show.page(call.wait(), payloads)

    def counts(self, *, max_age: Seconds | None = None) -> QueueInfo:
        """Return the number of jobs in each state; ``max_age`` allows state that is this old.

        The counts of a queue that nobody has created are zeros, and its ``exists`` is False.
        """
        call = self._file.queues(convert.maybe_millis(max_age, "max_age"))
        return _show.counts(self.name, call.wait())

    def wait(self, id: str, *, timeout: Seconds | None = None) -> JobDetail | None:
        """Wait until the job is finished, and return it with its result; None if it is not finished in ``timeout``."""
        return _show.detail(self._file.finished(id, convert.maybe_millis(timeout, "timeout")).wait())

    def cancel(self, id: str, *, leased: bool = False) -> State:
        """Cancel an unfinished job; one that a worker holds only with ``leased``. Returns the state it was in."""
        return self._file.call(Op.cancel(id, leased)).wait()

    def requeue(self, id: str, *, run: int | None = None) -> int:
        """Requeue a finished job; with ``run``, at most once after that run. Returns the new run number."""
        return self._file.call(Op.requeue(id, run)).wait()

    def requeue_all(
        self, states: Iterable[State] = (), *, group: str | None = None, error: str | None = None
    ) -> int:
        """Requeue the finished jobs that match, oldest first. No states: the dead ones. Returns how many."""
        return _op.requeue_all(self._file, self.name, states, group, error).wait()

    def redrive(
        self, to: str | None = None, *, limit: int | None = None, rate: Rate | str | None = None
    ) -> int:
        """Send the dead letters of this queue back to the queues they died in, or to ``to``. Returns how many.

        Takes those that are here now and that no worker holds, oldest first, a thousand per commit; at most ``limit``,
        and no faster than ``rate``, as in "10/s". Each begins a new run with all its attempts.
        """
        return _op.redrive(self._file, self.name, to, limit, rate).wait()

    def move(self, id: str, to: str, *, run: int | None = None) -> int:
        """Move a job that no worker holds to another queue, as a new run; with ``run``, at most once after that run.

        A job that waits keeps its time; a finished one is ready again. Returns the new run number.
        """
        return self._file.call(Op.move(id, to, run)).wait()

    def move_all(
        self, to: str, states: Iterable[State] = (), *, group: str | None = None, error: str | None = None
    ) -> int:
        """Move the jobs that match to another queue, oldest first. No states: scheduled and ready. Returns how many."""
        return _op.move_all(self._file, self.name, to, states, group, error).wait()

    def delete(self, id: str, *, leased: bool = False) -> State | None:
        """Delete a job; one that a worker holds only with ``leased``.

        Returns the state it was in; None if it was not there.
        """
        return self._file.call(Op.delete(id, leased)).wait()

    def purge(self, states: Iterable[State]) -> int:
        """Delete the jobs that are in these states now, a few thousand per commit. Returns how many.

        A queue that nobody has created has none.
        """
        return self._file.purge(self.name, convert.names(states, "states")).wait()

    def pause(self) -> None:
        """Stop handing out jobs until ``resume``."""
        self._file.call(Op.pause(self.name)).wait()

    def resume(self) -> None:
        """Hand out jobs again; after ``drain``, accept them again too."""
        self._file.call(Op.resume(self.name)).wait()

    def drain(self, *, timeout: Seconds | None = None) -> int:
        """Stop accepting and handing out jobs until ``resume``, and wait until no worker holds one.

        Returns how many jobs workers still hold after ``timeout``.
        """
        return self._file.drain(self.name, convert.maybe_millis(timeout, "timeout")).wait()

    @spelled(Changes)
    def configure(self, **changes: Unpack[Changes]) -> Policy:
        """Change the named fields of the policy, in one commit for all processes. Returns the new policy."""
        return _policy.policy(self._file.configure(self.name, _policy.changes(changes)).wait())

    def policy(self) -> Policy:
        """Return the policy: the rules for all jobs of this queue."""
        return _policy.policy(self._file.policy(self.name).wait())

    @spelled(Extras, without=("delay", "at", "id"))
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
        """Enqueue such a job periodically: by cron expression in a time zone, or at an interval from ``start`` on.

        Replaces the schedule of this name; an identical one keeps its times. Returns the next time.
        """
        op = _op.schedule(self._file, self.name, name, data, cron, every, start, timezone, missed, extras)
        return _policy.next_time(self._file.call(op).wait())

    def unschedule(self, name: str) -> bool:
        """Delete a schedule; the jobs it has enqueued stay. Returns True if it existed."""
        return self._file.call(Op.unschedule(self.name, name)).wait()

    def schedules(self) -> builtins.list[ScheduleInfo]:
        """Return the schedules of this queue."""
        return [_policy.schedule(one) for one in self._file.schedules(self.name).wait()]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"
