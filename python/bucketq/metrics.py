"""What is measured of a queue file, as values and as text for Prometheus. docs/watching.md has the table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bucketq import _show
from bucketq._convert import Dict
from bucketq.types import Stats

__all__ = ["Histogram", "Metrics"]

METRICS_AGE = 5.0
"""Seconds that counts of jobs may be old unless told otherwise: a scraper costs no request that often."""

_MS = 1000
_PARTS = {"puts": "put", "uploads": "upload", "gets": "get", "lists": "list", "deletes": "delete"}
_BYTES = {"put_bytes": "put", "upload_bytes": "upload", "get_bytes": "get"}
_TIMES = {"wait_ms": "waited", "run_ms": "ran", "commit_ms": "commit_took"}


@dataclass(frozen=True, slots=True)
class Histogram:
    """How often something was how large."""

    buckets: tuple[tuple[float, int], ...]
    """Upper ends, and how many lie below or at each; what lies beyond the last is in ``count`` only."""
    sum: float
    """All of them together."""
    count: int
    """How many there are."""

    @property
    def mean(self) -> float | None:
        """The average; None when there is nothing to average."""
        return self.sum / self.count if self.count else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """The queue file as it is, and what the writer of this process has done since it was opened. Times in seconds."""

    stats: Stats
    """Queues with their jobs by state, commit, size."""
    waited: Histogram
    """From when a job could run until it was claimed."""
    ran: Histogram
    """From a job's claim to its ack."""
    commit_took: Histogram
    """From the first op of a commit to the answer of the store."""
    commit_ops: Histogram
    """Ops in a commit."""
    conflicts: Mapping[str, int]
    """Commits lost to another writer: ``race``, the store said so; ``unanswered``, it never answered."""
    requests: Mapping[str, int]
    """Requests to the store: ``put`` of HEAD, ``upload`` of everything else, ``get``, ``list``, ``delete``."""
    bytes: Mapping[str, int]
    """Bytes sent and received: ``put``, ``upload``, ``get``."""
    gets_unchanged: int
    """Gets answered "unchanged"."""
    commits: int
    """Commits stored."""
    ops: int
    """Ops in those commits."""
    delta_bytes: int
    """Bytes of their deltas."""
    resends: int
    """Commits sent again as they were."""
    unknown: int
    """Commits whose outcome could not be known."""
    caught_up: int
    """Commits of others taken over."""
    local_commits: int
    """Commits to the local log."""
    local_ops: int
    """Ops in those."""
    handed_back: int
    """Claims handed back because their caller had gone."""
    archived_jobs: int
    """Jobs that have left for the archive."""
    events_missed: int
    """Events that callbacks were too slow for."""
    events_failed: int
    """Events that a callback failed over."""
    cost_total: float
    """US dollars for those requests, at the prices of the fit model."""
    cost_per_hour: float
    """US dollars for an hour: requests at the pace so far, and the storage of the database."""
    text: str = field(repr=False)

    def prometheus(self) -> str:
        """All of it as text in Prometheus' format."""
        return self.text


def metrics_of(native: Dict) -> Metrics:
    """What the engine measures."""
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
