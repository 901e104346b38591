"""A storage for huey, and a Huey that keeps a lease on a task until it has run. docs/moving/huey.md shows both."""

# huey has no types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownParameterType=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false, reportIncompatibleMethodOverride=false

from __future__ import annotations

import logging
import math
import threading
import time
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Unpack, cast

from huey.api import Huey, Task
from huey.constants import EmptyData
from huey.consumer import Consumer
from huey.signals import SIGNAL_INTERRUPTED, SIGNAL_SCHEDULED
from huey.storage import BaseStorage

from bucketq._spelled import spelled
from bucketq.contrib._opening import Opening
from bucketq.contrib._until import LATER
from bucketq.contrib._values import Values
from bucketq.errors import Invalid, LeaseLost, NotFound
from bucketq.types import POLICY, Extras, FromPolicy, Seconds, Settings, State

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from os import PathLike

    from bucketq.file import QueueFile
    from bucketq.queue import Job, Jobs, Queue
    from bucketq.types import JobDetail

__all__ = ["BucketqHuey", "BucketqStorage"]

logger = logging.getLogger("bucketq.contrib.huey")

ETA = "huey-eta"
HELD = "_bucketq_job"
MINUTE = "_bucketq_minute"
READY: tuple[State, ...] = ("ready",)
SCHEDULED: tuple[State, ...] = ("scheduled",)
ENDED: tuple[State, ...] = ("ready", "dead")
PAUSE = 1.0
"""Seconds between two tries while the store cannot be reached."""
MILLISECOND = timedelta(milliseconds=1)


def _text(key: str | bytes) -> str:
    return key.decode() if isinstance(key, bytes) else key


