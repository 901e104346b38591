"""The thread of a connection: it waits for messages, ends them, and keeps queues in use from expiring.

Claims are on an event loop because there a waiting claim can be cancelled. Any thread may call the methods.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from logging import getLogger
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from bucketq._other_api import awaitable
from bucketq._working import EMPTY, PASSING
from bucketq.errors import Error, LeaseLost, NotFound

if TYPE_CHECKING:
    from bucketq import QueueFile, aio
    from bucketq.types import Seconds

log = getLogger("bucketq.celery")

PAUSES = (0.5, 1.0, 2.0, 5.0, 10.0)
"""Seconds before each repeat; then always the last."""
End = Literal["ack", "reject", "release"]
T = TypeVar("T")


class Pump:
    """An event loop in a thread, with the queue file of a connection."""

    def __init__(self, file: QueueFile) -> None:
        self.file: aio.QueueFile = awaitable(file)
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ends: set[asyncio.Task[Any]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="bucketq-celery", daemon=True)
        self._thread.start()

    def soon(self, call: Callable[..., object], *args: Any) -> None:
        """Call this in the thread of the pump, after what was asked for before."""
        self._loop.call_soon_threadsafe(call, *args)

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a coroutine function until it returns or the pump is closed."""
        self.soon(lambda: self._keep(self._tasks, work()))

    def result(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the thread of the pump. Returns its value."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def end(self, job: aio.Job, how: End) -> None:
        """Ack, reject or release a message. Returns before that is in the bucket; ``flush`` waits for it."""
        self.soon(lambda: self._keep(self._ends, self._end(job, how)))

    def flush(self, timeout: float) -> bool:
        """Wait until the messages ended before are ended in the bucket. Returns False after the timeout."""
        done: Future[bool] = asyncio.run_coroutine_threadsafe(self._flush(timeout), self._loop)
        return done.result()

    def close(self, timeout: float) -> None:
        """Flush, then end the thread."""
        if not self.flush(timeout):
            log.warning("some messages could not be ended; their leases will run out")
        with suppress(RuntimeError):
            self.result(self._cancel())
        self.soon(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _keep(self, tasks: set[asyncio.Task[Any]], work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _flush(self, timeout: float) -> bool:
        if self._ends:
            await asyncio.wait(self._ends, timeout=timeout)
        return not self._ends

    async def _cancel(self) -> None:
        tasks = self._tasks | self._ends
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _end(self, job: aio.Job, how: End) -> None:
        repeats = 0
        while not job.ended:
            try:
                match how:
                    case "ack":
                        await job.ack()
                    case "reject":
                        await job.reject("rejected by the consumer")
                    case "release":
                        await job.release()
            except PASSING as error:
                if job.lost:
                    log.warning("cannot %s message %s: %s; its lease has run out", how, job.id, error)
                    return
                await pause(repeats, f"{how} message {job.id}", error)
                repeats += 1
            except (LeaseLost, NotFound):
                # Another consumer has it, or it was purged.
                log.warning("cannot %s message %s of %s: its lease is lost", how, job.id, job.queue)
                return


async def pause(repeats: int, what: str, error: Error) -> None:
    """Wait before a repeat."""
    seconds = PAUSES[min(repeats, len(PAUSES) - 1)]
    log.warning("cannot %s: %s; again in %.1f s", what, error, seconds)
    await asyncio.sleep(seconds)


class Claims:
    """Claims the messages that a channel wants, as many as it has room for, until it is stopped."""

    def __init__(
        self,
        pump: Pump,
        wanted: Callable[[], tuple[Sequence[str], int]],
        deliver: Callable[[aio.Job], None],
        fail: Callable[[Error], None],
        *,
        lease: Seconds,
        worker: str,
    ) -> None:
        """``wanted`` returns the queues and the room; each message goes to ``deliver``."""
        self._pump = pump
        self._wanted = wanted
        self._deliver = deliver
        self._fail = fail
        self._lease: Seconds = lease
        self._worker = worker
        self._changed = asyncio.Event()
        self._claim: asyncio.Future[aio.Batch] | None = None
        self._over = False
        pump.start(self._run)

    def freed(self) -> None:
        """There is more room."""
        self._pump.soon(self._changed.set)

    def restart(self, *, over: bool = False) -> None:
        """Other queues are wanted, or less room is left; or, if it is ``over``, nothing more is wanted."""
        self._pump.soon(self._restart, over)

    def _restart(self, over: bool) -> None:
        self._over = self._over or over
        self._changed.set()
        if self._claim is not None:
            self._claim.cancel()

    async def _run(self) -> None:
        failed = 0
        while not self._over:
            self._changed.clear()
            queues, room = self._wanted()
            if not queues or room < 1:
                await self._changed.wait()
                continue
            self._claim = asyncio.ensure_future(
                self._pump.file.claim(room, queues=queues, lease=self._lease, wait=None, worker=self._worker)
            )
            try:
                batch = await self._claim
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                continue
            except PASSING as error:
                await pause(failed, f"claim messages of {', '.join(queues)}", error)
                failed += 1
                continue
            except Error as error:
                self._fail(error)
                return
            finally:
                self._claim = None
            failed = 0
            for job in batch:
                self._deliver(job)
            if not batch:
                await asyncio.sleep(EMPTY)


class Bell:
    """A socket that is readable while it rings: the event loop of a Celery worker waits for it."""

    def __init__(self) -> None:
        self._heard, self._hit = socket.socketpair()
        self._heard.setblocking(False)
        self._hit.setblocking(False)

    def fileno(self) -> int:
        """Return the descriptor to wait for."""
        return self._heard.fileno()

    def ring(self) -> None:
        """Make it readable."""
        with suppress(OSError):  # Full: it rings already.
            self._hit.send(b"!")

    def silence(self) -> None:
        """Make it unreadable."""
        with suppress(OSError):
            while self._heard.recv(4096):
                pass

    def close(self) -> None:
        """Close the socket."""
        self._heard.close()
        self._hit.close()
