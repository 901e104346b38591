"""Schedules, finished runs, and the archive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from bucketq import _convert as convert
from bucketq.types.policy import Backoff

Missed = Literal["skip", "catch_up"]
"""If times of a schedule pass while no process claims: enqueue one job for the newest, or one for each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleInfo:
    """A job enqueued periodically: by ``cron`` in ``timezone``, or at the interval ``every`` from ``start`` on."""

    queue: str
    name: str
    cron: str | None
    timezone: str | None
    every: timedelta | None
    start: datetime | None
    missed: Missed
    next_at: datetime | None
    """The next time it enqueues."""
    last_at: datetime | None
    """The last time it enqueued for."""
    fired: int
    """Number of jobs it has enqueued."""
    paused: str | None
    """Why this version of bucketq cannot run it, if so: claims of this version skip it."""
    payload: bytes
    content_type: str
    priority: int
    max_attempts: int | None
    """None here and below: as the queue's policy says."""
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
    """A finished run of a job, (id, run), from its enqueue to its end."""

    finish_seq: int
    """Its position in the order in which runs finished."""
    id: str
    run: int
    queue: str
    group: str | None
    state: Literal["done", "dead", "cancelled"]
    priority: int
    attempts: int
    """Claims in this run."""
    max_attempts: int
    worker: str | None
    """The worker that claimed it last."""
    enqueued_at: datetime
    run_at: datetime
    """Earliest time of its first attempt."""
    first_claimed_at: datetime | None
    claimed_at: datetime | None
    """Time of its last claim."""
    finished_at: datetime
    wait: timedelta | None
    """From when it could first run to its first claim."""
    ran: timedelta | None
    """From its last claim to its end."""
    seq: int
    """Its position in the order of enqueues."""
    fence: int | None
    """The fencing token: the commit of its last claim."""
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
    """Finished runs at one commit, in the order in which they finished."""

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
    """Its XXH3-128 hash in hexadecimal digits."""
    jobs: int
    """Number of runs in it."""
    commit_seq: int
    """The commit its rows were read at."""
    first_seq: int
    """The smallest ``finish_seq`` in it ..."""
    last_seq: int
    """... and the largest."""
    first_at: datetime
    """When the first of its runs finished ..."""
    last_at: datetime
    """... and the last."""
    listed_seq: int
    """The commit that listed it."""
    listed_at: datetime


@dataclass(frozen=True, slots=True)
class Archives:
    """The archive at one commit. Runs finished up to it are in these objects or among the runs of that commit."""

    commit_seq: int
    objects: tuple[ArchiveObject, ...]
