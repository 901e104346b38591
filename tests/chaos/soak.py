"""`make soak`: steady load for half an hour, with retention, archive and collection on: nothing may grow.

Three processes, one in Rust and one on each API of Python, enqueue jobs into one queue file on a real S3 server and
work on them. Memory, the file, the bucket, requests and times are sampled from outside, and judged after the first
third of the run, when everything has reached its full size (`steady.py`). The last line is JSON; the exit code says
whether all is well.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
import botocore.client

import bucketq
import steady
from flat import BLOCKS
from wire import BUCKET, SECRET, USER, Server

HERE = Path(__file__).resolve().parent
PREFIX = "soak/jobs"
SAMPLES = 30 * BLOCKS
# Kinds of objects by the next part of their keys.
KINDS = {"head": ".head", "base": ".base-", "segment": ".seg-", "archive": ".arch-"}
# For each control run: what it switches off, and the figures of which one must be found growing.
BROKEN = {
    "collection": ("objects_", "bytes_"),
    "retention": ("pages", "objects_archive", "bytes_archive"),
    "memory": ("live_mb_python", "rss_mb_python"),
}


@dataclass
class Process:
    """One process under load: its own counting way to the server, and its reports."""

    name: str
    program: list[str]
    counting: asyncio.subprocess.Process
    orders: dict[str, Any]
    process: asyncio.subprocess.Process | None = None
    told: dict[str, Any] = field(default_factory=dict)
    last: dict[str, Any] = field(default_factory=dict)
    listening: asyncio.Task[None] | None = None

    async def start(self, errors: Path) -> None:
        with errors.open("ab") as file:
            self.process = await asyncio.create_subprocess_exec(
                *self.program,
                json.dumps(self.orders),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                limit=1 << 20,
            )
        self.listening = asyncio.create_task(self.listen())

    async def listen(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            told = json.loads(line)
            if told.get("last"):
                self.last = told
            else:
                self.told = told

    async def tell(self, word: str) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n".encode())
        await self.process.stdin.drain()

    async def requests(self) -> dict[str, int]:
        assert self.counting.stdin is not None
        assert self.counting.stdout is not None
        self.counting.stdin.write(b"\n")
        told: dict[str, int] = json.loads(await self.counting.stdout.readline())["requests"]
        return told

    def size(self) -> dict[str, float]:
        """Return the figures of the system about it."""
        assert self.process is not None
        here = Path(f"/proc/{self.process.pid}")
        fields = dict(line.split(":", 1) for line in (here / "status").read_text().splitlines())
        return {
            f"rss_mb_{self.name}": int(fields["VmRSS"].split()[0]) / 1024,
            f"threads_{self.name}": int(fields["Threads"]),
            f"descriptors_{self.name}": len(os.listdir(here / "fd")),  # noqa: PTH208 names are all that is needed
        }


class Soak:
    def __init__(self, arguments: argparse.Namespace, folder: Path) -> None:
        self.arguments, self.folder = arguments, folder
        self.seconds: float = arguments.seconds
        self.every = self.seconds / SAMPLES
        # Every period in a run lasts a few beats, so that a run has dozens of them.
        self.beat = self.seconds / 90
        self.server = Server()
        self.processes: list[Process] = []
        self.rows: list[dict[str, float]] = []
        self.wrong: list[str] = []
        self.client: Any = None
        grace = max(self.beat, 15.0)
        self.settings: dict[str, Any] = {
            "region": "us-east-1",
            "access_key": USER,
            "secret_key": SECRET,
            "max_skew": 1.0,
            # A call may still read dropped objects, so they stay at least as long as a call takes.
            "deadline": grace,
            "grace": 86400.0 if arguments.broken == "collection" else grace,
            "archive_every": self.beat,
            # Bases are made and dropped many times in a run.
            "base_after": 128 * 1024,
        }
        self.url = f"s3://{BUCKET}/{PREFIX}"

    def direct(self) -> dict[str, Any]:
        return self.settings | {"endpoint": f"http://127.0.0.1:{self.server.port}"}

    async def go(self) -> None:
        try:
            await self.server.start()
            self.client = boto3.client(
                "s3",
                endpoint_url=f"http://127.0.0.1:{self.server.port}",
                region_name="us-east-1",
                aws_access_key_id=USER,
                aws_secret_access_key=SECRET,
                config=botocore.client.Config(retries={"max_attempts": 1}),
            )
            await asyncio.to_thread(self.prepare)
            await self.start()
            await self.sample()
            await self.finish()
        finally:
            for one in self.processes:
                for process in (one.process, one.counting):
                    if process is not None and process.returncode is None:
                        process.kill()
                        await process.wait()
            self.server.close()

    def prepare(self) -> None:
        beat = self.beat
        with bucketq.open(self.url, **self.direct()) as file:
            queue = file.queue("soak")
            if self.arguments.broken == "retention":
                queue.configure(keep=10_000_000, dedup_window=3 * beat)
                queue.schedule("tick", "tick", every=beat)
                return
            queue.configure(
                keep=300, keep_for=6 * beat, archive=True, archive_for=9 * beat, dedup_window=3 * beat
            )
            queue.schedule("tick", "tick", every=beat)

    async def start(self) -> None:
        python = [sys.executable, str(HERE / "load.py")]
        programs = {"rust": [str(self.arguments.programs / "soak")], "python": python, "aio": python}
        for number, (name, program) in enumerate(programs.items()):
            counting = await asyncio.create_subprocess_exec(
                str(self.arguments.programs / "counting"),
                f"127.0.0.1:{self.server.port}",
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            assert counting.stdout is not None
            address = (await counting.stdout.readline()).decode().strip()
            orders = {
                "url": self.url,
                "settings": self.settings | {"endpoint": f"http://{address}"},
                "face": name,
                "seed": self.arguments.seed + number,
                "rate": self.arguments.rate / len(programs),
                "beat": self.beat,
                "every": self.every,
                "broken": self.arguments.broken if name == "python" else None,
            }
            one = Process(name, program, counting, orders)
            self.processes.append(one)
            await one.start(self.folder / f"{name}.err")

    async def sample(self) -> None:
        begin = time.monotonic()
        while (passed := time.monotonic() - begin) < self.seconds:
            # On a busy machine a sample takes longer than it should: then the next ones are left out.
            await asyncio.sleep(self.every - passed % self.every)
            row: dict[str, float] = {"t": time.monotonic() - begin}
            for one in self.processes:
                assert one.process is not None
                if one.process.returncode is not None:
                    told = (self.folder / f"{one.name}.err").read_text()[-500:]
                    raise SystemExit(f"{one.name} ended by itself: {told}")
                row |= one.size()
            row |= await self.requests()
            row |= self.reports()
            row |= await asyncio.to_thread(self.bucket)
            self.rows.append(row)
            if len(self.rows) % 30 == 0:
                print(
                    f"  {row['t']:6.0f} s: {row['jobs']:.0f} jobs, {row['puts']:.0f} PUTs, {row['pages']:.0f} pages, "
                    + ", ".join(
                        f"{name} {row[f'rss_mb_{name}']:.1f} MB" for name in ("rust", "python", "aio")
                    )
                    + f", {sum(row[f'objects_{kind}'] for kind in KINDS):.0f} objects",
                    flush=True,
                )

    async def requests(self) -> dict[str, float]:
        seen = Counter[str]()
        for one in self.processes:
            seen.update(await one.requests())
        return {"puts": seen["PUT"], "gets": seen["GET"], "lists": seen["LIST"], "deletes": seen["DELETE"]}

    def reports(self) -> dict[str, float]:
        row: dict[str, float] = {"jobs": 0.0}
        newest: dict[str, Any] = {}
        for one in self.processes:
            done = one.told.get("done", {})
            row["jobs"] += done.get("acked", 0) + done.get("rejected", 0)
            if one.told.get("live_mb") is not None:
                row[f"live_mb_{one.name}"] = one.told["live_mb"]
            newest = max(newest, one.told, key=lambda told: told.get("pages", 0))
            for op in ("enqueue", "ack"):
                for name, time_ms in zip(("p50", "p99"), one.told.get(f"{op}_ms", ()), strict=False):
                    row[f"{op}_{name}_ms_{one.name}"] = time_ms
        return row | {key: newest.get(key, 0) for key in ("pages", "free_pages", "backlog")}

    def bucket(self) -> dict[str, float]:
        """Return objects by kind as in a LIST, and the time of a plain PUT at this moment."""
        row = {f"{what}_{kind}": 0.0 for kind in steady.OBJECTS for what in ("objects", "bytes")}
        for page in self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=PREFIX):
            for one in page.get("Contents", ()):
                rest = one["Key"].removeprefix(PREFIX)
                kind = next((kind for kind, begin in KINDS.items() if rest.startswith(begin)), "other")
                row[f"objects_{kind}"] += 1
                row[f"bytes_{kind}"] += one["Size"]
        times: list[float] = []
        for _ in range(3):
            begin = time.perf_counter()
            self.client.put_object(Bucket=BUCKET, Key="plain", Body=random.randbytes(16 * 1024))
            times.append((time.perf_counter() - begin) * 1000)
        return row | {"plain_put_ms": statistics.median(times)}

    async def finish(self) -> None:
        """Stop the producers, let the workers finish all jobs, and check that the counts add up."""
        await asyncio.to_thread(self.unschedule)
        for one in self.processes:
            await one.tell("rest")
        # The slowest job waits two beats, and fails a few times.
        until = time.monotonic() + 60 + 10 * self.beat
        while await asyncio.to_thread(self.left):
            if time.monotonic() > until:
                self.wrong.append(f"{await asyncio.to_thread(self.left)} jobs are never done")
                break
            await asyncio.sleep(0.5)
        for one in self.processes:
            await one.tell("stop")
            assert one.process is not None
            assert one.process.stdin is not None
            one.process.stdin.close()
        for one in self.processes:
            assert one.process is not None
            assert one.listening is not None
            await asyncio.wait_for(one.process.wait(), 60)
            await one.listening
            if one.process.returncode:
                told = (self.folder / f"{one.name}.err").read_text()[-500:]
                self.wrong.append(f"{one.name} ended with {one.process.returncode}: {told}")
            self.wrong += [
                f"{one.name} was told {times} times: {what}"
                for what, times in one.last.get("errors", {}).items()
            ]
        done = Counter[str]()
        for one in self.processes:
            done.update(one.last.get("done", {}))
        ended = done["acked"] + done["rejected"] - done["fired"]
        if ended != done["enqueued"]:
            self.wrong.append(f"{done['enqueued']} jobs were enqueued, and {ended} ended")
        await asyncio.to_thread(self.checked)

    def unschedule(self) -> None:
        with bucketq.open(self.url, **self.direct()) as file:
            file.queue("soak").unschedule("tick")

    def left(self) -> int:
        with bucketq.open(self.url, **self.direct(), read_only=True) as file:
            counts = file.queue("soak").counts().counts
        return sum(counts[state] for state in ("scheduled", "ready", "leased"))

    def checked(self) -> None:
        report = bucketq.check(self.url, **self.direct())
        self.wrong += [f"a check found {problem}" for problem in report.problems]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "programs",
        type=Path,
        nargs="?",
        default=Path("target/debug"),
        help="where the programs `soak` and `counting` are",
    )
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--rate", type=float, default=60, help="jobs a second, of all processes together")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument(
        "--broken", choices=[*BROKEN], help="take this away: the run fails if that is noticed not"
    )
    parser.add_argument("--series", type=Path, help="write every sample to this file, a line of JSON each")
    parser.add_argument("--judge", type=Path, help="run nothing: judge the samples kept in this file")
    arguments = parser.parse_args()
    if arguments.judge:
        rows = [json.loads(line) for line in arguments.judge.read_text().splitlines()]
        return judge(rows, arguments, {}, None)
    what = f", without {arguments.broken}" if arguments.broken else ""
    print(
        f"{arguments.seconds:.0f} s at {arguments.rate:.0f} jobs/s{what}, seed {arguments.seed}", flush=True
    )
    with tempfile.TemporaryDirectory(prefix="bucketq-soak-") as folder:
        soak = Soak(arguments, Path(folder))
        asyncio.run(soak.go())
    if arguments.series:
        arguments.series.write_text("".join(f"{json.dumps(row)}\n" for row in soak.rows))
    about = {"seed": arguments.seed, "server": soak.server.name}
    return judge(soak.rows, arguments, about, soak.wrong)


def judge(
    rows: list[steady.Row], arguments: argparse.Namespace, about: dict[str, Any], wrong: list[str] | None
) -> int:
    found = steady.trends(rows, arguments.rate)
    print(steady.table(found))
    for line in wrong or ():
        print(line)
    # The samples alone do not show whether the counts added up.
    told = about | steady.told(rows, found) | {"violations": None if wrong is None else len(wrong)}
    print(json.dumps(told))
    if arguments.broken:
        growing = [name for name, one in found.items() if one.grows]
        caught = any(name.startswith(BROKEN[arguments.broken]) for name in growing)
        return 0 if caught else 1
    return 1 if told["failed"] or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
