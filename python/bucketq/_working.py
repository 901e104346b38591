"""One run of a worker: claims what there are hands for, gives each job to its handler, ends it, drains, stops.

Called by both workers. Claims are made on an event loop because there a drain can cancel one that waits.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from logging import getLogger
from typing import TYPE_CHECKING, Any, TypeVar, cast

from bucketq._listening import Listening, Task, Thread
from bucketq._threads import Threads
from bucketq._twin import blocking
from bucketq.errors import Contended, Invalid, LeaseLost, OutcomeUnknown, QueueFull, Unavailable
from bucketq.worker import Reject, Worked, is_coroutine

if TYPE_CHECKING:
    from bucketq._job import JobBase
    from bucketq.aio import Batch, Job, QueueFile
    from bucketq.types import Seconds
    from bucketq.worker import Handler, Plan

log = getLogger("bucketq.worker")

PASSING = (Unavailable, Contended, OutcomeUnknown, QueueFull)
"""Errors that may be over in a while. Ending a job twice changes nothing, so an unknown outcome is one of them."""
PAUSE_FIRST, PAUSE_LAST = 0.5, 30.0
"""How long to leave the store alone after such an error, doubling, in seconds."""

J = TypeVar("J", bound="JobBase")

inside: ContextVar[Working | None] = ContextVar("bucketq_working", default=None)


class Working:
    """One run. ``drain`` and ``stop`` may be called from any thread."""

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
        # Of the loop, set once it has seen what was asked for.
        self._drain_seen = asyncio.Event()
        self._stop_seen = asyncio.Event()
        self._claim: asyncio.Task[Batch] | None = None
        self._listening: Listening | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._handling: set[asyncio.Task[None]] = set()

    async def run(self, *, signals: bool) -> Worked:
        """Work until drained, stopped or out of jobs."""
        loop = asyncio.get_running_loop()
        with self._lock:
            self._loop = loop
        self._obey()
        try:
            with self._signals(loop) if signals else nullcontext():
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
        log.info("ended: %s", self.worked)
        return self.worked

    def is_inside(self) -> bool:
        """True in a handler of this run."""
        return inside.get() is self

    def drain(self) -> None:
        """Claim no more."""
        self._ask(stop=False)

    def stop(self) -> None:
        """Claim no more and give back what is under way."""
        self._ask(stop=True)

    def _ask(self, *, stop: bool) -> None:
        with self._lock:
            self._draining = True
            self._stopping = self._stopping or stop
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._obey)

    def _obey(self) -> None:
        """Do what was asked for, on the loop."""
        if self._draining:
            self._drain_seen.set()
            if self._claim is not None:
                self._claim.cancel()
        if self._stopping:
            self._stop_seen.set()
            for task in self._handling:
                task.cancel()

    @contextmanager
    def _signals(self, loop: asyncio.AbstractEventLoop) -> Generator[None]:
        """SIGTERM and SIGINT drain, a second one stops; afterwards they mean what they meant before."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before: dict[signal.Signals, Any] = {}
        for number in (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.getsignal(number)
            try:
                loop.add_signal_handler(number, self._on_signal, number)
            except NotImplementedError:  # Windows
                signal.signal(number, lambda number, _: self._on_signal(signal.Signals(number)))
        try:
            yield
        finally:
            for number, handler in before.items():
                with suppress(NotImplementedError):
                    loop.remove_signal_handler(number)
                signal.signal(number, handler)

    def _on_signal(self, number: signal.Signals) -> None:
        if self._draining:
            log.warning("%s: giving back the jobs under way", number.name)
            self.stop()
        else:
            log.warning("%s: finishing the jobs under way; once more gives them back", number.name)
            self.drain()

    async def _turns(self) -> None:
        pause = PAUSE_FIRST
        while not self._draining:
            free = self._plan.concurrency - len(self._tasks)
            if free == 0:
                await self._one_ends()
                continue
            busy = bool(self._tasks)
            try:
                batch = await self._claimed(free)
            except PASSING as error:
                log.warning("cannot claim: %s; again in %.1f s", error, pause)
                await within(self._drain_seen, pause)
                pause = min(pause * 2, PAUSE_LAST)
                continue
            pause = PAUSE_FIRST
            if batch is None:
                return
            for job in batch:
                task = asyncio.create_task(self._work(job))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            if not batch and self._wait is not None:
                # What was under way may have enqueued more, or may do so yet.
                if not busy:
                    return
                if self._tasks:
                    await self._one_ends()

    async def _claimed(self, most: int) -> Batch | None:
        """The next jobs; None when the worker is drained meanwhile."""
        plan = self._plan
        claim = self._file.claim(
            most, queues=plan.queues, lease=plan.lease, wait=self._wait, worker=plan.name
        )
        self._claim = asyncio.ensure_future(claim)
        try:
            batch = await asyncio.shield(self._claim)
        except asyncio.CancelledError:
            # By a drain, or together with this run by whoever called it.
            if self._claim.cancelled() and self._draining:
                return None
            self._claim.cancel()
            raise
        finally:
            self._claim = None
        if self._draining:
            async with batch:  # Nobody has looked at them: all are given back.
                return None
        return batch

    async def _one_ends(self) -> None:
        await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

    async def _finish(self) -> None:
        """Wait for the jobs under way; a run that is cancelled gives them back."""
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
        end: Callable[[], Awaitable[Any]]
        try:
            result = await self._handle(self._plan.handlers[job.queue], job)
        except Reject as reason:
            end, what = partial(job.reject, str(reason) or "Reject"), "rejected"
            log.warning("job %s of %s is rejected: %s", job.id, job.queue, reason)
        except (Exception, SystemExit, asyncio.CancelledError) as failure:
            # At most once: without an end of its lease, what was begun is not handed out again.
            again = job._held.ends or job._held.untouched
            if self._stopping and isinstance(failure, asyncio.CancelledError) and again:
                end, what = job.release, "released"
            else:
                end, what = failed(job, failure), "failed"
        else:
            end, what = partial(job.ack, result=result), "done"
        what = await self._end(job, end, what)
        self.worked = replace(self.worked, **{what: getattr(self.worked, what) + 1})

    async def _handle(self, handler: Handler, job: Job) -> Any:
        """What the handler returns. Only this is cancelled by a stop: afterwards, what came of the job is told."""
        task: Any = asyncio.current_task()
        self._handling.add(task)
        try:
            if self._stopping:
                raise asyncio.CancelledError
            job._held.work()
            with job._process():
                if is_coroutine(handler):
                    return await handler(self._watched(job))
                return await self._threads.run(handler, self._watched(blocking(job)))
        finally:
            self._handling.discard(task)

    def _watched(self, job: J) -> J:
        """The job, of whose lost lease somebody is told."""
        tell = self._plan.on_lease_lost
        if tell is None:
            return job
        if self._listening is None:
            # A function may take its time: not in the loop that claims.
            kind = Task if is_coroutine(cast("Any", tell)) else Thread
            self._listening = kind(self._file._file, None)
        return self._listening.watch(job, tell)

    async def _end(self, job: Job, end: Callable[[], Awaitable[Any]], what: str) -> str:
        """Tell the queue file what came of the job, for as long as the lease holds. Answers what did come of it."""
        pause = PAUSE_FIRST
        while not (job.ended or job.lost):
            try:
                await end()
            except PASSING as error:
                if self._stopping:
                    log.warning("cannot end job %s: %s; its lease will run out", job.id, error)
                    return "lost"
                log.warning("cannot end job %s: %s; again in %.1f s", job.id, error, pause)
                await within(self._stop_seen, pause)
                pause = min(pause * 2, PAUSE_LAST)
            except LeaseLost:
                break
            except Invalid as error:
                # The result cannot be kept: too large, or not JSON.
                end, what = failed(job, error), "failed"
        if job.ended:
            return what
        log.warning("job %s of %s: its lease is lost, somebody else may have it", job.id, job.queue)
        return "lost"


def failed(job: Job, failure: BaseException) -> Callable[[], Awaitable[Any]]:
    """How a failed attempt ends; the log has it."""
    log.warning("job %s of %s failed, attempt %d", job.id, job.queue, job.attempt, exc_info=failure)
    return partial(job.nack, failure)


async def within(event: asyncio.Event, seconds: float) -> None:
    """Wait so long, or until the event."""
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
