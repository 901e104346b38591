"""Forks: a child opens its own handles, inherits nothing from its parent, and blocks no other process. Nothing hangs.

Each test is a separate program: a fork in the middle of pytest would copy pytest's threads.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import pytest

from patience import PATIENCE
from servers import BUCKET

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")

Run = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    """Run Python programs to their end and return their output; end them and their children with the test."""
    groups: list[subprocess.Popen[str]] = []

    def run(code: str, *args: str) -> str:
        program = tmp_path / "program.py"
        # From 3.12 on Python itself warns about forks of processes with threads.
        program.write_text("import warnings\nwarnings.simplefilter('ignore', DeprecationWarning)\n" + code)
        with (tmp_path / "told").open("w+") as told, (tmp_path / "errors").open("w+") as errors:
            # Files instead of pipes: a child that hangs keeps a pipe open.
            child = subprocess.Popen(
                [sys.executable, str(program), *args], stdout=told, stderr=errors, start_new_session=True
            )
            groups.append(child)
            with suppress(subprocess.TimeoutExpired):
                child.wait(PATIENCE)
            told.seek(0)
            errors.seek(0)
            out, err = told.read(), errors.read()
            assert child.returncode is not None, f"it hangs after\n{out}\n{err}"
            assert (child.returncode, err) == (0, ""), out
            return out

    yield run
    for child in groups:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, 9)
        child.wait()


def test_inherited_handles_are_refused_with_one_sentence_and_closed_in_silence(run):
    out = run("""
import asyncio, bucketq, gc, os, sys
from bucketq import aio

file = bucketq.open("memory://x")
q = file.queue("q")
q.enqueue_many(range(3))
job, entered, batch = q.claim_one(), q.claim_one(), q.claim(1)
begun = file._file.claim(None, 1, None, False, None, None)
pid = os.fork()
if pid == 0:
    told = set()
    for call in (lambda: q.enqueue(2), q.counts, job.ack, lambda: job.extend(9), lambda: q.claim(1), begun.wait,
                 file.metrics, file.sync, file.settle, lambda: q.wait(job.id)):
        try:
            call()
        except bucketq.Closed as error:
            told.add(error.message)
        else:
            told.add(f"{call} is not refused")
    print(*told, sep="\\n")
    print(job.lost, job.remaining, entered.ended, len(batch))
    file.close()
    try:
        with file, batch, entered:
            raise SystemExit(7)
    finally:
        del file, q, job, entered, batch, begun
        gc.collect()
_, status = os.waitpid(pid, 0)
print(os.waitstatus_to_exitcode(status), q.counts().counts["leased"])
file.close()
""")
    sentence, state, end = out.splitlines()
    assert sentence == (
        "this belongs to the process that this one was forked from: open the queue file again in this process"
    )
    assert state == "True 0.0 False 1"
    assert end == "7 3"


@pytest.mark.parametrize("left", ["open", "closed"])
@pytest.mark.parametrize("end", ["os._exit(0)", "sys.exit(0)"])
def test_children_of_a_parent_that_used_it_open_their_own(run, tmp_path, left, end):
    out = run(
        f"""
import asyncio, bucketq, gc, os, sys
from bucketq import aio

place, left = sys.argv[1:]

async def both(name):
    async with await aio.open(place) as file:
        await file.queue("q").enqueue(name)

file = bucketq.open(place)
file.queue("q").enqueue("parent")
if left == "closed":
    file.close()
asyncio.run(both("parent aio"))

def child(name, depth):
    with bucketq.open(place) as own:
        own.queue("q").enqueue(name)
        asyncio.run(both(f"{{name}} aio"))
        if depth:
            fork(f"{{name}}'s child", depth - 1)
        own.queue("q").enqueue(f"{{name}} again")

def fork(name, depth):
    pid = os.fork()
    if pid == 0:
        child(name, depth)
        {end}
    assert os.waitpid(pid, 0)[1] == 0, name

