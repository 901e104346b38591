"""What happens to jobs and to the queue file, told to whoever opened it with ``on_event``.

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

Each event comes after the commit that made it true. docs/watching.md tells the rest.
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
    "Nacked",
    "OnEvent",
    "Purged",
    "Released",
    "Requeued",
    "Resent",
    "Snapshot",
    "Synced",
]

Loss = Literal["ran_out", "taken"]
"""How a lease was lost: not extended in time; or the job was claimed again, finished, cancelled or deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that has happened. The list of kinds grows: leave alone what you do not know."""

    name: ClassVar[str] = ""
    """Its kind in one word, as in docs/watching.md."""

    commit_seq: int
    """The commit that made it true; for what concerns no commit, the newest one known."""
    commit_time: datetime
    """The time of that commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvent(Event):
    """Something that has happened to one job."""

    queue: str
    id: str
    run: int
    """Which life of it."""
    attempt: int
    """Claims in this life so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Enqueued(JobEvent):
    """A job is in line."""

    name: ClassVar[str] = "enqueued"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deduplicated(Event):
    """An enqueue met a job with the same dedup key; this is that one."""

    name: ClassVar[str] = "deduplicated"
    queue: str
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed(JobEvent):
    """Somebody has the job."""

    name: ClassVar[str] = "claimed"
    worker: str
    waited: timedelta
    """From when it could run until now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedNothing(Event):
    """A claim was answered, or went on waiting, with nothing."""

    name: ClassVar[str] = "claimed_nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired(JobEvent):
    """A lease ran out: the job is in line again, or dead."""

    name: ClassVar[str] = "expired"


@dataclass(frozen=True, slots=True, kw_only=True)
class Extended(JobEvent):
    """A lease was made longer."""

    name: ClassVar[str] = "extended"
    expires_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseLost(JobEvent):
    """A lease is no longer its holder's, by what this process knows."""

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
    """A job was given back unharmed."""

    name: ClassVar[str] = "released"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dead(JobEvent):
    """A job is dead, here or on its way to the dead-letter queue."""

    name: ClassVar[str] = "dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled(JobEvent):
    """A job was taken back."""

    name: ClassVar[str] = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped(JobEvent):
    """A job was cancelled to make room for newer ones."""

    name: ClassVar[str] = "dropped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Requeued(JobEvent):
    """A job has a fresh life; this is the new one."""

    name: ClassVar[str] = "requeued"


@dataclass(frozen=True, slots=True, kw_only=True)
class Purged(Event):
    """Jobs were deleted."""

    name: ClassVar[str] = "purged"
    queue: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Archived(Event):
    """Jobs have left for the archive."""

    name: ClassVar[str] = "archived"
    queue: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed(Event):
    """A commit is in the bucket."""

    name: ClassVar[str] = "committed"
    ops: int
    bytes: int
    """What it takes in the log."""
    took: timedelta
    """From its first op at work to the answer of the store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict(Event):
    """Another writer's commit took the place of ours; its ops run again."""

    name: ClassVar[str] = "conflict"
    cause: Literal["race", "unanswered"]
    """The store said so; or it never answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resent(Event):
    """A commit whose answer was lost is sent again as it was."""

    name: ClassVar[str] = "resent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced(Event):
    """Local commits are published."""

    name: ClassVar[str] = "synced"
    commits: int
    ops: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot(Event):
    """What others had published was taken over."""

    name: ClassVar[str] = "snapshot"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint(Event):
    """A base was written, and HEAD refers to it."""

    name: ClassVar[str] = "checkpoint"
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Missed(Event):
    """Events came faster than they were dealt with, and there was no room for this many more."""

    name: ClassVar[str] = "missed"
    count: int


OnEvent = Callable[[Event], object]
"""A function or a coroutine function that is told events, one after the other."""

KINDS: dict[str, type[Event]] = {
    kind.name: kind
    for kind in (
        Enqueued, Deduplicated, Claimed, ClaimedNothing, Expired, Extended, LeaseLost, Acked, Nacked, Released, Dead,
        Cancelled, Dropped, Requeued, Purged, Archived, Committed, Conflict, Resent, Synced, Snapshot, Checkpoint,
        Missed,
    )
}  # fmt: skip
"""Every kind by its name."""

_TIMES: dict[str, tuple[str, Callable[[int], Any]]] = {
    "commit_ms": ("commit_time", convert.time),
    "expires_ms": ("expires_at", convert.time),
    "wait_ms": ("waited", lambda ms: timedelta(milliseconds=ms)),
    "run_ms": ("ran", lambda ms: timedelta(milliseconds=ms)),
    "took_ms": ("took", lambda ms: timedelta(milliseconds=ms)),
}


def event_of(native: Dict) -> Event:
    """What the engine tells as an event; without its own facts if it is of a kind that is not known."""
    facts = dict(native)
    kind = KINDS.get(facts.pop("event"))
    fields: dict[str, Any] = {}
    for name, value in facts.items():
        field, made = _TIMES.get(name, (name, None))
        fields[field] = value if made is None else made(value)
    if kind is None:
        return Event(commit_seq=fields["commit_seq"], commit_time=fields["commit_time"])
    return kind(**fields)
