"""Tasks are ``django.tasks`` from Django 6 on; before, they are the package ``django-tasks`` with the same names."""

# pyright: basic, reportMissingImports=false
from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

    BaseTaskBackend = Any
    DEFAULT_TASK_BACKEND_ALIAS: str
    InvalidTask: type[Exception]
    InvalidTaskBackend: type[Exception]
    TaskResultDoesNotExist: type[Exception]
    TaskResultMismatch: type[Exception]
    Task: Any
    TaskContext: Any
    TaskError: Any
    TaskResult: Any
    TaskResultStatus: Any
    normalize_json: Any
    task_backends: Any
    task_enqueued: Any
    task_finished: Any
    task_started: Any
else:
    try:
        from django.tasks import DEFAULT_TASK_BACKEND_ALIAS, task_backends
        from django.tasks.backends.base import BaseTaskBackend
        from django.tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
        from django.tasks.exceptions import (
            InvalidTask,
            InvalidTaskBackend,
            TaskResultDoesNotExist,
            TaskResultMismatch,
        )
        from django.tasks.signals import task_enqueued, task_finished, task_started
        from django.utils.json import normalize_json
    except ModuleNotFoundError as error:
        if error.name != "django.tasks":
            raise
        from django_tasks import DEFAULT_TASK_BACKEND_ALIAS, task_backends
        from django_tasks.backends.base import BaseTaskBackend
        from django_tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
        from django_tasks.exceptions import InvalidTaskBackendError as InvalidTaskBackend
        from django_tasks.exceptions import InvalidTaskError as InvalidTask
        from django_tasks.exceptions import TaskResultDoesNotExist, TaskResultMismatch
        from django_tasks.signals import task_enqueued, task_finished, task_started
        from django_tasks.utils import normalize_json

__all__ = [
    "DEFAULT_TASK_BACKEND_ALIAS",
    "BaseTaskBackend",
    "InvalidTask",
    "InvalidTaskBackend",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultMismatch",
    "TaskResultStatus",
    "normalize_json",
    "task_backends",
    "task_enqueued",
    "task_finished",
    "task_started",
]
