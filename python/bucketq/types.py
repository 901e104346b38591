"""The nouns: what goes in and what comes out. Plain values without any I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from os import PathLike
from typing import Any, Literal, TypedDict, Unpack, overload

from bucketq import _convert as convert

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

Seconds = float | timedelta
"""A duration: seconds, or a timedelta."""

State = Literal["scheduled", "ready", "leased", "done", "dead", "cancelled"]
"""The stored states of a job, in the order of its life."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long a failed job waits: ``base`` after the first failure, doubling up to ``max``.

    The upper ``jitter`` share of each delay is random. A base of 0 means no waiting.
    """

    base: Seconds = 1.0
    max: Seconds = 3600.0
    jitter: float = 0.5


class Extras(TypedDict, total=False):
    """What a job may have beside its data."""

    delay: Seconds | None
    """Not before this long from now."""
    at: datetime | None
    """Not before this time; aware."""
    priority: int
    """Lower runs first; 0 unless told otherwise."""
    max_attempts: int
    """Claims before the job is dead; 10 unless told otherwise."""
    backoff: Backoff | None
    """Waiting time between attempts."""
    dedup: str | None
    """A second job with this key is answered with the first, while that one is unfinished."""
    dedup_window: Seconds | None
    """The key counts for this long from the first enqueue instead."""
    group: str | None
    """Jobs of one group run one at a time, in the order of their enqueues."""
    headers: Mapping[str, str] | None
    """Small facts beside the payload, such as a trace context."""
    content_type: str | None
    """What the payload is; found out from the data unless told otherwise."""
    id: str | None
    """A UUID of one's own: enqueueing it again changes nothing."""


class Settings(TypedDict, total=False):
    """How a queue file is opened. What is left out has the engine's default."""

    create: bool
    """Make the queue file when there is none."""
    read_only: bool
    """Only look: nothing is ever written, and every change is refused."""
    max_payload: int
    """Largest payload and result accepted, in bytes."""
    max_file: int
    """Size limit of the database, in bytes."""
    max_skew: Seconds
    """Largest difference between two writers' clocks; taken when the queue file is created."""
    deadline: Seconds
    """A call gets an answer within this time, if need be OutcomeUnknown."""
    commit_interval: Seconds
    """At least this long between two commits: saves requests."""
    gather_percent: int
    """The writer waits for more ops at most this share of the average PUT ..."""
    gather_max: Seconds
    """... and at most this long."""
    mailbox: int
    """Ops that may wait in this process."""
    tail: int
    """The tail that HEAD aims for, in bytes."""
    max_head: int
    """HEAD stays under this size, in bytes."""
    base_after: int
    """A log shorter than this gets no base, in bytes."""
    base_codec: Literal["zstd", "none"]
    """How bases are stored: compressed, or as SQLite files."""
    grace: Seconds
    """What a queue file no longer needs stays for this long, for those who are still reading it."""
    archive_every: Seconds
    """Finished jobs that may leave for the archive wait about this long for others, while anything is committed."""
    poll_min: Seconds
    """A waiting claim asks the store this often at first ..."""
    poll_max: Seconds
    """... and this often after a while."""
    mode: Literal["durable", "local"]
    """When a change counts: once it is in the store, or once it is in a directory of this machine."""
    fsync: Literal["each_commit", "never"] | Seconds
    """Local mode: the disk has it before a call returns, at least this often, or when the system likes."""
    cache: str | PathLike[str]
    """A directory of this machine: for the state of Local mode, or to reopen faster and read with ``sqlite3``."""
    cache_bytes: int
    """Bytes of bases and segments kept there; the longest unused go first."""
    copy_interval: Seconds
    """The copy there is at most this old, while the queue file moves."""
    endpoint: str
    """The S3 server, when it is not AWS."""
    region: str
    """The region of the bucket."""
    path_style: bool
    """``http://host/bucket/key`` instead of ``http://bucket.host/key``."""
    access_key: str
    """The public half of the credentials; the usual chain of AWS when not set."""
    secret_key: str
    """The secret half."""
    session_token: str
    """For temporary credentials."""
    checksum: Literal["crc32", "sha256", "none"]
    """The checksum sent with each body."""
    connect_timeout: Seconds
    """Time for connecting."""
    request_timeout: Seconds
    """Time for one request as a whole."""


@dataclass(frozen=True, slots=True, init=False)
class New:
    """A job to be enqueued: ``New(data, delay=5)``, or ``New("queue", data)`` where the queue is not given otherwise.

    >>> New({"to": "ada"}, delay=5).extras
    {'delay': 5}
    >>> New("reports", {"month": 3}).queue
    'reports'
    """

    queue: str | None
    """The queue, or None for the one that it is enqueued to."""
    data: Any
    """What to work on."""
    extras: Extras
    """The rest."""

    @overload
    def __init__(self, data: Any, /, **extras: Unpack[Extras]) -> None: ...
    @overload
    def __init__(self, queue: str, data: Any, /, **extras: Unpack[Extras]) -> None: ...
    def __init__(self, *args: Any, **extras: Unpack[Extras]) -> None:
        queue, data = convert.queue_and_data(args)
        convert.check_extras(extras)
        object.__setattr__(self, "queue", queue)
        object.__setattr__(self, "data", data)
        object.__setattr__(self, "extras", extras)


@dataclass(frozen=True, slots=True)
class Enqueued:
    """What became of one enqueued job."""

    id: str
    """The job now in the queue: the new one, or the one that was there already."""
    deduplicated: bool
    """A job with the same dedup key was there already; the new one was not added."""
    commit_seq: int
    """The commit that enqueued the job named by ``id``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInfo:
    """What is known of a job, without its bytes."""

    id: str
    run: int
    """Which life: 0, and one more with each requeue."""
    queue: str
    state: State
    expired: bool
    """Leased, and the lease had run out at the time of reading."""
    priority: int
    attempt: int
    """Claims so far in this life."""
    max_attempts: int
    group: str | None
    dedup: str | None
    headers: Mapping[str, str]
    size: int
    """Bytes of payload."""
    commit_seq: int
    """The commit that enqueued it."""
    enqueued_at: datetime
    run_at: datetime
    """When it may, or might, run first or again."""
    claimed_at: datetime | None
    finished_at: datetime | None
    expires_at: datetime | None
    """When the lease runs or ran out; only while leased."""
    fence: int | None
    """The commit of the newest claim."""
    worker: str | None
    """Who claimed it last."""
    last_error: str | None
    """What the last failure said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDetail(JobInfo):
    """A job with its bytes and what came of it."""

    payload: bytes
    content_type: str
    result_payload: bytes | None
    result_content_type: str | None

    @property
    def data(self) -> Any:
        """The payload, decoded by its content type."""
        return convert.decode(self.payload, self.content_type)

    @property
    def text(self) -> str:
        """The payload as UTF-8 text."""
        return convert.text(self.payload)

    @property
    def result(self) -> Any:
        """The result, decoded by its content type; None when there is none."""
        if self.result_payload is None:
            return None
        return convert.decode(self.result_payload, self.result_content_type or "")


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list."""

    jobs: tuple[JobInfo, ...]
    next: int | None
    """Pass it on as ``after`` to get the next page; None at the end."""


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """One queue."""

    name: str
    paused: bool
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
