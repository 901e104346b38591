"""What ``bucketq.measure`` and ``QueueFile.workload`` found: nouns for the fit model, without any I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from bucketq._convert import Dict

__all__ = ["BySize", "ClockOffset", "Measured", "Progress", "Spread", "Times", "Workload"]

Progress = Callable[[str, int, int], object]
"""Called with what comes next, how many requests are done, and of how many."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Times of one kind of request, in milliseconds."""

    samples: int
    min_ms: float
    p50_ms: float
    p99_ms: float
    """The slowest in a hundred; of fewer samples the slowest."""


@dataclass(frozen=True, slots=True)
class BySize:
    """Requests for objects of one size."""

    bytes: int
    put: Spread
    """Conditional PUTs."""
    get: Spread
    unchanged: Spread
    """GETs of an object that has not changed."""


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """The store's clock as seen from here."""

    offset_ms: float
    """Store's clock less this machine's."""
    within_ms: float
    """The true one is at most so far from that."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a store is like to commit to."""

    store: str
    sizes: tuple[BySize, ...]
    commits_per_s: float
    """Conditional PUTs of the size of a HEAD to one key, one after the other."""
    throttled: int
    """Writes that the store was asked too fast for."""
    upload_mib_s: float
    """Eight objects of one MiB at a time."""
    download_mib_s: float
    clock: ClockOffset | None
    """None from a store that does not tell its time."""
    took: timedelta
    inputs: Mapping[str, float]
    """What ``bucketq.fit`` takes from it: ``evaluate(**measured.inputs)``."""


@dataclass(frozen=True, slots=True)
class Times:
    """Times of something, in milliseconds."""

    samples: int
    mean_ms: float
    p50_ms: float
    p95_ms: float


@dataclass(frozen=True, slots=True)
class Workload:
    """The workload of a queue file, as far as the file still knows it."""

    jobs: int
    """Jobs looked at."""
    complete: bool
    """Whether these are all that the file has."""
    window: timedelta
    """The longest time that arrivals were counted over; queues have their own."""
    work: Times | None
    """Claim to ack, of jobs that are done; what the queue itself takes is in it."""
    dispatch: Times | None
    """From the time a job was ready to its claim, of those claimed once."""
    commits: int
    """Commits in the log."""
    commits_span: timedelta
    inputs: Mapping[str, float]
    """What ``bucketq.fit`` takes from it: ``evaluate(**workload.inputs)``."""


def measured_of(native: Dict) -> Measured:
    """What a store is like."""
    fields = dict(native)
    sizes = tuple(
        BySize(one["bytes"], Spread(**one["put"]), Spread(**one["get"]), Spread(**one["unchanged"]))
        for one in fields.pop("sizes")
    )
    clock = fields.pop("clock")
    took = timedelta(milliseconds=fields.pop("took_ms"))
    return Measured(sizes=sizes, clock=None if clock is None else ClockOffset(**clock), took=took, **fields)


def workload_of(native: Dict) -> Workload:
    """What a queue file tells of its workload."""
    fields = dict(native)
    window = timedelta(milliseconds=fields.pop("window_ms"))
    span = timedelta(milliseconds=fields.pop("commits_ms"))
    found = (fields.pop("work"), fields.pop("dispatch"))
    work, dispatch = (None if one is None else Times(**one) for one in found)
    return Workload(window=window, commits_span=span, work=work, dispatch=dispatch, **fields)