class BucketqStorage(BaseStorage):
    """Keeps the tasks, results, locks and counters of huey as jobs of a queue file.

    Opens it at its first use, with the settings of ``bucketq.open``, and again in each forked process. ``wait`` is how
    long ``dequeue`` waits for a task, and ``result_ttl`` how long results are kept, both in seconds.
    """

    blocking = True

    @spelled(Settings)
    def __init__(
        self,
        name: str = "huey",
        url: str | PathLike[str] | None = None,
        *,
        wait: float = 1,
        result_ttl: float | None = None,
        lease: Seconds | FromPolicy = POLICY,
        **options: Unpack[Settings],
    ) -> None:
        super().__init__(name)
        self._wait = wait
        self._result_ttl = result_ttl
        self._lease = lease
        self._opening = Opening(url, options)
        self._values = Values(self._opening, f"{name}-values")
        self._counters = Values(self._opening, f"{name}-counters")
        self._waiting: set[Jobs] = set()
        self._left = threading.Condition()
        self._stopped = False
        # Options for the job of the task that this thread enqueues.
        self._more = threading.local()

    @property
    def file(self) -> QueueFile:
        """The queue file of this process."""
        return self._opening.file

    @property
    def _tasks(self) -> Queue:
        return self.file.queue(self.name)

    @property
    def _schedule(self) -> Queue:
        return self.file.queue(f"{self.name}-schedule")

    def close(self) -> bool:
        """Close the queue file. A later use opens it again."""
        self._opening.close()
        return True

    def enqueue(self, data: bytes, priority: float | None = None) -> None:
        """Enqueue a task; a larger priority runs first."""
        extras = Extras(priority=-int(priority or 0))
        extras.update(getattr(self._more, "extras", {}))
        self._tasks.enqueue(data, **extras)

    @contextmanager
    def extras(self, **extras: Unpack[Extras]) -> Generator[None]:
        """Give these options to the jobs of tasks that this thread enqueues in the block."""
        self._more.extras = extras
        try:
            yield
        finally:
            self._more.extras = {}

    def dequeue(self) -> bytes | None:
        """Remove the next task and return it. A crash loses it; ``claim`` keeps it until it has run."""
        job = self._tasks.claim_one(wait=self._wait, ack=True)
        return None if job is None else job.payload

    def claim(self) -> Job | None:
        """Claim the next task, with a lease that is extended until the job ends. None if none comes in time."""
        with self._tasks.jobs(wait=self._wait, lease=self._lease) as jobs:
            with self._left:
                if self._stopped:
                    return None
                self._waiting.add(jobs)
            try:
                return next(jobs, None)
            finally:
                with self._left:
                    self._waiting.discard(jobs)
                    self._left.notify_all()

    def stop(self) -> None:
        """Claim no more, so that a task that is given back goes to another process."""
        with self._left:
            self._stopped = True
            for jobs in tuple(self._waiting):
                jobs.close()
            self._left.wait_for(lambda: not self._waiting, PAUSE)

    def queue_size(self) -> int:
        """Return how many tasks wait."""
        return self._tasks.counts().counts["ready"]

    def enqueued_items(self, limit: int | None = None) -> list[bytes]:
        """Return the tasks that wait, the next one first."""
        jobs = sorted(_all(self._tasks, READY), key=lambda job: job.priority)
        return [job.payload for job in jobs[:limit]]

    def flush_queue(self) -> None:
        """Delete the tasks that wait, and those that are dead."""
        self._tasks.purge(ENDED)

    def add_to_schedule(self, data: bytes, ts: datetime) -> None:
        """Keep a task until ``read_schedule`` returns it."""
        self._schedule.enqueue(data, headers={ETA: ts.isoformat()})

    def read_schedule(self, ts: datetime) -> list[bytes]:
        """Remove the tasks that are due and return them; each goes to one caller."""
        due = [job for job in self._kept() if _eta(job) <= ts]
        with self.file.atomic() as tx:
            for job in due:
                tx.delete(job.id)
        return [job.payload for job, state in zip(due, tx.results, strict=True) if state is not None]

    def _kept(self) -> list[JobDetail]:
        return sorted(_all(self._schedule, READY), key=_eta)

    def schedule_size(self) -> int:
        """Return how many tasks are scheduled."""
        return self._schedule.counts().counts["ready"] + self._tasks.counts().counts["scheduled"]

    def scheduled_items(self, limit: int | None = None) -> list[bytes]:
        """Return the scheduled tasks, the next one first."""
        later = sorted(_all(self._tasks, SCHEDULED), key=lambda job: job.run_at)
        return [job.payload for job in [*self._kept(), *later][:limit]]

    def flush_schedule(self) -> None:
        """Delete the scheduled tasks."""
        self._schedule.purge(READY)
        self._tasks.purge(SCHEDULED)

    def put_data(self, key: str | bytes, value: bytes, is_result: bool = False) -> None:
        """Set the value of a key."""
        self._values.put(_text(key), bytes(value), self._result_ttl if is_result else None)

    def peek_data(self, key: str | bytes) -> Any:
        """Return the value of a key."""
        value = self._values.get(_text(key))
        return EmptyData if value is None else value

    def pop_data(self, key: str | bytes) -> Any:
        """Return the value of a key and delete it."""
        value = self._values.pop(_text(key))
        return EmptyData if value is None else value

    def has_data_for_key(self, key: str | bytes) -> bool:
        """Return whether the key has a value."""
        return self._values.get(_text(key)) is not None

    def put_if_empty(self, key: str | bytes, value: bytes, ttl: float | None = None) -> bool:
        """Set the value of a key that has none, to be kept for ``ttl`` seconds."""
        return self._values.put_if_empty(_text(key), bytes(value), ttl)

    def incr(self, key: str | bytes, amount: int = 1) -> int:
        """Add to a counter, and return the sum."""
        return self._counters.add(_text(key), amount)

    def delete_counter(self, key: str | bytes) -> None:
        """Delete a counter."""
        self._counters.pop(_text(key))

    def result_store_size(self) -> int:
        """Return how many keys have a value."""
        return len(self._values)

    def result_items(self) -> dict[str, bytes]:
        """Return all values by key."""
        return dict(self._values.items())

    def flush_results(self) -> None:
        """Delete all values."""
        self._values.clear()

    def flush_counters(self) -> None:
        """Delete all counters."""
        self._counters.clear()


def _all(queue: Queue, states: tuple[State, ...]) -> Generator[JobDetail]:
    after = None
    while True:
        page = queue.list(states, after=after, payloads=True)
        yield from page
        if page.next is None:
            return
        after = page.next


def _eta(job: JobDetail) -> datetime:
    return datetime.fromisoformat(job.headers[ETA])


