"""Runs the task of a job as Django expects: with its context, signals, and database connections that work.

It runs in a thread of the worker or in a child process. Does no I/O of its own: the worker passes the facts of the job.
"""

# pyright: basic
from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from django.db import close_old_connections, reset_queries

from bucketq.contrib.django import results
from bucketq.contrib.django.compat import (
    TaskContext,
    TaskError,
    TaskResult,
    TaskResultStatus,
    normalize_json,
    task_backends,
    task_finished,
    task_started,
)
from bucketq.tasks.app import App
from bucketq.tasks.context import CurrentJob, current, current_job
from bucketq.worker import Reject

__all__ = ["Facts", "perform"]

FACTS = "bucketq-django"
"""The header that takes the facts of a job to where its task runs. No stored job has it."""


@dataclass(frozen=True)
class Facts:
    """The part of a job that Django's results need and ``CurrentJob`` has not."""

    backend: str
    worker: str
    priority: int
    enqueued_at: str
    is_last: bool
    """Whether the job is dead if this attempt fails."""
    started_at: str | None = None
    """The begin of the first attempt; None: this is the first."""
    workers: list[str] = field(default_factory=list)
    """Those of earlier attempts."""
    errors: list[tuple[str, str | None]] = field(default_factory=list)
    """How they ended, and the stored failures."""

    def onto(self, job: CurrentJob) -> CurrentJob:
        """Return the job with these facts."""
        return replace(job, headers={**job.headers, FACTS: json.dumps(asdict(self))})

    @classmethod
    def of(cls, job: CurrentJob) -> tuple[Facts, CurrentJob]:
        """Return the facts, and the job without them."""
        headers = dict(job.headers)
        return cls(**json.loads(headers.pop(FACTS))), replace(job, headers=headers)


_app = App()
# It is never opened: a child process finds the function by its module and name.


@_app.task(name="bucketq.contrib.django")
def perform(*args, **kwargs):  # pyright: ignore[reportMissingParameterType]
    """Run the task whose name is that of the current job."""
    facts, job = Facts.of(current_job())
    token = current.set(job)
    reset_queries()
    close_old_connections()
    try:
        try:
            task = results.find(job.task)
        except results.NoTask as error:
            raise Reject(str(error)) from None
        return run(task, begun(task, facts, job, args, kwargs), is_last=facts.is_last)
    finally:
        close_old_connections()
        current.reset(token)


def begun(task: Any, facts: Facts, job: CurrentJob, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the result of a task that starts now."""
    now = datetime.now(UTC)
    first = now if facts.started_at is None else datetime.fromisoformat(facts.started_at)
    return TaskResult(
        task=results.as_enqueued(task, facts.backend, job.queue, facts.priority, job.headers),
        id=job.id,
        status=TaskResultStatus.RUNNING,
        enqueued_at=results.here(datetime.fromisoformat(facts.enqueued_at)),
        started_at=results.here(first),
        finished_at=None,
        last_attempted_at=results.here(now),
        args=list(args),
        kwargs=kwargs,
        backend=facts.backend,
        errors=[results.error_of(*one) for one in facts.errors],
        worker_ids=[*facts.workers, facts.worker],
    )


def run(task: Any, result: Any, *, is_last: bool) -> Any:
    """Call the function of the task and return its value. The signals say how it went."""
    sender = type(task_backends[result.backend])
    task_started.send_robust(sender, task_result=result)
    try:
        context = (TaskContext(task_result=result),) if task.takes_context else ()
        value = normalize_json(task.call(*context, *result.args, **result.kwargs))
    except BaseException as error:
        kind = type(error)
        path = f"{kind.__module__}.{kind.__qualname__}"
        within, text = results.trace(error)
        result.errors.append(TaskError(exception_class_path=path, traceback=text))
        if isinstance(error, Reject) or is_last:
            end(result, TaskResultStatus.FAILED)
            task_finished.send_robust(sender, task_result=result)
        else:
            object.__setattr__(result, "status", TaskResultStatus.READY)
        raise error.with_traceback(within)  # noqa: B904
    object.__setattr__(result, "_return_value", value)
    end(result, TaskResultStatus.SUCCESSFUL)
    task_finished.send_robust(sender, task_result=result)
    return value


def end(result: Any, status: Any) -> None:
    """Note the end of the task."""
    object.__setattr__(result, "status", status)
    object.__setattr__(result, "finished_at", results.here(datetime.now(UTC)))
