"""The report of the pipeline: one self-contained HTML file, and its tables as CSV."""

# pyright: basic
from __future__ import annotations

import csv
import html
import io
from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from bucketq.spark import _plot
from bucketq.spark._files import Folder
from bucketq.spark._plot import amount, duration, plot
from bucketq.spark._tables import VIEWS
from bucketq.spark._verdicts import ALL, verdicts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["report"]

SHOWN = 15
"""Rows of a table in the report; the CSV file has all rows."""
HOUR_MS = 3_600_000
Row = dict[str, Any]

QUEUES = """
SELECT queue, sum(arrivals) AS arrivals, sum(completed) AS completed, sum(dead) AS dead, sum(cancelled) AS cancelled,
  sum(failures) AS failures, sum(retries) AS retries, max(arrivals) AS busiest_hour, max(throughput) AS best_throughput,
  percentile(wait_p50_ms, 0.5) AS wait_p50_ms, percentile(wait_p95_ms, 0.5) AS wait_p95_ms,
  percentile(wait_p99_ms, 0.5) AS wait_p99_ms, percentile(run_p50_ms, 0.5) AS run_p50_ms,
  percentile(run_p95_ms, 0.5) AS run_p95_ms, percentile(run_p99_ms, 0.5) AS run_p99_ms,
  sum(busy_ms) AS busy_ms, sum(payload_bytes) AS payload_bytes, min(hour) AS first, max(hour) AS last
FROM {hours} GROUP BY queue ORDER BY arrivals DESC
"""
"""Percentiles are those of a typical hour: the median of the hours."""


def report(spark: SparkSession, out: Folder, url: str, price_put: float) -> str:
    """Write ``report.html`` and the CSV files into ``out``. Returns the path of the page."""
    tables = {
        "queues": rows(spark.sql(QUEUES.format(**VIEWS))),
        "hours": rows(spark.table(VIEWS["hours"]).drop("day").orderBy("queue", "hour")),
    }
    for name in ("backlog", "workers", "groups", "errors", "commits"):
        frame = spark.read.parquet(out.at(name))
        if name in ("backlog", "workers", "commits"):
            frame = frame.orderBy("hour")
        tables[name] = rows(frame)
    for name, table in tables.items():
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, list(table[0]) if table else ["nothing"])
        writer.writeheader()
        writer.writerows(table)
        out.write(f"csv/{name}.csv", text.getvalue().encode())
    judged = verdicts(tables["queues"], tables["workers"], tables["commits"], price_put)
    out.write("report.html", shown(url, tables, judged).encode())
    return out.shown("report.html")


def rows(frame: Any) -> list[dict[str, Any]]:
    """Return the rows with times in UTC; Spark returns them in local time."""
    return [{name: utc(value) for name, value in row.asDict().items()} for row in frame.collect()]


def utc(value: Any) -> Any:
    return value.astimezone(UTC) if isinstance(value, datetime) else value


def shown(url: str, tables: dict[str, list[Row]], judged: Sequence[Row]) -> str:
    queues = tables["queues"]
    jobs = sum(row["arrivals"] for row in queues)
    named = queues[0]["queue"] if len(queues) == 1 else f"{len(queues)} queues"
    since, until = (figure(pick(row[k] for row in queues)) for pick, k in ((min, "first"), (max, "last")))
    parts = [
        f"<h1>{html.escape(url)}</h1>",
        f"<p>{jobs:,} finished jobs of {html.escape(named)}, {since} to {until}, all times UTC. Jobs that have not finished are not "
        "in these figures; a job that was requeued counts where it ended last, and one that went to a dead-letter queue in both queues.</p>",
        f'<section class="short"><h2>{html.escape(headline(judged))}</h2>{sentences(judged)}</section>',
    ]
    for title, unit, show, lines in plots(tables):
        parts.append(f"<h2>{html.escape(title)}</h2>{plot(lines, unit, show)}")
    if len(queues) > _plot.LINES:
        parts.append(f"<p>The plots show the {_plot.LINES} largest queues; the tables in csv/ have all.</p>")
    for title, name, about in (
        ("Queues", "queues", "Percentiles are those of a typical hour; csv/hours.csv has each hour."),
        ("Groups that fail and take most", "groups", "By dead jobs, then by work time."),
        ("Errors", "errors", "The first line of each, without its numbers, by jobs."),
        ("Busiest hours of workers", "workers", "utilisation 1: busy for the whole hour."),
        ("Commits and money", "commits", "One PUT per commit; segments and bases are extra."),
    ):
        table = tables[name]
        if name == "workers":
            table = sorted(table, key=lambda row: -row["busy_ms"])
        if name == "commits":
            table = [totals(table), *table[::-1]] if table else table
        parts.append(f"<h2>{title}</h2><p>{about}</p>{listing(table)}")
    parts.append("<h2>Does a queue in object storage fit?</h2>")
    parts.append(
        "<p>The verdict of the fit model on each queue as it was used, on a store with 90 ms per PUT, and which batch of a claim, "
        "lease or number of workers would change it.</p>"
    )
    parts.append(listing(judged))
    return PAGE.format(body="\n".join(parts))


