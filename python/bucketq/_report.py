"""A worker logs one record about each job when it ends, with the facts as fields.

``record.job`` has the fields, for formatters and for programs that ship logs; the message says the same in words.
"""

from __future__ import annotations

from dataclasses import dataclass
from logging import INFO, WARNING, getLogger
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bucketq._ending import Ending, EndOp
    from bucketq._job import JobBase

__all__ = ["JobFacts", "Report"]

log = getLogger("bucketq.worker")


@dataclass(frozen=True, slots=True)
class JobFacts:
    """The fields of a record about a job: ``record.job``."""

    id: str
    queue: str
    task: str
    """The name of the task; empty for a handler of ``Worker``."""
    attempt: int
    seconds: float
    """How long its handler ran."""
    what: str
    """done, failed, rejected, released or lost."""
    summary: str
    """Why it failed, in one line."""
    traceback: str
    """Where it failed, if the exception was raised in another process."""


class Report:
    """Collects what there is to log about one job."""

    __slots__ = ("_began", "_ending", "_error", "_job", "_seconds")

    def __init__(self, job: JobBase) -> None:
        self._job = job
        self._began = perf_counter()
        self._seconds = 0.0
        self._error: BaseException | None = None
        self._ending: Ending | None = None

    def fail(self, error: BaseException) -> None:
        """Remember why it failed."""
        self._error = error

    def take(self, ending: Ending) -> None:
        """Remember how the handler ended it."""
        self._ending = ending
        self._error = ending.error

    @property
    def overtaken(self) -> bool:
        """True if a lost lease is expected."""
        return self._ending is not None and self._ending.overtaken

    @property
    def requeued(self) -> EndOp | None:
        """How the job ends if it was requeued after it had enqueued what follows."""
        return None if self._ending is None else self._ending.requeued

    def ran(self) -> None:
        """Stop the time of the handler."""
        self._seconds = perf_counter() - self._began

    def log(self, what: str) -> None:
        """Log the end of the job."""
        level = INFO if what in {"done", "released"} else WARNING
        # A job that is lost has been logged with its reason.
        if what == "lost" or not log.isEnabledFor(level):
            return
        job, ending, error = self._job, self._ending, self._error
        name, summary, traceback = (ending.name, ending.summary, ending.traceback) if ending else ("", "", "")
        rejected = what == "rejected"
        if error is not None and not summary:
            summary = str(error) if rejected else f"{type(error).__name__}: {error}"
        facts = JobFacts(job.id, job.queue, name, job.attempt, self._seconds, what, summary, traceback)
        log.log(
            level,
            "job %s of %s %s%s, attempt %d, %.3f s%s",
            job.id,
            job.queue,
            "is rejected" if rejected else what,
            f" ({name})" if name else "",
            job.attempt,
            self._seconds,
            f": {summary}" if summary else "",
            exc_info=None if rejected and ending is None else error,
            extra={"job": facts},
        )
