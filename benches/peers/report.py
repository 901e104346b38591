"""The section of docs/benchmarks.md that `make bench-peers` writes, and its two plots."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from figures import LATENCIES, OURS, Figures

BEGIN, END = "<!-- bench-peers: begin -->", "<!-- bench-peers: end -->"
WIDTH, LEFT, BAR = 720, 180, 22
# What stands in the tables for each configuration.
WORDS = {
    "bucketq-rust": "bucketq, Rust",
    "bucketq": "bucketq, blocking",
    "bucketq-aio": "bucketq, asyncio",
    "bucketq-local": "bucketq, Local mode, sync every 16",
    "jqueue-direct": "jqueue Direct",
    "jqueue-broker": "jqueue Broker",
    "jqueue-reused": "jqueue Broker, its client reused",
    "pgqrs-durable": "pgqrs on S3, Durable",
    "pgqrs-local": "pgqrs on S3, Local, sync every 16",
    "redis-message-queue": "redis-message-queue (Redis, fsync always)",
    "huey": "huey (SqliteHuey, local disk)",
    "persist-queue": "persist-queue (local disk)",
    "litequeue": "litequeue (local disk)",
}


def number(value: float | None, digits: int = 1) -> str:
    if value is None:
        return ""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.{digits}f}"


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def spread(f: Figures, *cell: Any) -> str:
    """The slowest and the fastest round."""
    seen = f.spread(*cell)
    if not seen:
        return "did not end" if f.cells[cell] else ""
    return number(seen[0]) if len(seen) == 1 else f"{number(seen[0])} to {number(seen[-1])}"


def by_size(f: Figures, server: str) -> str:
    """Jobs a second."""
    columns = [
        (latency, *size) for latency in LATENCIES for size in ((1, 1, 0), (8, 1, 0), (64, 1, 0), (1, 4, 0))
    ]
    columns += [(latency, 64, 1, backlog) for latency in LATENCIES for backlog in (1_000, 10_000)]
    columns = [c for c in columns if any(f.cells[peer, *c] for peer in f.peers)]
    head = [f"jobs/s on {server}"]
    for latency, callers, processes, backlog in columns:
        what = f"4 x {callers}" if processes > 1 else str(callers)
        head.append(f"{latency} ms, {what}" + (f", backlog {backlog:,}" if backlog else ""))
    rows = [[WORDS.get(peer, peer), *(spread(f, peer, *c) for c in columns)] for peer in f.peers]
    return table(head, rows)


def latencies(f: Figures) -> str:
    head = [
        "one caller, ms (p50 / p99)",
        *(f"{latency} ms, {op}" for latency in LATENCIES for op in ("enqueue", "claim", "ack")),
    ]
    rows = []
    for peer in f.peers:
        line = [WORDS.get(peer, peer)]
        for latency in LATENCIES:
            for op in ("enqueue", "claim", "ack"):
                p50, p99 = (f.ms(op, q, peer, latency, 1) for q in ("p50", "p99"))
                line.append("" if p50 is None else f"{number(p50)} / {number(p99)}")
        rows.append(line)
    return table(head, rows)


def requests(f: Figures) -> str:
    """What each job asks of the store, and what waiting does."""
    kinds = ("PUT", "GET", "LIST", "HEAD", "DELETE", "POST")
    head = ["per job at 25 ms", *(f"{kind}, {callers} callers" for callers in (1, 64) for kind in kinds[:3])]
    head += [
        "others, 64",
        *(f"KiB, 64, backlog {backlog:,}" for backlog in (0, 1_000, 10_000)),
        "requests a minute while waiting",
    ]
    rows = []
    for peer in f.peers:
        if not any(row["server"] for row in f.rows if row["peer"] == peer):
            continue
        line = [WORDS.get(peer, peer)]
        line += [number(f.per_job(kind, peer, 25, callers), 2) for callers in (1, 64) for kind in kinds[:3]]
        others = [f.per_job(kind, peer, 25, 64) for kind in kinds[3:]]
        line.append(number(sum(o for o in others if o), 2) if f.get(peer, 25, 64) else "")
        for backlog in (0, 1_000, 10_000):
            size = f.per_job("bytes", peer, 25, 64, 1, backlog)
            line.append(number(None if size is None else size / 1024))
        waits = [row["waiting"] for row in f.get(peer, 25, 1) if "waiting" in row]
        line.append(
            ", ".join(f"{number(count, 0)} {kind}" for kind, count in waits[0].items()) if waits else ""
        )
        rows.append(line)
    return table(head, rows)


def harm(told: dict[str, Any], peers: list[str]) -> str:
    head = ["in all cells", "errors callers saw", "jobs lost", "handed out twice", "cells that did not end"]
    rows = [
        [
            WORDS.get(p, p),
            *(str(told[what].get(p, 0)) for what in ("caller_errors", "lost", "doubled", "failed")),
        ]
        for p in peers
    ]
    return table(head, rows)


def winners(f: Figures) -> str:
    """Where a peer is ahead, said outright."""
    lines = []
    cells = sorted({key[1:] for key in f.cells})
    for cell in cells:
        best = max(((f.jobs_s(peer, *cell) or 0, peer) for peer in f.peers), default=(0, ""))
        ours = max(
            ((f.jobs_s(peer, *cell) or 0, peer) for peer in OURS if peer != "bucketq-local"), default=(0, "")
        )
        if best[1] and best[1] not in OURS and best[0] > ours[0]:
            latency, callers, processes, backlog = cell
            where = f"{latency} ms, {callers} callers, {processes} processes, backlog {backlog:,}"
            lines.append(
                f"- {where}: {WORDS.get(best[1], best[1])} with {number(best[0])} jobs/s, bucketq {number(ours[0])}."
            )
    return "\n".join(lines) or "- in no cell."


def section(measured: dict[str, Any], told: dict[str, Any]) -> str:
    f = Figures(measured)
    machine = ", ".join(f"{name} {value}" for name, value in measured["machine"].items())
    parts = [
        "## Beside what people would use instead\n",
        "Written by `make bench-peers`. Each job of 200 bytes is enqueued, claimed and acked, in a closed loop; "
        "configurations take turns within each round. Requests and bytes are counted by a proxy outside the libraries; "
        "the latency is toxiproxy's, half of it each way. Queues on a local disk do another job: nobody else can reach "
        "them. Two figures are the slowest and the fastest of the rounds; the machine is small, so trust the ratios.\n",
        f"{measured['rounds']} rounds of {measured['seconds']} s a cell; {machine}.\n",
        ratios(f, told),
        "![jobs a second with 64 callers](peers-64.svg)\n",
    ]
    parts += [by_size(Figures(measured, server), server) for server in f.servers]
    parts += [latencies(f), requests(f), "![KiB moved per job](peers-bytes.svg)\n", harm(told, f.peers)]
    parts += ["**Where something else is faster:**\n", winners(f) + "\n"]
    if measured["not_run"]:
        parts.append(
            "Not run: "
            + "; ".join(f"{WORDS.get(p, p)}: {why}" for p, why in measured["not_run"].items())
            + ".\n"
        )
    if measured["skipped"]:
        parts.append(f"{measured['skipped']} cells were left out for lack of time.\n")
    return "\n".join(parts)


def ratios(f: Figures, told: dict[str, Any]) -> str:
    aims = {
        "latency_vs_raw_put": (
            "a durable enqueue over a raw conditional PUT, p50",
            "at most 1.1",
            "at most 1.1",
        ),
        "jobs_s_ratio_64": (
            "64 callers, asyncio, over the fastest peer on the server",
            "at least 2",
            "at least 2.6",
        ),
        "jobs_s_ratio_backlog_10000": ("the same at a backlog of 10,000", "at least 15", "at least 5"),
        "jobs_s_ratio_documented_64": (
            "64 callers over jqueue Broker as documented",
            "at least 5",
            "at least 5",
        ),
    }
    rows = []
    for key, (what, *aim) in aims.items():
        for latency, wanted in zip(LATENCIES, aim, strict=True):
            seen = told[key].get(str(latency))
            fastest = (
                f.fastest(latency, 64, 1, 10_000 if "backlog" in key else 0)
                if "ratio_64" in key or "backlog" in key
                else None
            )
            against = f" ({WORDS.get(fastest[0], fastest[0])})" if fastest else ""
            rows.append([f"`{key}`: {what}{against}", f"{latency} ms", wanted, number(seen, 2)])
    return table(["figure", "latency", "aim", "measured"], rows)


def bars(title: str, values: list[tuple[str, float]]) -> str:
    """Horizontal bars on a logarithmic scale: the differences are of orders of magnitude."""
    values = [(name, value) for name, value in values if value > 0]
    least = min((value for _, value in values), default=1)
    most = max((value for _, value in values), default=10)
    low, high = math.floor(math.log10(least)), math.ceil(math.log10(most)) or 1
    height = 60 + BAR * len(values)

    def x(value: float) -> float:
        return LEFT + (math.log10(value) - low) / max(1, high - low) * (WIDTH - LEFT - 90)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="system-ui, sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/><text x="{LEFT}" y="20" fill="#222">{title}</text>',
    ]
    for power in range(low, high + 1):
        at_x = x(10.0**power)
        parts.append(f'<line x1="{at_x:.0f}" y1="32" x2="{at_x:.0f}" y2="{height - 20}" stroke="#ddd"/>')
        parts.append(
            f'<text x="{at_x:.0f}" y="{height - 6}" fill="#666" text-anchor="middle">{10.0**power:,g}</text>'
        )
    for row, (name, value) in enumerate(values):
        y = 38 + BAR * row
        colour = "#1f6f8b" if name in OURS else "#b9b9b9"
        width = max(1.0, x(value) - LEFT)
        parts.append(f'<text x="{LEFT - 8}" y="{y + 13}" text-anchor="end" fill="#222">{name}</text>')
        parts.append(f'<rect x="{LEFT}" y="{y}" width="{width:.0f}" height="{BAR - 6}" fill="{colour}"/>')
        parts.append(f'<text x="{LEFT + width + 6:.0f}" y="{y + 13}" fill="#222">{number(value)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def write(docs: Path, measured: dict[str, Any], told: dict[str, Any]) -> None:
    """Put the section between its marks, at the end when there are none, and the plots beside the page."""
    page = docs / "benchmarks.md"
    text = page.read_text()
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    new = f"{BEGIN}\n\n{section(measured, told)}\n{END}"
    page.write_text(
        f"{before.rstrip()}\n\n{new}\n{after.lstrip()}" if after.strip() else f"{before.rstrip()}\n\n{new}\n"
    )
    f = Figures(measured)
    speed = [(peer, f.jobs_s(peer, 25, 64) or 0) for peer in f.peers]
    (docs / "peers-64.svg").write_text(bars("jobs/s, 64 callers in one process, 25 ms away", speed))
    moved = [(peer, (f.per_job("bytes", peer, 25, 64, 1, 10_000) or 0) / 1024) for peer in f.peers]
    (docs / "peers-bytes.svg").write_text(
        bars("KiB moved per job, 64 callers, backlog 10,000, 25 ms away", moved)
    )
