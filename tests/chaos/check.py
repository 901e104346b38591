"""The checker: compares the diary of every process with the contents of the file. It needs the diaries and SQL, and no
engine.

`check(diaries, image, images)` returns the broken promises, one line each, which begins with the promise's number.
"""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

# Errors that say for certain that nothing was applied. After any other error the change may have been applied.
SURELY_NOT = {"Invalid", "NotFound", "LeaseLost", "Contended", "Unavailable", "Full", "QueueFull", "Diverged"}
DONE, DEAD, CANCELLED = 5, 6, 7
ENDS = {"ack": DONE, "reject": DEAD, "cancel": CANCELLED}
NACKED = 2


@dataclass
class Call:
    """One call of a process, and its outcome."""

    process: str
    op: str
    asked: int
    facts: dict[str, Any]
    answered: int | None = None
    answer: dict[str, Any] = field(default_factory=dict)
    # In Local mode: when it was in the directory. None again once it is being dropped.
    kept: int | None = None

    @property
    def ok(self) -> bool:
        return bool(self.answer.get("ok"))

    @property
    def surely_not(self) -> bool:
        return self.answer.get("err") in SURELY_NOT

    def __str__(self) -> str:
        told = "ok" if self.ok else self.answer.get("code", "no answer")
        return f"{self.op} of {self.process} at {self.asked / 1e9:.3f} ({told})"


@dataclass
class Hold:
    """A time in which a process may believe that it holds a job."""

    call: Call
    fence: int
    begin: int
    end: int


@dataclass
class Diaries:
    """The contents of all diaries."""

    calls: list[Call] = field(default_factory=list)
    ups: list[tuple[str, int, int]] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    held: dict[tuple[str, str, int], int] = field(default_factory=dict)
    dropped: dict[tuple[str, str, int], int] = field(default_factory=dict)
    codes: Counter[str] = field(default_factory=Counter)
    # By seat of Local mode, the calls that are not known to be published or dropped.
    pending: defaultdict[str, list[Call]] = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def read(cls, folder: Path) -> Diaries:
        all_of_them = cls()
        # The diaries of a seat in the order of its processes: changes pending in Local mode outlive each process.
        lives = sorted(((*path.stem.rpartition("-"), path) for path in folder.glob("*.jsonl")), key=life_of)
        for _, _, _, path in lives:
            all_of_them.add(path.stem, path)
        return all_of_them

    def add(self, process: str, path: Path) -> None:
        open_calls: dict[int, Call] = {}
        pending = self.pending[process.rpartition("-")[0]]
        for line in path.read_text().splitlines():
            told = json.loads(line)
            match told["e"]:
                case "ask":
                    call = Call(process, told["op"], told["t"], told)
                    open_calls[told["n"]] = call
                    self.calls.append(call)
                    if told.get("local"):
                        pending.append(call)
                case "ans":
                    call = open_calls[told["n"]]
                    call.answered, call.answer = told["t"], told
                    self.codes[told.get("code", "ok")] += 1
                    if call.surely_not and call in pending:
                        pending.remove(call)
                case "loc":
                    open_calls[told["n"]].kept = told["t"]
                case "synced":
                    self.codes["synced"] += 1
                    for call in pending:
                        # Still running when the process was killed: it may or may not be in the directory.
                        if call.kept is not None:
                            call.answered, call.answer = told["t"], told | {"ok": True}
                    pending.clear()
                case "discarding":
                    for call in pending:
                        call.kept = None
                case "discarded":
                    self.codes["discarded"] += 1
                    for call in pending:
                        call.answered, call.answer = told["t"], {"err": "Diverged", "code": "discarded"}
                    pending.clear()
                case "up":
                    self.ups.append((process, open_calls[told["n"]].asked, told["seq"]))
                case "held":
                    self.held[process, told["job"], told["fence"]] = told["at"]
                case "dropped":
                    self.dropped[process, told["job"], told["fence"]] = told["t"]
                case "trouble":
                    self.codes[told["code"]] += 1
                case "!":
                    self.complaints.append(f"{process}: {told['why']}")


def life_of(parts: tuple[str, str, str, Path]) -> tuple[str, int]:
    seat, _, life, _ = parts
    return (seat, int(life))


@dataclass
class Job:
    """A job as it is in the file."""

    seq: int
    state: int
    fence: int
    result: bytes
    errors: list[str]