class BucketqHuey(Huey):
    """Keeps the lease of a task until it has run: when its process dies, another one runs it.

    A task with a delay or an eta waits in the queue file, and needs no scheduler.
    """

    storage_class = BucketqStorage
    # The flag that the consumer of this process sets when it ends.
    _ending: Any = None

    @property
    def _kept(self) -> BucketqStorage | None:
        """The storage; None in immediate mode, which has its own in memory."""
        return self.storage if isinstance(self.storage, BucketqStorage) else None

    def create_consumer(self, **options: Any) -> Consumer:
        """Return a consumer, as its command line asks for one. Its workers begin no task while it ends."""
        consumer = super().create_consumer(**options)
        self._ending = consumer.stop_flag
        return consumer

    def enqueue(self, task: Any) -> Any:
        """Enqueue a task, a group or a chord."""
        extras = Extras()
        if getattr(task, "eta", None) is not None:
            extras["at"] = self._moment(task.eta)
        if hasattr(task, MINUTE):
            extras["dedup"] = f"{task.name} {getattr(task, MINUTE)}"
        if self._kept is None or self._immediate or not extras:
            return super().enqueue(task)
        with self._kept.extras(**extras):
            return super().enqueue(task)

    def add_schedule(self, task: Task) -> None:
        """Schedule a task, such as a retry."""
        if self._kept is None:
            super().add_schedule(task)
            return
        data = self.serialize_task(task)
        with self._kept.extras(at=self._moment(task.eta or datetime.now(UTC))):
            self._kept.enqueue(data, task.priority)
        self._emit(SIGNAL_SCHEDULED, task)

    def read_schedule(self, timestamp: datetime | None = None) -> list[Task]:
        """Return no task: workers claim a scheduled one when it is due."""
        return super().read_schedule(timestamp) if self._kept is None else []

    def read_periodic(self, timestamp: datetime | None) -> list[Task]:
        """Return the periodic tasks of this minute. ``enqueue`` enqueues each once, for all consumers together."""
        now = timestamp or self._get_timestamp()
        tasks = super().read_periodic(now)
        for task in tasks:
            setattr(task, MINUTE, f"{now:%Y-%m-%d %H:%M}")
        return tasks

    def _moment(self, eta: datetime) -> datetime:
        """Return an eta as huey has it, in UTC or local time, as a moment that is not before it."""
        if eta.tzinfo is None:
            eta = eta.replace(tzinfo=UTC) if self.utc else eta.astimezone()
        return eta + MILLISECOND

    def dequeue(self) -> Task | None:
        """Claim the next task. ``execute`` ends its job."""
        if self._kept is None:
            return super().dequeue()
        job = self._kept.claim()
        if job is not None and self._ending is not None and self._ending.is_set():
            # The consumer has begun to end while its worker waited for a task.
            _end(job, job.release, tries=1)
            return None
        if job is None:
            return None
        try:
            task = self.deserialize_task(job.payload)
        except Exception as error:
            job.reject(error)
            raise
        setattr(task, HELD, job)
        return task

    def execute(self, task: Task, timestamp: datetime | None = None) -> Any:
        """Run a task, and end its job when its result and the tasks after it are stored."""
        job = cast("Job | None", getattr(task, HELD, None))
        if job is None:
            return super().execute(task, timestamp)
        try:
            value = super().execute(task, timestamp)
        except Invalid as error:
            # A result or a next task that is too large, for example: it would be so again.
            invalid = error
            _end(job, lambda: job.reject(invalid))
            raise
        except Exception as error:
            reason = error
            _end(job, lambda: job.nack(reason))
            raise
        except BaseException:
            _end(job, job.release)
            raise
        if getattr(task, HELD, None) is job:
            _end(job, job.ack)
        return value

    def notify_interrupted_tasks(self) -> None:
        """Give back the tasks that run while the consumer ends."""
        if self._kept is not None:
            self._kept.stop()
        super().notify_interrupted_tasks()
        if self._kept is not None:
            # A claim that has ended here may still take a task at the process that writes; closing gives it back.
            self._kept.close()

    def _emit(self, signal: str, task: Any, *args: Any, **kwargs: Any) -> None:
        job = cast("Job | None", getattr(task, HELD, None))
        if signal == SIGNAL_INTERRUPTED and job is not None:
            # The process is about to end: this is tried once, and the task is not acked afterwards.
            setattr(task, HELD, None)
            _end(job, job.release, tries=1)
        super()._emit(signal, task, *args, **kwargs)


def _end(job: Job, how: Callable[[], object], tries: float = math.inf) -> None:
    """End the job of a task, unless it has ended or another worker has it; repeat that while its lease lasts."""
    while not job.ended:
        tries -= 1
        try:
            how()
        except (LeaseLost, NotFound) as error:
            logger.warning("Task %s runs again or was deleted: %s", job.id, error)
            return
        except LATER as error:
            logger.warning("The end of task %s cannot be stored: %s", job.id, error)
            if job.lost or tries <= 0:
                return
            time.sleep(PAUSE)
