"""Jobs: what is enqueued, and what is known of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypedDict, Unpack, overload

from bucketq import _convert as convert
from bucketq.types.policy import Backoff, Seconds

State = Literal["scheduled", "ready", "leased", "done", "dead", "cancelled"]
"""The stored states of a job, in the order of its life."""

Ended = Literal["failed", "expired", "rejected", "done", "cancelled", "dropped"]
"""How an attempt ended: nacked, its lease ran out, rejected; or, where a life ended, acked, cancelled, made room."""


class Extras(TypedDict, total=False):
    """What a job may have beside its data."""

    delay: Seconds | None
    """Not before this long from now."""
    at: datetime | None
    """Not before this time; aware."""
    priority: int
    """Lower runs first; 0 unless told otherwise."""
    max_attempts: int | None
    """Claims before the job is dead; what the policy of the queue says unless told otherwise."""
    backoff: Backoff | None
    """Waiting time between attempts; what the policy of the queue says unless told otherwise."""
    dedup: str | None
    """A second job with this key is answered with the first, within the window of the policy: an hour by default."""
    dedup_window: Seconds | Literal["unfinished"] | None
    """The key counts for this long from the first enqueue instead; None: while the first job is unfinished."""
    group: str | None
    """Jobs of one group run in the order of their enqueues, one at a time unless the policy allows more."""
    headers: Mapping[str, str] | None
    """Small facts beside the payload, such as a trace context."""
    content_type: str | None
    """What the payload is; found out from the data unless told otherwise."""
    id: str | None
    """A UUID of one's own: enqueueing it again changes nothing."""


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
    dropped: tuple[str, ...] = ()
    """Jobs that were cancelled to make room; of several enqueued together, told with the first."""


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
    backoff: Backoff
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
    """When the lease runs or ran out; only while leased, and only if it ever does."""
    fence: int | None
    """The commit of the newest claim."""
    worker: str | None
    """Who claimed it last."""
    last_error: str | None
    """What the last failure said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """An attempt that did not succeed, or the end of an earlier life."""

    run: int
    """The life it belongs to."""
    attempt: int
    """Its number in that life; 0 if there was no claim."""
    queue: str
    """The queue the job was in."""
    ended: Ended
    worker: str | None
    """Who had claimed the job."""
    claimed_at: datetime | None
    ended_at: datetime
    error: str | None
    """What was said about it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDetail(JobInfo):
    """A job with its bytes and what came of it."""

    payload: bytes
    content_type: str
    result_payload: bytes | None
    result_content_type: str | None
    attempts: tuple[Attempt, ...]
    """What went wrong so far, and how earlier lives ended, oldest first; the newest hundred."""

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
