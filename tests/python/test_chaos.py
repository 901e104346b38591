"""The checker of `make chaos` finds every broken promise: each is broken in a forged run, one at a time."""

import importlib
import json
import sqlite3
import statistics
import sys
import uuid
from pathlib import Path
from types import SimpleNamespace

import pytest

HERE = Path(__file__).resolve().parents[1] / "chaos"
READY, LEASED, DONE, DEAD = 3, 4, 5, 6
ONE, TWO, THREE = (str(uuid.UUID(int=n)) for n in (1, 2, 3))
SECOND = 10**9


@pytest.fixture(scope="module")
def chaos():
    sys.path.insert(0, str(HERE))
    try:
        return SimpleNamespace(
            **{name: importlib.import_module(name) for name in ("check", "heads", "flat", "steady", "run")}
        )
    finally:
        sys.path.remove(str(HERE))


class Forged:
    """Diaries and an exported file, made up."""

    def __init__(self, folder):
        self.folder = folder
        (folder / "diaries").mkdir()
        self.lines = {}
        self.count = 0
        self.rows = {ONE: (1, DONE, 4, b"w1"), TWO: (2, DONE, 5, b"w2")}
        self.errors = [(2, "w0")]
        self.counts = None

    def note(self, process, event, t, **facts):
        self.lines.setdefault(process, []).append({"t": int(t * SECOND), "e": event} | facts)

    def call(self, process, op, asked, answered=None, *, err=None, told=(), **facts):
        self.count += 1
        self.note(process, "ask", asked, n=self.count, op=op, w=0, **facts)
        if answered is not None:
            said = {"err": err, "code": "forged"} if err else {"ok": True}
            self.note(process, "ans", answered, n=self.count, **(said | dict(told)))
        return self.count

    def image(self, name="image.sqlite"):
        path = self.folder / name
        db = sqlite3.connect(path)
        states = ("scheduled", "ready", "leased", "done", "dead", "cancelled")
        db.executescript(
            f"""CREATE TABLE jobs (id BLOB, seq INTEGER, queue INTEGER, state INTEGER, fence INTEGER);
            CREATE TABLE results (seq INTEGER, bytes BLOB);
            CREATE TABLE attempts (seq INTEGER, ended INTEGER, error TEXT);
            CREATE TABLE queues (id INTEGER, {", ".join(states)})"""
        )
        for job, (seq, state, fence, result) in self.rows.items():
            db.execute("INSERT INTO jobs VALUES (?, ?, 1, ?, ?)", (uuid.UUID(job).bytes, seq, state, fence))
            db.execute("INSERT INTO results VALUES (?, ?)", (seq, result))
        db.executemany("INSERT INTO attempts VALUES (?, 2, ?)", self.errors)
        counts = self.counts or [
            sum(row[1] == state for row in self.rows.values()) for state in range(2, 2 + len(states))
        ]
        db.execute("INSERT INTO queues VALUES (1, ?, ?, ?, ?, ?, ?)", counts)
        db.commit()
        db.close()
        return path

    def diaries(self, check):
        for process, lines in self.lines.items():
            text = "".join(f"{json.dumps(line)}\n" for line in lines)
            (self.folder / "diaries" / f"{process}.jsonl").write_text(text)
        return check.Diaries.read(self.folder / "diaries")

    def found(self, chaos):
        return chaos.check.check(self.diaries(chaos.check), chaos.check.Image(self.image()), [])


@pytest.fixture
def run(tmp_path):
    """A run without faults: two jobs are enqueued, one fails once, both are done."""
    run = Forged(tmp_path)
    run.call("a-1", "enqueue", 1, 2, told={"seq": 1}, jobs=[ONE, TWO])
    claimed = [[TWO, 3, 1, 9 * SECOND]]
    run.call("a-1", "claim", 3, 4, told={"jobs": claimed}, most=1)
    run.call("a-1", "nack", 5, 6, job=TWO, fence=3, word="w0")
    for at, job, fence, word in ((7, ONE, 4, "w1"), (10, TWO, 5, "w2")):
        claimed = [[job, fence, 1, (at + 2) * SECOND]]
        run.call("b-1", "claim", at, at + 0.5, told={"jobs": claimed}, most=1)
        run.call("b-1", "ack", at + 1, at + 1.5, job=job, fence=fence, word=word)
    return run


def kinds(found):
    return {line.split(" ")[0] for line in found}


def test_an_honest_run_is_clean(chaos, run):
    assert run.found(chaos) == []


def lost_job(run):
    run.call("a-1", "enqueue", 12, 13, told={"seq": 9}, jobs=[THREE])


