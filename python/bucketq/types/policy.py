"""Policies: rules for all jobs of a queue, stored in the queue file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Final, Literal, TypedDict

from bucketq import _convert as convert
from bucketq._durations import MILLISECONDS

Seconds = float | timedelta | str
"""A duration: seconds, a timedelta, or text with units such as ``"5min"``."""


class FromPolicy(Enum):
    """The type of ``POLICY``."""

    POLICY = "policy"

    def __repr__(self) -> str:
        return self.name


POLICY: Final = FromPolicy.POLICY
"""Use the value of the queue's policy."""


@dataclass(frozen=True, slots=True, repr=False)
class Backoff:
    """How long a failed job waits: ``base`` after the first failure, doubling up to ``max``.

    The upper ``jitter`` share of each delay is random. ``none``, ``fixed``, ``linear`` and ``list`` make other kinds.

    >>> Backoff.fixed(30)
    Backoff.fixed(30)
    """

    base: Seconds = 1.0
    max: Seconds = 3600.0
    jitter: float = 0.5
    kind: Literal["exponential", "none", "fixed", "linear", "list"] = "exponential"
    delays: tuple[Seconds, ...] = ()

    @classmethod
    def none(cls) -> Backoff:
        """No waiting."""
        return cls(0.0, 0.0, 0.0, "none")

    @classmethod
    def fixed(cls, delay: Seconds) -> Backoff:
        """The same delay after each failure."""
        return cls(delay, delay, 0.0, "fixed")

    @classmethod
    def linear(cls, base: Seconds, *, max: Seconds = 3600.0) -> Backoff:
        """``base`` more with each failure, up to ``max``."""
        return cls(base, max, 0.0, "linear")

    @classmethod
    def list(cls, delays: Iterable[Seconds]) -> Backoff:
        """These delays, one after the other; then the last one again and again."""
        return cls(0.0, 0.0, 0.0, "list", tuple(delays))

    def __repr__(self) -> str:
        match self.kind:
            case "none":
                return "Backoff.none()"
            case "fixed":
                return f"Backoff.fixed({self.base!r})"
            case "linear":
                return f"Backoff.linear({self.base!r}, max={self.max!r})"
            case "list":
                return f"Backoff.list({[*self.delays]!r})"
            case _:
                return f"Backoff(base={self.base!r}, max={self.max!r}, jitter={self.jitter!r})"


@dataclass(frozen=True, slots=True)
class Rate:
    """``count`` claims per ``per``: a token bucket of size ``burst``, by default ``count``, that refills evenly.

    >>> str(Rate(100, per=60, burst=5))
    '100/min burst 5'
    """

    count: int
    per: Seconds = 1.0
    burst: int | None = None

    def __str__(self) -> str:
        ms = convert.millis(self.per, "per")
        unit, size = next(((unit, size) for unit, size in MILLISECONDS.items() if ms % size == 0), ("ms", 1))
        many = "" if ms == size else ms // size
        return f"{self.count}/{many}{unit}" + ("" if self.burst is None else f" burst {self.burst}")


@dataclass(frozen=True, slots=True)
class Block:
    """An enqueue into a full queue waits this long for room, then raises QueueFull."""

    timeout: Seconds = 30.0


Overflow = Literal["raise", "block", "drop_oldest"] | Block
"""An enqueue into a full queue raises QueueFull, waits (``block`` is ``Block()``), or cancels the oldest jobs."""


class Changes(TypedDict, total=False):
    """The fields of a policy to change; the others stay. None lifts a limit."""

    max_attempts: int | None
    """Claims a job gets before it is dead; None: without end."""
    backoff: Backoff
    """Waiting time between the attempts of a job."""
    lease: Seconds | None
    """How long a claim's lease lasts; None: forever, so no job is handed out twice (at most once)."""
    max_run: Seconds | None
    """How long the work on a job may take: then the attempt has failed with "timed out". None: without end."""
    dead_letter: str | None
    """The queue that dead jobs move to; None leaves them in this one."""
    expires: Seconds | None
    """How long after its enqueue a job expires if no worker has claimed it."""
    on_expiry: Literal["dead", "delete"]
    """Whether a job that has expired is dead or deleted."""
    expire_claimed: bool
    """If True, a job that was claimed in time and came back expires too, as soon as no worker holds it."""
    dedup_content: bool
    """If True, a job without a dedup key gets one from its content."""
    dedup_window: Seconds | Literal["unfinished"] | None
    """How long a dedup key counts; None or ``unfinished``: as long as the first job is unfinished."""
    max_pending: int | None
    """The most scheduled and ready jobs together that an enqueue may lead to."""
    overflow: Overflow
    """How an enqueue that would lead to more is handled."""
    group_concurrency: int
    """Jobs of one group that may be leased at the same time."""
    group_batch: int
    """Jobs of one group that one claim may get, in order; the group then waits until all of them have ended."""
    concurrency: int | None
    """Jobs of the queue that may be leased at the same time, by all processes."""
    rate: Rate | str | None
    """How fast jobs may be claimed, by all processes: ``"100/min"``, ``"10/30s burst 1"``."""
    keep: int
    """Retain up to this number of done jobs, of dead jobs and of cancelled jobs."""
    keep_for: Seconds | None
    """Retain a finished job for at most this long after its end."""
    keep_done: int | None
    """Retain up to this number of done jobs; None: as ``keep`` says."""
    keep_done_for: Seconds | None
    """Retain a done job for at most this long; None: as ``keep_for`` says."""
    keep_dead: int | None
    """Retain up to this number of dead jobs; None: as ``keep`` says."""
    keep_dead_for: Seconds | None
    """Retain a dead job for at most this long; None: as ``keep_for`` says."""
    keep_cancelled: int | None
    """Retain up to this number of cancelled jobs; None: as ``keep`` says."""
    keep_cancelled_for: Seconds | None
    """Retain a cancelled job for at most this long; None: as ``keep_for`` says."""
    archive: bool
    """If True, jobs are written to the archive before they leave the queue."""
    archive_for: Seconds | None
    """An archive object expires when its newest run ended longer ago than this."""
    archive_payloads: bool
    """If True, payloads are archived too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The rules for the jobs of a queue; ``Changes`` describes each field."""

    max_attempts: int | None
    backoff: Backoff
    lease: timedelta | None
    max_run: timedelta | None
    dead_letter: str | None
    expires: timedelta | None
    on_expiry: Literal["dead", "delete"]
    expire_claimed: bool
    dedup_content: bool
    dedup_window: timedelta | None
    max_pending: int | None
    overflow: Overflow
    group_concurrency: int
    group_batch: int
    concurrency: int | None
    rate: Rate | None
    keep: int
    keep_for: timedelta | None
    keep_done: int | None
    keep_done_for: timedelta | None
    keep_dead: int | None
    keep_dead_for: timedelta | None
    keep_cancelled: int | None
    keep_cancelled_for: timedelta | None
    archive: bool
    archive_for: timedelta | None
    archive_payloads: bool
