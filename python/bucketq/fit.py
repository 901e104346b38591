"""The fit model: does a queue in object storage suit a workload?

`evaluate(arrival=20, work_ms=500)` returns the verdict of the plain model and of this engine, requests and cost per
month compared with SQS, and all of it at ten times the load. The engine computes it; docs/fit.md has the formulas.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from typing import Literal, NamedTuple

from bucketq import _native
from bucketq._convert import Dict
from bucketq.errors import Invalid

__all__ = ["Engine", "Fit", "Inputs", "Month", "Plain", "Rule", "Verdict", "evaluate"]

Verdict = Literal["strong", "tradeoff", "poor"]
Judge = Literal["load", "overhead", "dispatch"]


class Rule(NamedTuple):
    """The values an input may have; `metadata["rule"]` of each field of Inputs."""

    least: float
    most: float
    whole: bool = False
    above: bool = False
    what: str = ""


def _input(
    default: float,
    least: float,
    most: float,
    *,
    what: str,
    whole: bool = False,
    above: bool = False,
) -> float:
    rule = Rule(least, most, whole, above, what)
    made: float = field(default=default, metadata={"rule": rule})
    return made


_DAY_MS, _MINUTE_MS = 86_400_000, 60_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Inputs:
    """A workload, a store and prices. Times end in `_ms`; the defaults are the published example."""

    mutations: float = _input(3, 1, 1000, what="ops per run of a job: enqueue, claim, ack")
    batch: float = _input(10, 1, 4096, what="ops in a commit, for the plain model only")
    arrival: float = _input(5.2, 0, 1_000_000, what="jobs per second")
    work_ms: float = _input(1000, 0, _DAY_MS, what="work of one attempt")
    budget_ms: float = _input(200, 0, _DAY_MS, above=True, what="how soon a worker must have a ready job")
    producers: float = _input(4, 1, 100_000, whole=True, what="calls that enqueue at once")
    consumers: float = _input(8, 1, 100_000, whole=True, what="workers at once")
    prefetch: float = _input(10, 1, 10_000, whole=True, what="jobs that a worker claims at once")
    writers: float = _input(1, 1, 64, whole=True, what="processes that open the queue file")
    broker: float = _input(0, 0, 1, whole=True, what="1 when one process commits for all")
    broker_ms: float = _input(1, 0, 10_000, what="round trip to the broker")
    payload: float = _input(1024, 0, 16_777_216, whole=True, what="bytes of a job")
    retries: float = _input(0, 0, 100, what="further attempts of a job, on average")
    lease_ms: float = _input(60_000, 0, _DAY_MS, above=True, what="lease of a claim")
    latency_min_ms: float = _input(60, 0, _MINUTE_MS, what="a small PUT at best")
    latency_ms: float = _input(90, 0, _MINUTE_MS, what="a small PUT, typically")
    latency_p99_ms: float = _input(250, 0, _MINUTE_MS, what="the slowest in a hundred small PUTs")
    per_mib_ms: float = _input(10, 0, _MINUTE_MS, what="upload of one MiB")
    writes_per_s: float = _input(0, 0, 100_000, what="writes per second to one key; 0: no limit")
    commit_interval_ms: float = _input(0, 0, _MINUTE_MS, what="the option `commit_interval`")
    file_mib: float = _input(10, 0, 65_536, what="size of the queue file")
    price_put: float = _input(5, 0, 1000, what="USD per million PUTs")
    price_get: float = _input(0.4, 0, 1000, what="USD per million GETs")
    price_gb: float = _input(0.023, 0, 1000, what="USD per GB and month")
    price_sqs: float = _input(0.4, 0, 1000, what="USD per million requests to SQS")
    sqs_batch: float = _input(1, 1, 10, whole=True, what="messages in one request to SQS")

    def problems(self) -> list[tuple[str, str]]:
        """Return invalid inputs as (field, message); empty if there are none."""
        return _native.fit_problems(self._numbers())

    def _numbers(self) -> list[float]:
        """Return the values in the order of the fields; anything but a number is NaN, which the engine refuses."""
        values: list[object] = [getattr(self, entry.name) for entry in fields(self)]
        return [float(value) if isinstance(value, (int, float)) else math.nan for value in values]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Judged:
    classes: dict[Judge, int]
    """0 strong, 1 tradeoff, 2 poor."""
    verdict: Verdict
    """The worst of the three."""
    decided_by: Judge | None
    """The judge with the worst class; of equally bad ones load, then overhead. None when all are strong."""
    backlog_grows: bool
    change: str
    """The change that would alter the verdict."""
    change_value: float | None
    sentence: str
    """Verdict, reason and change as a sentence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plain(_Judged):
    """Results of the plain model. `math.inf` means unbounded."""

    penalty: float
    queue_ms: float
    capacity: float
    overhead: float
    load: float
    puts_per_job: float
    dispatch_ms: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Engine(_Judged):
    """Results of the model of this engine. `math.inf` means unbounded."""

    mutations: float
    extensions: float
    batch: float
    batch_max: float
    commit_ms: float
    cycle_ms: float
    capacity: float
    load: float
    queue_ms: float
    overhead: float
    dispatch_best_ms: float
    dispatch_ms: float
    dispatch_p99_ms: float
    puts_per_job: float
    gets_per_job: float
    bytes_per_commit: float
    commits_per_s: float
    polls_per_s: float
    worker_load: float
    cold_open_ms: float
    whole_file_ms: float
    instead: Literal["log", "memory", "managed", "database"] | None
    """The kind of system to use when no change of this queue suffices."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Month:
    """Requests and US dollars for 730 hours, compared with SQS."""

    puts: float
    gets: float
    storage_gb: float
    cost: float
    sqs_requests: float
    sqs_cost: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """All results of the model for a workload."""

    plain: Plain
    engine: Engine
    month: Month
    tenfold: Fit | None
    """The results at ten times the arrivals, producers and consumers; None in those results."""


def evaluate(inputs: Inputs | None = None, **options: float) -> Fit:
    """Evaluate the model. `options` are fields of Inputs and win over `inputs`; invalid values raise Invalid."""
    unknown = options.keys() - {entry.name for entry in fields(Inputs)}
    if unknown:
        raise Invalid(f"unknown: {', '.join(sorted(unknown))}; docs/fit.md lists the inputs")
    return _fit(_native.fit(replace(inputs or Inputs(), **options)._numbers()))


def _fit(native: Dict) -> Fit:
    tenfold = native.get("tenfold")
    return Fit(
        plain=Plain(**_unbounded(native["plain"])),
        engine=Engine(**_unbounded(native["engine"])),
        month=Month(**_unbounded(native["month"])),
        tenfold=None if tenfold is None else _fit(tenfold),
    )


def _unbounded(native: Dict) -> Dict:
    """Return the values with `math.inf` in the place of None, except in fields that may be None."""
    may_be_none = {"decided_by", "instead"}
    if native.get("change") in ("nothing", "store", "broker", "callers"):
        may_be_none.add("change_value")
    return {
        name: math.inf if value is None and name not in may_be_none else value
        for name, value in native.items()
    }
