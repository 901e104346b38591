"""Child processes that run tasks, one at a time each. They touch no store: this process holds the queue file."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from logging import getLogger
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

from bucketq._threads import GRACE, TIMED_OUT, Threads
from bucketq.errors import Closed, Invalid
from bucketq.tasks.child import INTERRUPT, READY, Request, main
from bucketq.tasks.execute import Outcome
from bucketq.tasks.task import resolve

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

    from bucketq.tasks.context import CurrentJob
    from bucketq.tasks.task import TaskBase

__all__ = ["Pool", "PoolOptions", "StartMethod"]

StartMethod = Literal["spawn", "forkserver"]
"""How children start: each from scratch, or forked from a clean process that does. Not from this one: its threads and
its connections would be copied."""
LOOK = 1.0
"""Seconds between two looks whether a silent child is alive: its own child may hold the pipe open that tells."""
END = 2.0
"""Seconds that an idle child has to end by itself."""
log = getLogger("bucketq.worker")


@dataclass(frozen=True, slots=True)
class PoolOptions:
    """The settings of a pool."""

    processes: int
    jobs_per_child: int | None = None
    memory_per_child: int | None = None
    kill_after: float | None = None
    start_method: StartMethod = "spawn"
    setup: tuple[Callable[..., None], tuple[Any, ...]] | None = None
    """Called first in each child, to set up its log."""


class Unstartable(Exception):
    """A child ended before it could run a task: the program cannot be imported, or must not be."""


class Child:
    """One child process, and the pipe to it. One thread uses it at a time."""

    def __init__(self, options: PoolOptions, modules: tuple[str, ...], number: int) -> None:
        context = get_context("spawn") if options.start_method == "spawn" else get_context("forkserver")
        mine, its = context.Pipe()
        self._pipe: Connection[Any, Any] = mine
        self._options = options
        self._killed = ""
        self._ready = False
        self._lock = threading.Lock()
        self.jobs = 0
        process = context.Process(
            target=main, args=(its, modules, options.setup), name=f"bucketq-child-{number}", daemon=True
        )
        process.start()
        its.close()
        self.process: BaseProcess = process

    def start(self) -> None:
        """Wait until it can run tasks. Raises Unstartable if it ends before."""
        try:
            while not self._ready:
                ready = wait([self._pipe, self.process.sentinel], LOOK)
                if self._pipe in ready:
                    self._ready = self._pipe.recv() == READY
                elif ready or not self.process.is_alive():
                    raise EOFError
        except (EOFError, OSError):
            raise Unstartable(self._died().summary) from None

    def run(self, request: Request) -> Outcome:
        """Run a task in the child. If the child dies, the outcome says how."""
        self.jobs += 1
        limit = self._options.kill_after
        end = None if limit is None else monotonic() + limit
        try:
            self._pipe.send(request)
            while True:
                left = LOOK if end is None else min(LOOK, max(0.0, end - monotonic()))
                ready = wait([self._pipe, self.process.sentinel], left)
                if self._pipe in ready:
                    return self._received()
                if ready or not self.process.is_alive():
                    # Its last words may have come in between.
                    return self._received() if self._pipe.poll() else self._died()
                if end is not None and monotonic() >= end:
                    self.kill(f"it ran longer than {limit:g} s")
        except (EOFError, OSError):
            return self._died()

    def _received(self) -> Outcome:
        what, result, then, summary, traceback, memory = self._pipe.recv()
        most = self._options.memory_per_child
        if most is not None and memory > most:
            log.info("child %s uses %d bytes: it is replaced", self.process.pid, memory)
            self.jobs = 0
            self._killed = "it used too much memory"
        return Outcome(what, result, then, summary, traceback)

    def _died(self) -> Outcome:
        """Return the outcome of a task whose child has died."""
        self.process.join(END)
        code = self.process.exitcode
        if self._killed:
            why = f"the child process was killed: {self._killed}"
        elif code is not None and code < 0:
            name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
            hint = ", perhaps because memory ran out" if -code == signal.SIGKILL else ""
            why = f"the child process was killed by {name}{hint}"
        elif code is None:
            why = "the child process closed its pipe"
            self.process.kill()
        else:
            why = f"the child process ended with exit code {code}"
        self._killed = self._killed or why
        return Outcome("failed", summary=f"ChildDied: {why}")

    @property
    def usable(self) -> bool:
        """True if it may run another task."""
        most = self._options.jobs_per_child
        return not self._killed and (most is None or self.jobs < most) and self.process.is_alive()

    def kill(self, why: str) -> None:
        """End it at once."""
        with self._lock:
            self._killed = self._killed or why
        self.process.kill()

    def interrupt(self) -> bool:
        """Raise TimedOut in its task. Returns False where that is not possible."""
        pid = self.process.pid
        if INTERRUPT is None or pid is None:
            return False
        if self.process.exitcode is None:
            os.kill(pid, INTERRUPT)
        return True

    def close(self) -> None:
        """End it after its task."""
        with suppress(OSError, ValueError):  # It may have ended.
            self._pipe.send(None)
        self.process.join(END)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self._pipe.close()
        self.process.close()


class Pool:
    """The children of a worker. ``run`` is called on the event loop of the worker."""

    def __init__(self, options: PoolOptions, tasks: list[TaskBase[..., Any]]) -> None:
        for task in tasks:
            reachable(task)
        self._options = options
        self._modules = tuple(dict.fromkeys(task.function.__module__ for task in tasks))
        self._lock = threading.Lock()
        self._idle: list[Child] = []
        self._busy: set[Child] = set()
        self._number = 0
        self._closed = False
        self._free: asyncio.Semaphore | None = None
        self._threads = Threads(options.processes, "bucketq-pool")

    @property
    def pids(self) -> list[int]:
        """The process ids of the children."""
        with self._lock:
            return [child.process.pid or 0 for child in (*self._idle, *self._busy)]

    def start(self) -> None:
        """Start all children, so that the first jobs need not wait for them."""
        children = [self._new() for _ in range(self._options.processes)]
        with self._lock:
            self._idle += children

    async def run(
        self, task: TaskBase[..., Any], payload: bytes, job: CurrentJob, trace: dict[str, str]
    ) -> Outcome | None:
        """Run a task in a child, which continues this trace.

        Returns None if the worker drained before a child was free, or if none can start.
        """
        from bucketq import _working

        working = _working.inside.get()
        if self._free is None:
            self._free = asyncio.Semaphore(self._options.processes)
        if not await free(self._free, working):
            return None
        request = Request(
            task.function.__module__,
            task.function.__qualname__,
            bytes(payload),
            (
                job.id,
                job.queue,
                job.task,
                job.attempt,
                job.max_attempts,
                job.run,
                job.fence,
                dict(job.headers),
            ),
            trace,
        )
        running = Running()
        try:
            return await self._threads.run(self._run, request, running, interrupts=False)
        except Unstartable as error:
            # No fault of the job. The next child would end like this one.
            log.error(
                "the worker ends, because a child process did not start: %s; see its own message above", error
            )
            if working is not None:
                working.drain()
            return None
        except asyncio.CancelledError as cancelled:
            if TIMED_OUT in cancelled.args:
                running.interrupt()
            else:
                running.kill("the worker was stopped")
            raise
        finally:
            self._free.release()

    def _run(self, request: Request, running: Running) -> Outcome:
        child = self._taken()
        if not running.begin(child):
            self._given(child)
            return Outcome("failed", summary="the worker was stopped")
        try:
            child.start()
            return child.run(request)
        finally:
            running.end()
            self._given(child)

    def _taken(self) -> Child:
        while True:
            with self._lock:
                if self._closed:
                    raise Closed("the pool is closed", "closed")
                child = self._idle.pop() if self._idle else None
            if child is None:
                child = self._new()
            elif not child.usable:
                child.close()
                continue
            with self._lock:
                self._busy.add(child)
            return child

    def _given(self, child: Child) -> None:
        with self._lock:
            self._busy.discard(child)
            # One that was interrupted may have been replaced meanwhile.
            enough = len(self._idle) + len(self._busy) >= self._options.processes
            keep = not self._closed and not enough and child.usable
            if keep:
                self._idle.append(child)
        if not keep:
            child.close()

    def _new(self) -> Child:
        with self._lock:
            self._number += 1
            number = self._number
        return Child(self._options, self._modules, number)

    def close(self) -> None:
        """End all children. A task that still runs is lost with its child."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            busy = list(self._busy)
        for child in busy:
            child.kill("the worker ended")
        for child in idle:
            child.close()
        self._threads.close()


