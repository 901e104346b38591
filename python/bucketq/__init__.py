"""A job queue whose whole state is one SQLite database in object storage.

>>> import bucketq
>>> with bucketq.open("memory://example") as file:
...     q = file.queue("emails")
...     receipt = q.enqueue({"to": "ada@example.org"}, delay=0)
...     for job in q.jobs(wait=0):
...         with job:  # acked at the end; an exception nacks
...             print(job.data["to"])
ada@example.org

``bucketq.aio`` has the same names for asyncio. ``file``, ``queue`` and ``types`` define the names exported here.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from bucketq.errors import (
    Closed,
    Contended,
    Corrupt,
    Diverged,
    Error,
    Invalid,
    LeaseLost,
    NotFound,
    OutcomeUnknown,
    QueueFull,
    Unavailable,
)
from bucketq.events import Event
from bucketq.file import Atomic, QueueFile, open
from bucketq.measured import BySize, ClockOffset, Measured, Spread, Times, Workload
from bucketq.metrics import Histogram, Metrics
from bucketq.operate import check, fix_time, measure, probe, restore, set_max_skew
from bucketq.queue import Batch, Job, Jobs, Queue
from bucketq.types import (
    POLICY,
    ArchiveObject,
    Archives,
    Attempt,
    Backoff,
    Block,
    ChangedSkew,
    Changes,
    CheckReport,
    Collected,
    Commit,
    Died,
    Enqueued,
    Exported,
    Extras,
    FixedTime,
    HostRole,
    JobDetail,
    JobInfo,
    Life,
    Lives,
    New,
    Overflow,
    Page,
    Policy,
    ProbeReport,
    Problem,
    QueueInfo,
    Rate,
    Restored,
    ScheduleInfo,
    Settings,
    State,
    Stats,
    Synced,
    Tally,
    Unsynced,
)
from bucketq.worker import Reject, TimedOut, Worked, Worker

if TYPE_CHECKING:
    from bucketq import aio as aio
    from bucketq import fit as fit
    from bucketq import tasks as tasks
    from bucketq import testing as testing
    from bucketq.tasks import (
        PREVIOUS,
        App,
        AppWorker,
        AsyncTask,
        CurrentJob,
        GroupResult,
        Result,
        Task,
        TaskFailed,
        current_job,
    )

__all__ = [
    "POLICY",
    "PREVIOUS",
    "App",
    "AppWorker",
    "ArchiveObject",
    "Archives",
    "AsyncTask",
    "Atomic",
    "Attempt",
    "Backoff",
    "Batch",
    "Block",
    "BySize",
    "ChangedSkew",
    "Changes",
    "CheckReport",
    "ClockOffset",
    "Closed",
    "Collected",
    "Commit",
    "Contended",
    "Corrupt",
    "CurrentJob",
    "Died",
    "Diverged",
    "Enqueued",
    "Error",
    "Event",
    "Exported",
    "Extras",
    "FixedTime",
    "GroupResult",
    "Histogram",
    "HostRole",
    "Invalid",
    "Job",
    "JobDetail",
    "JobInfo",
    "Jobs",
    "LeaseLost",
    "Life",
    "Lives",
    "Measured",
    "Metrics",
    "New",
    "NotFound",
    "OutcomeUnknown",
    "Overflow",
    "Page",
    "Policy",
    "ProbeReport",
    "Problem",
    "Queue",
    "QueueFile",
    "QueueFull",
    "QueueInfo",
    "Rate",
    "Reject",
    "Restored",
    "Result",
    "ScheduleInfo",
    "Settings",
    "Spread",
    "State",
    "Stats",
    "Synced",
    "Tally",
    "Task",
    "TaskFailed",
    "TimedOut",
    "Times",
    "Unavailable",
    "Unsynced",
    "Worked",
    "Worker",
    "Workload",
    "check",
    "current_job",
    "fix_time",
    "measure",
    "open",
    "probe",
    "restore",
    "set_max_skew",
]

__version__: str
"""The version of the installed package."""

MODULES = ("aio", "fit", "tasks", "testing")
"""Modules that a program can use without importing them by name."""

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Load the version, these modules and tasks when a program first uses them: others start sooner."""
        if name == "__version__":
            from importlib.metadata import version

            return globals().setdefault(name, version("bucketq"))
        if name in MODULES:
            return import_module(f"bucketq.{name}")
        if name in __all__:
            return globals().setdefault(name, getattr(import_module("bucketq.tasks"), name))
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__, *MODULES, "__version__"})