class Image:
    """The exported file, read with plain SQL."""

    def __init__(self, path: Path) -> None:
        self.path = path
        db = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        self.sound: str = db.execute("PRAGMA integrity_check").fetchone()[0]
        errors: defaultdict[int, list[str]] = defaultdict(list)
        for seq, text in db.execute("SELECT seq, error FROM attempts WHERE ended = ?", (NACKED,)):
            errors[seq].append(text or "")
        self.jobs: dict[str, Job] = {}
        self.twice: list[str] = []
        rows = db.execute(
            "SELECT j.id, j.seq, state, fence, r.bytes FROM jobs j LEFT JOIN results r USING (seq)"
        )
        for ident, seq, state, fence, result in rows:
            name = str(uuid.UUID(bytes=ident))
            if name in self.jobs:
                self.twice.append(name)
            self.jobs[name] = Job(seq, state, fence, result or b"", errors[seq])
        names = ("scheduled", "ready", "leased", "done", "dead", "cancelled")
        self.miscounted = [
            (queue, name, count, there)
            for queue, state, count, name in (
                (row[0], state, row[state - 1], name)
                for row in db.execute(f"SELECT id, {', '.join(names)} FROM queues")
                for state, name in enumerate(names, 2)
            )
            if count
            != (
                there := db.execute(
                    "SELECT count(*) FROM jobs WHERE queue=? AND state=?", (queue, state)
                ).fetchone()[0]
            )
        ]
        db.close()


def check(diaries: Diaries, final: Image | None, images: list[tuple[Call, Image]]) -> list[str]:
    """Return everything that is wrong."""
    found = [f"G7 {what}" for what in diaries.complaints]
    found += leases(diaries)
    found += order(diaries)
    for call, image in images:
        told = (
            kept(diaries, image, call)
            if call.op == "woke"
            else promised(diaries, image, call.asked, last=False)
        )
        found += [f"{line}, in an image of {call}" for line in told]
    if final is None:
        return [*found, "G5 the file could not be drained"]
    found += promised(diaries, final, None, last=True)
    return found


def promised(diaries: Diaries, image: Image, before: int | None, *, last: bool) -> Iterator[str]:
    """Calls that succeeded before this time are in the image, whole; calls that certainly failed are not."""
    if image.sound != "ok":
        yield f"G7 SQLite says {image.sound}"
    yield from (f"G6 job {name} is there twice" for name in image.twice)
    yield from (f"G2 {what} are counted wrongly" for what in image.miscounted)
    jobs, ended = image.jobs, Counter[str]()
    for call in diaries.calls:
        word = call.facts.get("word", "")
        job = jobs.get(call.facts.get("job", ""))
        sure = call.ok and (before is None or (call.answered or 0) < before)
        if call.op == "enqueue":
            there = sum(name in jobs for name in call.facts["jobs"])
            if there not in (0, len(call.facts["jobs"])):
                yield f"G2 {there} of {len(call.facts['jobs'])} jobs are there: {call}"
            if sure and not there:
                yield f"G1 its jobs are not there: {call}"
            if call.surely_not and there:
                yield f"G6 said not to have happened, and has: {call}"
        if call.op == "ack":
            done = job is not None and job.state == DONE and word.encode() in job.result
            then = call.facts.get("then", [])
            there = sum(name in jobs for name in then)
            if there != (len(then) if done else 0):
                yield f"G2 done is {done}, and {there} of {len(then)} jobs that follow are there: {call}"
            if call.surely_not and done:
                yield f"G6 said not to have happened, and has: {call}"
            if sure and not done:
                yield f"G1 the job is {job and job.state}: {call}"
        if call.op == "nack" and job is not None:
            times = job.errors.count(word)
            if (sure and times != 1) or times > 1 or (call.surely_not and times):
                yield f"{'G6' if times else 'G1'} the failure is noted {times} times: {call}"
        if call.op in ("reject", "cancel") and sure and (job is None or job.state != ENDS[call.op]):
            yield f"G1 the job is {job and job.state}: {call}"
        if call.op in ENDS and sure:
            ended[call.facts["job"]] += 1
            if call.op != "cancel" and job is not None and job.fence != call.facts["fence"]:
                yield f"G3 the job was last claimed by commit {job.fence}, not {call.facts['fence']}: {call}"
    yield from (f"G6 job {name} ended {times} times" for name, times in ended.items() if times > 1)
    if last:
        rejected = {
            call.facts["job"] for call in diaries.calls if call.op == "reject" and not call.surely_not
        }
        for name, job in jobs.items():
            if job.state < DONE:
                yield f"G5 job {name} is still {job.state}"
            if job.state == DEAD and name not in rejected:
                yield f"G5 job {name} is dead and nobody rejected it"