class Running:
    """Lets the event loop stop the task that a thread has given to a child."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: Child | None = None
        self._stopped = ""

    def begin(self, child: Child) -> bool:
        """Return False if the task was stopped before it began."""
        with self._lock:
            if not self._stopped:
                self._child = child
            return not self._stopped

    def end(self) -> None:
        """Leave the child alone from now on: the task has ended."""
        with self._lock:
            self._child = None

    def kill(self, why: str) -> None:
        """Kill the child, now or before it begins."""
        with self._lock:
            self._stopped = why
            if self._child is not None:
                self._child.kill(why)

    def interrupt(self) -> None:
        """Interrupt the task, which takes too long; kill the child if it runs on."""
        with self._lock:
            self._stopped = TIMED_OUT
            soft = self._child is not None and self._child.interrupt()
        if soft:
            asyncio.get_running_loop().call_later(GRACE, self._kill_late)
        else:
            self.kill(TIMED_OUT)

    def _kill_late(self) -> None:
        with self._lock:
            if self._child is not None:
                why = f"its task took too long, and did not end in the {GRACE:g} s after it was interrupted"
                log.warning("child %s is killed: %s", self._child.process.pid, why)
                self._child.kill(why)


async def free(semaphore: asyncio.Semaphore, working: Any) -> bool:
    """Wait for a free child. Returns False if the worker drains meanwhile."""
    if not semaphore.locked():
        return await semaphore.acquire()
    acquiring = asyncio.ensure_future(semaphore.acquire())
    draining = asyncio.ensure_future(working._drain_seen.wait())
    try:
        await asyncio.wait((acquiring, draining), return_when=asyncio.FIRST_COMPLETED)
        got = acquiring.done() and not acquiring.cancelled()
    except asyncio.CancelledError:
        if acquiring.done() and not acquiring.cancelled():
            semaphore.release()
        raise
    finally:
        draining.cancel()
        acquiring.cancel()
    return got


def reachable(task: TaskBase[..., Any]) -> None:
    """Raise Invalid if a child process could not import the task."""
    function = task.function
    try:
        found = resolve(function.__module__, function.__qualname__)
    except LookupError:
        found = None
    if found is not task:
        raise Invalid(
            f"a child process cannot import {task.name}: define it at the top of a module, under its own name"
        )
