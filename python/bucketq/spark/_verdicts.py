"""Verdicts of the fit model on queues as they were used, and changes that would alter them. No I/O."""

# pyright: basic
from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from bucketq.fit import Fit, Inputs, evaluate

__all__ = ["ALL", "verdicts"]

ALL = "all together"
"""All queues together, because they share one file and its commits."""
RANK = {"strong": 0, "tradeoff": 1, "poor": 2}
BATCHES = (1, 20, 50, 100, 200, 500, 1000)
LEASES = (30, 120, 300, 900, 3600)
TIMES = (2, 4, 8, 16)
Row = dict[str, Any]


def verdicts(
    queues: Sequence[Row], workers: Sequence[Row], commits: Sequence[Row], price_put: float
) -> list[Row]:
    """Return one row per queue, after a row for all of them if there are several."""
    ops, written = sum(row["ops"] for row in commits), sum(row["commits"] for row in commits)
    batch = min(max(ops / written, 1), 4096) if written else 1
    # The hour with the most worker names: names over all time would count each restart of a worker.
    most = max(Counter(row["hour"] for row in workers).values(), default=1)
    rows = list(queues)
    if len(rows) > 1:
        rows.insert(0, together(rows))
    return [judged(row, most, batch, price_put) for row in rows]


def together(queues: Sequence[Row]) -> Row:
    names = ("arrivals", "completed", "dead", "retries", "busy_ms", "payload_bytes", "busiest_hour")
    sums = {name: sum(row[name] for row in queues) for name in names}
    span = {"first": min(row["first"] for row in queues), "last": max(row["last"] for row in queues)}
    return {"queue": ALL} | sums | span


def judged(row: Row, workers: int, batch: float, price_put: float) -> Row:
    ended = row["completed"] + row["dead"]
    span = max((row["last"] - row["first"]).total_seconds() + 3600, 3600)
    given: dict[str, Any] = {
        "arrival": row["arrivals"] / span,
        "work_ms": min(row["busy_ms"] / ended, 86_400_000) if ended else 0,
        "retries": min(row["retries"] / ended, 100) if ended else 0,
        "payload": int(row["payload_bytes"] / ended) if ended else 0,
        "consumers": workers,
        "producers": max(workers, 1),
        "batch": batch,
        "price_put": price_put,
    }
    fit = evaluate(Inputs(**given))
    busy = given | {"arrival": row["busiest_hour"] / 3600}
    peak = evaluate(Inputs(**busy))
    return {
        "queue": row["queue"],
        "verdict": fit.engine.verdict,
        "why": fit.engine.sentence,
        "batch, lease or workers": levers(given, fit),
        "in the busiest hour": peak.engine.verdict,
        "why then": peak.engine.sentence,
        "jobs per second": given["arrival"],
        "work ms": given["work_ms"],
        "workers seen": workers,
        "workers busy": given["arrival"] * given["work_ms"] * (1 + given["retries"]) / 1000,
        "PUTs per job": fit.engine.puts_per_job,
        "usd per month": fit.month.cost,
    }


def levers(given: dict[str, Any], fit: Fit) -> str:
    """Return the smallest change of batch, lease or workers, each alone, that improves the verdict or saves cost."""
    now = RANK[fit.engine.verdict]
    told: list[str] = []
    if now == 0:
        need = max(math.ceil(given["arrival"] * given["work_ms"] * (1 + given["retries"]) / 700), 1)
        if need < given["consumers"]:
            fewer = evaluate(Inputs(**(given | {"consumers": need}))).engine.verdict
            if fewer == "strong":
                told.append(f"{need} workers suffice")
        many = evaluate(Inputs(**(given | {"prefetch": 100, "mutations": 2.01}))).engine
        if many.puts_per_job < 0.8 * fit.engine.puts_per_job:
            told.append(
                f"claiming 100 at once takes {many.puts_per_job:.2g} PUTs per job, not {fit.engine.puts_per_job:.2g}"
            )
        return "; ".join(told) or "no change needed"
    for name, values, words in (
        ("prefetch", BATCHES, "claims of {:,} jobs at once"),
        ("lease_ms", [1000 * s for s in LEASES], "a lease of {:,} s"),
        ("consumers", [n * given["consumers"] for n in TIMES], "{:,} workers"),
    ):
        for value in values:
            found = evaluate(Inputs(**(given | {name: value}))).engine.verdict
            if RANK[found] < now:
                shown = value // 1000 if name == "lease_ms" else value
                told.append(f"{words.format(shown)}: {found}")
                break
    tried = f"no batch up to {BATCHES[-1]:,}, no lease up to an hour, not even {TIMES[-1]} times the workers change it"
    return "; ".join(told) or tried