def kept(diaries: Diaries, image: Image, woke: Call) -> Iterator[str]:
    """Changes that a directory of Local mode acknowledged before it was opened again are there, published or not."""
    if image.sound != "ok":
        yield f"G7 SQLite says {image.sound}"
    yield from (f"G6 job {name} is there twice" for name in image.twice)
    yield from (f"G2 {what} are counted wrongly" for what in image.miscounted)
    for call in diaries.calls:
        if not of_one_seat(call, woke) or call.kept is None or call.kept > woke.asked:
            continue
        job, word = image.jobs.get(call.facts.get("job", "")), call.facts.get("word", "")
        match call.op:
            case "enqueue":
                there = all(name in image.jobs for name in call.facts["jobs"])
            case "ack":
                there = job is not None and job.state == DONE and word.encode() in job.result
            case "nack":
                there = job is not None and job.errors.count(word) == 1
            case "reject" | "cancel":
                there = job is not None and job.state == ENDS[call.op]
            case _:
                there = True
        if not there:
            yield f"G7 the directory had it and has it no more: {call}"


def of_one_seat(one: Call, other: Call) -> bool:
    return one.process.rpartition("-")[0] == other.process.rpartition("-")[0]


def leases(diaries: Diaries) -> Iterator[str]:
    """A job has one holder at a time, and nothing is done with a stale fencing token."""
    holds: defaultdict[str, list[Hold]] = defaultdict(list)
    gave_up: dict[tuple[str, str, int], int] = dict(diaries.dropped)
    for call in diaries.calls:
        if call.op in ("ack", "nack", "release", "reject"):
            gave_up[call.process, call.facts["job"], call.facts["fence"]] = call.asked
    ends = {c.facts["job"]: c for c in diaries.calls if c.op in ENDS and c.ok}
    for call in diaries.calls:
        for job, fence, _, until in call.answer.get("jobs", ()) if call.op == "claim" else ():
            me = (call.process, job, fence)
            assert call.answered is not None
            end = min(max(until, diaries.held.get(me, 0)), gave_up.get(me, 2**63))
            holds[job].append(Hold(call, fence, call.answered, end))
            if job in ends and call.asked > (ends[job].answered or 0):
                yield f"G6 job {job} was claimed after its end: {call}, {ends[job]}"
    for job, all_of_it in holds.items():
        all_of_it.sort(key=lambda hold: hold.begin)
        for one, two in pairwise(all_of_it):
            if two.begin < one.end:
                early = (one.end - two.begin) / 1e9
                yield f"G4 job {job} is held twice, {early:.3f} s long: {one.call}, {two.call}"
            if one.fence == two.fence:
                yield f"G6 job {job} is claimed twice by one commit: {one.call}, {two.call}"
    for call in diaries.calls:
        if call.op in ("ack", "nack", "release", "reject") and call.ok:
            for other in holds[call.facts["job"]]:
                if other.fence > call.facts["fence"] and other.begin < call.asked:
                    yield f"G3 it was claimed by {other.call} before: {call}"


def order(diaries: Diaries) -> Iterator[str]:
    """Every reader sees at least the commits that were acknowledged to any process before it read."""
    told = [
        (c.answered, c.answer["seq"]) for c in diaries.calls if c.ok and c.answer.get("seq") and c.answered
    ]
    looks = [(at, seq, f"the opening of {process}") for process, at, seq in diaries.ups]
    looks += [
        (c.asked, c.answer["seq"], str(c)) for c in diaries.calls if c.ok and c.op in ("read", "witness")
    ]
    told.sort()
    newest, at = 0, 0
    for asked, seq, what in sorted(looks):
        while at < len(told) and told[at][0] < asked:
            newest = max(newest, told[at][1])
            at += 1
        if seq < newest:
            yield f"G7 {what} shows commit {seq}, and {newest} was answered before"