def lost_ack(run):
    run.rows[ONE] = (1, DEAD, 4, b"")
    run.call("a-1", "reject", 20, job=ONE, fence=9, word="x")


def half_a_commit(run):
    run.call("a-1", "enqueue", 12, jobs=[ONE, THREE])


def miscounted(run):
    run.counts = [0, 0, 0, 3, 0, 0]


def stale_token(run):
    run.call("c-1", "claim", 10.6, 10.7, told={"jobs": [[TWO, 6, 2, 10 * SECOND]]}, most=1)


def two_holders(run):
    run.call("c-1", "claim", 3.5, 4.5, told={"jobs": [[TWO, 4, 1, 8 * SECOND]]}, most=1)


def forgotten_job(run):
    run.rows[THREE] = (3, LEASED, 7, b"")


def dead_for_nothing(run):
    run.rows[THREE] = (3, DEAD, 7, b"")


def denied_and_done(run):
    run.rows[THREE] = (3, DONE, 7, b"")
    run.call("a-1", "enqueue", 12, 13, err="Unavailable", jobs=[THREE])


def failed_twice(run):
    run.errors.append((2, "w0"))


def ended_twice(run):
    run.call("c-1", "ack", 14, 15, job=ONE, fence=4, word="w1")


def claimed_after_its_end(run):
    run.call("c-1", "claim", 14, 15, told={"jobs": [[ONE, 8, 2, 20 * SECOND]]}, most=1)


def old_state(run):
    run.call("a-1", "enqueue", 20, 21, told={"seq": 30}, jobs=[ONE])
    run.call("b-1", "read", 22, 23, told={"seq": 29})


@pytest.mark.parametrize(
    ("lie", "promise"),
    [
        (lost_job, "G1"),
        (lost_ack, "G1"),
        (half_a_commit, "G2"),
        (miscounted, "G2"),
        (stale_token, "G3"),
        (two_holders, "G4"),
        (forgotten_job, "G5"),
        (dead_for_nothing, "G5"),
        (denied_and_done, "G6"),
        (failed_twice, "G6"),
        (ended_twice, "G6"),
        (claimed_after_its_end, "G6"),
        (old_state, "G7"),
    ],
)
def test_a_broken_promise_is_found(chaos, run, lie, promise):
    lie(run)
    assert promise in kinds(run.found(chaos))


def local_run(folder):
    """One op that reached the directory, and the image that the next process finds."""
    run = Forged(folder)
    number = run.call("local0-9", "enqueue", 1, jobs=[ONE], local=True)
    run.note("local0-9", "loc", 2, n=number)
    # Read in the order of process numbers, not of names: 10 comes after 9.
    run.call("local0-10", "woke", 5, 6, path="woke")
    return run


def woken(chaos, run):
    diaries = run.diaries(chaos.check)
    [woke] = [call for call in diaries.calls if call.op == "woke"]
    return diaries, chaos.check.check(diaries, None, [(woke, chaos.check.Image(run.image()))])


def test_what_a_directory_had_must_be_there_after_a_kill(chaos, tmp_path):
    run = local_run(tmp_path)
    run.rows = {ONE: (1, READY, 0, b"")}
    assert "G7" not in kinds(woken(chaos, run)[1])


def test_what_a_directory_lost_is_found(chaos, tmp_path):
    run = local_run(tmp_path)
    run.rows = {}
    assert "G7" in kinds(woken(chaos, run)[1])


def test_what_was_dropped_may_be_gone(chaos, tmp_path):
    run = local_run(tmp_path)
    for event, at in (("discarding", 3), ("discarded", 4)):
        run.note("local0-9", event, at)
    run.rows = {}
    assert "G7" not in kinds(woken(chaos, run)[1])


@pytest.mark.parametrize(("event", "promise"), [("synced", "G1"), ("discarded", "G6")])
def test_a_sync_is_held_to_its_word(chaos, tmp_path, event, promise):
    """An op is published but missing, or dropped but present."""
    run = Forged(tmp_path)
    number = run.call("local0-1", "enqueue", 1, jobs=[ONE], local=True)
    run.note("local0-1", "loc", 2, n=number)
    run.note("local0-1", event, 3, seq=7)
    run.rows = {} if event == "synced" else {ONE: (1, DONE, 3, b"")}
    assert promise in kinds(run.found(chaos))


def head(seq, ms, ident="a"):
    record = {"seq": seq, "commit_id": f"{ident}{seq}", "prev_commit_id": f"a{seq - 1}"}
    return {
        "commit_seq": seq,
        "commit_ms": ms,
        "commit_id": f"{ident}{seq}",
        "tail": [record],
        "base": {"seq": 0},
    }