fork("first", 1)
fork("second", 0)
with bucketq.open(place) as file:
    print(sorted(job.data for job in file.queue("q").claim(99)))
""",
        str(tmp_path / "jobs"),
        left,
    )
    names = ["first", "first's child", "second"]
    expected = [f"{name}{what}" for name in names for what in ("", " again", " aio")]
    assert out == f"{sorted([*expected, 'parent', 'parent aio'])}\n"


BESIDE = """
import asyncio, bucketq, os, sys, threading
from bucketq import aio

place, face = sys.argv[1:]
FORKS, THREADS = 50, 6
count, moved, over = 0, threading.Condition(), threading.Event()

def one_more():
    global count
    with moved:
        count += 1
        moved.notify_all()

def blocking():
    q = file.queue("parent")
    while not over.is_set():
        q.enqueue(1)
        one_more()

async def awaiting():
    async with await aio.open(place) as file:
        async def always():
            while not over.is_set():
                await file.queue("parent").enqueue(1)
                one_more()
        await asyncio.gather(*[always() for _ in range(THREADS)])

file = bucketq.open(place)
if face == "aio":
    threads = [threading.Thread(target=asyncio.run, args=(awaiting(),))]
else:
    threads = [threading.Thread(target=blocking) for _ in range(THREADS)]
for thread in threads:
    thread.start()

def goes_on():
    with moved:
        before = count
        assert moved.wait_for(lambda: count >= before + 2 * THREADS, 60), "a child keeps its parent off"

children = []
goes_on()
for i in range(FORKS):
    told, tell = os.pipe()
    stay, leave = os.pipe()
    pid = os.fork()
    if pid == 0:
        if i % 3 == 0:
            with bucketq.open(place) as own:
                own.queue("children").enqueue(i)
        elif i % 3 == 1:
            async def enqueue():
                async with await aio.open(place) as own:
                    await own.queue("children").enqueue(i)
            asyncio.run(enqueue())
        os.write(tell, b".")
        os.read(stay, 1)
        if i % 2:
            os._exit(0)
        over.set()
        sys.exit(0)
    os.close(tell)
    goes_on()
    assert os.read(told, 1) == b".", f"child {i} has ended"
    goes_on()
    children.append((pid, leave))
for pid, leave in children:
    os.write(leave, b".")
    assert os.waitpid(pid, 0)[1] == 0
over.set()
for thread in threads:
    thread.join()
print(file.queue("parent").counts().counts["ready"] == count, file.queue("children").counts().counts["ready"])
file.close()
"""


@pytest.mark.parametrize("face", ["blocking", "aio"])
def test_a_parent_that_enqueues_all_the_time_and_its_children_go_on(run, tmp_path, face):
    assert run(BESIDE, str(tmp_path / "jobs"), face) == "True 34\n"


def test_children_of_a_parent_that_is_busy_on_a_server_open_their_own(run, server):
    out = run(
        """
import asyncio, bucketq, json, os, sys, threading
from bucketq import aio

url, settings = sys.argv[1], json.loads(sys.argv[2])
over = threading.Event()
file = bucketq.open(url, **settings)

def always():
    while not over.is_set():
        file.queue("parent").enqueue(1)

async def enqueue():
    async with await aio.open(url, **settings) as own:
        await own.queue("children").enqueue(1)

thread = threading.Thread(target=always)
thread.start()
for _ in range(10):
    pid = os.fork()
    if pid == 0:
        with bucketq.open(url, **settings) as own:
            own.queue("children").enqueue(1)
        asyncio.run(enqueue())
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
over.set()
thread.join()
print(file.queue("children").counts().counts["ready"])
file.close()
""",
        f"s3://{BUCKET}/{uuid4()}/jobs",
        json.dumps(server.settings),
    )
    assert out == "20\n"


def test_a_child_has_none_of_its_parents_memory_stores(run):
    out = run("""
