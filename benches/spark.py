"""Measure Spark on a queue file: reading, the pipeline, writing, working. JSON on the last line.

First it writes an archive of finished jobs: five queues, a daily rhythm, retries, dead jobs. See benches/README.md.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import shutil
import signal
import sqlite3
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

import bucketq
from bucketq import spark as bspark

QUEUES = ("mail", "reports", "media", "billing", "sync")
DAYS = 30
DAY_MS = 86_400_000
# Up to today, when the few jobs end from which the archive's first objects are made.
BEGIN = int(time.time() * 1000) // DAY_MS * DAY_MS - DAYS * DAY_MS
OBJECT = 4096
LEASE = 10.0
BATCH = 500


def archive(path: Path, jobs: int, seed: int) -> None:
    """Make a queue file whose archive lists this number of runs, in objects as the engine writes them."""
    with bucketq.open(path) as file:
        for name in QUEUES:
            q = file.queue(name)
            q.configure(archive=True, keep=0)
            q.enqueue("one")
            q.claim_one().ack()
        file.archive()
        image = path.with_name("image.sqlite")
        file.export(image, replace=True)
        (template, *_) = file.archives().objects
    schema = pq.read_schema(path.with_name(template.key))
    dice = np.random.default_rng(seed)
    # More jobs by day than by night.
    u = np.sort(dice.random(jobs)) * DAYS
    finished = BEGIN + ((u - 0.12 * np.sin(2 * math.pi * u)) * DAY_MS).astype(np.int64)
    finished.sort()
    connection = sqlite3.connect(image)
    ids = dict(connection.execute("SELECT name, id FROM queues"))
    (listed,) = connection.execute("SELECT max(listed_seq) FROM archives").fetchone()
    commit = listed - 1
    file8, listed_ms = bytes.fromhex(template.key.split(".arch-")[1][:8]), BEGIN + DAYS * DAY_MS
    owner = dice.integers(0, len(QUEUES), jobs)
    for number, name in enumerate(QUEUES):
        mine = np.flatnonzero(owner == number)
        for at in range(0, len(mine), OBJECT):
            places = mine[at : at + OBJECT]
            table = lives(dice, places, finished[places], name, schema)
            sink = pa.BufferOutputStream()
            pq.write_table(table, sink, compression="zstd")
            body = sink.getvalue().to_pybytes()
            rand = os.urandom(8)
            key = f"{path.name}.arch-{file8.hex()}-{commit:016x}-{rand.hex()}.parquet"
            path.with_name(key).write_bytes(body)
            hash = xxhash.xxh3_128_intdigest(body).to_bytes(16, "little")
            seqs, times = table["finish_seq"], table["finished_at"].cast(pa.int64())
            row = (
                ids[name],
                file8,
                commit,
                rand,
                len(body),
                hash,
                len(places),
                seqs[0].as_py(),
                seqs[-1].as_py(),
            )
            row = (*row, times[0].as_py(), times[-1].as_py(), listed, listed_ms)
            connection.execute(
                "INSERT INTO archives (queue, file, seq, rand, bytes, hash, jobs, first_seq, last_seq, first_ms, "
                f"last_ms, listed_seq, listed_ms) VALUES ({', '.join('?' * 13)})",
                row,
            )
    connection.commit()
    connection.close()
    bucketq.restore(path, image)


def lives(dice: Any, places: Any, finished: Any, queue: str, schema: pa.Schema) -> pa.Table:
    n = len(places)
    run, wait = dice.exponential(800, n).astype(np.int64), dice.exponential(5000, n).astype(np.int64)
    attempts = 1 + (dice.random(n) < 0.05) + (dice.random(n) < 0.01)
    dead = dice.random(n) < 0.004
    claimed = finished - run
    enqueued = claimed - wait
    raw = dice.bytes(16 * n).hex()
    ids = [
        f"{h[:8]}-{h[8:12]}-7{h[13:16]}-8{h[17:20]}-{h[20:]}"
        for h in (raw[i : i + 32] for i in range(0, 32 * n, 32))
    ]
    none = [None] * n
    columns: dict[str, Any] = {
        "finish_seq": (1 << 24) + 1000 + places,
        "id": ids,
        "run": np.zeros(n, np.int64),
        "queue": [queue] * n,
        "group": [f"g{g}" for g in dice.integers(0, 50, n)],
        "state": np.where(dead, "dead", "done"),
        "priority": np.zeros(n, np.int64),
        "attempts": attempts.astype(np.int64),
        "max_attempts": np.full(n, 10),
        "worker": [f"w{w}" for w in dice.integers(0, 20, n)],
        "enqueued_at": enqueued,
        "run_at": enqueued,
        "first_claimed_at": claimed,
        "claimed_at": claimed,
        "finished_at": finished,
        "wait_ms": wait,
        "run_ms": run,
        "seq": places,
        "enqueue_commit_seq": places // 40,
        "claim_commit_seq": places // 40 + 1,
        "finish_commit_seq": places // 40 + 2,
        "payload_len": np.full(n, 200),
        "payload": none,
        "payload_type": none,
        "result": none,
        "result_type": none,
        "last_error": np.where(dead, "ValueError: no answer after 17 s", None),
    }
    arrays = [
        pa.array(columns[f.name]).cast(f.type) if columns[f.name] is not none else pa.nulls(n, f.type)
        for f in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


class Memory:
    """The peak memory of this process and its children, sampled five times a second."""

    def __init__(self) -> None:
        self.peak_mb = 0.0
        self.over = threading.Event()
        threading.Thread(target=self.watch, daemon=True).start()

    def watch(self) -> None:
        while not self.over.wait(0.2):
            self.peak_mb = max(self.peak_mb, sum(held(pid) for pid in family(os.getpid())) / 1024)


def family(pid: int) -> list[int]:
    found = [pid]
    try:
        # Spark starts Python from threads of its own, and each thread knows only its own children.
        told = [(task / "children").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return found
    for child in " ".join(told).split():
        found += family(int(child))
    return found


def held(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("VmRSS")), 0)


class Names:
    """Every object seen beside a queue file: each was one PUT. Staged ones stay until the end of a write."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.before, self.seen = self.there(), set[str]()
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()

    def there(self) -> set[str]:
        return {one.name for one in self.path.parent.iterdir() if one.name.startswith(f"{self.path.name}.")}

    def watch(self) -> None:
        while not self.over.wait(0.05):
            self.seen |= self.there()

    def stop(self) -> int:
        self.over.set()
        self.thread.join()
        return len((self.seen | self.there()) - self.before)


