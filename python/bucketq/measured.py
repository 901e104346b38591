"""Results of ``bucketq.measure`` and ``QueueFile.workload`` for the fit model: plain values without I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from bucketq._convert import Dict

__all__ = ["BySize", "ClockOffset", "Measured", "Progress", "Spread", "Times", "Workload"]

Progress = Callable[[str, int, int], object]
"""Called with the name of the next step, the number of requests done, and their total."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Times of one kind of request, in milliseconds."""

    samples: int
    min_ms: float
    p50_ms: float
    p99_ms: float
    """The slowest in a hundred; with fewer samples the slowest."""


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
    """The store's clock compared with this machine's."""

    offset_ms: float
    """The store's clock minus this machine's."""
    within_ms: float
    """The true offset is at most this far from ``offset_ms``."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of a store."""

    store: str
    sizes: tuple[BySize, ...]
    commits_per_s: float
    """Conditional PUTs of the size of a HEAD to one key, one after the other."""
    throttled: int
    """Writes that the store refused as too fast."""
    upload_mib_s: float
    """Measured with eight objects of one MiB at a time."""
    download_mib_s: float
    clock: ClockOffset | None
    """None if the store does not send its time."""
    took: timedelta
    inputs: Mapping[str, float]
    """Inputs for ``bucketq.fit``: ``evaluate(**measured.inputs)``."""


@dataclass(frozen=True, slots=True)
class Times:
    """Times of something, in milliseconds."""

    samples: int
    mean_ms: float
    p50_ms: float
    p95_ms: float


@dataclass(frozen=True, slots=True)
class Workload:
    """The workload of a queue file, as far as the file still shows it."""

    jobs: int
    """Jobs that were read."""
    complete: bool
    """True if these are all jobs of the file."""
    window: timedelta
    """The longest time over which arrivals were counted; each queue has its own."""
    work: Times | None
    """From claim to ack, of jobs that are done; includes the time of the queue itself."""
    dispatch: Times | None
    """From ready to claimed, of jobs claimed once."""
    commits: int
    """Commits in the log."""
    commits_span: timedelta
    inputs: Mapping[str, float]
    """Inputs for ``bucketq.fit``: ``evaluate(**workload.inputs)``."""


def measured_of(native: Dict) -> Measured:
    """Return the engine's measurements of a store."""
    fields = dict(native)
    sizes = tuple(
        BySize(one["bytes"], Spread(**one["put"]), Spread(**one["get"]), Spread(**one["unchanged"]))
        for one in fields.pop("sizes")
    )
    clock = fields.pop("clock")
    took = timedelta(milliseconds=fields.pop("took_ms"))
    return Measured(sizes=sizes, clock=None if clock is None else ClockOffset(**clock), took=took, **fields)


def workload_of(native: Dict) -> Workload:
    """Return the engine's workload of a queue file."""
    fields = dict(native)
    window = timedelta(milliseconds=fields.pop("window_ms"))
    span = timedelta(milliseconds=fields.pop("commits_ms"))
    found = (fields.pop("work"), fields.pop("dispatch"))
    work, dispatch = (None if one is None else Times(**one) for one in found)
    return Workload(window=window, commits_span=span, work=work, dispatch=dispatch, **fields)
