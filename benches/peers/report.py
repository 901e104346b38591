"""The measured part of docs/peers.md and its plots, as `make bench-peers ARGS='--report docs'` writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import plots
from adapters import ALL
from figures import AWAITED, BLOCKING, LATE, LATENCIES, OURS, Figures

BEGIN, END = "<!-- bench-peers: begin -->", "<!-- bench-peers: end -->"
# The name of each configuration in the tables.
WORDS = {
    "bucketq-rust": "bucketq, Rust",
    "bucketq": "bucketq, blocking",
    "bucketq-aio": "bucketq, asyncio",
    "bucketq-local": "bucketq, Local mode",
    "jqueue-direct": "jqueue Direct",
    "jqueue-broker": "jqueue Broker",
    "jqueue-reused": "jqueue Broker, client reused",
    "pgqrs-durable": "pgqrs on S3, Durable",
    "pgqrs-local": "pgqrs on S3, Local",
    "redis-message-queue": "redis-message-queue, Redis",
    "huey": "huey, local disk",
    "persist-queue": "persist-queue, local disk",
    "litequeue": "litequeue, local disk",
}
NOT_RUN = "not in this run"
# Callers, processes, backlog, and the heading of their column.
SIZES = {
    (1, 1, 0): "1 caller",
    (8, 1, 0): "8",
    (64, 1, 0): "64",
    (1, 4, 0): "4 processes of 1",
    (64, 1, 1_000): "64, backlog 1,000",
    (1, 1, 10_000): "1, backlog 10,000",
    (64, 1, 10_000): "64, backlog 10,000",
}


def word(peer: str) -> str:
    return WORDS.get(peer, peer)


def number(value: float | None, digits: int = 1) -> str:
    if value is None:
        return ""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.{digits}f}"


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a table without its empty rows and columns."""
    kept = [n for n in range(len(head)) if n == 0 or any(row[n] for row in rows)]
    rows = [[row[n] for n in kept] for row in rows if any(row[1:])]
    lines = [[head[n] for n in kept], ["---"] * len(kept), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def spread(f: Figures, *cell: Any) -> str:
    """Return the rounds, from the slowest to the fastest."""
    seen = f.spread(*cell)
    if not seen:
        return "did not end" if f.cells[cell] else ""
    return " / ".join(number(one) for one in seen)


def by_size(f: Figures, latency: int) -> str:
    """Return the table of jobs a second."""
    head = [f"jobs/s, {f.server}, {latency} ms", *SIZES.values()]
    # Queues on a local disk stand beside the first server.
    peers = f.peers if f.server == f.servers[0] and latency == 0 else remote(f)
    return table(head, [[word(peer), *(spread(f, peer, latency, *size) for size in SIZES)] for peer in peers])


def latencies(f: Figures, callers: int) -> str:
    """Return the table of how long each call takes."""
    ops = ("enqueue", "claim", "ack")
    who = "1 caller" if callers == 1 else f"{callers} callers"
    head = [f"ms, p50 / p99, {who}", *(f"{op}, {latency} ms" for latency in LATENCIES for op in ops)]
    rows = []
    for peer in f.peers:
        line = [word(peer)]
        for latency in LATENCIES:
            for op in ops:
                p50, p99 = (f.ms(op, q, peer, latency, callers) for q in ("p50", "p99"))
                line.append("" if p50 is None else f"{number(p50)} / {number(p99)}")
        rows.append(line)
    return table(head, rows)


def requests(f: Figures) -> str:
    """Return the table of requests for each job."""
    kinds = ("PUT", "GET", "LIST")
    who = {1: "1 caller", 64: "64 callers"}
    head = ["for each job, 25 ms", *(f"{kind}, {name}" for name in who.values() for kind in kinds)]
    head += ["others, 64 callers", *(f"KiB, 64, backlog {backlog:,}" for backlog in (0, 1_000, 10_000))]
    rows = []
    for peer in remote(f):
        line = [word(peer)]
        line += [number(f.per_job(kind, peer, 25, callers), 3) for callers in who for kind in kinds]
        others = [f.per_job(kind, peer, 25, 64) for kind in ("HEAD", "DELETE", "POST")]
        line.append(
            number(sum(o for o in others if o), 2) if f.per_job("PUT", peer, 25, 64) is not None else ""
        )
        for backlog in (0, 1_000, 10_000):
            size = f.per_job("bytes", peer, 25, 64, 1, backlog)
            line.append(number(None if size is None else size / 1024))
        rows.append(line)
    return table(head, rows)


def remote(f: Figures) -> list[str]:
    return [peer for peer in f.peers if peer not in ALL or ALL[peer].remote]


def waiting(measured: dict[str, Any]) -> str:
    rows = [
        [word(peer), ", ".join(f"{number(n, 0)} {kind}" for kind, n in seen.items()) or "none"]
        for peer, seen in measured["idle"].items()
    ]
    return table(["one worker that waits", "requests a minute"], rows)


def harm(told: dict[str, Any], peers: list[str]) -> str:
    head = ["in all cells", "errors callers saw", "jobs lost", "handed out twice"]
    head += ["calls given up 5 s after the end", "cells that did not end"]
    keys = ("caller_errors", "lost", "doubled", "late", "failed")
    return table(head, [[word(p), *(f"{told[key].get(p, 0):,}" for key in keys)] for p in peers])


def winners(f: Figures) -> str:
    """Return the cells in which a queue without a bucket, one that publishes later, or a peer beats bucketq."""
    lines = []
    for latency in LATENCIES:
        for size, name in SIZES.items():
            ours = max((f.jobs_s(peer, latency, *size) or 0) for peer in ("bucketq", "bucketq-aio"))
            theirs = [
                (f.jobs_s(peer, latency if ALL[peer].remote else 0, *size) or 0, peer)
                for peer in f.peers
                if peer not in OURS
            ]
            ahead = [
                f"{word(peer)} {number(speed)}"
                for speed, peer in sorted(theirs, reverse=True)
                if speed > ours
            ]
            if ahead and ours:
                lines.append([f"{latency} ms, {name}", number(ours), "; ".join(ahead)])
    if not lines:
        return "In no cell.\n"
    return table([f"jobs/s, {f.server}", "bucketq, durable, from Python", "faster"], lines)


AIMS = {
    "latency_vs_raw_put": ("a durable enqueue over a raw conditional PUT, medians", (1.1, 1.1), "1x1x0"),
    "jobs_s_ratio_64": ("64 callers over the fastest peer", (2, 2.6), "64x1x0"),
    "jobs_s_ratio_64_blocking": ("the same with 64 threads", (2, 2.6), "64x1x0"),
    "jobs_s_ratio_backlog_10000": ("64 callers behind 10,000 jobs", (15, 5), "64x1x10000"),
    "jobs_s_ratio_documented_64": ("64 callers over jqueue Broker as documented", (5, 5), "64x1x0"),
}


def ratios(f: Figures, told: dict[str, Any], measured: dict[str, Any]) -> str:
    """Return the aims that are ratios, and a remark about those that rest on fewer rounds."""
    rows: list[list[str]] = []
    thin: dict[tuple[int, int], list[str]] = {}
    near: dict[tuple[int, int], list[str]] = {}
    for key, (what, aims, cell) in AIMS.items():
        for latency, aim in zip(LATENCIES, aims, strict=True):
            size = [int(part) for part in cell.split("x")]
            seen, peers = told[key].get(str(latency)), [BLOCKING]
            if key != "latency_vs_raw_put":
                fastest = f.fastest(latency, *size)
                against = "jqueue-broker" if "documented" in key else fastest[0] if fastest else ""
                peers = [BLOCKING if "blocking" in key else AWAITED, against]
                if "documented" not in key and against:
                    what = f"{what.partition(' (')[0]} ({word(against)})"
            limit = f"at {'most' if aims[0] < 1.5 else 'least'} {aim}"
            rounds = min(len(f.spread(peer, latency, *size)) for peer in peers)
            if seen is not None and rounds < measured["rounds"]:
                thin.setdefault((rounds, latency), []).append(f"`{key}`")
                if abs(seen / aim - 1) < 0.1:
                    near.setdefault((rounds, latency), []).append(f"{number(seen, 2)} against {aim}")
            run = f"`--cells {cell} --latencies {latency} --only {' '.join(peers)}`"
            rows.append([f"`{key}`: {what}", f"{latency} ms", limit, number(seen, 2), f"{rounds or ''}", run])
    head = ["figure", "latency", "aim", "measured", "rounds", "by itself: `make bench-peers ARGS='...'`"]
    lines = [table(head, rows)]
    for (rounds, latency), names in thin.items():
        close = near.get((rounds, latency))
        little = f": {', '.join(dict.fromkeys(close))} proves little." if close else "."
        lines.append(
            f"Left out for lack of time: {plural(measured['skipped'], 'cell')}. So at {latency} ms "
            f"{', '.join(names)} rest on {plural(rounds, 'round')}, which shows no spread{little}\n"
        )
    return "\n".join(lines)


def plural(count: int, noun: str) -> str:
    return f"{'one' if count == 1 else count} {noun}{'' if count == 1 else 's'}"


def fewest(f: Figures, told: dict[str, Any]) -> str:
    """Return the other aims: bucketq beside the best peer whose calls return once the change is on the server."""
    rows: list[list[str]] = []
    others = [peer for peer in f.peers if peer not in OURS and ALL[peer].remote and ALL[peer].durable]
    for key, what, unit, mine, cell in (
        ("puts_per_job", "PUTs for each job, 1 caller", "PUT", BLOCKING, (25, 1)),
        ("puts_per_job", "PUTs for each job, 64 callers", "PUT", AWAITED, (25, 64)),
        ("bytes_per_job", "KiB for each job, 64 callers behind 1,000", "bytes", AWAITED, (25, 64, 1, 1_000)),
        ("bytes_per_job", "the same behind 10,000", "bytes", AWAITED, (25, 64, 1, 10_000)),
    ):
        size, digits = (1024, 1) if unit == "bytes" else (1, 3)
        ours = f.per_job(unit, mine, *cell)
        theirs = [(seen, peer) for peer in others if (seen := f.per_job(unit, peer, *cell)) is not None]
        line = [f"`{key}`: {what}", "the fewest", NOT_RUN, "", ""]
        if ours is not None and theirs:
            least, peer = min(theirs)
            line[2:] = [number(ours / size, digits), f"{word(peer)} {number(least / size, digits)}"]
            line.append("met" if ours <= least else "missed")
        rows.append(line)
    four = [row for peer in OURS for latency in LATENCIES for row in f.get(peer, latency, 1, 4)]
    seen = sum(n for row in four for name, n in row["errors"].items() if name != LATE)
    rows.append(["`caller_errors`: 4 processes", "0", f"{seen}" if four else NOT_RUN, ""])
    rows[-1].append(("missed" if seen else "met") if four else "")
    bad = sum(told[key].get(peer, 0) for key in ("lost", "doubled") for peer in OURS)
    rows.append(["`lost`, `doubled`", "0", f"{bad}", "", "missed" if bad else "met"])
    return table(["figure; requests and bytes at 25 ms", "aim", "bucketq", "the best other", ""], rows)


def section(measured: dict[str, Any], told: dict[str, Any]) -> str:
    f = Figures(measured)
    machine = ", ".join(f"{name} {value}" for name, value in measured["machine"].items()).removeprefix(
        "cores "
    )
    parts = [
        f"{measured['rounds']} rounds of {measured['seconds']:g} s a cell after a warm-up; {machine}.\n",
        "## The aims\n",
        ratios(f, told, measured),
        fewest(f, told),
        "## Jobs a second\n",
        "Each field has one figure per round, the slowest first. "
        "Queues on a local disk ran without a server, and only once.\n",
        "![jobs a second with 64 callers, 25 ms away](peers-64.svg)\n",
    ]
    parts += [by_size(Figures(measured, server), latency) for server in f.servers for latency in LATENCIES]
    parts += ["### Where something else is faster\n", winners(f)]
    parts += ["## How long a call takes\n", latencies(f, 1), latencies(f, 64)]
    parts += ["## Requests to the store\n", "![KiB moved for each job](peers-bytes.svg)\n"]
    parts += [requests(f), waiting(measured), "## Errors, lost and doubled jobs\n", harm(told, f.peers)]
    if measured["not_run"]:
        why = "; ".join(f"{word(p)}: {why}" for p, why in measured["not_run"].items())
        parts.append(f"Not run: {why}.\n")
    if measured["skipped"]:
        parts.append(f"{measured['skipped']} cells were left out for lack of time.\n")
    return "\n".join(parts)


def write(docs: Path, measured: dict[str, Any], told: dict[str, Any]) -> None:
    """Write the section between its marks, and the plots beside the page."""
    page = docs / "peers.md"
    before, _, rest = page.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    page.write_text(f"{before}{BEGIN}\n\n{section(measured, told)}\n{END}{after}")
    f = Figures(measured)
    marks = {0: "no backlog", 10_000: "behind 10,000 jobs"}
    speed = [
        (word(peer), peer in OURS, [f.spread(peer, 25, 64, 1, backlog) for backlog in marks])
        for peer in remote(f)
    ]
    (docs / "peers-64.svg").write_text(
        plots.dots("jobs/s, 64 callers in one process, 25 ms away", list(marks.values()), speed)
    )
    marks = {0: "no backlog", 1_000: "1,000 jobs", 10_000: "10,000 jobs"}
    marks = {size: name for size, name in marks.items() if any(f.get(p, 25, 64, 1, size) for p in f.peers)}
    moved = []
    for peer in remote(f):
        sizes = [f.per_job("bytes", peer, 25, 64, 1, backlog) for backlog in marks]
        moved.append((word(peer), peer in OURS, [[size / 1024] if size else [] for size in sizes]))
    (docs / "peers-bytes.svg").write_text(
        plots.dots(
            "KiB to and from the store for each job, 64 callers, 25 ms away", list(marks.values()), moved
        )
    )
