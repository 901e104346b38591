"""Tasks: functions whose calls are jobs. ``bucketq.App`` is where to start; docs/tasks.md is the page."""

from bucketq.tasks.app import App
from bucketq.tasks.codec import JSON, Codec
from bucketq.tasks.compose import GroupResult
from bucketq.tasks.context import CurrentJob, current_job
from bucketq.tasks.message import PREVIOUS, Options
from bucketq.tasks.result import Result, TaskFailed
from bucketq.tasks.task import AsyncTask, Call, Configured, Task
from bucketq.tasks.worker import AppWorker

__all__ = [
    "JSON",
    "PREVIOUS",
    "App",
    "AppWorker",
    "AsyncTask",
    "Call",
    "Codec",
    "Configured",
    "CurrentJob",
    "GroupResult",
    "Options",
    "Result",
    "Task",
    "TaskFailed",
    "current_job",
]
