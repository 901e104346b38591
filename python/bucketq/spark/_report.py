"""The report of the pipeline: one HTML file with everything in it, and its tables as CSV."""

# pyright: basic
from __future__ import annotations

import csv
import html
import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bucketq.fit import Inputs, evaluate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["report", "verdicts"]

SHOWN = 25
"""Rows of a table in the report; the CSV has all."""
WIDE, HIGH = 760, 160
POINTS = 400
COLOURS = ("#2563eb", "#dc2626", "#059669", "#d97706", "#7c3aed")

QUEUES = """
SELECT queue, sum(arrivals) AS arrivals, sum(completed) AS completed, sum(dead) AS dead, sum(cancelled) AS cancelled,
  sum(retries) AS retries, sum(busy_ms) AS busy_ms, sum(payload_bytes) AS payload_bytes, min(hour) AS first,
  max(hour) AS last, max(arrivals) AS busiest_hour,
  percentile(wait_p95_ms, 0.5) AS wait_p95_ms, percentile(run_p50_ms, 0.5) AS run_p50_ms,
  percentile(run_p95_ms, 0.5) AS run_p95_ms
FROM hours GROUP BY queue ORDER BY arrivals DESC
"""


def report(spark: SparkSession, out: Path, url: str, price_put: float) -> Path:
    """Write ``report.html`` and the CSV files into ``out``."""
    tables = {
        "queues": rows(spark.sql(QUEUES)),
        "hours": rows(spark.table("hours").drop("day").orderBy("queue", "hour")),
    }
    for name in ("backlog", "workers", "groups", "errors", "commits"):
        frame = spark.read.parquet(str(out / name))
        if name in ("backlog", "workers", "commits"):
            frame = frame.orderBy("hour")
        tables[name] = rows(frame)
    folder = out / "csv"
    folder.mkdir(exist_ok=True)
    for name, table in tables.items():
        with (folder / f"{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, list(table[0]) if table else ["nothing"])
            writer.writeheader()
            writer.writerows(table)
    judged = verdicts(tables["queues"], tables["workers"], tables["commits"], price_put)
    page = out / "report.html"
    fresh = page.with_suffix(".new")
    fresh.write_text(shown(url, tables, judged), encoding="utf-8")
    fresh.replace(page)
    return page


def rows(frame: Any) -> list[dict[str, Any]]:
    """In UTC: Spark hands over times as the clock on the wall shows them."""
    return [{name: utc(value) for name, value in row.asDict().items()} for row in frame.collect()]


def utc(value: Any) -> Any:
    return value.astimezone(UTC) if isinstance(value, datetime) else value


def verdicts(
    queues: Sequence[dict[str, Any]],
    workers: Sequence[dict[str, Any]],
    commits: Sequence[dict[str, Any]],
    price_put: float,
) -> list[dict[str, Any]]:
    """What the fit model says of each queue as it was used, and what would change it."""
    ops = sum(row["ops"] for row in commits)
    written = sum(row["commits"] for row in commits)
    names = {row["worker"] for row in workers}
    judged: list[dict[str, Any]] = []
    for row in queues:
        ended = row["completed"] + row["dead"]
        span = max((row["last"] - row["first"]).total_seconds() + 3600, 3600)
        given = {
            "arrival": row["arrivals"] / span,
            "work_ms": row["busy_ms"] / ended if ended else 0,
            "retries": min(row["retries"] / ended, 100) if ended else 0,
            "payload": int(row["payload_bytes"] / ended) if ended else 0,
            "consumers": max(len(names), 1),
            "batch": min(max(ops / written, 1), 4096) if written else 1,
            "price_put": price_put,
        }
        fit = evaluate(Inputs(**given))
        busy = row["busiest_hour"] / 3600
        peak = evaluate(Inputs(**(given | {"arrival": busy})))
        judged.append(
            {
                "queue": row["queue"],
                "verdict": fit.engine.verdict,
                "why": fit.engine.sentence,
                "change": fit.engine.change,
                "in_the_busiest_hour": peak.engine.verdict,
                "change_then": peak.engine.change,
                "jobs_per_second": given["arrival"],
                "work_ms": given["work_ms"],
                "workers_busy": given["arrival"] * given["work_ms"] * (1 + given["retries"]) / 1000,
                "usd_a_month": fit.month.cost,
            }
        )
    return judged


def shown(url: str, tables: dict[str, list[dict[str, Any]]], judged: list[dict[str, Any]]) -> str:
    hours = tables["hours"]
    names = [row["queue"] for row in tables["queues"]][: len(COLOURS)]
    parts = [
        f"<h1>Jobs of {html.escape(url)}</h1>",
        f"<p>{sum(r['arrivals'] for r in tables['queues']):,} finished jobs in {len(tables['queues'])} queues. Times are UTC. "
        "Jobs that have not finished are not in these figures; a job that was reopened counts where it ended at last.</p>",
    ]
    for title, column, table in (
        ("Arrivals an hour", "arrivals", hours),
        ("Dead an hour", "dead", hours),
        ("Waiting, 95th percentile, ms", "wait_p95_ms", hours),
        ("Running, 95th percentile, ms", "run_p95_ms", hours),
        ("Backlog", "backlog", tables["backlog"]),
    ):
        lines = [
            (
                name,
                [
                    (row["hour"], row[column])
                    for row in table
                    if row["queue"] == name and row[column] is not None
                ],
            )
            for name in names
        ]
        parts.append(f"<h2>{title}</h2>{plot(lines)}")
    commits = [("ops a commit", [(row["hour"], row["ops_per_commit"]) for row in tables["commits"]])]
    parts.append(f"<h2>Ops a commit</h2>{plot(commits)}")
    for title, name in (
        ("Queues", "queues"),
        ("Groups that fail and take most", "groups"),
        ("Errors", "errors"),
        ("Workers", "workers"),
        ("Commits and money", "commits"),
    ):
        parts.append(f"<h2>{title}</h2>{listing(tables[name])}")
    parts.append("<h2>Does a queue in object storage fit?</h2>")
    parts.append(
        "<p>What the fit model says of each queue as it was really used, and what would change it.</p>"
    )
    parts.append(listing(judged))
    return PAGE.format(body="\n".join(parts))


def plot(lines: Iterable[tuple[str, list[tuple[datetime, float]]]]) -> str:
    """Lines over time as SVG."""
    lines = [(name, thinned(points)) for name, points in lines if points]
    if not lines:
        return "<p>Nothing to show.</p>"
    times = [at.timestamp() for _, points in lines for at, _ in points]
    first, span = min(times), max(max(times) - min(times), 1)
    top = max(max(value for _, value in points) for _, points in lines) or 1
    drawn = [
        f'<line x1="0" x2="{WIDE}" y1="{HIGH - HIGH * k / 4}" y2="{HIGH - HIGH * k / 4}" stroke="#ddd"/>'
        for k in range(5)
    ]
    for (name, points), colour in zip(lines, COLOURS, strict=False):
        path = " ".join(
            f"{(at.timestamp() - first) / span * WIDE:.1f},{HIGH - max(value, 0) / top * HIGH:.1f}"
            for at, value in points
        )
        drawn.append(
            f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{path}"><title>{html.escape(name)}</title></polyline>'
        )
    names = " ".join(
        f'<span style="color:{colour}">&#9632; {html.escape(name)}</span>'
        for (name, _), colour in zip(lines, COLOURS, strict=False)
    )
    begin, end = (datetime.fromtimestamp(t, UTC).strftime("%Y-%m-%d %H:%M") for t in (first, first + span))
    return (
        f'<figure><svg viewBox="0 0 {WIDE} {HIGH}" role="img">{"".join(drawn)}</svg>'
        f"<figcaption>{begin} to {end}, top line {figure(top)}. {names}</figcaption></figure>"
    )


def thinned(points: list[tuple[datetime, float]]) -> list[tuple[datetime, float]]:
    """At most so many points, each the largest of its stretch: peaks stay."""
    step = math.ceil(len(points) / POINTS)
    return [max(points[i : i + step], key=lambda p: p[1]) for i in range(0, len(points), max(step, 1))]


def listing(table: Sequence[dict[str, Any]]) -> str:
    if not table:
        return "<p>Nothing to show.</p>"
    head = "".join(f"<th>{html.escape(name.replace('_', ' '))}</th>" for name in table[0])
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(figure(value))}</td>" for value in row.values()) + "</tr>"
        for row in table[:SHOWN]
    )
    more = f"<p>{len(table) - SHOWN} rows more are in the CSV.</p>" if len(table) > SHOWN else ""
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{more}'


def figure(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return str(value)
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
        case datetime():
            return value.strftime("%Y-%m-%d %H:%M")
        case _:
            return str(value)


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>bucketq: jobs</title>
<style>
body{{font:15px/1.5 system-ui,sans-serif;max-width:900px;margin:2em auto;padding:0 1em;color:#1f2937}}
h2{{margin-top:2em;font-size:1.1em}}svg{{width:100%;height:auto;background:#fafafa}}
table{{border-collapse:collapse;font-size:13px}}th,td{{text-align:left;padding:.2em .7em;border-bottom:1px solid #eee}}
.wide{{overflow-x:auto}}figure{{margin:0}}figcaption{{font-size:13px;color:#4b5563}}
</style></head><body>
{body}
</body></html>
"""