def work(deadly: int, told: str) -> Any:
    """Return a function that does nothing, except for one job: there it says so and waits to be killed."""

    def one(job: Any) -> None:
        if job.attempt == 1 and job.data["n"] == deadly:
            Path(f"{told}.new").write_text(str(os.getpid()))
            Path(f"{told}.new").rename(told)
            time.sleep(60)

    return one


def pool(home: Path, name: str, jobs: int, kill: bool, told: dict[str, Any]) -> None:
    """Drain a queue with four executors, each a process of its own; kill one of them with its Python, or none."""
    path, holder = home / name, home / f"{name}-holder"
    with bucketq.open(path) as file:
        queue = file.queue("mail")
        # Attempts are counted at the end.
        queue.configure(keep=jobs)
        queue.enqueue_many([bucketq.New({"n": n}) for n in range(jobs)])
    spark = bspark.session(
        **{
            "spark.master": "local-cluster[4,1,1024]",
            "spark.cores.max": "4",
            "spark.ui.showConsoleProgress": "false",
        }
    )
    spark.sparkContext.setLogLevel("OFF")
    try:
        # Wait until all four executors run and have Python.
        spark.range(0, 8, 1, 8).mapInPandas(lambda frames: frames, "id long").collect()
        killed: list[tuple[float, int]] = []
        end = threading.Event()

        def strike() -> None:
            """Kill the executor whose function says that it runs: it has claimed a batch and finished none of it."""
            while not holder.exists():
                if end.wait(0.02):
                    return
            python = int(holder.read_text())
            executors = [p for p in family(os.getpid()) if "CoarseGrainedExecutorBackend" in command(p)]
            victim = next(tree for tree in map(family, executors) if python in tree)
            with bucketq.open(path) as file:
                leased = file.queue("mail").counts(max_age=0).counts["leased"]
            assert leased
            for pid in reversed(victim):
                os.kill(pid, signal.SIGKILL)
            killed.append((time.monotonic(), leased))

        striking = threading.Thread(target=strike, daemon=True)
        if kill:
            striking.start()
        function = work(jobs // 4 if kill else -1, str(holder))
        took, done = timed(
            lambda: bspark.process(spark, path, "mail", function, tasks=4, batch=BATCH, lease=LEASE)
        )
        ended = time.monotonic()
        end.set()
        with bucketq.open(path) as file:
            counts = file.queue("mail").counts().counts
        again = more_than_once(path)
        assert counts["done"] == jobs, counts
        if kill:
            striking.join()
            assert killed
            assert again
            told["worker_killed_jobs_s"] = round(jobs / took)
            told["worker_killed_s"] = round(ended - killed[0][0], 1)
            told["worker_killed_leased"], told["worker_killed_attempts"] = killed[0][1], again
        else:
            assert done.acked == jobs
            told["worker_jobs_s"] = round(jobs / took)
        say(f"four executors, killed {len(killed)}: {took:.1f} s, {again} jobs worked on again")
    finally:
        spark.stop()


def more_than_once(path: Path) -> int:
    """Return the number of finished jobs that took more than one attempt."""
    found, after = 0, 0
    with bucketq.open(path) as file:
        while page := file.lives(queue="mail", after=after, limit=1000).lives:
            found += sum(one.attempts > 1 for one in page)
            after = page[-1].finish_seq
    return found


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def timed(work: Any) -> tuple[float, Any]:
    begun = time.monotonic()
    found = work()
    return time.monotonic() - begun, found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=5_000_000)
    parser.add_argument("--writes", type=int, default=1_000_000)
    parser.add_argument("--work", type=int, default=20_000)
    given = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="bucketq-spark-"))
    spark = bspark.session(
        **{"spark.master": "local[2]", "spark.driver.memory": "3g", "spark.sql.shuffle.partitions": "4"}
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.range(1).count()
    told: dict[str, Any] = {"jobs": given.jobs, "writes": given.writes, "work": given.work}
    try:
        seconds: dict[int, float] = {}
        # The first run is not reported: in it Java compiles the measured code.
        for jobs in (given.jobs // 50, given.jobs // 5, given.jobs):
            folder = home / f"{jobs}"
            folder.mkdir()
            say(f"making an archive of {jobs} jobs")
            archive(folder / "jobs", jobs, 7)
            frame = spark.read.format("bucketq").option("url", str(folder / "jobs")).load()
            took, _ = timed(
                lambda frame=frame: frame.selectExpr("count(*)", "max(wait_ms)", "count(id)").collect()
            )
            say(f"read {jobs}: {took:.1f} s")
            told["read_rows_s"] = round(jobs / took)
            memory = Memory()
            seconds[jobs], done = timed(
                lambda f=folder: bspark.pipeline(spark, f / "jobs", f / "out", say=say)
            )
            memory.over.set()
            assert done.jobs == jobs + len(QUEUES), done
            told["pipeline_rows_s"] = round(jobs / seconds[jobs])
            told["peak_mb"] = round(memory.peak_mb)
            say(f"pipeline {jobs}: {seconds[jobs]:.1f} s")
        told["growth_1_to_5"] = round(seconds[given.jobs] / seconds[given.jobs // 5], 2)

        target = home / "target"
        with bucketq.open(target) as file:
            before = file.stats().commit_seq
        rows = spark.range(0, given.writes, 1, 4).selectExpr(
            "struct(id AS n, repeat('x', 100) AS pad) AS payload"
        )
        writer = (
            rows.write.format("bucketq").mode("append").option("url", str(target)).option("queue", "mail")
        )
        names = Names(target)
        took, _ = timed(writer.save)
        objects = names.stop()
        with bucketq.open(target) as file:
            assert file.queue("mail").counts().counts["ready"] == given.writes
            told["write_commits"] = file.stats().commit_seq - before
        # A commit replaces HEAD.
        told["write_puts"] = told["write_commits"] + objects
        told["write_s"], told["write_rows_s"] = round(took, 2), round(given.writes / took)
        say(f"write: {took:.1f} s, {told['write_commits']} commits")
        spark.stop()
        for name, kill in (("pool", False), ("killed", True)):
            pool(home, name, given.work, kill, told)
    finally:
        spark.stop()
        shutil.rmtree(home, ignore_errors=True)
    told["driver_max_rss_mb"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    print(json.dumps(told))


if __name__ == "__main__":
    main()
