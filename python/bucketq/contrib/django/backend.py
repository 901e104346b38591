"""The backend that ``TASKS`` names: enqueues tasks, and reads their results."""

# pyright: basic
from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, cast
from uuid import uuid4

from asgiref.sync import sync_to_async
from django.core import checks
from django.db import DEFAULT_DB_ALIAS, connections, transaction

from bucketq import settings as bucketq_settings
from bucketq.contrib.django import results
from bucketq.contrib.django.compat import (
    BaseTaskBackend,
    TaskResult,
    TaskResultStatus,
    normalize_json,
    task_enqueued,
)
from bucketq.errors import Invalid
from bucketq.tasks.app import App
from bucketq.tasks.codec import JSON
from bucketq.tasks.message import Message
from bucketq.types import Enqueued, Extras, JobDetail

__all__ = ["BucketqBackend", "app_of"]

_apps: dict[str, App] = {}
_lock = threading.Lock()


def app_of(options: Mapping[str, Any]) -> App:
    """Return the app with these options; backends with the same options share one, and so its queue file.

    Django makes a backend for each thread.
    """
    key = repr(sorted((name, repr(value)) for name, value in options.items()))
    with _lock:
        if key not in _apps:
            _apps[key] = App(**options)
        return _apps[key]


class BucketqBackend(BaseTaskBackend):
    """Enqueues tasks as jobs. OPTIONS: ``url`` and the other settings of ``bucketq.open``, and ``on_commit``."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        """Take the settings of one backend. Opens nothing: the first call that needs the queue file does."""
        super().__init__(alias, params)
        options = dict(self.options)
        on_commit = options.pop("on_commit", False)
        self._database = DEFAULT_DB_ALIAS if on_commit is True else on_commit
        self._options = options

    @property
    def app(self) -> App:
        """The app with the queue file."""
        return app_of(self._options)

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Enqueue a call. It is in the bucket once this returns; with ``on_commit``, once the transaction commits."""
        self.validate_task(task)
        call = Call(self, task, args, kwargs)
        if not self._database:
            return call.enqueued(call.send())
        result = call.result(str(uuid4()))

        def send() -> None:
            call.enqueued(call.send(result.id), result)

        transaction.on_commit(send, using=self._database)
        return result

    async def aenqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Enqueue a call, awaitable."""
        if self._database:  # Django has transactions in synchronous code only.
            return await sync_to_async(self.enqueue)(task, args, kwargs)
        self.validate_task(task)
        call = Call(self, task, args, kwargs)
        return await call.aenqueued(await call.asend())

    def get_result(self, result_id: str) -> Any:
        """Return the result of a task by its id. Raises TaskResultDoesNotExist if there is none, or none any more."""
        job: JobDetail | None = None
        with suppress(Invalid):  # An id that no job can have.
            job = self.app.file.get(result_id)
        return results.result_of(self.alias, job, result_id)

    async def aget_result(self, result_id: str) -> Any:
        """Return the result of a task by its id, awaitable."""
        job: JobDetail | None = None
        file = await self.app.afile()
        with suppress(Invalid):
            job = await file.get(result_id)
        return results.result_of(self.alias, job, result_id)

    def check(self, **kwargs: Any) -> Iterable[checks.CheckMessage]:
        """Return the mistakes in OPTIONS, for ``manage.py check``."""
        del kwargs
        name = f"TASKS[{self.alias!r}]"
        try:
            options = dict(self._options)
            url, source = options.pop("url", None), options.pop("settings", None)
            bucketq_settings.resolve(url, source, cast("Any", options))
        except (Invalid, TypeError) as error:
            yield checks.Error(f"{name}: {error}", hint="See docs/django.md of bucketq.", id="bucketq.E001")
        if self._database and self._database not in connections:
            yield checks.Error(
                f"{name}: on_commit is {self._database!r}, which DATABASES does not have",
                hint="Give True, or the name of a database.",
                id="bucketq.E002",
            )


class Call:
    """One call of a task, as it is enqueued."""

    def __init__(self, backend: BucketqBackend, task: Any, args: Any, kwargs: Any) -> None:
        self._backend = backend
        self._task = task
        self._args: list[Any] = normalize_json(list(args))
        self._kwargs: dict[str, Any] = normalize_json(dict(kwargs))
        message = Message(task.module_path, tuple(self._args), self._kwargs)
        self._payload = message.payload(JSON)
        # A task with a larger number runs first, a job with a smaller one.
        self._extras: Extras = {"priority": -int(task.priority), "content_type": self._payload.content_type}
        if task.run_after is not None:
            at = results.aware(task.run_after)
            self._extras |= {"at": at, "headers": {results.RUN_AFTER: at.isoformat()}}

    def send(self, id: str | None = None) -> Enqueued:
        """Enqueue the job."""
        queue = self._backend.app.file.queue(self._task.queue_name)
        extras: Extras = self._extras if id is None else {**self._extras, "id": id}
        return queue.enqueue(self._payload, **extras)

    async def asend(self) -> Enqueued:
        """Enqueue the job, awaitable."""
        queue = (await self._backend.app.afile()).queue(self._task.queue_name)
        return await queue.enqueue(self._payload, **self._extras)

    def result(self, id: str) -> Any:
        """Return the result of a task that has not run yet."""
        return TaskResult(
            task=self._task,
            id=id,
            status=TaskResultStatus.READY,
            enqueued_at=None,
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=self._args,
            kwargs=self._kwargs,
            backend=self._backend.alias,
            errors=[],
            worker_ids=[],
        )

    def enqueued(self, receipt: Enqueued, result: Any = None) -> Any:
        """Send the signal and return the result."""
        result = self._of(receipt, result)
        task_enqueued.send_robust(type(self._backend), task_result=result)
        return result

    async def aenqueued(self, receipt: Enqueued) -> Any:
        """Send the signal and return the result."""
        result = self._of(receipt, None)
        await task_enqueued.asend_robust(type(self._backend), task_result=result)
        return result

    def _of(self, receipt: Enqueued, result: Any) -> Any:
        result = self.result(receipt.id) if result is None else result
        object.__setattr__(result, "enqueued_at", results.here(receipt.commit_time))
        return result
