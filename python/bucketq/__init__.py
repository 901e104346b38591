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
from bucketq.file import Atomic, QueueFile, open, probe
from bucketq.queue import Batch, Job, Jobs, Queue
from bucketq.types import (
    Backoff,
    Enqueued,
    Extras,
    JobDetail,
    JobInfo,
    New,
    Page,
    ProbeReport,
    QueueInfo,
    Settings,
    State,
    Stats,
)
from bucketq.worker import Reject, Worked, Worker

__all__ = [
    "Atomic",
    "Backoff",
    "Batch",
    "Closed",
    "Contended",
    "Corrupt",
    "Diverged",
    "Enqueued",
    "Error",
    "Extras",
    "Invalid",
    "Job",
    "JobDetail",
    "JobInfo",
    "Jobs",
    "LeaseLost",
    "New",
    "NotFound",
    "OutcomeUnknown",
    "Page",
    "ProbeReport",
    "Queue",
    "QueueFile",
    "QueueFull",
    "QueueInfo",
    "Reject",
    "Settings",
    "State",
    "Stats",
    "Unavailable",
    "Worked",
    "Worker",
    "open",
    "probe",
]
