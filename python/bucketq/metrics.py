"""Metrics of a queue file, as values and as text for Prometheus. docs/watching.md has the table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bucketq import _show
from bucketq._convert import Dict
from bucketq.types import Stats

__all__ = ["Histogram", "Metrics"]

METRICS_AGE = 5.0
"""How old counts of jobs may be by default, in seconds: a scraper then causes few requests."""

_MS = 1000
_PARTS = {"puts": "put", "uploads": "upload", "gets": "get", "lists": "list", "deletes": "delete"}
_BYTES = {"put_bytes": "put", "upload_bytes": "upload", "get_bytes": "get"}
_TIMES = {"wait_ms": "waited", "run_ms": "ran", "commit_ms": "commit_took"}


@dataclass(frozen=True, slots=True)
class Histogram:
    """The distribution of a value."""

    buckets: tuple[tuple[float, int], ...]
    """Upper bounds, and how many values are at most each; larger ones than the last bound are in ``count`` only."""
    sum: float
    """The sum of all values."""
    count: int
    """The number of values."""

    @property
    def mean(self) -> float | None:
        """The average; None without values."""
        return self.sum / self.count if self.count else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """The state of the queue file, and what the writer of this process did since it was opened. Times in seconds."""

    stats: Stats
    """Queues with their jobs by state, commit, size."""
    waited: Histogram
    """From when a job could run until it was claimed."""
    ran: Histogram
    """From a job's claim to its ack."""
    commit_took: Histogram
    """From the first op of a commit to the store's reply."""
    commit_ops: Histogram
    """Ops in a commit."""
    conflicts: Mapping[str, int]
    """Commits lost to another writer: ``race``, the store reported it; ``unanswered``, it never replied."""
    requests: Mapping[str, int]
    """Requests to the store: ``put`` of HEAD, ``upload`` of everything else, ``get``, ``list``, ``delete``."""
    bytes: Mapping[str, int]
    """Bytes sent and received: ``put``, ``upload``, ``get``."""
    gets_unchanged: int
    """Gets with the reply "unchanged"."""
    commits: int
    """Commits written to the store."""
    ops: int
    """Ops in those commits."""
    delta_bytes: int
    """Bytes of the deltas of those commits."""
    resends: int
    """Commits sent again unchanged."""
    unknown: int
    """Commits whose outcome is unknown."""
    caught_up: int
    """Commits of other writers applied here."""
    local_commits: int
    """Commits to the local log."""
    local_ops: int
    """Ops in those local commits."""
    handed_back: int
    """Claims given back because their caller had gone."""
    wait_looks: int
    """Jobs looked up for callers that wait until those are finished."""
    archived_jobs: int
    """Jobs moved to the archive."""
    events_missed: int
    """Events dropped because callbacks were too slow."""
    events_failed: int
    """Events for which a callback raised."""
    processes: int
    """Other processes of this host that share this writer now."""
    cost_total: float
    """US dollars for those requests, at the prices of the fit model."""
    cost_per_hour: float
    """US dollars per hour: requests at the rate so far, and storage of the database."""
    text: str = field(repr=False)

    def prometheus(self) -> str:
        """Return all metrics in Prometheus' text format."""
        return self.text


def metrics_of(native: Dict) -> Metrics:
    """Return the engine's metrics."""
    counters = dict(native["counters"])
    conflicts, unanswered = counters.pop("conflicts"), counters.pop("conflicts_unanswered")
    return Metrics(
        stats=_show.stats(native["stats"]),
        **{name: _histogram(native["histograms"][key], _MS) for key, name in _TIMES.items()},
        commit_ops=_histogram(native["histograms"]["commit_ops"], 1),
        conflicts={"race": conflicts - unanswered, "unanswered": unanswered},
        requests={kind: counters.pop(key) for key, kind in _PARTS.items()},
        bytes={kind: counters.pop(key) for key, kind in _BYTES.items()},
        **counters,
        cost_total=native["cost"]["total"],
        cost_per_hour=native["cost"]["per_hour"],
        text=native["text"],
    )


def _histogram(native: Dict, per: int) -> Histogram:
    below, buckets = 0, list[tuple[float, int]]()
    for bound, count in zip(native["bounds"], native["counts"], strict=True):
        below += count
        buckets.append((bound / per, below))
    return Histogram(tuple(buckets), native["sum"] / per, native["count"])