def headline(judged: Sequence[Row]) -> str:
    """Return the verdict as a sentence."""
    own = [row for row in judged if row["queue"] != ALL]
    poor = [row["queue"] for row in own if row["verdict"] == "poor"]
    middling = [row["queue"] for row in own if row["verdict"] == "tradeoff"]
    if not own:
        return "There are no finished jobs to judge."
    if poor:
        return f"A queue in object storage does not suit {some(poor)}."
    if middling:
        return f"A queue in object storage works, at a price, for {some(middling)}."
    return "A queue in object storage suits this work."


def some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def sentences(judged: Sequence[Row]) -> str:
    items = "".join(
        f'<li><b>{html.escape(row["queue"])}</b> <span class="{row["verdict"]}">{row["verdict"]}</span> '
        f"{html.escape(row['why'].partition(': ')[2] or row['why'])}</li>"
        for row in judged[: _plot.LINES + 1]
    )
    return f"<ul>{items}</ul>"


def plots(tables: dict[str, list[Row]]) -> list[tuple[str, str, Callable[[float], str], list[_plot.Line]]]:
    """Return title, unit, format function and lines of each plot."""
    names = [row["queue"] for row in tables["queues"]][: _plot.LINES]
    by_queue = {name: [row for row in tables["hours"] if row["queue"] == name] for name in names}
    backlog = {name: [row for row in tables["backlog"] if row["queue"] == name] for name in names}

    def of(column: str, source: dict[str, list[Row]] = by_queue) -> list[_plot.Line]:
        return [
            (name, [(row["hour"], float(row[column])) for row in rows if row[column] is not None])
            for name, rows in source.items()
        ]

    def most(lines: Sequence[_plot.Line], show: Callable[[float], str]) -> str:
        peaks = [(value, at, name) for name, points in lines for at, value in points]
        if not peaks:
            return "nothing"
        value, at, name = max(peaks)
        return (
            f"at most {show(value)} ({name + ', ' if len(lines) > 1 else ''}{at:%d %b %H:%M})"
            if value
            else "none"
        )

    busy: dict[datetime, float] = defaultdict(float)
    for row in tables["workers"]:
        busy[row["hour"]] += row["busy_ms"] / HOUR_MS
    workers: list[_plot.Line] = [("busy workers", sorted(busy.items()))]
    commits: list[_plot.Line] = [
        ("ops per commit", [(row["hour"], float(row["ops_per_commit"])) for row in tables["commits"]])
    ]
    made: list[tuple[str, str, Callable[[float], str], list[_plot.Line]]] = []
    for title, unit, show, lines in (
        ("Arrivals", "jobs per hour", amount, of("arrivals")),
        ("Completed", "jobs per second", amount, of("throughput")),
        ("Retries", "retries per hour", amount, of("retries")),
        ("Dead", "jobs per hour", amount, of("dead")),
        ("Waiting, 95th percentile", "time", duration, of("wait_p95_ms")),
        ("Running, 95th percentile", "time", duration, of("run_p95_ms")),
        ("Backlog at the end of the hour", "jobs", amount, of("backlog", backlog)),
        ("Workers at work", "workers", amount, workers),
        ("Ops per commit", "ops", amount, commits),
    ):
        made.append((f"{title}: {most(lines, show)}", unit, show, lines))
    return made


