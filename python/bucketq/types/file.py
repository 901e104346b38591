"""Queue files and their queues: what is known of them, and what was done to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from bucketq.types.job import State


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """One queue."""

    name: str
    paused: bool
    """Claims get nothing from it."""
    draining: bool
    """Nothing goes in or out until it is resumed."""
    dropped: int
    """Jobs cancelled to make room for newer ones, ever."""
    counts: Mapping[State, int]
    """Jobs by state; every state is there."""
    expired: int
    """Leased jobs whose lease has run out; they also count as leased."""
    due: int
    """Scheduled jobs whose time has come; they also count as scheduled."""
    oldest_ready: timedelta | None
    """How long the job that has been claimable longest has waited."""


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """A store that passed the probe."""

    store: str
    rounds: int
    """Each a race to create and a race to replace."""
    writers: int
    """Writers in each race."""
    conflicts: int
    """Writes the store refused, as it should."""
    unanswered: int
    """Writes without a clear answer."""
    took: timedelta


@dataclass(frozen=True, slots=True)
class Stats:
    """The queue file as a whole."""

    queues: tuple[QueueInfo, ...]
    commit_seq: int
    """The commit this was read from."""
    commit_time: datetime
    pages: int
    """Pages of the database, 4,096 bytes each."""
    free_pages: int
    """Of those, pages that hold nothing."""


@dataclass(frozen=True, slots=True)
class Synced:
    """What a sync published."""

    commits: int
    """Local commits that are published now and were not known to be before."""
    ops: int
    """Changes in them."""
    commit_seq: int
    """The commit that everything published stands in."""


@dataclass(frozen=True, slots=True)
class Unsynced:
    """What is not published; false when that is nothing."""

    commits: int
    """Local commits."""
    ops: int
    """Changes in them."""
    bytes: int
    """What they take in the local log."""

    def __bool__(self) -> bool:
        return self.commits > 0


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit of the log."""

    commit_seq: int
    commit_id: str
    commit_time: datetime
    writer: str
    """Who made it: one opening of the queue file by one process."""
    ops: int
    """Changes in it."""
    bytes: int
    """What it takes in the log."""
    pages_changed: int
    pages: int
    """Pages of the database after it."""


@dataclass(frozen=True, slots=True)
class Exported:
    """An image written to a file of this machine."""

    commit_seq: int
    """The commit it shows."""
    commit_id: str
    commit_time: datetime
    bytes: int
    """Size of the file."""


@dataclass(frozen=True, slots=True)
class Collected:
    """What a collection did."""

    objects: int
    """Objects deleted."""
    bytes: int
    left: int
    """Objects not in use that are still there: too young, on their way in, or the store refused."""
    left_bytes: int
    floor: int
    """What belongs to commits before this one could be deleted."""


@dataclass(frozen=True, slots=True)
class Tally:
    """How many objects, and how many bytes they have."""

    count: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Problem:
    """A check that something did not pass."""

    object: str
    """A key, or ``database`` for what the objects together say."""
    check: str
    """What should hold."""
    found: str
    """What was found instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """What a check of a queue file read and found. Without a readable HEAD, what only it tells is None."""

    name: str
    store: str
    commit_seq: int | None
    commit_id: str | None
    commit_time: datetime | None
    file_id: str | None
    lineage_id: str | None
    read_only: str | None
    """Why this version can read the file and not change it."""
    read: Tally
    """Objects that were read."""
    commits: int
    """Commits after the base, applied one by one."""
    pages: int
    jobs: int
    referenced: Tally
    """What is in use."""
    unreferenced: Tally | None
    """What belongs to the queue file and is not in use; None when listing is not allowed."""
    collectable: Tally | None
    """Of those, what the next collection deletes."""
    foreign: Tally | None
    """What belongs to another file of the same name; nothing ever deletes it."""
    sound_objects: tuple[str, ...]
    """If HEAD is damaged: what a restore could be made from."""
    problems: tuple[Problem, ...]
    """Everything that is wrong."""

    @property
    def clean(self) -> bool:
        """Nothing is wrong."""
        return not self.problems


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore did."""

    commit_seq: int
    """The commit that the image became."""
    commit_id: str
    lineage_id: str
    """The new one."""
    file_id: str
    """The old one if it could be read, else a new one."""
    replaced: int | None
    """The commit that was the newest before, if it could be read."""
    jobs: int
    """Jobs in the image."""
    foreign: Tally
    """Objects of another file of the name: delete them by hand once the restored file is seen to be right."""
