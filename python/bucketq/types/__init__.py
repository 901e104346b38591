"""The nouns: what goes in and what comes out. Plain values without any I/O."""

from bucketq.types.file import (
    CheckReport,
    Collected,
    Commit,
    Exported,
    ProbeReport,
    Problem,
    QueueInfo,
    Restored,
    Stats,
    Synced,
    Tally,
    Unsynced,
)
from bucketq.types.job import (
    Backoff,
    Enqueued,
    Extras,
    JobDetail,
    JobInfo,
    New,
    Page,
    Seconds,
    State,
)
from bucketq.types.settings import (
    Settings,
)

__all__ = [
    "Backoff",
    "CheckReport",
    "Collected",
    "Commit",
    "Enqueued",
    "Exported",
    "Extras",
    "JobDetail",
    "JobInfo",
    "New",
    "Page",
    "ProbeReport",
    "Problem",
    "QueueInfo",
    "Restored",
    "Seconds",
    "Settings",
    "State",
    "Stats",
    "Synced",
    "Tally",
    "Unsynced",
]
