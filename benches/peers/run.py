"""Compare bucketq with its alternatives: `make bench-peers`; `--quick` takes some minutes and its figures mean less.

Every configuration does the same work, interleaved: round after round, cell after cell, each in turn. A proxy outside
the libraries counts requests and bytes. Progress goes to standard error, JSON to the last line of standard
output; with --report, docs/peers.md gets its tables and plots. README.md explains each key.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import shutil
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import figures
from adapters import ALL
from machine import NEEDS, machine
from process import Process
from servers import BUCKET, SECRET, USER, Redis, Started, Store

HERE = Path(__file__).resolve().parent
SETUP_TIMEOUT = 180.0
# Longer than the patience of caller.py.
LATE = 25.0
# Bytes of the raw PUT.
RAW = 16 * 1024
# Seconds that a closed loop runs before the measurement.
WARM = 0.5


@dataclass(frozen=True)
class Cell:
    """One size of the work."""

    callers: int
    processes: int
    backlog: int

    @staticmethod
    def parse(text: str) -> Cell:
        """Parse `64x1x0`: callers, processes, backlog."""
        callers, processes, backlog = (int(one) for one in text.split("x"))
        return Cell(callers, processes, backlog)


ONE, EIGHT, MANY, FOUR = Cell(1, 1, 0), Cell(8, 1, 0), Cell(64, 1, 0), Cell(1, 4, 0)
BEHIND, FAR_BEHIND = Cell(64, 1, 1_000), Cell(64, 1, 10_000)
FULL = [ONE, EIGHT, MANY, FOUR, BEHIND, Cell(1, 1, 10_000), FAR_BEHIND]
SECOND = [ONE, MANY]
# For Local mode and the engine itself, whose other cells would show nothing new.
SHORT = (ONE, MANY, FAR_BEHIND)
QUICK = [ONE, MANY, FOUR, FAR_BEHIND]


@dataclass
class Place:
    """A queue used by several cells in turn: the ids it must still have, and the ids that must never come back."""

    owed: set[str]
    gone: set[str]


class Bench:
    """All measurements, and the servers and programs for them."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.machine = machine()
        self.local = Started()
        self.disk = self.local.folder()
        self.redis: Redis | None = None
        self.not_run: dict[str, str] = {}
        self.rows: list[dict[str, Any]] = []
        self.idle: dict[str, dict[str, float]] = {}
        self.places: dict[str, Place] = {}
        self.hopeless: set[str] = set()
        self.count = 0
        self.skipped = 0
        self.until = time.monotonic() + arguments.minutes * 60
        self.peers = [name for name in ["bucketq-rust", *ALL] if self.usable(name)]

    def usable(self, name: str) -> bool:
        if self.arguments.only and name not in self.arguments.only:
            return False
        missing = ""
        if name.startswith("pgqrs") and not os.environ.get("PGQRS_WHEEL"):
            missing = "its S3 store must be built from source: PGQRS_WHEEL names no such wheel"
        elif name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
            python = platform.python_version()
            missing = f"{NEEDS[name]} is not installed for Python {python} (jqueue and Redis' need 3.12)"
        elif name == "redis-message-queue":
            program = shutil.which("redis-server")
            missing = "" if program else "there is no redis-server"
            if program:
                self.redis = Redis(program)
        if missing:
            self.not_run[name] = missing
        return not missing

    def start(self, endpoint: str, name: str, **orders: Any) -> Process:
        told = {
            "peer": name,
            "warm": WARM,
            "store": {
                "endpoint": endpoint,
                "bucket": BUCKET,
                "access_key": USER,
                "secret_key": SECRET,
                "disk": str(self.disk),
                "redis": str(self.redis.port if self.redis else 0),
            },
        }
        rust = str(self.arguments.programs / "peer")
        command = [rust] if name == "bucketq-rust" else [sys.executable, str(HERE / "caller.py")]
        return Process(command, told | orders)

    def cell(self, store: Store, latency: int, name: str, cell: Cell, nth: int) -> None:
        self.count += 1
        remote = name not in ALL or ALL[name].remote
        # The backlog is enqueued once and stays for the following cells: each removes as many jobs as it adds.
        place = f"{store.name}-{name}-{cell.backlog or f'cell{self.count}'}"
        seconds = self.arguments.seconds * (2 if cell.callers > 1 and cell.backlog > 1_000 else 1)
        row: dict[str, Any] = {
            "server": store.name if remote else "",
            "latency": latency if remote else 0,
            "peer": name,
            **asdict(cell),
            "round": nth,
        }
        processes: list[Process] = []
        began = time.monotonic()
        known = self.places.get(place)
        try:
            if place in self.hopeless:
                raise TimeoutError("its backlog could not be brought in")
            # Backlogs are enqueued without the latency.
            store.slow(0)
            orders = {"place": place, "callers": cell.callers, "seconds": seconds}
            for number in range(cell.processes):
                fill = 0 if number or known else cell.backlog
                processes.append(self.start(store.endpoint, name, fill=fill, **orders))
                processes[-1].hear(SETUP_TIMEOUT)
            if known is None:
                known = self.places[place] = Place(left(processes[0]) if cell.backlog else set(), set())
            store.slow(latency)
            row |= self.run(store, processes, seconds, known)
        except Exception as error:
            # Any error: the other cells must not suffer from it.
            row["failed"] = f"{type(error).__name__}: {error}"
            self.hopeless |= set() if known else {place}
        finally:
            for process in processes:
                process.end()
        self.rows.append(row)
        told = row.get("failed") or f"{row['jobs_s']:8.1f} jobs/s"
        if "failed" not in row and (row["lost"] or row["doubled"] or row["errors"]):
            told += f"  lost {row['lost']}, doubled {row['doubled']}, errors {row['errors']}"
        what = f"{cell.callers:2} callers, {cell.processes} processes, backlog {cell.backlog:6}"
        tell(
            f"{row['server']:9} {row['latency']:2} ms  {name:19} {what}: {told}  ({time.monotonic() - began:.1f} s)"
        )

    def run(self, store: Store, processes: list[Process], seconds: float, place: Place) -> dict[str, Any]:
        before = store.counts()
        for process in processes:
            process.say("go")
        told = [process.hear(WARM + seconds + LATE) for process in processes]
        after = store.counts()
        # Calls that never returned may still be on their way.
        store.slow(0)
        there = left(processes[0])
        enqueued = [name for one in told for name in one["enqueued"]]
        claimed = Counter(name for one in told for name in one["claimed"])
        acked = {name for one in told for name in one["acked"]}
        place.owed = (place.owed | set(enqueued)) - acked
        lost = place.owed - there - claimed.keys()
        # A claimed job comes back only when its lease ends, and no cell lasts that long.
        doubled = sum(times - 1 for times in claimed.values()) + len(place.gone & claimed.keys())
        place.owed -= lost
        place.gone |= acked
        errors, examples = Counter[str](), {}
        for one in told:
            errors.update(one["errors"])
            examples |= one.get("examples", {})
        times = {
            op: [t for one in told for t in one["times_ms"].get(op, ())] for op in ("enqueue", "claim", "ack")
        }
        jobs = sum(len(one["acked"]) for one in told)
        requests = Counter(after["requests"])
        requests.subtract(before["requests"])
        return {
            "jobs_s": sum(one["jobs_s"] for one in told),
            "jobs": jobs,
            "enqueued": len(enqueued),
            "claimed": claimed.total(),
            "there": len(there),
            "ms": {
                op: {"p50": figures.at(t, 0.5), "p99": figures.at(t, 0.99), "of": len(t)}
                for op, t in times.items()
            },
            "requests": {kind: count for kind, count in sorted(requests.items()) if count},
            "sent": after["sent"] - before["sent"],
            "received": after["received"] - before["received"],
            "errors": dict(errors),
            "examples": examples,
            "lost": len(lost),
            "doubled": doubled,
        }

    def rest(self, store: Store) -> None:
        """Count each queue's requests while one worker waits for jobs; all queues are measured in the same minute."""
        seconds, waiting = self.arguments.waiting, {}
        store.slow(0)
        try:
            for name in self.peers:
                if name in ALL and not ALL[name].remote:
                    continue
                lane = store.lane()
                place = f"{store.name}-{name}-rest"
                process = self.start(lane.endpoint, name, place=place, callers=1, seconds=1, fill=0)
                try:
                    process.hear(SETUP_TIMEOUT)
                except (TimeoutError, EOFError) as error:
                    tell(f"{name} cannot wait: {error}")
                    process.end()
                    continue
                waiting[name] = (lane, process)
                process.say("drain")
                process.hear(SETUP_TIMEOUT)
            before = {name: lane.counts() for name, (lane, _) in waiting.items()}
            for _, process in waiting.values():
                process.say(f"wait {seconds}")
            for name, (lane, process) in waiting.items():
                process.hear(seconds + LATE)
                seen = Counter(lane.counts()["requests"])
                seen.subtract(before[name]["requests"])
                self.idle[name] = {k: round(n * 60 / seconds, 1) for k, n in sorted(seen.items()) if n}
                tell(f"{store.name:9}        {name:19} waiting: {self.idle[name]} a minute")
        finally:
            for _, process in waiting.values():
                process.end()

    def raw(self, store: Store, latency: int) -> float:
        """Return the median milliseconds of a conditional PUT by bucketq's own client, about the size of a commit."""
        import bucketq

        store.slow(latency)
        keys = {"access_key": USER, "secret_key": SECRET, "region": "us-east-1"}
        measured = bucketq.measure(f"s3://{BUCKET}/raw/jobs", samples=20, endpoint=store.endpoint, **keys)
        return next(size.put.p50_ms for size in measured.sizes if size.bytes == RAW)

    def all(self) -> dict[str, Any]:
        quick, rounds = self.arguments.quick, self.arguments.rounds
        raw: dict[str, list[float]] = {}
        for server in self.arguments.servers:
            first = server == self.arguments.servers[0]
            cells = self.arguments.cells or (QUICK if quick else FULL if first else SECOND)
            store = Store(server, self.arguments.programs / "counting")
            try:
                if first and self.arguments.waiting:
                    self.rest(store)
                for nth in range(rounds):
                    for latency in self.arguments.latencies:
                        for cell in cells:
                            # Reverse the order in every other round, so that none is always first.
                            for name in self.peers[:: -1 if nth % 2 else 1]:
                                if not takes_part(
                                    name, cell, first and latency == self.arguments.latencies[0]
                                ):
                                    continue
                                if time.monotonic() > self.until:
                                    self.skipped += 1
                                    continue
                                # Before and after the configuration it is compared with: a slow moment hits both.
                                around = name == figures.BLOCKING and cell == cells[0]
                                puts = raw.setdefault(f"{server} {latency}", [])
                                puts += [self.raw(store, latency)] if around else []
                                self.cell(store, latency, name, cell, nth)
                                puts += [self.raw(store, latency)] if around else []
            finally:
                store.close()
        told = {"rows": self.rows, "idle": self.idle, "raw_put_ms": raw, "not_run": self.not_run}
        told |= {"skipped": self.skipped, "seconds": self.arguments.seconds, "rounds": rounds}
        return told | {"machine": self.machine}

    def close(self) -> None:
        self.local.close()
        if self.redis:
            self.redis.close()


