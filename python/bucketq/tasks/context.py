"""The job that the running code belongs to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bucketq.errors import Invalid

if TYPE_CHECKING:
    from bucketq._job import JobBase

__all__ = ["CurrentJob", "current_job"]


def never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class CurrentJob:
    """The job whose task runs here: in a thread, in a coroutine, or in a child process."""

    id: str
    queue: str
    task: str
    """The name of the task."""
    attempt: int
    """1 for the first claim of this run."""
    max_attempts: int
    run: int
    """0, and one more with each requeue."""
    fence: int
    """The fencing token: larger than that of every earlier claim."""
    headers: Mapping[str, str]
    _ended: Callable[[], bool] = field(default=never, repr=False, compare=False)

    @property
    def ended(self) -> bool:
        """True once a thread has no more reason to continue: its worker was stopped, and the job was given back.

        A child process is killed instead.
        """
        return self._ended()

    @classmethod
    def of(cls, job: JobBase, task: str) -> CurrentJob:
        """Return the facts of a claimed job."""
        return cls(
            job.id,
            job.queue,
            task,
            job.attempt,
            job.max_attempts,
            job.run,
            job.fence,
            dict(job.headers),
            lambda: job.ended,
        )


current: ContextVar[CurrentJob | None] = ContextVar("bucketq_current_job", default=None)


def current_job() -> CurrentJob:
    """Return the job whose task calls this. Raises Invalid outside a task."""
    job = current.get()
    if job is None:
        raise Invalid("no task runs here: current_job() works in a task that a worker has called", "state")
    return job
