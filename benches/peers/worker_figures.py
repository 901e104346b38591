"""Figures of `make bench-peer-workers`: medians over the rounds, ratios, and the tables of docs/peers.md."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from report import number, plural, table
from systems import ALL, BASE, SHAPES

BEGIN, END = "<!-- bench-peer-workers: begin -->", "<!-- bench-peer-workers: end -->"
KINDS = {"one": "no-op, one by one", "bulk": "no-op, in bulk", "nap": "50 ms, in bulk"}


class Figures:
    """The rows of a run."""

    def __init__(self, measured: dict[str, Any]) -> None:
        self.rows = measured["rows"]
        self.systems = list(dict.fromkeys(row["system"] for row in self.rows))

    def get(self, system: str, shape: str | None = None) -> list[dict[str, Any]]:
        """Return the rows that did not fail, of one shape or of all."""
        return [
            row
            for row in self.rows
            if row["system"] == system and shape in (None, row["shape"]) and "failed" not in row
        ]

    def median(self, key: str, system: str, shape: str) -> float | None:
        rows = self.get(system, shape)
        return statistics.median(row[key] for row in rows) if rows else None

    def ratio(self, key: str, system: str, shape: str) -> float | None:
        """Return the jobs per second over those of bucketq in a directory: the median over the rounds with both."""
        base = {row["round"]: row[key] for row in self.get(BASE, shape)}
        found = [row[key] / base[row["round"]] for row in self.get(system, shape) if base.get(row["round"])]
        return round(statistics.median(found), 3) if found else None

    def enqueue_ms(self, system: str, quantile: str) -> float | None:
        """Return the median over the cells of a quantile of the enqueues one by one."""
        found = [row["enqueue_ms"][quantile] for row in self.get(system)]
        return round(statistics.median(found), 3) if found else None


def keys(measured: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of the last line."""
    f = Figures(measured)

    def by_shape(figure: Any, *key: str) -> dict[str, Any]:
        return {system: {shape: figure(*key, system, shape) for shape in SHAPES} for system in f.systems}

    failed = {
        system: sum("failed" in row for row in f.rows if row["system"] == system) for system in f.systems
    }
    return {
        "jobs_s": {key: by_shape(f.median, key) for key in KINDS},
        "ratio": {key: by_shape(f.ratio, key) for key in KINDS},
        "enqueue_ms": {
            system: {quantile: f.enqueue_ms(system, quantile) for quantile in ("p50", "p99")}
            for system in f.systems
        },
        "memory_mib": by_shape(f.median, "memory_mib"),
        "lost": {system: sum(row["lost"] for row in f.get(system)) for system in f.systems},
        "doubled": {system: sum(row["doubled"] for row in f.get(system)) for system in f.systems},
        "failed": {system: count for system, count in failed.items() if count},
        "not_run": measured["not_run"],
        "skipped": measured["skipped"],
    }


def speeds(f: Figures, shape: str) -> str:
    head = [f"jobs/s, {shape}"]
    for what in KINDS.values():
        head += [what, "ratio"]
    rows = []
    for system in f.systems:
        line = [ALL[system].word]
        for key in KINDS:
            line += [number(f.median(key, system, shape)), number(f.ratio(key, system, shape), 2)]
        rows.append(line)
    return table(head, rows)


def section(measured: dict[str, Any]) -> str:
    f, told = Figures(measured), keys(measured)
    machine = ", ".join(f"{name} {value}" for name, value in measured["machine"].items())
    parts = [f"{plural(measured['rounds'], 'round')}; {machine.removeprefix('cores ')}.\n"]
    parts += [speeds(f, shape) for shape in SHAPES]
    head = ["", "enqueue p50, ms", "p99, ms", *(f"memory, {shape}, MiB" for shape in SHAPES)]
    rows = []
    for system in f.systems:
        times = told["enqueue_ms"][system]
        memory = [number(told["memory_mib"][system][shape], 0) for shape in SHAPES]
        rows.append([ALL[system].word, number(times["p50"], 2), number(times["p99"], 2), *memory])
    parts.append(table(head, rows))
    lost, doubled = (sum(told[key].values()) for key in ("lost", "doubled"))
    parts.append(f"Jobs lost in all cells: {lost}; run twice: {doubled}.\n")
    if told["failed"]:
        names = ", ".join(f"{ALL[name].word} {count}" for name, count in told["failed"].items())
        parts.append(f"Cells that did not end: {names}.\n")
    if measured["not_run"]:
        why = "; ".join(f"{ALL[name].word}: {why}" for name, why in measured["not_run"].items())
        parts.append(f"Not run: {why}.\n")
    if measured["skipped"]:
        parts.append(f"Left out for lack of time: {plural(measured['skipped'], 'cell')}.\n")
    return "\n".join(parts)


def write(docs: Path, measured: dict[str, Any]) -> None:
    """Write the section between its marks."""
    page = docs / "peers.md"
    before, _, rest = page.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    page.write_text(f"{before}{BEGIN}\n\n{section(measured)}\n{END}{after}")
