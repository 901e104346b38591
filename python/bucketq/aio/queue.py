"""Awaitable handles on a queue and its jobs, as ``bucketq.queue``."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from datetime import datetime, tzinfo
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from bucketq import _convert as convert
from bucketq import _op, _policy, _show
from bucketq._job import BatchBase, JobBase
from bucketq._listening import Task, watch
from bucketq._native import Op
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


class Job(JobBase):
    """A claimed job, as ``bucketq.Job``."""

    __slots__ = ()

    async def ack(self, *, result: Any = None, then: Iterable[New] = ()) -> None:
        """The job is done. ``result`` is kept with it, ``then`` is enqueued in the same commit."""
        await self._ack(result, then)

    async def nack(self, error: object = None, *, delay: Seconds | None = None) -> State:
        """The attempt failed: the job runs again after its back-off, or after ``delay``; or is dead."""
        return await self._nack(error, delay)

    async def release(self) -> None:
        """Give the job back unharmed: the attempt does not count."""
        await self._release()

    async def reject(self, error: object = None) -> None:
        """The job can never succeed: it is dead at once."""
        await self._reject(error)

    async def extend(self, lease: Seconds) -> None:
        """Hold the job for this long from now, and keep it with leases of this length."""
        await self._extend(lease)

    async def __aenter__(self) -> Self:
        self._enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        try:
            call = self._left(error)
            if call is not None:
                await call
        except Error as failure:
            if error is None:
                raise
            error.add_note(f"and job {self.id} could not be given back: {failure}")
        finally:
            self._leave(error)
        return _op.swallowed(self, error, self._swallow)


OnLeaseLost = Callable[[Job, Loss], object]
"""A function or a coroutine function that gets the job and how its lease was lost."""


class Batch(BatchBase[Job]):
    """The jobs of one claim, as ``bucketq.Batch``."""

    __slots__ = ()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        call = self._give_back()
        if call is not None:
            await call


class Jobs:
    """Jobs one after the other, as ``bucketq.Jobs``."""

    __slots__ = ("_batch", "_claim")

    def __init__(self, claim: Callable[[], Awaitable[Batch]]) -> None:
        self._claim = claim
        self._batch: list[Job] = []

    def __aiter__(self) -> AsyncIterator[Job]:
        return self

    async def __anext__(self) -> Job:
        if not self._batch:
            self._batch = list(reversed(await self._claim()))
        if not self._batch:
            raise StopAsyncIteration
        return self._batch.pop()

    async def close(self) -> None:
        """Give back what was claimed and not handed out."""
        batch, self._batch = self._batch, []
        if batch:
            async with Batch(batch[0]._file, batch):
                pass

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Queue:
    """A named line of jobs, as ``bucketq.Queue``."""

    __slots__ = ("_file", "name")

    def __init__(self, file: _native.File, name: str) -> None:
        self._file = file
        self.name = name
        """Its name."""

    async def enqueue(self, data: Any, **extras: Unpack[Extras]) -> Enqueued:
        """Put a job into the queue. It is in the bucket once this returns."""
        return _show.enqueued(await _op.send(self._file, self.name, [(data, extras)]))[0]

    async def enqueue_many(
        self,
        jobs: Iterable[Any],
        *,
        chunk: int = 1000,
        progress: Callable[[int], object] | None = None,
    ) -> builtins.list[Enqueued]:
        """Put many jobs into the queue: ``New``, or data alone. One commit per chunk, each chunk all or nothing."""
        done: list[Enqueued] = []
        with _op.telling(done):
            for call in _op.chunks(self._file, self.name, jobs, chunk):
                done += _show.enqueued(await call)
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
        """Jobs as they come, for an ``async for`` loop; ends when there is none within ``wait``."""

        def claim() -> Awaitable[Batch]:
            return self.claim(
                prefetch, lease=lease, wait=wait, worker=worker, swallow=swallow, on_lease_lost=on_lease_lost
            )

        return Jobs(claim)

    async def claim(
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
        """
        call = _op.claim(self._file, [self.name], max, lease, wait, worker)
        jobs = [Job(self._file, held, swallow=swallow) for held in await call]
        return Batch(self._file, watch(self._file, jobs, on_lease_lost, Task))

    async def claim_one(
        self,
        *,
        lease: Seconds | FromPolicy | None = POLICY,
        wait: Seconds | None = 0,
        worker: str | None = None,
        swallow: bool = False,
        on_lease_lost: OnLeaseLost | None = None,
    ) -> Job | None:
        """Claim one job, or get None when there is none within ``wait``."""
        batch = await self.claim(
            1, lease=lease, wait=wait, worker=worker, swallow=swallow, on_lease_lost=on_lease_lost
        )
        return batch[0] if batch else None

    async def get(self, id: str) -> JobDetail | None:
        """One job of the queue file with its bytes, or None."""
        return _show.detail(await self._file.get(id))

    async def list(
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
        return _show.page(await _op.page(self._file, self.name, states, group, expired, error, after, limit))

    async def counts(self, *, max_age: Seconds | None = None) -> QueueInfo:
        """How many jobs there are in each state; with ``max_age``, state of that age will do."""
        return _show.counts(self.name, await self._file.queues(convert.maybe_millis(max_age, "max_age")))

    async def wait(self, id: str, *, timeout: Seconds | None = None) -> JobDetail | None:
        """The job once it is finished, with its result; None when it is not within ``timeout``."""
        return _show.detail(await self._file.finished(id, convert.maybe_millis(timeout, "timeout")))

    async def cancel(self, id: str, *, leased: bool = False) -> State:
        """Take a job back that nobody works on yet, or any unfinished one. Answers the state it was in."""
        return await self._file.call(Op.cancel(id, leased))

    async def requeue(self, id: str, *, run: int | None = None) -> int:
        """Give a finished job a fresh life, if need be only after life ``run``. Answers its number."""
        return await self._file.call(Op.requeue(id, run))

    async def requeue_all(
        self, states: Iterable[State] = (), *, group: str | None = None, error: str | None = None
    ) -> int:
        """Give the finished jobs that match fresh lives, oldest first; no states means the dead. Answers how many."""
        return await _op.requeue_all(self._file, self.name, states, group, error)

    async def purge(self, states: Iterable[State]) -> int:
        """Delete the jobs in these states. Answers how many there were."""
        return await self._file.call(Op.purge(self.name, convert.names(states, "states")))

    async def pause(self) -> None:
        """Claims get nothing from this queue until it is resumed."""
        await self._file.call(Op.pause(self.name))

    async def resume(self) -> None:
        """Claims get jobs again."""
        await self._file.call(Op.resume(self.name))

    async def drain(self, *, timeout: Seconds | None = None) -> int:
        """Take in no more jobs and give none out, until resumed; and wait until nobody works on any.

        Answers how many are still worked on after ``timeout``.
        """
        return await self._file.drain(self.name, convert.maybe_millis(timeout, "timeout"))

    async def configure(self, **changes: Unpack[Changes]) -> Policy:
        """Change the policy, in one commit for all processes: what is named. Answers the policy as it is then."""
        return _policy.policy(await self._file.call(_op.configure(self.name, changes)))

    async def policy(self) -> Policy:
        """What applies to all jobs of this queue."""
        return _policy.policy(await self._file.policy(self.name))

    async def schedule(
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
        return _show.result(await self._file.call(op))

    async def unschedule(self, name: str) -> bool:
        """Take a schedule away; what it has enqueued stays. True if it was there."""
        return await self._file.call(Op.unschedule(self.name, name))

    async def schedules(self) -> builtins.list[ScheduleInfo]:
        """The schedules of this queue."""
        return [_policy.schedule(one) for one in await self._file.schedules(self.name)]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"