def takes_part(name: str, cell: Cell, first: bool) -> bool:
    """Whether this configuration runs this cell; those on a local disk run once for all servers and latencies."""
    peer = ALL.get(name)
    if peer is None:
        return cell in SHORT
    if cell.processes > 1 and not peer.shared:
        return False
    if not peer.remote:
        return first and cell in (ONE, MANY, FOUR)
    # Without a group commit eight callers get nothing done, and a claim of pawn-queue lists all messages: the outcome
    # of 64 callers or a backlog is known.
    if name == "jqueue-direct" and (cell.backlog or cell.callers > 8):
        return False
    if name == "pawn-queue" and cell.backlog:
        return False
    return peer.durable or cell in SHORT


def left(process: Process) -> set[str]:
    """Return the ids in the queue, claimed or not."""
    process.say("left")
    return set(process.hear(SETUP_TIMEOUT))


def tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", type=Path, help="where `counting` and `peer` are")
    parser.add_argument(
        "--quick", action="store_true", help="four sizes, one server, one round, a second each"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        help="for each cell, twice as many at a large backlog; 1.2, or 1 with --quick",
    )
    parser.add_argument("--rounds", type=int, help="2, or 1 with --quick")
    parser.add_argument(
        "--minutes", type=float, default=20, help="what has not begun by then is left out and counted"
    )
    parser.add_argument("--waiting", type=float, help="seconds of waiting on an empty queue; 30, or 10")
    parser.add_argument("--cells", nargs="+", type=Cell.parse, help="only these, such as 64x1x10000")
    parser.add_argument("--latencies", nargs="+", type=int, default=figures.LATENCIES, help="milliseconds")
    parser.add_argument("--servers", nargs="+", choices=["minio", "versitygw"])
    parser.add_argument("--only", nargs="+", help="these configurations")
    parser.add_argument("--report", type=Path, help="the docs folder: write the tables and plots there")
    parser.add_argument(
        "--from", dest="saved", type=Path, help="report again from saved JSON, measuring nothing"
    )
    arguments = parser.parse_args()
    arguments.seconds = arguments.seconds or (1.0 if arguments.quick else 1.2)
    arguments.rounds = arguments.rounds or (1 if arguments.quick else 2)
    if arguments.waiting is None:
        arguments.waiting = 10.0 if arguments.quick else 30.0
    arguments.servers = arguments.servers or (["minio"] if arguments.quick else ["minio", "versitygw"])
    if arguments.saved:
        measured = json.loads(arguments.saved.read_text().splitlines()[-1])["measured"]
    else:
        bench = Bench(arguments)
        try:
            measured = bench.all()
        finally:
            bench.close()
    told = figures.keys(measured)
    if arguments.report:
        import report

        report.write(arguments.report, measured, told)
    print(json.dumps(told | {"measured": measured}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
