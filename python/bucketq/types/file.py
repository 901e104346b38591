"""Return values of calls on queue files and queues."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal

from bucketq.types.job import State


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """One queue."""

    name: str
    paused: bool
    """It hands out no jobs until it is resumed."""
    draining: bool
    """It neither accepts nor hands out jobs until it is resumed."""
    dropped: int
    """Jobs cancelled to make room for newer ones, since the queue exists."""
    counts: Mapping[State, int]
    """Number of jobs by state; contains every state."""
    expired: int
    """Leased jobs whose lease has run out; they also count as leased."""
    due: int
    """Scheduled jobs whose time has come; they also count as scheduled."""
    oldest_ready: timedelta | None
    """How long the longest waiting of the claimable jobs has waited."""
    exists: bool = True
    """False if no job and no call has created the queue."""


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """A store that passed the probe."""

    store: str
    rounds: int
    """Each round is a race to create an object and a race to replace it."""
    writers: int
    """Writers in each race."""
    conflicts: int
    """Writes that the store refused, as it should."""
    unanswered: int
    """Writes without a clear reply."""
    took: timedelta


@dataclass(frozen=True, slots=True)
class Stats:
    """The queue file as a whole."""

    queues: tuple[QueueInfo, ...]
    commit_seq: int
    """The commit it was read from."""
    commit_time: datetime
    pages: int
    """Pages of the database, 4,096 bytes each."""
    free_pages: int
    """Pages of those that are empty."""
    strict_queues: bool = False
    """Only ``create_queue`` creates queues."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRole:
    """Which process of this host writes for a handle."""

    role: Literal["leads", "joined", "alone"]
    """``leads``: this process writes, also for the others. ``joined``: another does. ``alone``: for itself only."""
    since: timedelta | None = None
    """For how long that process has written for the others; None if this one is alone."""
    processes: int | None = None
    """The number of other processes that this one writes for now; None unless it leads."""
    leader: str | None = None
    """The process that writes; None unless this one has joined it."""
    reason: str | None = None
    """Why this process is alone; None if its settings or its store say so."""
    host_dir: Path | None = None
    """The directory in which the processes meet; None if this one does not look for others."""


@dataclass(frozen=True, slots=True)
class Synced:
    """Result of a sync."""

    commits: int
    """Local commits that are newly known to be published."""
    ops: int
    """Changes in them."""
    commit_seq: int
    """The commit that contains everything published."""


@dataclass(frozen=True, slots=True)
class Unsynced:
    """Unpublished changes; false when there are none."""

    commits: int
    """Local commits."""
    ops: int
    """Changes in them."""
    bytes: int
    """Their size in the local log."""

    def __bool__(self) -> bool:
        return self.commits > 0


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit of the log."""

    commit_seq: int
    commit_id: str
    commit_time: datetime
    writer: str
    """The writer that made it; each opening of the queue file by a process is another writer."""
    ops: int
    """Changes in it."""
    bytes: int
    """Its size in the log."""
    pages_changed: int
    pages: int
    """Pages of the database after the commit."""


@dataclass(frozen=True, slots=True)
class Exported:
    """Result of an export: an image in a local file."""

    commit_seq: int
    """The commit it contains."""
    commit_id: str
    commit_time: datetime
    bytes: int
    """Size of the file."""


@dataclass(frozen=True, slots=True)
class Collected:
    """Result of a collection."""

    objects: int
    """Objects deleted."""
    bytes: int
    left: int
    """Unused objects that remain: too young, still being uploaded, or the store refused to delete them."""
    left_bytes: int
    floor: int
    """Objects of commits before this one could be deleted."""


@dataclass(frozen=True, slots=True)
class Tally:
    """Number of objects and their bytes."""

    count: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Problem:
    """A failed check."""

    object: str
    """A key, or ``database`` for the state that the objects form together."""
    check: str
    """The condition that should hold."""
    found: str
    """The value found instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """Result of a check of a queue file. If HEAD is unreadable, fields that only it contains are None."""

    name: str
    store: str
    commit_seq: int | None
    commit_id: str | None
    commit_time: datetime | None
    file_id: str | None
    lineage_id: str | None
    read_only: str | None
    """Why this version can read the file but not change it."""
    read: Tally
    """Objects that were read."""
    commits: int
    """Commits after the base, applied one by one."""
    pages: int
    jobs: int
    referenced: Tally
    """Objects in use."""
    unreferenced: Tally | None
    """Objects of the queue file that are not in use; None when listing is not allowed."""
    collectable: Tally | None
    """Those of them that the next collection deletes."""
    foreign: Tally | None
    """Objects of another file of the same name; they are never deleted automatically."""
    sound_objects: tuple[str, ...]
    """If HEAD is damaged: objects to restore from."""
    problems: tuple[Problem, ...]
    """Everything that is wrong."""

    @property
    def clean(self) -> bool:
        """True if there are no problems."""
        return not self.problems


@dataclass(frozen=True, slots=True)
class FixedTime:
    """Result of ``fix_time``."""

    was: datetime
    """The time of the newest commit before the call."""
    now: datetime
    """The present, on which this machine's clock and the store agree."""
    ahead: bool
    """True if the newest commit was further in the future than clocks may differ; otherwise nothing is done."""
    commit_seq: int | None
    """The commit that fixed it; None if there was nothing to do, or with ``only_look``."""
    leases: int
    """Leases that now end earlier."""
    jobs: int
    """Jobs with a time in the future, leased ones included."""
    schedules: int
    """Schedules that now enqueue earlier."""


@dataclass(frozen=True, slots=True)
class ChangedSkew:
    """Result of ``set_max_skew``."""

    was: timedelta
    max_skew: timedelta
    commit_seq: int | None
    """The commit that changed it; None if it was so already."""


@dataclass(frozen=True, slots=True)
class Restored:
    """Result of a restore."""

    commit_seq: int
    """The commit that the image became."""
    commit_id: str
    lineage_id: str
    """The new lineage."""
    file_id: str
    """The old file id if it could be read, otherwise a new one."""
    replaced: int | None
    """The newest commit before the restore, if it could be read."""
    jobs: int
    """Jobs in the image."""
    foreign: Tally
    """Objects of another file of this name: delete them by hand once you have checked the restored file."""
