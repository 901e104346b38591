"""`make chaos`: processes of both languages on one queue file, on a real server, under every fault of `faults.py`.

Then the run is checked from outside (`check.py`, `heads.py`). A control run does the same with an engine that breaks a
rule, which must be caught. The last line is JSON; the exit code says whether all is well.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes.util
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import faults
from check import Diaries, Image, check
from figures import recovery, seat_kind, wrong_clock
from heads import Bucket, Chain, rebuild, rows
from wire import BUCKET, SECRET, USER, Door, Liar, Server, Toxiproxy

HERE = Path(__file__).resolve().parent
LEASE = 4.0
SKEW = 1.5
# Number of faults that are active at the same time.
AT_ONCE = 3
# Rules that control runs break, by their names in the program `chaos`; each must be caught.
BROKEN = ("timeout_is_failure", "token_not_compared")
TRIES = 3


@dataclass
class Seat:
    """The place of one process: its way to the server, its clock, and its successive processes."""

    run: Run
    name: str
    role: str
    rust: bool
    number: int
    door: Door
    settings: dict[str, Any] = field(default_factory=dict)
    face: str = "blocking"
    life: int = 0
    process: subprocess.Popen[bytes] | None = None
    busy: asyncio.Lock = field(default_factory=asyncio.Lock)

    def start(self) -> None:
        self.life += 1
        run = self.run
        orders = {
            "url": run.url,
            "settings": run.settings | self.settings,
            "seed": run.seed,
            "number": self.number,
            "life": self.life,
            "role": self.role,
            "face": self.face,
            "images": str(run.folder / "images"),
            "diary": str(run.folder / "diaries" / f"{self.name}-{self.life}.jsonl"),
            "idle": str(run.folder / "idle"),
            "broken": run.broken if self.rust else None,
        } | run.extra
        program = [str(run.chaos)] if self.rust else [sys.executable, str(HERE / "worker.py")]
        with (run.folder / f"{self.name}.err").open("ab") as told:
            self.process = subprocess.Popen(
                [*program, json.dumps(orders)],
                stdin=subprocess.DEVNULL,
                stdout=told,
                stderr=told,
                env=self.env(),
            )

    def env(self) -> dict[str, str]:
        meeting = {"XDG_RUNTIME_DIR": str(self.run.folder / "meeting")}
        if not self.run.faketime:
            return os.environ | meeting
        return (
            os.environ
            | meeting
            | {
                "LD_PRELOAD": self.run.faketime,
                "FAKETIME_TIMESTAMP_FILE": str(self.run.folder / f"{self.name}.clock"),
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                "FAKETIME_NO_CACHE": "1",
                "FAKETIME_DISABLE_SHM": "1",
            }
        )

    def shift(self, seconds: float) -> None:
        new = self.run.folder / f"{self.name}.clock.new"
        new.write_text(f"{seconds:+.3f}\n")
        new.rename(self.run.folder / f"{self.name}.clock")

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


class Run:
    """One run: the processes and servers started for it, and the findings."""

    def __init__(self, chaos: Path, folder: Path, seconds: float, seed: int, broken: str | None) -> None:
        self.chaos, self.folder, self.seconds, self.seed, self.broken = chaos, folder, seconds, seed, broken
        self.lease, self.dice = LEASE, random.Random(seed)
        self.url = f"s3://{BUCKET}/chaos/jobs"
        self.server, self.network = Server(), Toxiproxy()
        self.faketime = faketime()
        self.disk: Path | None = None
        self.seats: list[Seat] = []
        # Processes that no fault hits; ended in any case.
        self.others: list[Seat] = []
        self.doors: list[Door] = []
        self.log = faults.Log()
        self.everybody = asyncio.Lock()
        self.extra: dict[str, Any] = {}
        self.settings: dict[str, Any] = {
            "region": "us-east-1",
            "access_key": USER,
            "secret_key": SECRET,
            "max_skew": SKEW,
            # Small values: bases and segments are replaced all the time, and the old ones are collected.
            "tail": 2048,
            "max_head": 24 * 1024,
            "base_after": 64 * 1024,
            "deadline": 6.0,
            "grace": 6.0,
            "request_timeout": 2.0,
            "connect_timeout": 1.0,
        }
        self.wrong: list[str] = []
        self.not_run: dict[str, str] = {}

    async def seat(
        self, name: str, role: str, *, rust: bool, cache: bool = False, face: str = "blocking"
    ) -> Seat:
        door = Door(name, self.server.port, self.dice)
        await door.start()
        self.doors.append(door)
        port = await self.network.way(name, door.port)
        seat = Seat(self, name, role, rust, len(self.seats), door, {"endpoint": f"http://127.0.0.1:{port}"})
        seat.face = face
        place = (self.disk or self.folder) / name
        if role == "local":
            seat.settings |= {"cache": str(place)}
        elif cache:
            seat.settings |= {"cache": str(place), "cache_bytes": 2**20, "copy_interval": 0.2}
        seat.shift(0)
        return seat

    async def last(self, role: str, timeout: float, **extra: Any) -> int:
        """Run a Python process that works directly on the server and ends by itself."""
        self.extra = extra
        seat = Seat(
            self, role, role, False, 90, self.doors[0], {"endpoint": f"http://127.0.0.1:{self.server.port}"}
        )
        seat.settings |= {"deadline": 30.0, "grace": 30.0, "request_timeout": 10.0} | extra.pop(
            "settings", {}
        )
        seat.shift(0)
        self.others.append(seat)
        seat.start()
        self.extra = {}
        assert seat.process is not None
        try:
            return await asyncio.to_thread(seat.process.wait, timeout)
        except subprocess.TimeoutExpired:
            seat.end()
            return -1

    async def go(self) -> None:
        (self.folder / "diaries").mkdir()
        (self.folder / "images").mkdir()
        (self.folder / "meeting").mkdir(0o700)
        self.disk = mount(self.folder / "disk")
        try:
            await self.server.start()
            await self.network.start()
            await self.under_fire()
            await self.quiet()
            await self.afterwards()
        finally:
            for seat in self.seats + self.others:
                seat.end()
            for door in self.doors:
                await door.close()
            self.network.close()
            self.server.close()
            if self.disk is not None:
                subprocess.run(["umount", str(self.disk)], check=False)  # noqa: ASYNC221 everything is over

    async def under_fire(self) -> None:
        setup = await self.seat("setup", "setup", rust=True)
        setup.start()
        assert setup.process is not None
        if await asyncio.to_thread(setup.process.wait, 60):
            raise SystemExit(f"the queue file cannot be made: {(self.folder / 'setup.err').read_text()}")
        for number in range(2):
            cache = number == 0
            self.seats += [
                await self.seat(f"rust{number}", "worker", rust=True, cache=cache),
                await self.seat(f"python{number}", "worker", rust=False, cache=cache),
                await self.seat(f"aio{number}", "worker", rust=False, face="aio"),
            ]
        self.seats += [
            await self.seat("local0", "local", rust=False),
            await self.seat("rust-janitor", "janitor", rust=True),
            await self.seat("python-janitor", "janitor", rust=False),
        ]
        for seat in self.seats:
            seat.start()
        bucket = Bucket(self.server.port, "chaos/jobs")
        self.chain = Chain(bucket, int(SKEW * 1000))
        watching = asyncio.create_task(self.chain.watch())
        images = str(self.folder / "images")
        witness = asyncio.create_task(self.last("witness", self.seconds + 120, every=10, images=images))
        until = time.monotonic() + self.seconds
        bag: list[faults.Fault] = []
        injectors = [self.inject(bag, until) for _ in range(AT_ONCE)]
        await asyncio.gather(*injectors, self.revive(until))
        (self.folder / "idle").touch()
        await witness
        watching.cancel()

    async def revive(self, until: float) -> None:
        """Note each process that ended by itself, and start it again."""
        while time.monotonic() < until:
            for seat in self.seats:
                if not seat.busy.locked() and seat.process is not None and seat.process.poll() is not None:
                    if not self.broken:
                        self.wrong.append(f"G7 {seat.name}, life {seat.life} ended by itself")
                    seat.start()
            await asyncio.sleep(0.2)

    async def inject(self, bag: list[faults.Fault], until: float) -> None:
        while time.monotonic() < until:
            if not bag:
                bag += [fault for fault in faults.ALL if self.can(fault)]
                self.dice.shuffle(bag)
            fault = bag.pop()
            free = [seat for seat in self.seats if not seat.busy.locked()]
            seat = self.dice.choice(free or self.seats)
            # Faults that hit all processes come one at a time.
            async with self.everybody if fault.everybody else seat.busy:
                await self.log.strike(self, fault, seat, self.dice)
            await asyncio.sleep(self.dice.uniform(0, 0.3))

    def can(self, fault: faults.Fault) -> bool:
        missing = {
            "faketime": "" if self.faketime else "libfaketime is not installed",
            "disk": "" if self.disk else "a small disk can only be mounted by root",
        }.get(fault.needs, "")
        if missing:
            self.not_run[fault.name] = missing
        return not missing

    async def quiet(self) -> None:
        """After the last fault: all processes come to rest, and then none sends requests to the store (G9)."""
        until = time.monotonic() + 40
        ends = [self.folder / "diaries" / f"{seat.name}-{seat.life}.jsonl" for seat in self.seats]
        while not all(path.exists() and '"e":"idle"' in path.read_text()[-200:] for path in ends):
            if time.monotonic() > until:
                tired = [path.stem for path in ends if '"e":"idle"' not in path.read_text()[-200:]]
                self.wrong.append(f"G5 {tired} do not come to rest")
                break
            await asyncio.sleep(0.2)
        # Uploads beside the commits may still be on their way.
        await asyncio.sleep(3)
        before = Counter[str]()
        for seat in self.seats:
            before.update(seat.door.seen)
        await asyncio.sleep(5)
        after = Counter[str]()
        for seat in self.seats:
            after.update(seat.door.seen)
        after.subtract(before)
        if any(after.values()):
            self.wrong.append(f"G9 requests of an idle queue file: {dict(+after)}")
        for seat in self.seats:
            seat.end()

    async def afterwards(self) -> None:
        image = self.folder / "final.sqlite"
        ended = await self.last("drain", 90, image=str(image), patience=40)
        if ended == 0 and image.exists():
            seq, built = rebuild(self.chain.bucket)
            if rows(built) != rows(image):
                self.wrong.append(f"G7 the objects of commit {seq} and the exported file differ")
        else:
            self.wrong.append(
                "G5 the file cannot be drained: " + (self.folder / "drain.err").read_text()[-300:]
            )
        liar = Liar()
        await liar.start()
        settings = {"endpoint": f"http://127.0.0.1:{liar.port}"}
        await self.last("refused", 60, settings=settings)
        await liar.close()

    def judge(self) -> dict[str, Any]:
        diaries = Diaries.read(self.folder / "diaries")
        final = self.folder / "final.sqlite"
        images = [
            (call, Image(Path(call.facts["path"])))
            for call in diaries.calls
            if call.op in ("witness", "woke") and call.ok and Path(call.facts["path"]).exists()
        ]
        wrong = self.wrong + self.chain.wrong
        wrong += check(diaries, Image(final) if final.exists() else None, images)
        shifted = {call.process.partition("-")[0] for call in diaries.calls if wrong_clock(call)}
        kinds = Counter(one.name for one in self.log.struck)
        return {
            "ops": sum(call.ok for call in diaries.calls),
            "asked": len(diaries.calls),
            "commits": self.chain.newest,
            "heads_seen": self.chain.seen,
            "images": dict(Counter(call.op for call, _ in images)),
            "ops_by_seat": dict(
                sorted(Counter(seat_kind(call) for call in diaries.calls if call.ok).items())
            ),
            "local": {word: diaries.codes[word] for word in ("synced", "discarded")},
            "housekeeping": dict(
                Counter(
                    c.op for c in diaries.calls if c.ok and c.op in ("check", "collect", "export", "settle")
                )
            )
            | {"bases": len(self.chain.bases)},
            "wrong_clocks": sorted(shifted),
            "processes": sum(seat.life for seat in self.seats),
            "faults": dict(sorted(kinds.items())),
            "not_run": self.not_run,
            "recovery_s": recovery(self.log, diaries),
            "answers": dict(diaries.codes.most_common()),
            "violations": len(wrong),
            "wrong": wrong,
        }


def faketime() -> str:
    """Return the library that shifts clocks, if it is installed."""
    for path in ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"):
        library = Path(path) / "faketime" / "libfaketimeMT.so.1"
        if library.exists():
            return str(library)
    return ctypes.util.find_library("faketime") or ""


def mount(place: Path) -> Path | None:
    """Mount a disk so small that it can be filled."""
    place.mkdir()
    tried = ["mount", "-t", "tmpfs", "-o", "size=48m", "bucketq-chaos", str(place)]
    with suppress(OSError):
        if subprocess.run(tried, check=False, capture_output=True).returncode == 0:
            return place
    return None


def one(arguments: argparse.Namespace, seconds: float, broken: str | None) -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp(prefix="bucketq-chaos-"))
    program = arguments.mutants if broken else arguments.chaos
    run = Run(program, folder, seconds, arguments.seed, broken)
    what = f"an engine with {broken}" if broken else "the engine"
    print(f"{what}: {seconds:.0f} s under fire, seed {arguments.seed}, diaries in {folder}", flush=True)
    asyncio.run(run.go())
    found = run.judge()
    kinds = Counter(line.split(" ")[0] for line in found["wrong"])
    print(f"  {found['ops']} ops in {found['commits']} commits, {sum(found['faults'].values())} faults")
    print(f"  violations: {dict(kinds) or 'none'}", flush=True)
    for line in found["wrong"][: 3 if broken else 40]:
        print(f"  {line[:400]}")
    if broken or not found["wrong"]:
        if not arguments.keep:
            shutil.rmtree(folder, ignore_errors=True)
    else:
        print(f"  run it again: make chaos SEED={arguments.seed}; what was said and what is there: {folder}")
    return found


def control_run(arguments: argparse.Namespace, seconds: float, rule: str) -> int:
    """Return the violations of an engine with a broken rule; tries again, because a run may miss it by chance."""
    for _ in range(TRIES):
        if found := one(arguments, seconds, rule)["violations"]:
            return int(found)
        arguments.seed += 1
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("chaos", type=Path, help="the program `chaos`")
    parser.add_argument("mutants", type=Path, help="the same with broken rules: .ci/mutants build chaos")
    parser.add_argument("--seconds", type=float, default=600, help="for everything together")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--only", choices=["sound", *BROKEN], help="one run instead of all")
    parser.add_argument("--keep", action="store_true", help="keep diaries and images")
    arguments = parser.parse_args()
    # Each run needs about half a minute beside the faults: to start, to come to rest, to be drained and checked.
    fire = max(20.0, arguments.seconds * 0.75 - 20)
    control = max(20.0, arguments.seconds * 0.25 / len(BROKEN) - 35)
    told: dict[str, Any] = {"seed": arguments.seed}
    clean = True
    if arguments.only in (None, "sound"):
        sound = one(arguments, fire, None)
        clean = not sound.pop("wrong")
        told |= sound
        for name, took in sound["recovery_s"].items():
            print(
                f"  {name:18} {sound['faults'][name]:4} times, back in {took['median']} s, at worst {took['worst']} s"
            )
    if arguments.only != "sound":
        rules = BROKEN if arguments.only is None else (arguments.only,)
        caught = {rule: control_run(arguments, control, rule) for rule in rules}
        told["broken_build"] = caught
        told["broken_build_caught"] = all(caught.values())
        clean = clean and told["broken_build_caught"]
    print(json.dumps(told))
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
