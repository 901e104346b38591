"""Calls the callbacks for events and lost leases. The engine never waits for them.

A synchronous handle calls them on a thread, an asyncio handle in the event loop. A callback cannot harm the engine:
its exceptions are logged, and events that come too fast for it are dropped and counted.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Generator, Iterable
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Self, TypeVar
from weakref import WeakSet, ref

from bucketq import events

if TYPE_CHECKING:
    import asyncio
    import logging

    from bucketq import _native
    from bucketq._convert import Dict
    from bucketq._job import JobBase

ROOM = 10_000
"""The most events that wait for a callback; further ones are dropped."""
LINGER = 5.0
"""Seconds that closing waits for a callback that is still busy."""

Told = tuple[list["Dict"], int, list[tuple[Callable[[str], Any], str]]]
OnLost = Callable[[Any, events.Loss], object]
J = TypeVar("J", bound="JobBase")

_threads: WeakSet[Thread] = WeakSet()


def log() -> logging.Logger:
    """Import logging only when there is something to log: most programs never need it."""
    from logging import getLogger

    return getLogger("bucketq")


class Calls:
    """The callbacks of a handle, and the count of those that failed."""

    def __init__(self, on_event: events.OnEvent | None) -> None:
        self._on_event = on_event
        self._complained = False
        self.failed = 0
        """Events whose callback failed since the last batch."""

    def of(self, told: Told) -> Generator[Callable[[], Any]]:
        """Yield one call after the other. The caller passes exceptions to ``complain``."""
        happened, missed, lost = told
        for tell, reason in lost:
            yield partial(tell, reason)
        if self._on_event is None:
            return
        event: events.Event | None = None
        for native in happened:
            event = events.event_of(native)
            yield partial(self._on_event, event)
        if missed:
            log().warning("on_event is too slow: %d events are missed", missed)
            yield partial(self._on_event, _missed(event, missed))

    def complain(self, call: Callable[[], Any], error: BaseException) -> None:
        """Log and count a failed callback. The queue file is not affected."""
        if not isinstance(call, partial) or call.func is not self._on_event:
            log().error("on_lease_lost failed", exc_info=error)
            return
        self.failed += 1
        if not self._complained:
            self._complained = True
            log().error("on_event failed; further failures are only counted", exc_info=error)

    def begin(self) -> int:
        """Start a batch. Returns how many events of the previous batch failed."""
        failed, self.failed = self.failed, 0
        return failed


def _missed(before: events.Event | None, count: int) -> events.Missed:
    from datetime import UTC, datetime

    if before is None:
        return events.Missed(commit_seq=0, commit_time=datetime.fromtimestamp(0, UTC), count=count)
    return events.Missed(commit_seq=before.commit_seq, commit_time=before.commit_time, count=count)


class Listening:
    """A running listener; ends with ``end``, or when it is no longer referenced."""

    def __init__(self, teller: _native.Teller) -> None:
        self._teller = teller

    def watch(self, job: J, on_lost: OnLost) -> J:
        """Call ``on_lost`` when the job's lease is lost, as long as the job is referenced."""
        job._on_lost(self._teller, partial(_lost, ref(job), on_lost))
        return job

    def stop(self) -> None:
        """Accept no new events."""
        self._teller.end()

    def end(self) -> None:
        """Stop, and wait until earlier events are delivered."""
        self.stop()

    async def aend(self) -> None:
        """End, in an event loop."""
        self.end()


def _lost(job: ref[Any], on_lost: OnLost, reason: events.Loss) -> Any:
    held = job()
    return None if held is None else on_lost(held, reason)


