"""Jobs as Django's tasks and results. Does no I/O."""

# pyright: basic
from __future__ import annotations

import re
from contextlib import suppress
from datetime import datetime
from importlib import import_module
from traceback import format_exception
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.utils import timezone

from bucketq.contrib.django.compat import (
    InvalidTask,
    Task,
    TaskError,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultMismatch,
    TaskResultStatus,
)
from bucketq.tasks.codec import JSON, value
from bucketq.tasks.message import message
from bucketq.tasks.result import parts

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from bucketq.types import Attempt, JobDetail

__all__ = [
    "RUN_AFTER",
    "NoTask",
    "as_enqueued",
    "aware",
    "error_of",
    "find",
    "here",
    "ran",
    "result_of",
    "trace",
]

RUN_AFTER = "django-run-after"
"""The header with the time that a task was enqueued with: that of the job changes with each attempt."""
MOST = 100
"""The largest priority of a task, and with a minus the smallest."""
STATUS = {
    "scheduled": TaskResultStatus.READY,
    "ready": TaskResultStatus.READY,
    "leased": TaskResultStatus.RUNNING,
    "done": TaskResultStatus.SUCCESSFUL,
    "dead": TaskResultStatus.FAILED,
    "cancelled": TaskResultStatus.FAILED,
}
LOST = "the worker was lost: its lease ran out"
KINDS = {"expired": "bucketq.LeaseLost", "rejected": "bucketq.Reject"}
"""The exceptions that stand for ends of attempts without one."""
OUTSIDE = ("bucketq.", "django.tasks.", "django_tasks.", "asgiref.")
"""The modules between the worker and the task."""
RAN = ("failed", "expired", "rejected")
"""How attempts end that ran a task; the others are ends of earlier runs."""


class NoTask(LookupError):
    """There is no task at this path."""


def find(path: str) -> Any:
    """Import a task. Raises NoTask if there is none at this path; other errors of the import are raised unchanged."""
    module, _, name = path.rpartition(".")
    try:
        found = getattr(import_module(module), name, None) if module.strip(".") == module != "" else None
    except ModuleNotFoundError as error:
        if error.name is None or not (module == error.name or module.startswith(f"{error.name}.")):
            raise
        found = None
    if not isinstance(found, Task):
        raise NoTask(f"there is no task {path}: it was renamed or removed, or this is an older version")
    return found


def as_enqueued(task: Any, alias: str, queue: str, priority: int, headers: Mapping[str, str]) -> Any:
    """Return the task with the options that its job was enqueued with."""
    after = headers.get(RUN_AFTER)
    changes = {
        "backend": alias,
        "priority": max(-MOST, min(MOST, -priority)),
        "run_after": None if after is None else here(datetime.fromisoformat(after)),
    }
    for more in ({"queue_name": queue}, {}):
        # The settings may not have the queue: it is that of dead letters, or an old one.
        with suppress(InvalidTask):
            return task.using(**changes, **more)
    return task


def aware(time: datetime) -> datetime:
    """Return the time with a zone; without one it is in Django's current zone."""
    return timezone.make_aware(time) if timezone.is_naive(time) else time


def here(time: datetime | None) -> Any:
    """Return the time as Django's settings want it, with a zone or in the current one."""
    return time if time is None or settings.USE_TZ else timezone.make_naive(time)


def result_of(alias: str, job: JobDetail | None, id: str) -> Any:
    """Return the result of the task of this job."""
    try:
        if job is None:
            raise ValueError
        call = message(JSON.loads(job.payload))
    except ValueError:
        raise TaskResultDoesNotExist(id) from None
    try:
        task = find(call.task)
    except NoTask as error:
        raise TaskResultMismatch(str(error)) from None
    before = ran(job)
    counts = job.state == "done" or (job.state == "leased" and not job.expired)
    workers = [one.worker or "" for one in before]
    errors = [error_of(one.ended, one.error) for one in before]
    if job.state == "cancelled":
        errors.append(error_of("cancelled", "the job was cancelled"))
    elif job.state == "dead" and not before:
        errors.append(error_of("unclaimed", job.last_error or "the job is dead"))
    claimed = [one.claimed_at for one in before if one.claimed_at is not None]
    claimed += [job.claimed_at] if counts and job.claimed_at is not None else []
    result = TaskResult(
        task=as_enqueued(task, alias, job.queue, job.priority, job.headers),
        id=job.id,
        status=STATUS[job.state] if not job.expired else TaskResultStatus.READY,
        enqueued_at=here(job.enqueued_at),
        started_at=here(claimed[0] if claimed else None),
        finished_at=here(job.finished_at),
        last_attempted_at=here(claimed[-1] if claimed else None),
        args=list(call.args),
        kwargs=call.kwargs,
        backend=alias,
        errors=errors,
        worker_ids=workers + ([job.worker or ""] if counts else []),
    )
    found = value(JSON, job.result_payload, job.result_content_type)
    object.__setattr__(result, "_return_value", found)
    return result


def ran(job: JobDetail) -> list[Attempt]:
    """Return the failed attempts of the job in its current run."""
    return [one for one in job.attempts if one.run == job.run and one.ended in RAN]


def error_of(ended: str, text: str | None) -> Any:
    """Return a stored failure as an error. The last line of its traceback names the class."""
    summary, trace = parts(text or LOST)
    name, _, _ = summary.partition(":")
    kind = "TimeoutError" if summary == "timed out" else KINDS.get(ended, "bucketq.TaskFailed")
    if trace and name.isidentifier():
        lines = re.findall(rf"^((?:\w+\.)*{name})(?::.*)?$", trace, re.MULTILINE)
        kind = lines[-1] if lines else kind
    return TaskError(
        exception_class_path=kind if "." in kind else f"builtins.{kind}", traceback=trace or summary
    )


def trace(error: BaseException) -> tuple[TracebackType | None, str]:
    """Return the traceback of an error from the task's own code on, also as text."""
    within = error.__traceback__
    while (
        within is not None
        and within.tb_next is not None
        and within.tb_frame.f_globals.get("__name__", "").startswith(OUTSIDE)
    ):
        within = within.tb_next
    return within, "".join(format_exception(type(error), error, within))
