"""The figures of a soak: how they are computed from its samples, and how flat each of them has to be. See `flat.py`.

Figures that would show a leak must certainly be flat: memory, threads and descriptors, the file, the bucket, requests
per job. Times of calls depend on the machine's other work, so no run can promise that they are flat: they must not
certainly grow. Whether they are flat is reported too.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from itertools import pairwise

from flat import Tolerance, Trend, trend

Row = dict[str, float]

OBJECTS = ("head", "base", "segment", "archive", "other")
# The part in which sizes fill up: the file to its retention, the bucket to its grace, memory with recent commits.
FILLING = 1 / 3
# Tolerances, as a share of the level: of values in use; of memory reserved by the system, of values that
# come and go in cycles, and of usual times; and of rare times.
STEADY, SWINGING, RARE = 0.25, 0.5, 1.0
TIMES = ("enqueue_", "ack_", "share_over_")


def counted(rows: list[Row]) -> list[Row]:
    """Return the samples that are judged."""
    begin = rows[-1]["t"] * FILLING
    return [row for row in rows if row["t"] >= begin]


def trends(rows: list[Row], rate: float) -> dict[str, Trend]:
    """Return every trend after the filling, of a run at this number of jobs a second."""
    names = [key.removeprefix("rss_mb_") for key in rows[0] if key.startswith("rss_mb_")]
    judged = counted(rows)
    before = rows[rows.index(judged[0]) - 1]
    times = [row["t"] for row in judged]
    found: dict[str, Trend] = {}

    def add(
        name: str,
        value: Callable[[Row], float],
        share: float,
        least: float,
        level: Callable[[Sequence[float]], float] = statistics.fmean,
    ) -> None:
        found[name] = trend(times, [value(row) for row in judged], Tolerance(share, least), level)

    # Making a base or rebuilding a state takes or frees megabytes for a moment.
    usual = statistics.median
    for one in names:
        add(f"rss_mb_{one}", lambda r, n=one: r[f"rss_mb_{n}"], SWINGING, 1, usual)
        # Only some processes have an allocator that reports it.
        if any(f"live_mb_{one}" in row for row in judged):
            add(f"live_mb_{one}", lambda r, n=one: r[f"live_mb_{n}"], STEADY, 1, usual)
        add(f"threads_{one}", lambda r, n=one: r[f"threads_{n}"], STEADY, 2, usual)
        add(f"descriptors_{one}", lambda r, n=one: r[f"descriptors_{n}"], SWINGING, 4, usual)
    add("pages", lambda r: r["pages"], STEADY, 10)
    add("backlog", lambda r: r["backlog"], SWINGING, rate)
    for kind in OBJECTS:
        add(f"objects_{kind}", lambda r, k=kind: r[f"objects_{k}"], SWINGING, 2)
        add(f"bytes_{kind}", lambda r, k=kind: r[f"bytes_{k}"], SWINGING, 64 * 1024)
    for what in ("puts", "gets", "lists", "deletes"):
        per_job = rates([before, *judged], what)
        found[f"{what}_per_job"] = trend(times, per_job, Tolerance(SWINGING, 0.02))
    for part, share in (("p50", SWINGING), ("p99", RARE)):
        for op in ("enqueue", "ack"):
            add(f"{op}_{part}_ms", lambda r, o=op, p=part: mean(r, f"{o}_{p}_ms_", names), share, 5, usual)
    add(
        "enqueue_vs_plain_put",
        lambda r: mean(r, "enqueue_p50_ms_", names) / r["plain_put_ms"],
        SWINGING,
        1,
        usual,
    )
    # Hidden by the median: how often the slowest hundredth of the calls of some process took over a second.
    slow = [f"{op}_p99_ms_{one}" for op in ("enqueue", "ack") for one in names]
    add("share_over_1s", lambda r: float(any(r.get(key, 0.0) > 1000 for key in slow)), RARE, 0.25)
    return found


def mean(row: Row, figure: str, names: Sequence[str]) -> float:
    return statistics.fmean(row.get(f"{figure}{one}", 0.0) for one in names)


def rates(rows: list[Row], what: str) -> list[float]:
    """Return requests a second over jobs a second, from each row to the next; the jobs are those of the whole time,
    since a sample may have few."""
    jobs_s = (rows[-1]["jobs"] - rows[0]["jobs"]) / (rows[-1]["t"] - rows[0]["t"])
    return [(b[what] - a[what]) / (b["t"] - a["t"]) / max(jobs_s, 1e-9) for a, b in pairwise(rows)]


def failed(found: dict[str, Trend]) -> list[str]:
    """Return the figures that should be flat and are not."""
    return [name for name, one in found.items() if one.grows or (one.vague and not name.startswith(TIMES))]


def table(found: dict[str, Trend]) -> str:
    lines = [f"{'after a third of the run':26} {'level':>12} {'an hour':>12} {'+-':>10} {'a day':>9}"]
    for name, one in found.items():
        verdict = "" if one.flat else "  GROWS" if one.grows else "  CANNOT TELL"
        numbers = f"{one.level:12.2f} {one.per_hour:12.2f} {one.error * 3600:10.2f} {one.day_share:8.0%}"
        lines.append(f"{name:26} {numbers}{verdict}")
    return "\n".join(lines)


def told(rows: list[Row], found: dict[str, Trend]) -> dict[str, object]:
    """Return the figures for the last line."""
    first, last = counted(rows)[0], rows[-1]
    jobs = last["jobs"] - first["jobs"]
    return {
        "seconds": round(last["t"]),
        "jobs": int(last["jobs"]),
        "jobs_s": round(jobs / (last["t"] - first["t"]), 2),
        "puts_per_job": round((last["puts"] - first["puts"]) / jobs, 3),
        "levels": {name: round(one.level, 3) for name, one in found.items()},
        "slopes": {f"{name}_per_hour": round(one.per_hour, 3) for name, one in found.items()},
        "uncertainty": {f"{name}_per_hour": round(one.error * 3600, 3) for name, one in found.items()},
        "flat": {name: one.flat for name, one in found.items()},
        "not_flat": [name for name, one in found.items() if not one.flat],
        "failed": failed(found),
    }
