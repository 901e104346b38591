"""Blocking calls: other threads run, Ctrl-C works, calls on closed handles fail with Closed. Nothing hangs."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import bucketq
from boxes import memory_url
from patience import PATIENCE

LIMIT = PATIENCE


@pytest.fixture
def run() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start Python programs, and end them with the test."""
    children: list[subprocess.Popen[str]] = []

    def start(code: str, *args: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        child = subprocess.Popen([sys.executable, "-c", code, *args], stdout=pipe, stderr=pipe, text=True)
        children.append(child)
        return child

    yield start
    for child in children:
        child.kill()
        child.communicate()


def test_ctrl_c_ends_a_waiting_claim_at_once(run):
    code = """
import bucketq, os, signal, threading
with bucketq.open("memory://x") as file:
    q = file.queue("q")
    before = file.metrics().requests["get"]

    def interrupt():
        while file.metrics().requests["get"] == before:  # a claim that finds nothing looks into the store, then waits
            pass
        os.kill(os.getpid(), signal.SIGINT)

    try:
        threading.Thread(target=interrupt, daemon=True).start()
        q.claim(wait=None)
    except KeyboardInterrupt:
        q.enqueue(1)
        print("claimed", q.claim_one().attempt)
"""
    assert run(code).communicate(timeout=LIMIT) == ("claimed 1\n", "")


def test_ctrl_c_ends_an_opening_that_gets_no_answer(run):
    code = """
import bucketq, os, signal, socket, threading
silent = socket.create_server(("127.0.0.1", 0))

def interrupt():
    connection, _ = silent.accept()
    os.kill(os.getpid(), signal.SIGINT)

try:
    threading.Thread(target=interrupt, daemon=True).start()
    bucketq.open(
        "s3://bucket/x", endpoint=f"http://127.0.0.1:{silent.getsockname()[1]}", access_key="a", secret_key="b"
    )
except KeyboardInterrupt:
    print("interrupted")
"""
    assert run(code).communicate(timeout=LIMIT) == ("interrupted\n", "")


def test_an_unhandled_ctrl_c_ends_the_process_and_gives_jobs_back(run, tmp_path):
    place = str(tmp_path / "jobs")
    code = """
import bucketq, sys
with bucketq.open(sys.argv[1]) as file:
    for job in file.queue("q").jobs(prefetch=3):
        with job:
            print("working", flush=True)
            file.queue("empty").claim(wait=None)
"""
    with bucketq.open(place) as file:
        q = file.queue("q")
        q.enqueue_many(range(3))
        child = run(code, place)
        assert child.stdout.readline() == "working\n"
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=LIMIT)
        assert "KeyboardInterrupt" in err
        counts = q.counts().counts
        assert (counts["ready"], counts["leased"]) == (3, 0)
        assert [job.attempt for job in q.claim(3)] == [1, 1, 1]


def test_other_threads_run_while_one_waits():
    with bucketq.open("memory://gil") as file:
        q = file.queue("q")
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(q.claim_one, wait=30)
            q.enqueue("x")
            assert waiting.result(LIMIT).data == "x"


def test_threads_claim_each_job_once():
    with bucketq.open("memory://threads") as file:
        q = file.queue("q")
        q.enqueue_many(range(200))
        seen: list[int] = []

        def work() -> None:
            for job in q.jobs(wait=0, prefetch=3):
                with job:
                    seen.append(job.data)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT)
        assert sorted(seen) == list(range(200))
        assert q.counts().counts["done"] == 200


def test_ten_claims_at_once_of_one_job_have_one_winner():
    with bucketq.open("memory://race") as file, ThreadPoolExecutor(10) as pool:
        q = file.queue("q")
        q.enqueue(1)
        batches = list(pool.map(lambda _: q.claim(1), range(10)))
        assert sorted(map(len, batches)) == [0] * 9 + [1]


def consume(place: str, barrier, seen) -> None:
    with bucketq.open(place) as file:
        barrier.wait(LIMIT)
        for job in file.queue("q").jobs(wait=0, prefetch=2):
            with job:
                seen.put((os.getpid(), job.data))


