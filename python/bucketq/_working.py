"""The main loop of a worker: claims as many jobs as it has free places, calls handlers, ends jobs, drains, stops.

Both workers use it. It claims on an event loop because there a drain can cancel a waiting claim.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from contextvars import ContextVar, copy_context
from dataclasses import replace
from functools import partial
from logging import getLogger
from typing import TYPE_CHECKING, Any, TypeVar, cast

from bucketq._ending import Ending, EndOp
from bucketq._listening import Listening, Task, Thread
from bucketq._op import claim_after
from bucketq._other_api import blocking
from bucketq._report import Report
from bucketq._signals import obeyed
from bucketq._threads import TIMED_OUT, Threads
from bucketq.errors import (
    Contended,
    Error,
    Invalid,
    LeaseLost,
    NotFound,
    OutcomeUnknown,
    QueueFull,
    Unavailable,
)
from bucketq.worker import Reject, Worked, is_coroutine

if TYPE_CHECKING:
    from bucketq._job import JobBase
    from bucketq.aio import Batch, Job, QueueFile
    from bucketq.types import Seconds
    from bucketq.worker import Handler, Plan

log = getLogger("bucketq.worker")

PASSING = (Unavailable, Contended, OutcomeUnknown, QueueFull)
"""Errors to retry. Ending a job twice changes nothing, so OutcomeUnknown is one of them."""
LOOK_AFTER = 0.3
"""Seconds after which a worker begins to watch whether a running job is ended elsewhere."""
EMPTY = 1.0
"""Seconds until the next claim when all queues are drained."""
J = TypeVar("J", bound="JobBase")

inside: ContextVar[Working | None] = ContextVar("bucketq_working", default=None)


class Working:
    """The loop of one worker. Any thread may call ``drain`` and ``stop``."""

    def __init__(self, file: QueueFile, plan: Plan, wait: Seconds | None) -> None:
        self.worked = Worked()
        self._file = file
        self._plan = plan
        self._wait = wait
        self._threads = Threads(plan.concurrency, "bucketq-handler")
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._draining = False
        self._stopping = False
        # Set on the loop, after it has seen the request.
        self._drain_seen = asyncio.Event()
        self._stop_seen = asyncio.Event()
        self._claim: asyncio.Task[Batch] | None = None
        self._listening: Listening | None = None
        # The tasks of jobs that a handler works on, and of those whose end is under way.
        self._tasks: set[asyncio.Task[None]] = set()
        self._hands = plan.concurrency
        """The number of handlers that may start now."""
        # Claimed ahead, in the order of the claims.
        self._ready: deque[Job] = deque()
        # The first error that escaped from the task of a job; it ends the worker.
        self._failure: BaseException | None = None
        self._handling: set[asyncio.Task[None]] = set()
        # Tasks that wait for the end of jobs elsewhere.
        self._looking: dict[str, asyncio.Task[None]] = {}
        # No handler sees the context variables that another one has set.
        self._context = copy_context()

    async def run(self, *, signals: bool) -> Worked:
        """Work until drained, stopped or out of jobs."""
        loop = asyncio.get_running_loop()
        with self._lock:
            self._loop = loop
        self._obey()
        try:
            with obeyed(self._on_signal) if signals else nullcontext():
                log.info("working on %s, %d at a time", ", ".join(self._plan.queues), self._plan.concurrency)
                try:
                    await self._turns()
                except asyncio.CancelledError:
                    self.stop()
                    raise
                finally:
                    await self._finish()
                    if self._listening is not None:
                        await self._listening.aend()
        finally:
            with self._lock:
                self._loop = None
            self._threads.close()
        if self._failure is not None:
            raise self._failure
        log.info("ended: %s", self.worked)
        return self.worked

    def responds(self, seconds: float) -> bool:
        """Return whether the loop reacts within this time; a coroutine that blocks it keeps every job waiting."""
        reacted = threading.Event()
        with self._lock:
            if self._loop is None:
                return True
            self._loop.call_soon_threadsafe(reacted.set)
        return reacted.wait(seconds)

    def is_inside(self) -> bool:
        """Return True in a handler of this worker."""
        return inside.get() is self

    def drain(self) -> None:
        """Claim no more jobs."""
        self._ask(stop=False)

    def stop(self) -> None:
        """Claim no more jobs and give back the running ones."""
        self._ask(stop=True)

    def _ask(self, *, stop: bool) -> None:
        with self._lock:
            self._draining = True
            self._stopping = self._stopping or stop
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._obey)

    def _obey(self) -> None:
        """Carry out a drain or stop, on the loop."""
        if self._draining:
            self._drain_seen.set()
            if self._claim is not None:
                self._claim.cancel()
            for job in self._ready:
                job._give_back()
            self._ready.clear()
        if self._stopping:
            self._stop_seen.set()
            for task in self._handling:
                task.cancel()

    def _on_signal(self, number: signal.Signals) -> None:
        if self._draining:
            log.warning("%s: giving back the running jobs", number.name)
            self.stop()
        else:
            log.warning("%s: finishing the running jobs; a second signal gives them back", number.name)
            self.drain()

    async def _turns(self) -> None:
        pause = Pause(self._drain_seen)
        while not self._draining:
            most = self._plan.concurrency + self._plan.prefetch
            free = most - len(self._tasks) - len(self._ready)
            # A job that came with the end of another one starts before the task of that one is over.
            if free <= 0:
                await self._one_ends()
                continue
            busy = bool(self._tasks)
            try:
                batch = await self._claimed(free)
            except PASSING as error:
                log.warning("cannot claim: %s; again in %.1f s", error, pause.seconds)
                await pause.wait()
                continue
            pause = Pause(self._drain_seen)
            if batch is None:
                return
            for job in batch:
                self._start(job)
            if not batch and self._wait is None:
                # All queues are drained: claims return at once until one is resumed.
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._drain_seen.wait(), EMPTY)
            if not batch and self._wait is not None:
                # Running jobs may have enqueued more, or may still do so.
                if not busy:
                    return
                if self._tasks:
                    await self._one_ends()

    async def _claimed(self, most: int) -> Batch | None:
        """Return the next jobs; None when the worker is drained meanwhile."""
        plan = self._plan
        claim = self._file.claim(
            most, queues=plan.queues, lease=plan.lease, wait=self._wait, worker=plan.name
        )
        self._claim = asyncio.ensure_future(claim)
        try:
            batch = await asyncio.shield(self._claim)
        except asyncio.CancelledError:
            # Cancelled by a drain, or by the caller together with the whole worker.
            if self._claim.cancelled() and self._draining:
                return None
            self._claim.cancel()
            raise
        finally:
            self._claim = None
        if self._draining:
            async with batch:  # They are untouched: all are given back.
                return None
        return batch

    def _start(self, job: Job) -> None:
        """Call the handler, now or as soon as another one has returned."""
        if not self._hands:
            self._ready.append(job)
            return
        self._hands -= 1
        task = asyncio.create_task(self._work(job), context=self._context.copy())
        self._tasks.add(task)
        task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        """Handle the end of a job's task. After an error no more jobs are claimed, and the worker raises that error."""
        self._tasks.discard(task)
        failure = None if task.cancelled() else task.exception()
        if failure is not None:
            self._failure = self._failure or failure
            self.drain()

    async def _one_ends(self) -> None:
        await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

    async def _finish(self) -> None:
        """Wait for the running jobs; give them back if the worker is cancelled."""
        if self._plan.prefetch:
            await self._file._file.flush()
        while self._tasks:
            try:
                await asyncio.wait(self._tasks)
            except asyncio.CancelledError:
                self.stop()
                if self._tasks:
                    await asyncio.wait(self._tasks)
                raise

    async def _work(self, job: Job) -> None:
        inside.set(self)
        report = Report(job)
        end: EndOp | Callable[[], Awaitable[Any]]
        try:
            result = await self._handle(self._plan.handlers[job.queue], job)
        except Reject as reason:
            end, what = EndOp("reject", partial(job._rejected, str(reason) or "Reject")), "rejected"
            report.fail(reason)
        except Over as over:
            what = await self._give_up(job, over)
            self.worked = replace(self.worked, **{what: getattr(self.worked, what) + 1})
            return
        except (Exception, SystemExit, asyncio.CancelledError) as failure:
            # At most once: a job that was begun under a lease that never ends is not handed out again.
            again = job._ends or job._untouched
            if self._stopping and isinstance(failure, asyncio.CancelledError) and again:
                end, what = EndOp("release", job._released), "released"
            else:
                end, what = nack(job, failure), "failed"
                report.fail(failure)
        else:
            end, what = EndOp("ack", partial(job._acked, result)), "done"
            if isinstance(result, Ending):
                end, what = result.end, result.what
                report.take(result)
        report.ran()
        what = await self._end(job, end, what, report)
        report.log(what)
        self.worked = replace(self.worked, **{what: getattr(self.worked, what) + 1})

    async def _handle(self, handler: Handler, job: Job) -> Any:
        """Call the handler and return its value. A stop cancels only this, never the call that ends the job."""
        task: Any = asyncio.current_task()
        self._handling.add(task)
        try:
            if self._stopping:
                raise asyncio.CancelledError
            job._begin()
            with job._process():
                work = (
                    handler(self._watched(job))
                    if is_coroutine(handler)
                    else self._threads.run(handler, self._watched(blocking(job)))
                )
                return await self._within(job, task, work)
        finally:
            self._handling.discard(task)
            self._hands += 1
            while self._hands and self._ready and not self._draining:
                following = self._ready.popleft()
                if not following.lost:
                    self._start(following)

    async def _within(self, job: Job, task: asyncio.Task[Any], work: Awaitable[Any]) -> Any:
        """Await the work on a job; raise Over when it takes too long or the job is ended elsewhere meanwhile."""
        over: list[str] = []

        def end(reason: str) -> None:
            over.append(reason)
            task.cancel(reason)

        limit = self._plan.max_run.get(job.queue)
        if limit is not None:
            job._limit(limit)
        most = job._max_run
        loop = asyncio.get_running_loop()
        timers = [loop.call_later(LOOK_AFTER, self._look, job, end)]
        if most is not None:
            timers.append(loop.call_later(most / 1000, end, TIMED_OUT))
        try:
            result = await work
        except asyncio.CancelledError:
            # A stop cancels the same task, and takes precedence.
            if not over or self._stopping:
                raise
        else:
            # It may have caught the cancellation.
            if not over:
                return result
        finally:
            for timer in timers:
                timer.cancel()
            looking = self._looking.pop(job.id, None)
            if looking is not None:
                looking.cancel()
        task.uncancel()
        raise Over(over[0])

    def _look(self, job: Job, end: Callable[[str], None]) -> None:
        """Begin to wait for the end of this job elsewhere: a cancel, or a purge."""

        async def look() -> None:
            try:
                await job._file.finished(job.id, None)
            except NotFound:
                pass
            except Error:
                return
            if not job.ended:
                job._refused()
                end("ended elsewhere")

        self._looking[job.id] = asyncio.create_task(look(), context=self._context.copy())

    async def _give_up(self, job: Job, over: Over) -> str:
        """Handle the end of work that took too long, or that nobody wants any more."""
        if str(over) != TIMED_OUT:
            log.warning("job %s of %s was ended elsewhere while it ran", job.id, job.queue)
            return "lost"
        log.warning("job %s of %s failed, attempt %d: timed out", job.id, job.queue, job.attempt)
        job._time_out()
        await job._file.flush()
        return "failed"

    def _watched(self, job: J) -> J:
        """Return the job, with ``on_lease_lost`` registered if there is one."""
        tell = self._plan.on_lease_lost
        if tell is None:
            return job
        if self._listening is None:
            # A function may block: do not call it in the loop that claims.
            kind = Task if is_coroutine(cast("Any", tell)) else Thread
            self._listening = kind(self._file._file, None)
        return self._listening.watch(job, tell)

    async def _end_once(self, job: Job, end: EndOp | Callable[[], Awaitable[Any]]) -> None:
        """End the job. The same commit claims another job for its place."""
        if not isinstance(end, EndOp):
            await end()
            return
        op = end.op()
        # Also while a claim is under way, which is for other places. Otherwise places that end and places that claim
        # would take turns, with a commit for each.
        if self._draining:
            await job._settle(end.how, op)
            return
        following = job._next(await claim_after(job._file, job, end.how, op), Task)
        if following is None:
            return
        if self._draining:
            following._give_back()
            await following._file.flush()
        else:
            self._start(following)

    async def _end(
        self, job: Job, end: EndOp | Callable[[], Awaitable[Any]], what: str, report: Report
    ) -> str:
        """Ack, nack, release or reject the job. Returns the name of the counter to raise.

        The queue file decides whether the lease still holds: it holds until another worker claims the job (P27).
        """
        pause = Pause(self._stop_seen)
        while not job.ended:
            try:
                await self._end_once(job, end)
            except PASSING as error:
                if self._stopping or (self._draining and job.lost):
                    log.warning("cannot end job %s: %s; its lease will run out", job.id, error)
                    return "lost"
                log.warning("cannot end job %s: %s; again in %.1f s", job.id, error, pause.seconds)
                await pause.wait()
            except LeaseLost:
                if report.overtaken:
                    return what
                log.warning("job %s of %s: its lease is lost, another worker may have it", job.id, job.queue)
                return "lost"
            except NotFound:
                log.warning("job %s of %s was purged while it ran", job.id, job.queue)
                return "lost"
            except Invalid as error:
                if report.requeued is not None and error.code == "id_taken" and end is not report.requeued:
                    end = report.requeued
                    continue
                # The result cannot be stored: too large, or not JSON.
                end, what = nack(job, error), "failed"
                report.fail(error)
        return what


def nack(job: Job, failure: BaseException) -> EndOp:
    """Return the end of a failed attempt."""
    return EndOp("nack", partial(job._nacked, failure, None))


class Over(Exception):
    """The work on a job is to end before the handler returns."""


class Pause:
    """The pause before a retry: twice as long each time, and over early once an event is set."""

    FIRST, LAST = 0.5, 30.0

    def __init__(self, end: asyncio.Event) -> None:
        self.seconds = self.FIRST
        self._end = end

    async def wait(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._end.wait(), self.seconds)
        self.seconds = min(self.seconds * 2, self.LAST)
