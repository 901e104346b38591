"""The worker of one backend: bucketq's own, which finds tasks by their path and passes them what Django needs."""

# pyright: basic
from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from bucketq.contrib.django import running
from bucketq.contrib.django.results import ran
from bucketq.contrib.django.running import Facts
from bucketq.errors import Error
from bucketq.tasks.context import CurrentJob
from bucketq.tasks.runner import Runner
from bucketq.tasks.task import Task
from bucketq.tasks.worker import AppWorker, WorkerOptions

if TYPE_CHECKING:
    from bucketq.aio import Job, QueueFile
    from bucketq.tasks.app import App
    from bucketq.tasks.task import TaskBase
    from bucketq.types import Attempt

__all__ = ["DjangoWorker"]

DAY = 86_400
"""Seconds. The state of this process is never older than its own claims, and reading it needs no request."""


class DjangoWorker(AppWorker):
    """Runs the tasks of one backend."""

    def __init__(self, app: App, options: WorkerOptions, alias: str) -> None:
        super().__init__(app, options)
        self._alias = alias

    def _new_runner(self, file: QueueFile) -> Runner:
        runner = DjangoRunner(self.app, file, self.options.jobs_at_once, self._pool, self._one_ran)
        runner.alias = self._alias
        return runner


class DjangoRunner(Runner):
    """Makes a task of each path it meets; the function is the same for all of them."""

    alias: str

    def _task(self, name: str) -> TaskBase[..., Any]:
        return Task(self._app, running.perform.function, name=name, options={}, retry_on=None)

    async def _current(self, job: Job, task: TaskBase[..., Any]) -> CurrentJob:
        info = job.info
        # A job whose lease never ends is not handed out twice.
        is_last = job.attempt >= job.max_attempts or not job._ends
        facts = Facts(self.alias, info.worker or "", info.priority, info.enqueued_at.isoformat(), is_last)
        if job.attempt > 1:
            facts = await self._with_history(job, facts)
        return facts.onto(await super()._current(job, task))

    async def _with_history(self, job: Job, facts: Facts) -> Facts:
        before: list[Attempt] = []
        with suppress(Error):
            detail = await self._file.get(job.id, max_age=DAY)
            before = [] if detail is None else ran(detail)
        began = next((one.claimed_at for one in before if one.claimed_at is not None), None)
        # Only the newest hundred attempts are kept; the context counts all of them.
        unknown = [""] * (job.attempt - 1 - len(before))
        return replace(
            facts,
            started_at=None if began is None else began.isoformat(),
            workers=unknown + [one.worker or "" for one in before],
            errors=[(one.ended, one.error) for one in before],
        )