def test_three_processes_share_twenty_jobs_without_a_duplicate(tmp_path):
    place = str(tmp_path / "jobs")
    spawn = multiprocessing.get_context("spawn")
    barrier, seen = spawn.Barrier(3), spawn.Queue()
    with bucketq.open(place) as file:
        file.queue("q").enqueue_many(range(20))
        children = [spawn.Process(target=consume, args=(place, barrier, seen)) for _ in range(3)]
        for child in children:
            child.start()
        got = [seen.get(timeout=LIMIT)[1] for _ in range(20)]
        for child in children:
            child.join(LIMIT)
            assert child.exitcode == 0
        assert sorted(got) == list(range(20))
        assert file.queue("q").counts().counts["done"] == 20


def test_a_killed_worker_loses_its_job_to_another(run, tmp_path):
    place = str(tmp_path / "jobs")
    code = """
import bucketq, sys
file = bucketq.open(sys.argv[1])
job = file.queue("q").claim_one(lease=0.5)
print(job.data, flush=True)
file.queue("empty").claim(wait=None)
"""
    with bucketq.open(place) as file:
        q = file.queue("q")
        q.enqueue("x")
        child = run(code, place)
        assert child.stdout.readline() == "x\n"
        child.kill()
        child.communicate(timeout=LIMIT)
        again = q.claim_one(wait=30)
        assert (again.data, again.attempt) == ("x", 2)


def test_importing_starts_no_thread_and_loads_nothing_heavy(run):
    code = """
import sys, threading, os
import bucketq
print(threading.active_count(), len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 1)
print([name for name in ("asyncio", "typer", "rich", "logging", "uuid", "difflib") if name in sys.modules])
"""
    out, err = run(code).communicate(timeout=LIMIT)
    assert (out, err) == ("1 1\n[]\n", "")


def test_a_process_that_closes_nothing_ends(run):
    code = """
import bucketq, threading
file = bucketq.open("memory://x")
file.queue("q").enqueue_many(range(3))
batch = file.queue("q").claim(3)
threading.Thread(target=file.queue("empty").claim, kwargs={"wait": None}, daemon=True).start()
print("end")
"""
    out, err = run(code).communicate(timeout=LIMIT)
    assert (out, err) == ("end\n", "")


def test_every_call_after_close_says_so():
    file = bucketq.open("memory://closed")
    q = file.queue("q")
    q.enqueue(1)
    job = q.claim_one()
    file.close()
    file.close()
    calls = [
        lambda: q.enqueue(1),
        lambda: q.claim_one(wait=None),
        lambda: q.counts(),
        lambda: q.get(job.id),
        lambda: q.wait(job.id),
        lambda: file.queue("q2").pause(),
        lambda: file.metrics(),
        lambda: job.ack(),
        lambda: job.extend(60),
    ]
    for call in calls:
        with pytest.raises(bucketq.Closed):
            call()


def test_close_ends_a_claim_that_waits():
    file = bucketq.open("memory://closing")
    q = file.queue("q")
    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(q.claim, wait=None) for _ in range(3)]
        # When this enqueue returns, those claims have arrived; those that come later find the handle closed.
        file.queue("other").enqueue(1)
        file.close()
        for future in waiting:
            with pytest.raises(bucketq.Closed):
                future.result(LIMIT)


@pytest.mark.parametrize("call", ["claim", "enqueue"])
def test_closing_a_handle_of_its_own_ends_one_blocked_call(call):
    url = memory_url()
    with bucketq.open(url) as file, ThreadPoolExecutor() as pool:
        q = file.queue("full")
        q.configure(max_pending=1, overflow=bucketq.Block(LIMIT))
        q.enqueue("first")
        own = bucketq.open(url)
        if call == "claim":
            blocked = pool.submit(own.queue("empty").claim, wait=None)
        else:
            blocked = pool.submit(own.queue("full").enqueue, "second")
        # When this returns, that call has arrived; one that comes later finds the handle closed.
        file.queue("other").enqueue(1)
        own.close()
        with pytest.raises(bucketq.Closed):
            blocked.result(LIMIT)
        # The other handle is open, and the call that was left took no effect.
        assert file.queue("empty").enqueue("third").created
        assert q.claim_one().data == "first"
        assert q.claim_one() is None
        assert file.queue("empty").counts().counts["ready"] == 1


def test_secrets_are_not_shown(tmp_path):
    with pytest.raises(bucketq.Error) as caught:
        bucketq.open(
            "s3://bucket/x",
            endpoint="http://127.0.0.1:9",
            region="x",
            access_key="AKIA-visible",
            secret_key="hidden-secret",
            deadline=1,
            connect_timeout=0.2,
        )
    shown = f"{caught.value!r} {caught.value} {getattr(caught.value, '__notes__', '')}"
    assert "hidden-secret" not in shown
