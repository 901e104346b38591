"""A job queue whose whole state is one SQLite database in object storage.

>>> import bucketq
>>> with bucketq.open("memory://example") as file:
...     q = file.queue("emails")
...     receipt = q.enqueue({"to": "ada@example.org"}, delay=0)
...     for job in q.jobs(wait=0):
...         with job:  # acked at the end; an exception nacks
...             print(job.data["to"])
ada@example.org

``bucketq.aio`` has the same names, awaitable. ``file``, ``queue`` and ``types`` hold what is exported here.
"""

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
from bucketq.file import Atomic, QueueFile, check, measure, open, probe, restore
from bucketq.measured import BySize, ClockOffset, Measured, Spread, Times, Workload
from bucketq.metrics import Histogram, Metrics
from bucketq.queue import Batch, Job, Jobs, Queue
from bucketq.types import (
    POLICY,
    ArchiveObject,
    Archives,
    Attempt,
    Backoff,
    Block,
    Changes,
    CheckReport,
    Collected,
    Commit,
    Enqueued,
    Exported,
    Extras,
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
from bucketq.worker import Reject, Worked, Worker

__all__ = [
    "POLICY",
    "ArchiveObject",
    "Archives",
    "Atomic",
    "Attempt",
    "Backoff",
    "Batch",
    "Block",
    "BySize",
    "Changes",
    "CheckReport",
    "ClockOffset",
    "Closed",
    "Collected",
    "Commit",
    "Contended",
    "Corrupt",
    "Diverged",
    "Enqueued",
    "Error",
    "Event",
    "Exported",
    "Extras",
    "Histogram",
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
    "ScheduleInfo",
    "Settings",
    "Spread",
    "State",
    "Stats",
    "Synced",
    "Tally",
    "Times",
    "Unavailable",
    "Unsynced",
    "Worked",
    "Worker",
    "Workload",
    "check",
    "measure",
    "open",
    "probe",
    "restore",
]
