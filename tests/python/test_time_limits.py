"""Functions that take too long: interrupted, left alone when that does not help, and never in place of another one."""

import asyncio
import logging
import random
import sys
import threading
import time

import pytest

import bucketq
from bucketq import Backoff, TimedOut, Worked, Worker, _threads
from bucketq._threads import TIMED_OUT, Threads
from bucketq.tasks import pool
from patience import PATIENCE

MODULE = """
import time
import bucketq

app = bucketq.App()

def note(path, text):
    with open(path, "a") as file:
        file.write(text + "\\n")

@app.task(max_run=0.5, max_attempts=2, backoff=bucketq.Backoff(base=0))
def tidy(path):
    try:
        while True:
            time.sleep(0.01)
    finally:
        note(path, "tidied")

@app.task(max_run=0.5, max_attempts=1)
def stubborn():
    while True:
        try:
            time.sleep(60)
        except bucketq.TimedOut:
            pass

@app.task(max_attempts=1)
def add(a, b):
    time.sleep(0.2)
    return a + b
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """An app whose tasks a child process can import."""
    name = f"limited{time.monotonic_ns()}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("BUCKETQ_URL", str(tmp_path / "jobs"))
    module = __import__(name)
    yield module
    module.app.close()
    del sys.modules[name]


def works(wait):
    """Do something in Python for this long."""
    end = time.monotonic() + wait
    while time.monotonic() < end:
        time.sleep(0.001)


def test_a_function_that_takes_too_long_is_interrupted_and_can_clean_up():
    with bucketq.open("memory://interrupted") as file:
        ended, threads = [], set()
        worker = Worker(file, concurrency=1)

        @worker.handles("q", max_run=0.2)
        def work(job):
            threads.add(threading.current_thread().name)
            try:
                works(PATIENCE)
            except Exception:
                ended.append("an exception that a program catches")
            except TimedOut:
                ended.append(job.attempt)
                raise

        worker.handles("other")(lambda job: "done")
        q = file.queue("q")
        late = q.enqueue(1, max_attempts=2, backoff=Backoff(base=0))
        other = file.queue("other").enqueue(2)
        assert worker.run(wait=0) == Worked(done=1, failed=2)
        assert (file.get(late.id).state, file.get(late.id).last_error) == ("dead", TIMED_OUT)
        assert file.get(other.id).result == "done"
        end = time.monotonic() + PATIENCE
        while len(ended) < 2:
            assert time.monotonic() < end
            time.sleep(0.01)
        assert ended == [1, 2]
        assert len(threads) == 2, "a thread that was interrupted runs nothing else"


def test_a_function_that_cannot_be_interrupted_is_named(caplog, monkeypatch):
    monkeypatch.setattr(_threads, "GRACE", 0.2)
    over = threading.Event()
    with caplog.at_level(logging.WARNING), bucketq.open("memory://deaf") as file:
        worker = Worker(file, concurrency=1)

        @worker.handles("q", max_run=0.1)
        def work(job):
            try:
                over.wait(PATIENCE)
            finally:
                over.wait(PATIENCE)

        file.queue("q").enqueue(1, max_attempts=1)
        assert worker.run(wait=1) == Worked(failed=1)
        over.set()
    assert any("it is left alone until it returns" in record.getMessage() for record in caplog.records)


def test_an_interrupt_hits_the_function_that_took_too_long_and_no_other():
    """Functions that end just when they are interrupted, thousands of times."""
    dice = random.Random(7)

    async def storm():
        threads = Threads(4, "stormy")
        innocent, ended = [], []

        async def late():
            work = asyncio.create_task(threads.run(works, dice.random() * 0.004))
            await asyncio.sleep(dice.random() * 0.004)
            work.cancel(TIMED_OUT)
            (outcome,) = await asyncio.gather(work, return_exceptions=True)
            ended.append(outcome)

        async def punctual(n):
            assert await threads.run(lambda: (works(0.001), n)[1]) == n
            innocent.append(n)

        for _ in range(300):
            await asyncio.gather(late(), punctual(1), late(), punctual(2))
        threads.close()
        return innocent, ended

    innocent, ended = asyncio.run(asyncio.wait_for(storm(), PATIENCE))
    assert len(innocent) == 600
    assert {type(outcome) for outcome in ended} <= {asyncio.CancelledError, type(None)}
    end = time.monotonic() + PATIENCE
    while any(thread.name.startswith("stormy") for thread in threading.enumerate()):
        assert time.monotonic() < end, "a thread does not end"
        time.sleep(0.01)


def test_a_function_that_is_cancelled_before_it_begins_does_not_run():
    async def queued():
        threads, over, ran = Threads(1, "queued"), threading.Event(), []
        first = asyncio.create_task(threads.run(over.wait, PATIENCE))
        second = asyncio.create_task(threads.run(ran.append, 2))
        await asyncio.sleep(0)
        second.cancel(TIMED_OUT)
        await asyncio.gather(second, return_exceptions=True)
        third = asyncio.create_task(threads.run(ran.append, 3))
        over.set()
        await asyncio.gather(first, third)
        threads.close()
        return ran

    assert asyncio.run(asyncio.wait_for(queued(), PATIENCE)) == [3]


def test_a_task_in_a_child_process_is_interrupted_and_the_child_runs_the_next(module, tmp_path):
    path = tmp_path / "notes"
    late = module.tidy.enqueue(str(path))
    good = [module.add.enqueue(n, 1) for n in range(3)]
    worked = module.app.worker(processes=1).run(wait=1, signals=False)
    assert worked == Worked(done=3, failed=2)
    with pytest.raises(bucketq.TaskFailed, match=TIMED_OUT):
        late.result(timeout=0)
    assert [one.result() for one in good] == [1, 2, 3]
    assert path.read_text().split() == ["tidied", "tidied"]


def test_a_child_process_that_does_not_end_after_its_interrupt_is_killed(module, caplog, monkeypatch):
    monkeypatch.setattr(pool, "GRACE", 0.3)
    module.stubborn.enqueue()
    good = module.add.options(delay=1).enqueue(1, 1)
    with caplog.at_level(logging.WARNING):
        worked = module.app.worker(processes=1).run(wait=2, signals=False)
    assert worked == Worked(done=1, failed=1)
    assert good.result() == 2
    assert any("did not end in the 0.3 s" in record.getMessage() for record in caplog.records)
