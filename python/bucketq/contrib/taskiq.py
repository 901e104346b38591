"""A broker and a result backend for taskiq, on ``bucketq.aio``. docs/moving/taskiq.md shows how to use them.

A task is acked together with its result, and with the retry that middleware sends for it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Unpack
from weakref import WeakValueDictionary

from taskiq import AckableMessage, AsyncBroker, AsyncResultBackend, TaskiqResult
from taskiq.depends.progress_tracker import TaskProgress  # pyright: ignore[reportMissingTypeStubs]
from taskiq.serializers import JSONSerializer

from bucketq import aio
from bucketq._spelled import spelled
from bucketq.contrib._until import LATER, is_over, until
from bucketq.errors import (
    Error,
    Invalid,
    LeaseLost,
    NotFound,
    QueueFull,
)
from bucketq.types import POLICY, Extras, FromPolicy, New, Seconds, Settings, State

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from os import PathLike

    from taskiq import BrokerMessage
    from taskiq.abc.serializer import TaskiqSerializer

    from bucketq.types import JobDetail

__all__ = ["BucketqBroker", "BucketqResultBackend"]

logger = logging.getLogger("bucketq.contrib.taskiq")

TASK = "taskiq-task"
ID = "taskiq-id"
DAY = 86_400
PAUSE = 1.0
"""Seconds between two tries while the store cannot be reached."""
KEPT: tuple[State, ...] = ("ready",)


class BucketqBroker(AsyncBroker):
    """Keeps tasks as jobs of one queue of a queue file. Opens it at its first use, with the settings of ``aio.open``.

    ``lease`` is for the tasks that this process claims; without it, the policy of the queue says how long a lease
    lasts. A claim takes up to ``prefetch`` tasks.
    """

    @spelled(Settings)
    def __init__(
        self,
        url: str | PathLike[str] | None = None,
        *,
        queue: str = "taskiq",
        lease: Seconds | FromPolicy = POLICY,
        prefetch: int = 1,
        **options: Unpack[Settings],
    ) -> None:
        super().__init__()
        self._url = url
        self._queue = queue
        self._lease = lease
        self._prefetch = prefetch
        self._options = options
        self._opened: tuple[int, aio.QueueFile] | None = None
        self._opening: tuple[int, asyncio.Lock] | None = None
        # The tasks that this process holds, by their ids; taskiq keeps them alive while it works on them.
        self._held: WeakValueDictionary[str, _Held] = WeakValueDictionary()

    async def file(self) -> aio.QueueFile:
        """Return the queue file of this process."""
        process = os.getpid()
        if self._opening is None or self._opening[0] != process:
            self._opening = process, asyncio.Lock()
        async with self._opening[1]:
            if self._opened is None or self._opened[0] != process:
                self._opened = process, await aio.open(self._url, **self._options)
            return self._opened[1]

    async def startup(self) -> None:
        """Open the queue file, and start the middleware and the result backend."""
        await self.file()
        await super().startup()

    async def shutdown(self) -> None:
        """Give back the tasks that have not ended, and close the queue file. A later use opens it again."""
        await super().shutdown()
        for held in list(self._held.values()):
            await held.give_back()
        opened, self._opened = self._opened, None
        if opened is not None and opened[0] == os.getpid():
            await opened[1].close()

    async def kick(self, message: BrokerMessage) -> None:
        """Enqueue a task. Its labels ``delay`` (seconds), ``priority`` (larger runs first) and ``queue_name`` count."""
        labels = message.labels
        extras = Extras(
            priority=-int(float(labels.get("priority", 0))),
            headers={TASK: message.task_name, ID: message.task_id},
            content_type=_type(self.serializer),
        )
        if labels.get("delay") is not None:
            extras["delay"] = float(labels["delay"])
        await self._send(message.task_id, str(labels.get("queue_name", self._queue)), message.message, extras)

    async def _send(self, task: str, queue: str, data: bytes, extras: Extras) -> None:
        """Enqueue a job: one for a task that this process works on, in the commit that acks the task."""
        held = self._held.get(task)
        if held is not None and not held.job.ended:
            held.following.append(New(queue, data, **extras))
        else:
            await (await self.file()).queue(queue).enqueue(data, **extras)

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """Claim tasks one after the other; a claim wakes with the commit that brings one."""
        queue = (await self.file()).queue(self._queue)
        async with queue.jobs(lease=self._lease, prefetch=self._prefetch) as jobs:
            while True:
                # No variable here may keep the job: its lease ends when taskiq drops it without an ack.
                yield self._hold(await self._next(jobs))

    def _hold(self, job: aio.Job) -> AckableMessage:
        held = _Held(job)
        self._held[job.headers.get(ID, job.id)] = held
        return AckableMessage(data=job.payload, ack=held.ack)

    async def _next(self, jobs: aio.Jobs) -> aio.Job:
        """Return the next job whose task is known here."""
        while True:
            try:
                job = await anext(jobs, None)
                if job is not None:
                    known = job.headers.get(TASK)
                    if known is None or self.find_task(known) is not None:
                        return job
                    logger.error("Task %s is unknown here; its job %s is dead.", known, job.id)
                    await job.reject(f"task {known} is unknown")
                    continue
            except (*LATER, LeaseLost) as error:
                logger.warning("Tasks cannot be claimed, trying again: %s", error)
            # The queue is drained, or the store cannot be reached.
            await asyncio.sleep(PAUSE)


class _Held:
    """A task that this process holds, with what is to be enqueued when it is acked."""

    def __init__(self, job: aio.Job) -> None:
        self.job = job
        self.following: list[New] = []

    async def ack(self) -> None:
        """Mark the job done, and repeat that while the store cannot be reached."""
        while not self.job.ended:  # The broker gives it back when it is shut down.
            try:
                await self._ack()
            except (LeaseLost, NotFound) as error:
                logger.warning("Job %s runs again or was deleted: %s", self.job.id, error)
                return
            except LATER as error:
                logger.warning("Job %s cannot be acked: %s", self.job.id, error)
                if self.job.lost:
                    return
                await asyncio.sleep(PAUSE)

    async def _ack(self) -> None:
        try:
            await self.job.ack(then=self.following)
        except Invalid as error:
            logger.error("Job %s is dead, its result or retry is invalid: %s", self.job.id, error)
            await self.job.reject(error)
        except QueueFull as error:
            logger.error("Job %s runs again, its result or retry has no room: %s", self.job.id, error)
            await self.job.nack(error)

    async def give_back(self) -> None:
        """Release the job, unless it has ended."""
        if self.job.ended:
            return
        try:
            await self.job.release()
        except Error as error:
            logger.warning("Job %s was not given back: %s", self.job.id, error)


def _type(serializer: TaskiqSerializer) -> str | None:
    return "application/json" if isinstance(serializer, JSONSerializer) else None


class BucketqResultBackend(AsyncResultBackend[Any]):
    """Keeps results in a queue of the broker's queue file, for ``ttl``. Nobody may claim its jobs."""

    def __init__(
        self,
        broker: BucketqBroker,
        *,
        queue: str = "taskiq-results",
        ttl: float = DAY,
        serializer: TaskiqSerializer | None = None,
    ) -> None:
        self._broker = broker
        self._queue = queue
        self._ttl = ttl
        self._serializer = serializer or JSONSerializer()
        # The process that has looked at the policy of the queue.
        self._looked: int | None = None

    async def set_result(self, task_id: str, result: TaskiqResult[Any]) -> None:
        """Store a result: that of a task of this process, in the commit that acks it."""
        data = self._serializer.dumpb(result.model_dump(mode="json"))
        await self._expire()
        await self._broker._send(task_id, self._queue, data, self._extras(task_id))

    async def is_result_ready(self, task_id: str) -> bool:
        """Return True if there is a result."""
        return bool(await self._kept(task_id))

    async def get_result(self, task_id: str, with_logs: bool = False) -> TaskiqResult[Any]:
        """Return the newest result of a task. Raises NotFound if there is none."""
        kept = await self._kept(task_id)
        if not kept:
            raise NotFound(f"task {task_id} has no result")
        result = TaskiqResult[Any].model_validate(self._serializer.loadb(kept[-1].payload))
        if not with_logs:
            result.log = None
        return result

    async def set_progress(self, task_id: str, progress: TaskProgress[Any]) -> None:
        """Store the progress of a task in place of the last one."""
        key = f"{task_id}-progress"
        data = self._serializer.dumpb(progress.model_dump(mode="json"))
        await self._expire()
        old = await self._kept(key)
        async with (await self._broker.file()).atomic() as tx:
            for one in old:
                tx.delete(one.id)
            tx.enqueue(self._queue, data, **self._extras(key))

    async def get_progress(self, task_id: str) -> TaskProgress[Any] | None:
        """Return the progress of a task, or None."""
        kept = await self._kept(f"{task_id}-progress")
        return TaskProgress[Any].model_validate(self._serializer.loadb(kept[-1].payload)) if kept else None

    async def _expire(self) -> None:
        """Let the queue delete expired results; without this they would stay as dead jobs."""
        if self._looked == os.getpid():
            return
        with suppress(*LATER):
            queue = (await self._broker.file()).queue(self._queue)
            if (await queue.policy()).on_expiry != "delete":
                await queue.configure(on_expiry="delete")
            self._looked = os.getpid()

    def _extras(self, key: str) -> Extras:
        content_type = _type(self._serializer)
        return Extras(group=key, expires=self._ttl, headers=until(self._ttl), content_type=content_type)

    async def _kept(self, key: str) -> list[JobDetail]:
        queue = (await self._broker.file()).queue(self._queue)
        return [job for job in await queue.list(KEPT, group=key, payloads=True) if not is_over(job)]
