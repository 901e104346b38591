"""Figures from rows: medians over the rounds, ratios within one run, and the last line of `make bench-peers`."""

from __future__ import annotations

import statistics
from collections import defaultdict
from typing import Any

from adapters import ALL

OURS = ("bucketq-rust", "bucketq", "bucketq-aio", "bucketq-local")
# The Python configurations that stand for one caller's enqueue, and for many callers' jobs per second.
BLOCKING, AWAITED = "bucketq", "bucketq-aio"
LATENCIES = (0, 25)
# The error of a call that was abandoned some seconds after the end.
LATE = "never answered"


def at(values: list[float], share: float) -> float | None:
    """Return the value below which this share of the values lies."""
    if not values:
        return None
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


class Figures:
    """The rows of the first server, or of a named one."""

    def __init__(self, measured: dict[str, Any], server: str | None = None) -> None:
        self.servers = list(dict.fromkeys(row["server"] for row in measured["rows"] if row["server"]))
        self.server = server or (self.servers[0] if self.servers else "")
        self.raw = measured["raw_put_ms"]
        self.cells: defaultdict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
        self.peers = list(dict.fromkeys(row["peer"] for row in measured["rows"]))
        self.rows = measured["rows"]
        for row in measured["rows"]:
            if row["server"] in ("", self.server):
                key = (row["peer"], row["latency"], row["callers"], row["processes"], row["backlog"])
                self.cells[key].append(row)

    def get(
        self, peer: str, latency: int, callers: int, processes: int = 1, backlog: int = 0
    ) -> list[dict[str, Any]]:
        return [r for r in self.cells[peer, latency, callers, processes, backlog] if "failed" not in r]

    def jobs_s(self, *cell: Any) -> float | None:
        rows = self.get(*cell)
        return statistics.median(row["jobs_s"] for row in rows) if rows else None

    def spread(self, *cell: Any) -> list[float]:
        return sorted(row["jobs_s"] for row in self.get(*cell))

    def ms(self, op: str, quantile: str, *cell: Any) -> float | None:
        found = [row["ms"][op][quantile] for row in self.get(*cell) if row["ms"][op][quantile] is not None]
        return statistics.median(found) if found else None

    def per_job(self, what: str, *cell: Any) -> float | None:
        """Return requests of a kind, or bytes both ways, per acked job."""
        found = [
            (row["sent"] + row["received"] if what == "bytes" else row["requests"].get(what, 0)) / row["jobs"]
            for row in self.get(*cell)
            if row["jobs"]
        ]
        return statistics.median(found) if found else None

    def fastest(self, *size: Any) -> tuple[str, float] | None:
        """Return the fastest peer whose calls return once the change is on the server, and its jobs per second."""
        found = [(self.jobs_s(peer, *size), peer) for peer in self.peers if peer not in OURS]
        theirs = [(speed, peer) for speed, peer in found if speed and ALL[peer].remote and ALL[peer].durable]
        return max(theirs)[::-1] if theirs else None

    def ratio(self, *size: Any, peer: str = AWAITED) -> float | None:
        ours, theirs = self.jobs_s(peer, *size), self.fastest(*size)
        return round(ours / theirs[1], 3) if ours and theirs else None

    def total(self, what: str) -> dict[str, int]:
        sums: dict[str, int] = {}
        for row in self.rows:
            sums[row["peer"]] = sums.get(row["peer"], 0) + row.get(what, 0)
        return sums

    def errors(self, late: bool) -> dict[str, int]:
        """Return the errors raised to callers; or with `late`, the calls abandoned without a reply after the end."""
        sums = dict.fromkeys(self.peers, 0)
        for row in self.rows:
            for name, count in row.get("errors", {}).items():
                sums[row["peer"]] += count if (name == LATE) == late else 0
        return sums


def keys(measured: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of the last line."""
    f = Figures(measured)
    told: dict[str, Any] = {"latency_vs_raw_put": {}, "jobs_s_ratio_64": {}, "jobs_s_ratio_backlog_10000": {}}
    told["jobs_s_ratio_documented_64"], told["jobs_s_ratio_64_blocking"] = {}, {}
    for latency in LATENCIES:
        raw = f.raw.get(f"{f.server} {latency}")
        enqueue = f.ms("enqueue", "p50", BLOCKING, latency, 1)
        name = str(latency)
        told["latency_vs_raw_put"][name] = (
            round(enqueue / statistics.median(raw), 3) if enqueue and raw else None
        )
        told["jobs_s_ratio_64"][name] = f.ratio(latency, 64)
        told["jobs_s_ratio_64_blocking"][name] = f.ratio(latency, 64, peer=BLOCKING)
        told["jobs_s_ratio_backlog_10000"][name] = f.ratio(latency, 64, 1, 10_000)
        ours, documented = f.jobs_s(AWAITED, latency, 64), f.jobs_s("jqueue-broker", latency, 64)
        told["jobs_s_ratio_documented_64"][name] = (
            round(ours / documented, 3) if ours and documented else None
        )
    remote = [peer for peer in f.peers if any(r["server"] for r in f.rows if r["peer"] == peer)]
    told["puts_per_job"] = {
        peer: {str(callers): f.per_job("PUT", peer, 25, callers) for callers in (1, 64)} for peer in remote
    }
    told["bytes_per_job"] = {
        peer: {str(backlog): f.per_job("bytes", peer, 25, 64, 1, backlog) for backlog in (0, 1_000, 10_000)}
        for peer in remote
    }
    told["caller_errors"], told["late"] = f.errors(late=False), f.errors(late=True)
    told["lost"], told["doubled"] = f.total("lost"), f.total("doubled")
    told["failed"] = {}
    for row in f.rows:
        if "failed" in row:
            told["failed"][row["peer"]] = told["failed"].get(row["peer"], 0) + 1
    told["not_run"] = measured["not_run"]
    return told
