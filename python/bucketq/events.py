"""Events of jobs and of the queue file, passed to the callback ``on_event`` of ``bucketq.open``.

>>> import bucketq
>>> from bucketq import events
>>> def tell(event):
...     match event:
...         case events.Enqueued(queue=queue):
...             print("a job for", queue)
...         case events.Acked(ran=ran):
...             print("done within a minute:", ran.total_seconds() < 60)
>>> with bucketq.open("memory://told", on_event=tell) as file:
...     receipt = file.queue("emails").enqueue("hello")
...     file.queue("emails").claim_one().ack()
a job for emails
done within a minute: True

Each event comes after the commit that made it true. See docs/watching.md for more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar, Literal

from bucketq import _convert as convert
from bucketq._convert import Dict
from bucketq.types import State

__all__ = [
    "Acked",
    "Archived",
    "Cancelled",
    "Checkpoint",
    "Claimed",
    "ClaimedNothing",
    "Committed",
    "Conflict",
    "Dead",
    "Deduplicated",
    "Dropped",
    "Enqueued",
    "Event",
    "Expired",
    "Extended",
    "JobEvent",
    "LeaseLost",
    "Loss",
    "Missed",
    "Moved",
    "Nacked",
    "OnEvent",
    "Purged",
    "Refused",
    "Released",
    "Requeued",
    "Resent",
    "Snapshot",
    "Synced",
    "Unclaimed",
]

Loss = Literal["ran_out", "taken"]
"""How a lease was lost: not renewed in time; or the job was claimed again, finished, cancelled or deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event. Later versions add kinds: ignore those you do not know."""

    name: ClassVar[str] = ""
    """The kind in one word, as in docs/watching.md."""

    commit_seq: int
    """The commit that made it true; for an event without a commit, the newest one known."""
    commit_time: datetime
    """The time of that commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvent(Event):
    """An event of one job."""

    queue: str
    id: str
    run: int
    """The run: 0, and one more with each requeue."""
    attempt: int
    """Claims in this run so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Enqueued(JobEvent):
    """A job was enqueued."""

    name: ClassVar[str] = "enqueued"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deduplicated(Event):
    """An enqueue was skipped because a job has the same dedup key; ``id`` is that job's."""

    name: ClassVar[str] = "deduplicated"
    queue: str
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed(JobEvent):
    """A worker claimed the job."""

    name: ClassVar[str] = "claimed"
    worker: str
    waited: timedelta
    """From when it could run until now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedNothing(Event):
    """A claim found no job: it returned none, or continues to wait."""

    name: ClassVar[str] = "claimed_nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired(JobEvent):
    """A lease ran out: the job is ready again, or dead."""

    name: ClassVar[str] = "expired"


@dataclass(frozen=True, slots=True, kw_only=True)
class Extended(JobEvent):
    """A lease was extended."""

    name: ClassVar[str] = "extended"
    expires_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseLost(JobEvent):
    """A worker lost its lease, as far as this process knows."""

    name: ClassVar[str] = "lease_lost"
    reason: Loss


@dataclass(frozen=True, slots=True, kw_only=True)
class Acked(JobEvent):
    """A job is done."""

    name: ClassVar[str] = "acked"
    ran: timedelta
    """From its claim until now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nacked(JobEvent):
    """An attempt failed."""

    name: ClassVar[str] = "nacked"
    state: State
    """Ready, scheduled, or dead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Released(JobEvent):
    """A job was given back; the attempt does not count."""

    name: ClassVar[str] = "released"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dead(JobEvent):
    """A job is dead; it stays in its queue or moves to the dead-letter queue."""

    name: ClassVar[str] = "dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled(JobEvent):
    """A job was cancelled."""

    name: ClassVar[str] = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped(JobEvent):
    """A job was cancelled to make room for newer ones."""

    name: ClassVar[str] = "dropped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Requeued(JobEvent):
    """A job was requeued; ``run`` is the new run."""

    name: ClassVar[str] = "requeued"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved(JobEvent):
    """A job was moved to another queue, or sent back by a redrive; ``queue`` and ``run`` are the new ones."""

    name: ClassVar[str] = "moved"
    from_queue: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unclaimed(JobEvent):
    """A job expired because no worker claimed it in time: it is dead, or ``removed``."""

    name: ClassVar[str] = "unclaimed"
    removed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused(Event):
    """An enqueue was refused: the queue is full or draining, or nobody created it."""

    name: ClassVar[str] = "refused"
    queue: str
    jobs: int
    code: str
    """The ``code`` of the error: ``queue_full``, ``blocked``, ``draining`` or ``no_such_queue``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Purged(Event):
    """Jobs were deleted."""

    name: ClassVar[str] = "purged"
    queue: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Archived(Event):
    """Jobs were moved to the archive."""

    name: ClassVar[str] = "archived"
    queue: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed(Event):
    """A commit is in the bucket."""

    name: ClassVar[str] = "committed"
    ops: int
    bytes: int
    """Its size in the log."""
    took: timedelta
    """From the start of its first op to the store's reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict(Event):
    """Another writer committed first; the ops of our commit run again."""

    name: ClassVar[str] = "conflict"
    cause: Literal["race", "unanswered"]
    """The store reported it; or it never replied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resent(Event):
    """A commit is sent again unchanged because the reply was lost."""

    name: ClassVar[str] = "resent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced(Event):
    """Local commits were published."""

    name: ClassVar[str] = "synced"
    commits: int
    ops: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot(Event):
    """The commits of other writers were fetched."""

    name: ClassVar[str] = "snapshot"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint(Event):
    """A base was written, and HEAD refers to it."""

    name: ClassVar[str] = "checkpoint"
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Missed(Event):
    """Events came faster than the callback handled them: this many were dropped."""

    name: ClassVar[str] = "missed"
    count: int


OnEvent = Callable[[Event], object]
"""A function or coroutine function, called with one event after the other."""

KINDS: dict[str, type[Event]] = {
    kind.name: kind
    for kind in (
        Enqueued, Deduplicated, Claimed, ClaimedNothing, Expired, Extended, LeaseLost, Acked, Nacked, Released, Dead,
        Cancelled, Dropped, Requeued, Moved, Purged, Archived, Committed, Conflict, Resent, Synced, Snapshot,
        Checkpoint, Unclaimed, Refused, Missed,
    )
}  # fmt: skip
"""Every kind by its name."""

_FIELDS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "commit_ms": ("commit_time", convert.time),
    "expires_ms": ("expires_at", convert.time),
    "wait_ms": ("waited", lambda ms: timedelta(milliseconds=ms)),
    "run_ms": ("ran", lambda ms: timedelta(milliseconds=ms)),
    "from": ("from_queue", lambda name: name),
    "took_ms": ("took", lambda ms: timedelta(milliseconds=ms)),
}


def event_of(native: Dict) -> Event:
    """Return the engine's event as a Python event; one of an unknown kind has only the fields of ``Event``."""
    facts = dict(native)
    kind = KINDS.get(facts.pop("event"))
    fields: dict[str, Any] = {}
    for name, value in facts.items():
        field, made = _FIELDS.get(name, (name, None))
        fields[field] = value if made is None else made(value)
    if kind is None:
        return Event(commit_seq=fields["commit_seq"], commit_time=fields["commit_time"])
    return kind(**fields)