import bucketq, os
with bucketq.open("memory://shop") as file:
    file.queue("q").enqueue(1)
    pid = os.fork()
    if pid == 0:
        with bucketq.open("memory://shop") as own:
            print(own.queues(), flush=True)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    print(file.queue("q").counts().counts["ready"])
""")
    assert out == "[]\n1\n"


@pytest.mark.parametrize("settings", [{}, {"mode": "local"}], ids=["durable", "local"])
def test_children_that_outlive_a_killed_parent_keep_nobody_off(run, tmp_path, settings):
    cache = {"cache": str(tmp_path / "state")} if settings else {}
    out = run(
        """
import bucketq, json, os, signal, sys, threading
place, settings = sys.argv[1], json.loads(sys.argv[2])
stay, leave = os.pipe()
killed = 0
for i in range(10):
    ready, tell = os.pipe()
    parent = os.fork()
    if parent == 0:
        os.close(leave)
        file = bucketq.open(place, **settings)
        q = file.queue("q")
        q.enqueue(1)
        thread = threading.Thread(target=lambda: [q.enqueue(1) for _ in iter(int, 1)], daemon=True)
        thread.start()
        for _ in range(4):
            if os.fork() == 0:
                os.write(tell, b".")
                os.read(stay, 1)
                os._exit(0)
        signal.pause()
    os.close(tell)
    for _ in range(4):
        assert os.read(ready, 1) == b"."
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    with bucketq.open(place, deadline=10, **settings) as file:
        file.queue("q").enqueue(1)
        file.sync()
        killed += 1
print(killed)
""",
        str(tmp_path / "jobs"),
        json.dumps(settings | cache),
    )
    assert out == "10\n"


def test_a_local_directory_in_use_names_the_process_that_has_it(run, tmp_path):
    out = run(
        """
import bucketq, os, sys
place, cache = sys.argv[1:]
def names(pid):
    try:
        bucketq.open(place, mode="local", cache=cache)
    except bucketq.Unavailable as error:
        return (error.code, f"process {pid} has" in error.message)
stay, leave = os.pipe()
def fork(work):
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(leave)
        work(tell)
        os._exit(0)
    os.close(tell)
    return pid, os.read(told, 1)

first = bucketq.open(place, mode="local", cache=cache)
first.queue("q").enqueue(1)
def stays(tell):
    os.write(tell, b"y" if names(os.getppid()) == ("in_use", True) else b"n")
    os.read(stay, 1)
print(fork(stays)[1])
first.sync()
first.close()  # That child lives on.
def opens(tell):
    own = bucketq.open(place, mode="local", cache=cache)
    own.queue("q").enqueue(2)
    os.write(tell, b"y")
    os.read(stay, 1)
pid, said = fork(opens)
print(said, names(pid))
""",
        str(tmp_path / "jobs"),
        str(tmp_path / "state"),
    )
    assert out == "b'y'\nb'y' ('in_use', True)\n"


def test_pools_of_forked_processes_enqueue(run, tmp_path):
    out = run(
        """
import bucketq, multiprocessing, sys
from concurrent.futures import ProcessPoolExecutor

place = sys.argv[1]

def work(i):
    with bucketq.open(place) as own:
        own.queue("q").enqueue(i)
        return "enqueued"

def refused(i):
    try:
        file.queue("q").enqueue(i)
    except bucketq.Closed as error:
        return "open the queue file again in this process" in error.message

if __name__ == "__main__":
    file = bucketq.open(place)
    file.queue("q").enqueue(-1)
    fork = multiprocessing.get_context("fork")
    with fork.Pool(3) as pool:
        print(set(pool.map(work, range(9))), set(pool.map(refused, range(3))))
    with ProcessPoolExecutor(3, mp_context=fork) as pool:
        print(set(pool.map(work, range(9, 18))), set(pool.map(refused, range(3))))
    print(sorted(job.data for job in file.queue("q").claim(99)) == list(range(-1, 18)))
    file.close()
""",
        str(tmp_path / "jobs"),
    )
    assert out == "{'enqueued'} {True}\n{'enqueued'} {True}\nTrue\n"