def totals(commits: Sequence[Row]) -> Row:
    sums = {name: sum(row[name] for row in commits) for name in ("commits", "ops", "usd")}
    jobs = sum(row["commits"] / row["puts_per_job"] for row in commits if row["puts_per_job"])
    return {
        "hour": "all",
        "commits": sums["commits"],
        "ops": sums["ops"],
        "ops_per_commit": sums["ops"] / max(sums["commits"], 1),
        "puts_per_job": sums["commits"] / jobs if jobs else None,
        "usd": sums["usd"],
    }


def listing(table: Sequence[Row]) -> str:
    if not table:
        return '<p class="none">Nothing to show.</p>'
    head = "".join(f"<th>{html.escape(name.replace('_', ' '))}</th>" for name in table[0])
    body = "".join("<tr>" + "".join(map(cell, row.values())) + "</tr>" for row in table[:SHOWN])
    more = f"<p>{len(table) - SHOWN:,} more rows are in csv/.</p>" if len(table) > SHOWN else ""
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{more}'


def cell(value: Any) -> str:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    kind = ' class="n"' if number else (' class="t"' if isinstance(value, str) and len(value) > 40 else "")
    return f"<td{kind}>{html.escape(figure(value))}</td>"


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
:root{{color-scheme:light dark;--fg:#1f2937;--dim:#5b6472;--bg:#fff;--soft:#f5f6f8;--grid:#dfe3e8;
--c0:#2563eb;--c1:#d9480f;--c2:#087f5b;--c3:#9c36b5;--c4:#a16207;--c5:#5b6472}}
@media(prefers-color-scheme:dark){{:root{{--fg:#e5e7eb;--dim:#a3acb9;--bg:#14171c;--soft:#1d2128;--grid:#343b46;
--c0:#7aa7ff;--c1:#ff9a62;--c2:#4fd1a5;--c3:#d9a0ec;--c4:#e8c35a;--c5:#a3acb9}}}}
body{{font:15px/1.5 system-ui,sans-serif;max-width:920px;margin:2em auto;padding:0 1em;color:var(--fg);background:var(--bg)}}
h1{{font-size:1.3em;overflow-wrap:anywhere}}h2{{margin-top:2em;font-size:1.05em}}
.short{{background:var(--soft);padding:.2em 1.2em .6em;border-radius:8px}}.short h2{{margin-top:.8em;font-size:1.2em}}.short ul{{padding-left:1.1em}}
.strong{{color:var(--c2)}}.tradeoff{{color:var(--c4)}}.poor{{color:var(--c1)}}.strong,.tradeoff,.poor{{font-weight:600}}
.wide{{overflow-x:auto}}svg{{display:block;width:100%;min-width:600px;height:auto}}figure{{margin:0}}
svg text{{font-size:12px;fill:var(--dim)}}.y{{text-anchor:end}}.x{{text-anchor:middle}}.grid{{stroke:var(--grid)}}
polyline{{fill:none;stroke-width:1.6;stroke-linejoin:round}}
polyline.c0{{stroke:var(--c0)}}polyline.c1{{stroke:var(--c1)}}polyline.c2{{stroke:var(--c2)}}
polyline.c3{{stroke:var(--c3)}}polyline.c4{{stroke:var(--c4)}}polyline.c5{{stroke:var(--c5)}}
circle.c0{{fill:var(--c0)}}circle.c1{{fill:var(--c1)}}circle.c2{{fill:var(--c2)}}
circle.c3{{fill:var(--c3)}}circle.c4{{fill:var(--c4)}}circle.c5{{fill:var(--c5)}}
i.c0{{background:var(--c0)}}i.c1{{background:var(--c1)}}i.c2{{background:var(--c2)}}
i.c3{{background:var(--c3)}}i.c4{{background:var(--c4)}}i.c5{{background:var(--c5)}}
.key{{margin-right:1.2em;font-size:13px;white-space:nowrap}}.key i{{display:inline-block;width:1.1em;height:3px;margin-right:.4em;vertical-align:middle}}
table{{border-collapse:collapse;font-size:13px}}th,td{{text-align:left;vertical-align:top;padding:.25em .7em;border-bottom:1px solid var(--grid);white-space:nowrap}}
th{{white-space:normal;vertical-align:bottom}}.n{{text-align:right;font-variant-numeric:tabular-nums}}.t{{white-space:normal;min-width:22em}}p,.none{{color:var(--dim)}}
</style></head><body>
{body}
</body></html>
"""
