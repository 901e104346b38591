"""Calling those who asked to be told: of events, and of leases that are lost. Nothing in the engine waits for them.

A blocking handle is read on a thread, one of asyncio in the event loop. Whatever a callback does stays here: what it
raises is logged, and what it does not keep up with is missed and counted.
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
"""Events that wait for a callback; beyond that they are missed."""
LINGER = 5.0
"""Seconds that closing waits for a callback which is still busy."""

Told = tuple[list["Dict"], int, list[tuple[Callable[[str], Any], str]]]
OnLost = Callable[[Any, events.Loss], object]
J = TypeVar("J", bound="JobBase")

_threads: WeakSet[Thread] = WeakSet()


def log() -> logging.Logger:
    """Loaded when there is something to say: most programs never hear of it."""
    from logging import getLogger

    return getLogger("bucketq")


class Calls:
    """Whom to call for what is told, and what became of it."""

    def __init__(self, on_event: events.OnEvent | None) -> None:
        self._on_event = on_event
        self._complained = False
        self.failed = 0
        """Events that could not be dealt with since the last batch."""

    def of(self, told: Told) -> Generator[Callable[[], Any]]:
        """One call after the other. What raises is to be given to ``complain``."""
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
        """A callback has failed. The queue file is none the worse for it."""
        if not isinstance(call, partial) or call.func is not self._on_event:
            log().error("on_lease_lost failed", exc_info=error)
            return
        self.failed += 1
        if not self._complained:
            self._complained = True
            log().error("on_event failed; further failures are only counted", exc_info=error)

    def begin(self) -> int:
        """How many events of the batch before failed."""
        failed, self.failed = self.failed, 0
        return failed


def _missed(before: events.Event | None, count: int) -> events.Missed:
    from datetime import UTC, datetime

    if before is None:
        return events.Missed(commit_seq=0, commit_time=datetime.fromtimestamp(0, UTC), count=count)
    return events.Missed(commit_seq=before.commit_seq, commit_time=before.commit_time, count=count)


class Listening:
    """Somebody is told; ends with ``end``, or when nobody refers to this any more."""

    def __init__(self, teller: _native.Teller) -> None:
        self._teller = teller

    def watch(self, job: J, on_lost: OnLost) -> J:
        """Have this called once the job's lease is lost, as long as somebody holds the job."""
        job._held.on_lost(self._teller, partial(_lost, ref(job), on_lost))
        return job

    def stop(self) -> None:
        """Nothing new is told."""
        self._teller.end()

    def end(self) -> None:
        """The same, and wait until what happened before is told."""
        self.stop()

    async def aend(self) -> None:
        """The same in an event loop."""
        self.end()


def _lost(job: ref[Any], on_lost: OnLost, reason: events.Loss) -> Any:
    held = job()
    return None if held is None else on_lost(held, reason)


class Thread(Listening):
    """Calls from a thread of its own; coroutines run in an event loop of that thread."""

    def __init__(self, file: _native.File, on_event: events.OnEvent | None) -> None:
        reader, teller = file.listen(0 if on_event is None else ROOM)
        super().__init__(teller)
        self._pid = os.getpid()
        # The thread does not refer to this: it ends when nobody does.
        run = partial(_read, reader, Calls(on_event))
        self._thread = threading.Thread(target=run, name="bucketq-events", daemon=True)
        _threads.add(self)
        self._thread.start()

    def end(self) -> None:
        self.stop()
        # In a forked child there is no such thread, and in a callback it is this one.
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
    """Tell what is left to tell before the interpreter ends; a thread inside the engine must not come back later."""
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
                except BaseException as error:  # Also what would only end this thread.
                    calls.complain(call, error)


class Loop:
    """An event loop for callbacks that are coroutines, made by the first one."""

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
    """Calls from a task of the event loop that runs now."""

    def __init__(self, file: _native.File, on_event: events.OnEvent | None) -> None:
        import asyncio

        reader, teller = file.listen(0 if on_event is None else ROOM)
        super().__init__(teller)
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(_aread(reader, Calls(on_event)), name="bucketq-events")

    async def aend(self) -> None:
        import asyncio

        self.stop()
        # Another loop's task cannot be waited for, and a callback not for itself.
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
        # Others have a turn, however many events there are.
        await sleep(0)


def start(file: _native.File, on_event: events.OnEvent | None, kind: type[Thread | Task]) -> _native.File:
    """Tell events of this file, if anybody wants them."""
    if on_event is not None:
        file.beside["listening"] = kind(file, on_event)
    return file


def watch(
    file: _native.File, jobs: Iterable[J], on_lost: OnLost | None, kind: type[Thread | Task]
) -> list[J]:
    """The jobs, each with a callback for the loss of its lease if there is one."""
    if on_lost is None:
        return list(jobs)
    listening = file.beside.get("listening")
    if listening is None:
        listening = file.beside["listening"] = kind(file, None)
    return [listening.watch(job, on_lost) for job in jobs]


def end(file: _native.File) -> None:
    """Everything that happened is told, and nothing more."""
    listening: Listening | None = file.beside.get("listening")
    if listening is not None:
        listening.end()


async def aend(file: _native.File) -> None:
    """The same in an event loop."""
    listening: Listening | None = file.beside.get("listening")
    if listening is not None:
        await listening.aend()
