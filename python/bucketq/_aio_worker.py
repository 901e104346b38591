"""The worker of ``bucketq.aio``, with the same names as the synchronous one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from bucketq import _convert as convert
from bucketq._working import Working
from bucketq.errors import Invalid
from bucketq.types.policy import POLICY
from bucketq.worker import Worked, WorkerBase

if TYPE_CHECKING:
    from bucketq._listening import OnLost
    from bucketq.aio import QueueFile
    from bucketq.types import FromPolicy, Seconds


class Worker(WorkerBase):
    """Runs handlers, as ``bucketq.Worker``: coroutines in the running loop, functions in threads."""

    def __init__(
        self,
        file: QueueFile,
        *,
        concurrency: int = 8,
        prefetch: int = 0,
        queues: Iterable[str] | None = None,
        lease: Seconds | FromPolicy | None = POLICY,
        name: str | None = None,
        on_lease_lost: OnLost | None = None,
    ) -> None:
        """Run ``concurrency`` jobs at a time, of ``queues`` or of all that have a handler.

        Up to ``prefetch`` more are claimed ahead, so that the next handler need not wait for the store.
        """
        super().__init__(
            file,
            concurrency=concurrency,
            prefetch=prefetch,
            queues=queues,
            lease=lease,
            name=name,
            on_lease_lost=on_lease_lost,
        )
        self._task: asyncio.Task[Worked] | None = None
        self._ended = asyncio.Event()

    async def run(self, *, wait: Seconds | None = None, signals: bool = True) -> Worked:
        """Work until drained; with ``wait``, until no job came for that long.

        In the main thread SIGTERM and SIGINT drain; a second one stops and gives running jobs back.
        """
        return await self._go(self._begin(wait), signals)

    async def close(self, timeout: Seconds | None = None) -> None:
        """Drain and wait. After ``timeout``, stop and give running jobs back.

        A coroutine is cancelled. A function cannot be: it continues in its thread and can check ``job.ended``.
        """
        limit = convert.maybe_millis(timeout, "timeout")
        self.drain()
        working = self._working
        if working is None:
            return
        if working.is_inside():
            raise Invalid("a handler cannot wait for its own end: call worker.drain()")
        try:
            await asyncio.wait_for(self._ended.wait(), None if limit is None else limit / 1000)
        except TimeoutError:
            working.stop()
            await self._ended.wait()
        if self._task is not None:
            task, self._task = self._task, None
            await task

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._go(self._begin(None), False))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _begin(self, wait: Seconds | None) -> Working:
        plan = self._plan()
        convert.maybe_millis(wait, "wait")
        self._working = Working(self._file, plan, wait)
        return self._working

    async def _go(self, working: Working, signals: bool) -> Worked:
        try:
            return await working.run(signals=signals)
        finally:
            self._drained = True
            self._ended.set()
