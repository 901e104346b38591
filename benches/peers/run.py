"""bucketq beside what people would use instead: `make bench-peers`; `--quick` takes some minutes and means less.

Every configuration does the same work, interleaved: round after round, cell after cell, each in turn. What goes over
the wire is counted by a proxy outside the libraries. Progress goes to standard error, JSON to the last line of standard
output; with --report, docs/benchmarks.md gets its tables and plots. README.md says what each key means.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import select
import shutil
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import figures
from adapters import ALL
from servers import BUCKET, SECRET, USER, Redis, Started, Store

HERE = Path(__file__).resolve().parent
SETUP_TIMEOUT = 180.0
# Longer than the patience of caller.py.
LATE = 25.0
# What each configuration needs installed, and what its version is that of.
NEEDS = {
    "jqueue-direct": "jqueue",
    "jqueue-broker": "jqueue",
    "jqueue-reused": "jqueue",
    "pawn-queue": "pawn_queue",
    "pgqrs-durable": "pgqrs",
    "pgqrs-local": "pgqrs",
    "redis-message-queue": "redis_message_queue",
    "huey": "huey",
    "persist-queue": "persistqueue",
    "litequeue": "litequeue",
}


@dataclass(frozen=True)
class Cell:
    """One size of the work."""

    callers: int
    processes: int
    backlog: int


FULL = [
    Cell(1, 1, 0),
    Cell(8, 1, 0),
    Cell(64, 1, 0),
    Cell(1, 4, 0),
    Cell(1, 1, 1_000),
    Cell(64, 1, 1_000),
    Cell(1, 1, 10_000),
    Cell(64, 1, 10_000),
]
QUICK = [Cell(1, 1, 0), Cell(64, 1, 0), Cell(1, 4, 0), Cell(64, 1, 10_000)]


class Process:
    """One caller process."""

    def __init__(self, command: list[str], orders: dict[str, Any]) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [*command, json.dumps(orders)], stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL
        )

    def say(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()

    def hear(self, seconds: float) -> Any:
        assert self.process.stdout
        until, text = time.monotonic() + seconds, b""
        while not text.endswith(b"\n"):
            left = until - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], (), (), left)[0]:
                raise TimeoutError(f"nothing within {seconds} s")
            if not (part := os.read(self.process.stdout.fileno(), 1 << 20)):
                raise EOFError("it ended by itself")
            text += part
        return json.loads(text)

    def end(self) -> None:
        if self.process.stdin:
            self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Bench:
    """Everything that is measured, and with what."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.local = Started()
        self.disk = self.local.folder()
        self.redis: Redis | None = None
        self.not_run: dict[str, str] = {}
        self.rows: list[dict[str, Any]] = []
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

    def cell(self, store: Store, latency: int, name: str, cell: Cell, seconds: float, nth: int) -> None:
        self.count += 1
        remote = name not in ALL or ALL[name].remote
        place = f"cell{self.count}"
        base = {
            "peer": name,
            "place": place,
            "callers": cell.callers,
            "seconds": seconds,
            "store": {
                "endpoint": store.endpoint,
                "bucket": BUCKET,
                "access_key": USER,
                "secret_key": SECRET,
                "disk": str(self.disk),
                "redis": str(self.redis.port if self.redis else 0),
            },
        }
        row: dict[str, Any] = {
            "server": store.name if remote else "",
            "latency": latency if remote else 0,
            "peer": name,
            **asdict(cell),
            "round": nth,
        }
        rust = str(self.arguments.programs / "peer")
        command = [rust] if name == "bucketq-rust" else [sys.executable, str(HERE / "caller.py")]
        processes: list[Process] = []
        try:
            # Backlogs are brought in without the latency.
            store.slow(0)
            for number in range(cell.processes):
                process = Process(command, base | {"fill": 0 if number else cell.backlog})
                processes.append(process)
                process.hear(SETUP_TIMEOUT)
            store.slow(latency)
            row |= self.run(store, processes, seconds)
            if cell == Cell(1, 1, 0) and remote:
                row["waiting"] = self.waiting(store, processes[0])
        except (TimeoutError, EOFError, OSError) as error:
            row["failed"] = f"{type(error).__name__}: {error}"
        finally:
            for process in processes:
                process.end()
        self.rows.append(row)
        told = row.get("failed") or f"{row['jobs_s']:8.1f} jobs/s"
        what = f"{cell.callers:2} callers, {cell.processes} processes, backlog {cell.backlog:6}"
        print(
            f"{row['server']:10} {row['latency']:2} ms  {name:20} {what}: {told}", file=sys.stderr, flush=True
        )

    def run(self, store: Store, processes: list[Process], seconds: float) -> dict[str, Any]:
        before = store.counts()
        for process in processes:
            process.say("go")
        told = [process.hear(seconds + LATE) for process in processes]
        after = store.counts()
        processes[0].say("left")
        left = set(processes[0].hear(SETUP_TIMEOUT))
        acked = Counter(name for one in told for name in one["acked"])
        known = left.union(acked, *(one["doubtful"] for one in told))
        errors = Counter[str]()
        for one in told:
            errors.update(one["errors"])
        times = {
            op: [t for one in told for t in one["times_ms"].get(op, ())] for op in ("enqueue", "claim", "ack")
        }
        jobs = max(1, acked.total())
        requests = Counter(after["requests"])
        requests.subtract(before["requests"])
        return {
            "jobs_s": sum(one["jobs_s"] for one in told),
            "jobs": acked.total(),
            "ms": {op: {"p50": figures.at(t, 0.5), "p99": figures.at(t, 0.99)} for op, t in times.items()},
            "requests_per_job": {kind: count / jobs for kind, count in sorted(requests.items()) if count},
            "sent_per_job": (after["sent"] - before["sent"]) / jobs,
            "received_per_job": (after["received"] - before["received"]) / jobs,
            "errors": dict(+errors),
            "lost": sum(name not in known for one in told for name in one["enqueued"]),
            "doubled": sum(times - 1 for times in acked.values()),
        }

    def waiting(self, store: Store, process: Process) -> dict[str, float]:
        """Requests a minute of one worker that waits for jobs."""
        seconds = self.arguments.waiting
        before = store.counts()["requests"]
        process.say(f"wait {seconds}")
        process.hear(seconds + LATE)
        after = Counter(store.counts()["requests"])
        after.subtract(before)
        return {kind: count * 60 / seconds for kind, count in sorted(after.items()) if count}

    def raw(self, store: Store, latency: int) -> float:
        """A conditional PUT of a small object by bucketq's own client, its median in milliseconds."""
        import bucketq

        store.slow(latency)
        keys = {"access_key": USER, "secret_key": SECRET, "region": "us-east-1"}
        measured = bucketq.measure(f"s3://{BUCKET}/raw/jobs", samples=40, endpoint=store.endpoint, **keys)
        return measured.sizes[0].put.p50_ms

    def all(self) -> dict[str, Any]:
        quick, rounds = self.arguments.quick, self.arguments.rounds
        seconds = self.arguments.seconds
        raw: dict[str, list[float]] = {}
        for server in self.arguments.servers:
            first = server == self.arguments.servers[0]
            cells = QUICK if quick or not first else FULL
            store = Store(server, self.arguments.programs / "counting")
            try:
                for nth in range(rounds):
                    for latency in (0, 25):
                        for cell in cells:
                            for name in self.peers:
                                if not takes_part(name, cell, first and latency == 0):
                                    continue
                                if time.monotonic() > self.until:
                                    self.skipped += 1
                                    continue
                                # Before and after what it is compared with, so that a slow moment hits both.
                                around = name == figures.BLOCKING and cell == cells[0]
                                puts = raw.setdefault(f"{server} {latency}", [])
                                puts += [self.raw(store, latency)] if around else []
                                self.cell(store, latency, name, cell, seconds, nth)
                                puts += [self.raw(store, latency)] if around else []
            finally:
                store.close()
        told = {"rows": self.rows, "raw_put_ms": raw, "not_run": self.not_run, "skipped": self.skipped}
        return told | {"seconds": seconds, "rounds": rounds, "machine": machine()}

    def close(self) -> None:
        self.local.close()
        if self.redis:
            self.redis.close()


