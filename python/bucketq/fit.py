"""The fit model: does a queue in object storage suit a workload? Pure arithmetic.

`evaluate(arrival=20, work_ms=500)` returns the verdict of the plain model and of this engine, requests and cost per
month compared with SQS, and all of it at ten times the load. docs/fit.md has the formulas.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Literal, NamedTuple, TypedDict, cast

from bucketq._fit_words import amount, percent, then, time
from bucketq.errors import Invalid

__all__ = ["Engine", "Fit", "Inputs", "Month", "Plain", "Rule", "Verdict", "evaluate"]

Verdict = Literal["strong", "tradeoff", "poor"]
Judge = Literal["load", "overhead", "dispatch"]

_VERDICTS: tuple[Verdict, ...] = ("strong", "tradeoff", "poor")

# Constants of the engine: measured by `make bench-engine`, or taken from its code. docs/fit.md says which.
_CONTENTION, _COMMIT_MS, _OP_MS = 0.3, 0.4, 0.015
_HEAD_BYTES, _RECORD_BYTES, _OP_BYTES = 18_432, 110, 100
_SPILL_BYTES, _TAIL_BYTES, _SEGMENTS = 114_688, 32_768, 64
_MAX_OPS, _MAX_BYTES, _MIB = 4096, 8_388_608, 1_048_576
_POLL_MIN_MS, _POLL_MAX_MS = 200, 5000
_LOSS, _GAPS, _GATHER, _GATHER_MS = 2.5, 0.25, 0.15, 10
_SQS_CHUNK, _SQS_POLL_S = 65_536, 20
_MONTH_S = 2_628_000


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
        found: list[tuple[str, str]] = []
        for entry in fields(self):
            name, rule = entry.name, cast(Rule, entry.metadata["rule"])
            value: object = getattr(self, name)
            if not isinstance(value, (int, float)) or not math.isfinite(value):
                found.append((name, "give a number"))
            elif rule.above and value <= rule.least:
                found.append((name, f"more than {amount(rule.least)}"))
            elif not rule.least <= value <= rule.most:
                found.append((name, f"{amount(rule.least)} to {amount(rule.most)}"))
            elif rule.whole and value != int(value):
                found.append((name, "a whole number"))
        if not found and self.latency_min_ms > self.latency_ms:
            found.append(("latency_min_ms", "not over the typical latency"))
        if not found and self.latency_p99_ms < self.latency_ms:
            found.append(("latency_p99_ms", "not under the typical latency"))
        return found


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
    i = replace(inputs or Inputs(), **options)
    problems = i.problems()
    if problems:
        raise Invalid("; ".join(f"{name}: {message}" for name, message in problems))
    more = replace(i, arrival=10 * i.arrival, producers=10 * i.producers, consumers=10 * i.consumers)
    return _evaluate(i, _evaluate(more, None))


def _evaluate(i: Inputs, tenfold: Fit | None) -> Fit:
    engine = _engine(i)
    return Fit(plain=_plain(i), engine=engine, month=_month(i, engine), tenfold=tenfold)


def _penalty(writers: float) -> float:
    return 1 + _CONTENTION * (1 - 1 / writers)


def _part(a: float, b: float) -> float:
    return 0.0 if a == 0 else a / (a + b)


def _busy(x: float) -> float:
    return x / (x + math.exp(-x))


def _plain(i: Inputs) -> Plain:
    penalty = _penalty(1 if i.broker else i.writers)
    penalised = i.latency_ms * penalty
    queue_ms = (i.mutations / i.batch) * penalised
    load = (i.arrival * queue_ms) / 1000
    dispatch_ms = 1.5 * penalised + (load / (1 - load)) * queue_ms if load < 1 else math.inf
    capacity = 1000 / queue_ms if queue_ms else math.inf
    overhead = _part(queue_ms, i.work_ms)

    def change(by: Judge | None) -> tuple[str, float | None]:
        if by == "load":
            return "batch", (i.batch * load) / 0.7
        if by == "overhead":
            return "work", 19 * queue_ms
        if by == "dispatch":
            return "budget", 2 * dispatch_ms
        return ("arrival", 0.7 * capacity) if math.isfinite(capacity) else ("nothing", None)

    return Plain(
        penalty=penalty,
        queue_ms=queue_ms,
        capacity=capacity,
        overhead=overhead,
        load=load,
        puts_per_job=i.mutations / i.batch,
        dispatch_ms=dispatch_ms,
        **_judge(load, overhead, dispatch_ms, i.budget_ms, change),
    )


def _engine(i: Inputs) -> Engine:
    w = 1 if i.broker else i.writers
    hop = i.broker_ms if i.broker else 0
    attempts = 1 + i.retries
    extensions = attempts * math.floor((3 * i.work_ms) / i.lease_ms)
    mutations = i.mutations + 2 * i.retries + extensions
    most = _penalty(w)

    # Time of a commit: a fixed part, a part per op, and a segment before it if the delta does not fit into HEAD.
    op_bytes = _OP_BYTES + i.payload / mutations
    fixed = i.latency_ms + _COMMIT_MS + (i.per_mib_ms * (_HEAD_BYTES + _RECORD_BYTES)) / _MIB
    per_op = _OP_MS + (i.per_mib_ms * op_bytes) / _MIB
    interval = max(i.commit_interval_ms, 1000 / i.writes_per_s if i.writes_per_s > 0 else 0)

    def spills(ops: float) -> bool:
        return _RECORD_BYTES + ops * op_bytes > _SPILL_BYTES

    def commit(ops: float) -> float:
        return fixed + per_op * ops + (i.latency_ms if spills(ops) else 0)

    # The most ops a commit can carry, which gives the capacity.
    most_ops = max(1.0, min(_MAX_OPS, _MAX_BYTES / op_bytes))
    calls = mutations - extensions - 1
    jobs = min(i.producers, i.consumers / calls) if calls > 0 else i.producers
    caller_ops = max(1.0, (jobs * mutations) / w)
    batch_max = min(most_ops, caller_ops)
    full_cycle = max(commit(batch_max) * most, interval)
    capacity = (1000 * batch_max) / (mutations * full_cycle)
    load = i.arrival / capacity

    # The batch: the ops that arrive during one cycle.
    rho = min(load, 1.0)
    work = attempts * i.work_ms
    waiting = 1 - min(1.0, (i.arrival * work) / (1000 * i.consumers)) ** i.consumers
    gap = 1000 / i.arrival if i.arrival > 0 else math.inf
    poll_ms = min(_POLL_MAX_MS, _POLL_MIN_MS + gap / 2) if w > 1 else _POLL_MAX_MS
    own = (i.arrival * mutations) / 1000 / w
    shown = own / (2 / poll_ms + own) if w > 1 else 1
    alone = mutations - (0 if i.mutations < 2 else waiting * shown)
    near = _busy((i.arrival * alone * fixed) / 1000) if load < 1 else 1.0
    stale = 1 - (1 - near) / alone
    tries = 1 + (1 - 1 / w) * stale * (1 + (w / 2 - 1) * near) * (1 - _GAPS * near)
    lost = 1 + _LOSS * (tries - 1)
    turns = 1 + (w - 1) * near
    events = (i.arrival * alone) / 1000 / w
    ops = events * (mutations / alone)

    def gather(ms: float) -> float:
        return min(_GATHER * ms, _GATHER_MS)

    def during(ms: float) -> float:
        return events * max((ms * lost + gather(ms)) / (1 - ops * per_op * lost), interval * turns)

    batch, busy, nothing = batch_max, 1.0, 0.0
    if load < 1:
        x = during(fixed)
        spilt = spills(min((x + math.exp(-x)) * (mutations / alone), batch_max))
        x = during(fixed + i.latency_ms) if spilt else x
        nothing = math.exp(-x)
        batch, busy = min((x + nothing) * (mutations / alone), batch_max), _busy(x)
    commit_ms = commit(batch) * lost
    cycle_ms = max(commit_ms + busy * gather(commit(batch)), interval * turns)
    full = (rho * rho) / (2 * (1 - rho)) if load < 1 else math.inf
    wait_ms = (busy * cycle_ms) / 2 + full * cycle_ms
    commits = mutations / batch
    commits_per_s = min(i.arrival, capacity) * commits

    # A waiter in the same process is woken at once; another process sees the job with a poll or its own next commit.
    noticed_ms = 1 / ((2 / poll_ms + commits_per_s / (1000 * w)) * max(1, w - 1))
    notice_ms = noticed_ms + i.latency_ms + commit_ms + wait_ms if w > 1 else 0
    dispatch_ms = commit_ms + wait_ms + hop + notice_ms
    dispatch_best_ms = i.latency_min_ms + _COMMIT_MS + hop

    # Time a worker loses: it waits for its acks and for its share of a claim, in a closed loop at worst.
    felt = max(0, i.mutations - 2) + 1 / i.prefetch + i.retries * (1 + 1 / i.prefetch)
    queue_ms = felt * (commit_ms + min(wait_ms, w * full_cycle) + hop)
    overhead = _part(queue_ms, work)

    upkeep = ((mutations * op_bytes + commits * _RECORD_BYTES) / _TAIL_BYTES) * (1 + 1 / _SEGMENTS)

    def change(by: Judge | None) -> tuple[str, float | None]:
        if by is None:
            return "arrival", 0.7 * capacity
        if interval > commit(batch_max) * most:
            return "store", None
        if w > 1:
            return "broker", None
        if by == "dispatch":
            return ("budget", 2 * dispatch_ms) if load < 1 else ("callers", None)
        if by == "overhead":
            return "work", (19 * queue_ms) / attempts
        return ("callers", load / 0.7) if caller_ops < most_ops else ("split", math.ceil(load / 0.7))

    judged = _judge(load, overhead, dispatch_ms, i.budget_ms, change)
    poor = {name for name, each in judged["classes"].items() if each == 2}
    instead: Literal["log", "memory", "managed", "database"] | None = None
    if "load" in poor and i.arrival > 0.9 * (1000 * most_ops) / (mutations * commit(most_ops)):
        instead = "log"
    elif "overhead" in poor and _part(felt * dispatch_best_ms, work) > 0.2:
        instead = "memory" if work < 20 else "database"
    elif "dispatch" in poor and i.budget_ms < dispatch_best_ms:
        instead = "memory" if i.budget_ms < 20 else "managed"

    return Engine(
        mutations=mutations,
        extensions=extensions,
        batch=batch,
        batch_max=batch_max,
        commit_ms=commit_ms,
        cycle_ms=cycle_ms,
        capacity=capacity,
        load=load,
        queue_ms=queue_ms,
        overhead=overhead,
        dispatch_best_ms=dispatch_best_ms,
        dispatch_ms=dispatch_ms,
        dispatch_p99_ms=dispatch_ms
        + (i.latency_p99_ms - i.latency_ms) * lost
        + (poll_ms / 2 if w > 1 else 0),
        puts_per_job=commits * tries + (commits if spills(batch) else upkeep),
        gets_per_job=commits * (tries - 1) + nothing,
        bytes_per_commit=_HEAD_BYTES + _RECORD_BYTES + batch * op_bytes,
        commits_per_s=commits_per_s,
        polls_per_s=((1000 * w) / poll_ms) * math.exp((-commits_per_s * poll_ms) / (1000 * w)),
        worker_load=(i.arrival * (work + queue_ms)) / (1000 * i.consumers),
        cold_open_ms=2 * i.latency_ms + i.file_mib * i.per_mib_ms,
        whole_file_ms=2 * i.latency_ms + 2 * i.file_mib * i.per_mib_ms,
        instead=instead,
        **judged,
    )


def _month(i: Inputs, engine: Engine) -> Month:
    done = min(i.arrival, engine.capacity)
    puts = _MONTH_S * done * engine.puts_per_job
    gets = _MONTH_S * (done * engine.gets_per_job + engine.polls_per_s)
    storage_gb = (2 * i.file_mib) / 1024
    chunks = max(1, math.ceil((i.payload * i.sqs_batch) / _SQS_CHUNK))
    per_job = ((2 + i.retries) * chunks + 1 + i.retries + engine.extensions) / i.sqs_batch
    idle = 1 - min(1.0, engine.worker_load)
    sqs_requests = _MONTH_S * (i.arrival * per_job + (idle * i.consumers) / _SQS_POLL_S)
    return Month(
        puts=puts,
        gets=gets,
        storage_gb=storage_gb,
        cost=(puts * i.price_put + gets * i.price_get) / 1e6 + storage_gb * i.price_gb,
        sqs_requests=sqs_requests,
        sqs_cost=(sqs_requests * i.price_sqs) / 1e6,
    )


_ChangeOf = Callable[[Judge | None], tuple[str, float | None]]


class _Judgement(TypedDict):
    classes: dict[Judge, int]
    verdict: Verdict
    decided_by: Judge | None
    backlog_grows: bool
    change: str
    change_value: float | None
    sentence: str


def _judge(
    load: float, overhead: float, dispatch_ms: float, budget_ms: float, change_of: _ChangeOf
) -> _Judgement:
    """Return the worst of the three classes, its judge, and the change; of equally bad ones the first."""
    classes: dict[Judge, int] = {
        "load": 0 if load < 0.7 else 1 if load <= 0.9 else 2,
        "overhead": 0 if overhead < 0.05 else 1 if overhead <= 0.2 else 2,
        "dispatch": 0 if dispatch_ms <= 0.5 * budget_ms else 1 if dispatch_ms <= budget_ms else 2,
    }
    worst = max(classes.values())
    by: Judge | None = next(judge for judge in classes if classes[judge] == worst) if worst else None
    verdict = _VERDICTS[worst]
    change, value = change_of(by)
    if by is None:
        why = "overhead, load and dispatch are all well inside their limits"
    elif by == "overhead":
        why = f"{percent(overhead)} of a worker's time goes to the queue"
    elif by == "dispatch":
        why = f"a ready job reaches a worker after {time(dispatch_ms)}, and the budget is {time(budget_ms)}"
    elif load < 1:
        why = f"the queue runs at {percent(load)} of its capacity"
    else:
        faster = "jobs arrive faster than the queue can pass them on"
        why = f"{faster} ({percent(load)} of its capacity), so the backlog grows"
    return _Judgement(
        classes=classes,
        verdict=verdict,
        decided_by=by,
        backlog_grows=load >= 1,
        change=change,
        change_value=value,
        sentence=f"{verdict.capitalize()}: {why}. {then(change, 0 if value is None else value)}",
    )
