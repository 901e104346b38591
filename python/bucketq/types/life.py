"""What recurs and what is over: schedules, finished lives, and the archive they leave for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from bucketq import _convert as convert
from bucketq.types.policy import Backoff

Missed = Literal["skip", "catch_up"]
"""What becomes of times of a schedule that passed while nobody claimed: one job for the newest, or one for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleInfo:
    """A job that is enqueued again and again: by ``cron`` in ``timezone``, or ``every`` so often from ``start`` on."""

    queue: str
    name: str
    cron: str | None
    timezone: str | None
    every: timedelta | None
    start: datetime | None
    missed: Missed
    next_at: datetime | None
    """When it enqueues next."""
    last_at: datetime | None
    """The newest time it enqueued for."""
    fired: int
    """Jobs it has enqueued."""
    payload: bytes
    content_type: str
    priority: int
    max_attempts: int | None
    """None here and below: as the policy of the queue says."""
    backoff: Backoff | None
    dedup: str | None
    group: str | None
    headers: Mapping[str, str]

    @property
    def data(self) -> Any:
        """The payload of its jobs, decoded by its content type."""
        return convert.decode(self.payload, self.content_type)


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """A finished life of a job, (id, run), from its enqueue to its end."""

    finish_seq: int
    """Its place in the order in which jobs finished."""
    id: str
    run: int
    queue: str
    group: str | None
    state: Literal["done", "dead", "cancelled"]
    priority: int
    attempts: int
    """Claims in this life."""
    max_attempts: int
    worker: str | None
    """Who claimed it last."""
    enqueued_at: datetime
    run_at: datetime
    """When it was first to run."""
    first_claimed_at: datetime | None
    claimed_at: datetime | None
    """Its last claim."""
    finished_at: datetime
    wait: timedelta | None
    """From when it could run to its first claim."""
    ran: timedelta | None
    """From its last claim to its end."""
    seq: int
    """Its place in the order of enqueues."""
    fence: int | None
    """The commit of its last claim."""
    enqueue_commit_seq: int
    finish_commit_seq: int
    payload_len: int
    payload: bytes | None
    """None if payloads are not archived."""
    payload_type: str | None
    result_payload: bytes | None
    result_type: str | None
    last_error: str | None


@dataclass(frozen=True, slots=True)
class Lives:
    """Finished lives at one commit, in the order in which they finished."""

    commit_seq: int
    lives: tuple[Life, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveObject:
    """A Parquet object of the archive; docs/archive.md has its columns."""

    key: str
    """Its key in the store."""
    queue: str
    bytes: int
    hash: str
    """XXH3-128 of it, in hexadecimal digits."""
    jobs: int
    """Lives in it."""
    commit_seq: int
    """The commit its rows were read at."""
    first_seq: int
    """The smallest ``finish_seq`` in it ..."""
    last_seq: int
    """... and the largest."""
    first_at: datetime
    """When the first of them finished ..."""
    last_at: datetime
    """... and the last."""
    listed_seq: int
    """The commit that listed it."""
    listed_at: datetime


@dataclass(frozen=True, slots=True)
class Archives:
    """The archive at one commit: what finished up to it is in these objects or among the lives of that commit."""

    commit_seq: int
    objects: tuple[ArchiveObject, ...]