def takes_part(name: str, cell: Cell, first: bool) -> bool:
    """Whether this cell is one for this configuration; those on a local disk run once for all servers and latencies."""
    peer = ALL.get(name)
    if peer is None:
        return True
    if cell.processes > 1 and not peer.shared:
        return False
    return peer.remote or (first and cell.backlog == 0)


def machine() -> dict[str, str]:
    """Where it was measured, and of what."""
    packages = [
        "bucketq",
        "jqueue",
        "pawn-queue",
        "pgqrs",
        "redis-message-queue",
        "huey",
        "persist-queue",
        "litequeue",
    ]
    found = {}
    for package in packages:
        if importlib.util.find_spec(NEEDS.get(package, package.replace("-", "_"))) or package == "bucketq":
            try:
                found[package] = metadata.version(package)
            except metadata.PackageNotFoundError:
                continue
    cores = f"{os.cpu_count()} cores of {platform.machine()}, {platform.system()} {platform.release()}"
    load = " ".join(f"{one:.1f}" for one in os.getloadavg())
    return {"cores": cores, "load before": load, "python": platform.python_version(), **found}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", type=Path, help="where `counting` and `peer` are")
    parser.add_argument("--quick", action="store_true", help="four sizes, one server, two seconds each")
    parser.add_argument("--seconds", type=float, help="for each cell; 5, or 2 with --quick")
    parser.add_argument("--rounds", type=int, help="2, or 1 with --quick")
    parser.add_argument(
        "--minutes", type=float, help="what has not begun by then is left out and counted; 80, or 15"
    )
    parser.add_argument("--waiting", type=float, default=10.0, help="seconds of waiting on an empty queue")
    parser.add_argument("--servers", nargs="+", choices=["minio", "versitygw"])
    parser.add_argument("--only", nargs="+", help="these configurations")
    parser.add_argument("--report", type=Path, help="the docs folder: write the tables and plots there")
    parser.add_argument(
        "--from", dest="saved", type=Path, help="report again from saved JSON, measuring nothing"
    )
    arguments = parser.parse_args()
    arguments.seconds = arguments.seconds or (2.0 if arguments.quick else 5.0)
    arguments.rounds = arguments.rounds or (1 if arguments.quick else 2)
    arguments.minutes = arguments.minutes or (15 if arguments.quick else 80)
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