class Thread(Listening):
    """Calls callbacks on its own thread; coroutines run in an event loop of that thread."""

    def __init__(self, file: _native.File, on_event: events.OnEvent | None) -> None:
        reader, teller = file.listen(0 if on_event is None else ROOM)
        super().__init__(teller)
        self._pid = os.getpid()
        # The thread does not reference this object, so it ends when nothing else does.
        run = partial(_read, reader, Calls(on_event))
        self._thread = threading.Thread(target=run, name="bucketq-events", daemon=True)
        _threads.add(self)
        self._thread.start()

    def end(self) -> None:
        self.stop()
        # A forked child has no such thread, and a callback runs on it.
        if os.getpid() != self._pid or threading.current_thread() is self._thread:
            return
        self._thread.join(LINGER)
        if self._thread.is_alive():
            log().warning("a callback is still busy %.0f s after the queue file was closed", LINGER)

    async def aend(self) -> None:
        import asyncio

        await asyncio.to_thread(self.end)


@atexit.register
def _at_exit() -> None:
    """Deliver the remaining events before the interpreter ends; no thread may return from the engine after that."""
    for one in list(_threads):
        one.end()


def _read(reader: _native.Reader, calls: Calls) -> None:
    with Loop() as loop:
        while (told := reader.next(calls.begin()).wait()) is not None:
            for call in calls.of(told):
                try:
                    result = call()
                    if isawaitable(result):
                        loop.run(result)
                except BaseException as error:  # Even those that would only end this thread.
                    calls.complain(call, error)


class Loop:
    """An event loop for callbacks that are coroutines, created by the first one."""

    def __init__(self) -> None:
        self._runner: asyncio.Runner | None = None

    def __enter__(self) -> Self:
        return self

    def run(self, awaitable: Any) -> None:
        import asyncio

        async def wait() -> None:
            await awaitable

        if self._runner is None:
            self._runner = asyncio.Runner()
        self._runner.run(wait())

    def __exit__(self, *error: object) -> None:
        if self._runner is not None:
            self._runner.close()


class Task(Listening):
    """Calls callbacks in a task of the running event loop."""

    def __init__(self, file: _native.File, on_event: events.OnEvent | None) -> None:
        import asyncio

        reader, teller = file.listen(0 if on_event is None else ROOM)
        super().__init__(teller)
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(_aread(reader, Calls(on_event)), name="bucketq-events")

    async def aend(self) -> None:
        import asyncio

        self.stop()
        # A task of another loop cannot be awaited, and a callback cannot await itself.
        if asyncio.get_running_loop() is not self._loop or asyncio.current_task() is self._task:
            return
        _, late = await asyncio.wait({self._task}, timeout=LINGER)
        if late:
            log().warning("a callback is still busy %.0f s after the queue file was closed", LINGER)


async def _aread(reader: _native.Reader, calls: Calls) -> None:
    from asyncio import CancelledError, current_task, sleep

    while (told := await reader.next(calls.begin())) is not None:
        for call in calls.of(told):
            try:
                result = call()
                if isawaitable(result):
                    await result
            except CancelledError as error:
                task = current_task()
                if task is not None and task.cancelling():
                    raise
                calls.complain(call, error)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:
                calls.complain(call, error)
        # Let other tasks run, however many events there are.
        await sleep(0)


def start(file: _native.File, on_event: events.OnEvent | None, kind: type[Thread | Task]) -> _native.File:
    """Start a listener for this file if there is an ``on_event``."""
    if on_event is not None:
        file.hooks.listening = kind(file, on_event)
    return file


def watch(
    file: _native.File, jobs: Iterable[J], on_lost: OnLost | None, kind: type[Thread | Task]
) -> list[J]:
    """Return the jobs, with ``on_lost`` registered for each if it is given."""
    if on_lost is None:
        return list(jobs)
    listening = file.hooks.listening
    if listening is None:
        listening = file.hooks.listening = kind(file, None)
    return [listening.watch(job, on_lost) for job in jobs]


def end(file: _native.File) -> None:
    """Deliver the events so far, then end the listener."""
    listening = file.hooks.listening
    if listening is not None:
        listening.end()


async def aend(file: _native.File) -> None:
    """Deliver the events so far, then end the listener; for asyncio."""
    listening = file.hooks.listening
    if listening is not None:
        await listening.aend()
