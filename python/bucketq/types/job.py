"""Jobs as they are enqueued and as they are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Generic, Literal, TypedDict, TypeVar, Unpack, overload

from bucketq import _convert as convert
from bucketq._spelled import spelled
from bucketq.types.policy import Backoff, Seconds

State = Literal["scheduled", "ready", "leased", "done", "dead", "cancelled"]
"""The stored states of a job, in the order it passes through them."""

Ended = Literal[
    "failed", "expired", "rejected", "done", "cancelled", "dropped", "moved", "forwarded", "unclaimed"
]
"""How an attempt ended: nacked, lease ran out, rejected; or how a run ended: acked, cancelled, dropped for room, moved
to another queue ("forwarded" if it is a dead letter there still), not claimed in time."""

Reason = Literal["failed", "lease_expired", "rejected", "expired"]
"""Why a job died: its last attempt was nacked, or its lease ran out; it was rejected; no worker claimed it in time."""


class Extras(TypedDict, total=False):
    """Options of a job beside its data."""

    delay: Seconds | None
    """Run it no sooner than this long from now."""
    at: datetime | None
    """Run it no sooner than this time, an aware datetime."""
    priority: int
    """Lower runs first; 0 by default."""
    max_attempts: int | None
    """Claims before the job is dead; by default as the queue's policy says."""
    backoff: Backoff | None
    """Waiting time between attempts; by default as the queue's policy says."""
    dedup: str | None
    """Within the policy's window, an hour by default, enqueueing this key again returns the first job."""
    dedup_window: Seconds | Literal["unfinished"] | None
    """Overrides that window, from the first enqueue on; None: as long as the first job is unfinished."""
    group: str | None
    """Jobs of a group run in the order they were enqueued, one at a time unless the policy allows more."""
    headers: Mapping[str, str] | None
    """Small metadata beside the payload, such as a trace context."""
    expires: Seconds | None
    """It expires this long after its enqueue if no worker has claimed it; by default as the queue's policy says."""
    max_run: Seconds | None
    """How long an attempt may take: then it has failed with "timed out"; by default as the queue's policy says."""
    content_type: str | None
    """The content type of the payload; by default derived from the data."""
    id: str | None
    """Your own UUID for the job: enqueueing it again changes nothing."""


@dataclass(frozen=True, slots=True, init=False)
class New:
    """A job to enqueue: ``New(data, delay=5)``, or ``New("queue", data)`` to name its queue.

    >>> New({"to": "ada"}, delay=5).extras
    {'delay': 5}
    >>> New("reports", {"month": 3}).queue
    'reports'
    """

    queue: str | None
    """The queue; None: the queue whose method it is passed to."""
    data: Any
    """The data for the worker."""
    extras: Extras
    """The other options."""

    @overload
    def __init__(self, data: Any, /, **extras: Unpack[Extras]) -> None: ...
    @overload
    def __init__(self, queue: str, data: Any, /, **extras: Unpack[Extras]) -> None: ...
    @spelled(Extras)
    def __init__(self, *args: Any, **extras: Unpack[Extras]) -> None:
        queue, data = convert.queue_and_data(args)
        convert.check_extras(extras)
        object.__setattr__(self, "queue", queue)
        object.__setattr__(self, "data", data)
        object.__setattr__(self, "extras", extras)


@dataclass(frozen=True, slots=True)
class Enqueued:
    """Receipt of one enqueued job."""

    id: str
    """Id of the job in the queue: the new one, or the existing one."""
    deduplicated: bool
    """True if a job with the same dedup key existed; the new one was not added."""
    commit_seq: int
    """The commit that enqueued the job ``id``; 0 if that is an existing job that has left the file."""
    dropped: tuple[str, ...] = ()
    """Jobs cancelled to make room; if several jobs are enqueued together, listed in the first receipt."""
    existing: bool = False
    """True if the job was enqueued before under the same id, even if it has left since: a repeat, nothing was added."""
    commit_time: datetime | None = None
    """The time of that commit; None if that is an existing job that has left the file."""

    @property
    def created(self) -> bool:
        """True if this call added the job; otherwise ``deduplicated`` or ``existing`` says why not."""
        return not (self.deduplicated or self.existing)


@dataclass(frozen=True, slots=True, kw_only=True)
class Died:
    """How a job died."""

    queue: str
    """The queue it died in: the origin of a dead letter."""
    reason: Reason
    attempts: int
    """Claims in the run that died."""
    error: str | None
    """The message of the last failure of that run."""
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInfo:
    """A job without its payload and result."""

    id: str
    run: int
    """The run: 0, and one more with each requeue."""
    queue: str
    state: State
    expired: bool
    """True if it is leased and the lease had run out when it was read."""
    priority: int
    attempt: int
    """Claims so far in this run."""
    max_attempts: int
    backoff: Backoff
    max_run: timedelta | None
    """How long an attempt may take; None: as the queue's policy says."""
    group: str | None
    dedup: str | None
    headers: Mapping[str, str]
    size: int
    """Size of the payload in bytes."""
    commit_seq: int
    """The commit that enqueued it."""
    enqueued_at: datetime
    run_at: datetime
    """Earliest time of its first or next attempt."""
    claimed_at: datetime | None
    finished_at: datetime | None
    expires_at: datetime | None
    """When the lease ends or ended; None if it is not leased, or the lease never ends."""
    fence: int | None
    """The fencing token: the commit of the newest claim."""
    worker: str | None
    """The worker that claimed it last."""
    last_error: str | None
    """The message of the last failure; of a dead letter that has not failed here, that of its death."""
    died: Died | None = None
    """How it died: of a dead job, and of a dead letter, which died in another queue and is in this one since."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """An attempt that did not succeed, or the end of an earlier run."""

    run: int
    """The run it belongs to."""
    attempt: int
    """Its number in that run; 0 if there was no claim."""
    queue: str
    """The queue the job was in."""
    ended: Ended
    worker: str | None
    """The worker that had claimed the job."""
    claimed_at: datetime | None
    ended_at: datetime
    error: str | None
    """The message given with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDetail(JobInfo):
    """A job with its payload, result and attempts."""

    payload: bytes
    content_type: str
    result_payload: bytes | None
    result_content_type: str | None
    attempts: tuple[Attempt, ...]
    """Failed attempts so far and the ends of earlier runs, oldest first; the newest hundred."""

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


J_co = TypeVar("J_co", bound=JobInfo, covariant=True)


@dataclass(frozen=True, slots=True)
class Page(Generic[J_co]):
    """One page of a list: ``for job in page``."""

    jobs: tuple[J_co, ...]
    next: int | None
    """Pass it as ``after`` to get the next page; None at the end."""
    last: int | None = None
    """Where this page ends. Pass it as ``after`` later to get the jobs that were enqueued since."""

    def __iter__(self) -> Iterator[J_co]:
        return iter(self.jobs)

    def __len__(self) -> int:
        return len(self.jobs)

    def __bool__(self) -> bool:
        return bool(self.jobs)
