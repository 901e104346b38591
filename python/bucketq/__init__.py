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
from bucketq.file import Atomic, QueueFile, check, measure, open, probe, restore
from bucketq.measured import BySize, ClockOffset, Measured, Spread, Times, Workload
from bucketq.queue import Batch, Job, Jobs, Queue
from bucketq.types import (
    Backoff,
    CheckReport,
    Collected,
    Commit,
    Enqueued,
    Exported,
    Extras,
    JobDetail,
    JobInfo,
    New,
    Page,
    ProbeReport,
    Problem,
    QueueInfo,
    Restored,
    Settings,
    State,
    Stats,
    Synced,
    Tally,
    Unsynced,
)
from bucketq.worker import Reject, Worked, Worker

__all__ = [
    "Atomic",
    "Backoff",
    "Batch",
    "BySize",
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
    "Exported",
    "Extras",
    "Invalid",
    "Job",
    "JobDetail",
    "JobInfo",
    "Jobs",
    "LeaseLost",
    "Measured",
    "New",
    "NotFound",
    "OutcomeUnknown",
    "Page",
    "ProbeReport",
    "Problem",
    "Queue",
    "QueueFile",
    "QueueFull",
    "QueueInfo",
    "Reject",
    "Restored",
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