@pytest.mark.parametrize(
    ("heads", "promise"),
    [
        ([head(5, 1000), head(6, 1001)], None),
        ([head(6, 1001), head(5, 1001)], "G7"),
        ([head(5, 1000), head(6, 999)], "G7"),
        ([head(5, 1000), head(5, 1000, "b")], "G7"),
        ([head(5, 1000), head(6, 9000)], "G8"),
    ],
)
def test_a_chain_that_goes_back_forks_or_runs_ahead_is_found(chaos, heads, promise):
    chain = chaos.heads.Chain(None, max_skew_ms=1500)
    for one in heads:
        chain.look(one, now_ms=1100)
    assert kinds(chain.wrong) == ({promise} if promise else set())


def series(grow, noise=0.0, step=0.0):
    times = [5.0 * n for n in range(120)]
    swing = (0.0, 1.0, 0.5, -0.5, -1.0, 0.2, -0.2)
    return times, [
        100 + grow * t / 3600 + noise * swing[n % 7] + step * (n > 40) for n, t in enumerate(times)
    ]


@pytest.mark.parametrize(
    ("shape", "flat", "grows"),
    [
        ({"grow": 0}, True, False),
        ({"grow": 0, "noise": 3}, True, False),
        ({"grow": -50, "noise": 1}, True, False),
        ({"grow": 30, "noise": 1}, False, True),
        ({"grow": 0, "noise": 900}, False, False),
        ({"grow": 0, "step": 5}, True, False),
        ({"grow": 0, "step": 40}, False, False),
    ],
)
def test_flat_is_neither_growing_nor_too_noisy_to_tell(chaos, shape, flat, grows):
    one = chaos.flat.trend(*series(**shape), chaos.flat.Tolerance(0.25, 1))
    assert (one.flat, one.grows) == (flat, grows)


def test_a_block_may_stand_for_its_median_where_single_samples_lie_far_off(chaos):
    times, values = series(grow=0)
    spiked = [value + (400 if n % 17 == 0 else 0) for n, value in enumerate(values)]
    flat = [
        chaos.flat.trend(times, spiked, chaos.flat.Tolerance(0.25, 1), level).flat
        for level in (statistics.fmean, statistics.median)
    ]
    assert flat == [False, True]


def soaked(steady, **growing):
    """Return samples of half an hour; each named figure grows by this much in that time, or swings by (this much,)."""
    names = ("rust", "python", "aio")
    level = {
        f"{what}_{one}": 50.0 for what in ("rss_mb", "live_mb", "threads", "descriptors") for one in names
    }
    level |= {
        f"{op}_{part}_ms_{one}": 20.0 for op in ("enqueue", "ack") for part in ("p50", "p99") for one in names
    }
    level |= {f"{what}_{kind}": 100.0 for what in ("objects", "bytes") for kind in steady.OBJECTS}
    level |= {"pages": 900.0, "backlog": 600.0, "plain_put_ms": 4.0}
    rows = []
    for n in range(360):
        row = {"t": 5.0 * (n + 1)} | level
        row |= {
            what: rate * n for what, rate in (("jobs", 300), ("puts", 800), ("gets", 500), ("deletes", 90))
        }
        row["lists"] = float(n // 50)
        for name, by in growing.items():
            row[name] += by[0] * (n // 20 * 7919 % 101) / 101 if isinstance(by, tuple) else by * n / 360
        rows.append(row)
    return rows


@pytest.mark.parametrize(
    ("growing", "failed"),
    [
        ({}, []),
        ({"live_mb_python": 30}, ["live_mb_python"]),
        ({"objects_segment": 100}, ["objects_segment"]),
        ({"puts": 200_000}, []),
        ({"deletes": (400_000,)}, ["deletes_per_job"]),
        ({"bytes_archive": (5e7,)}, ["bytes_archive"]),
        # A noisy time is no fault, and one that certainly grows is one.
        ({"ack_p99_ms_aio": (9_000,)}, []),
        (
            {f"enqueue_p50_ms_{one}": 50 for one in ("rust", "python", "aio")},
            ["enqueue_p50_ms", "enqueue_vs_plain_put"],
        ),
    ],
)
def test_a_soak_fails_for_what_grows_and_for_what_a_leak_could_hide_in(chaos, growing, failed):
    assert chaos.steady.failed(chaos.steady.trends(soaked(chaos.steady, **growing), 60)) == failed
