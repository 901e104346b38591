"""Lost leases: the holder of the job learns of it at once, once, and whichever way it is noticed."""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
import sys
import threading
from contextlib import nullcontext

import pytest

import bucketq
from both import Lifted
from bucketq import aio, events, testing
from bucketq._other_api import plain
from watched import LIMIT, until


async def leased(face, clock):
    file = testing.open(clock=clock) if face == "blocking" else await testing.open_aio(clock=clock)
    box = Lifted(file) if face == "blocking" else file
    await box.queue("q").enqueue("x", max_attempts=9)
    return box


async def test_a_lease_that_runs_out_is_told_at_once_with_the_job(face):
    clock, lost = testing.Clock(), []
    file = await leased(face, clock)
    job = await file.queue("q").claim_one(lease=60, on_lease_lost=lambda job, why: lost.append((job, why)))
    clock.advance(59)
    await file.stats()
    assert lost == []
    clock.advance(2)
    await until(lambda: lost)
    assert lost == [(job.blocking if face == "blocking" else job, "ran_out")]
    assert job.lost
    await file.close()


async def test_a_job_taken_away_is_told_by_what_is_refused(memory):
    lost, told = [], []

    async def tell(job, why):
        lost.append((job.id, why))

    async with await memory.open(on_event=told.append) as file:
        q = file.queue("q")
        for _ in range(2):
            await q.enqueue("x")
        async for job in q.jobs(wait=0, on_lease_lost=tell):
            await q.cancel(job.id, leased=True)
            with pytest.raises(bucketq.LeaseLost):
                await job.ack()
            await until(lambda: lost)
            assert lost.pop() == (job.id, "taken")
            assert job.lost
    assert [(event.reason, event.queue) for event in told if isinstance(event, events.LeaseLost)] == [
        ("taken", "q")
    ] * 2


async def test_a_job_that_has_ended_or_is_gone_is_not_lost(face):
    clock, lost = testing.Clock(), []
    file = await leased(face, clock)
    q = file.queue("q")
    await q.enqueue_many(["y", "z"])
    ended, gone, kept = await file.claim(3, lease=60, on_lease_lost=lambda job, why: lost.append(job.id))
    await ended.ack()
    left = kept.id
    del gone
    gc.collect()
    clock.advance(61)
    await until(lambda: lost)
    await file.close()
    assert lost == [left]


async def test_a_callback_for_lost_leases_that_raises_is_logged(face, caplog):
    clock, lost = testing.Clock(), []

    def tell(job, why):
        lost.append(why)
        raise ValueError("a bug")

    file = await leased(face, clock)
    job = await file.queue("q").claim_one(lease=60, on_lease_lost=tell)
    clock.advance(61)
    await until(lambda: caplog.records)
    await file.close()
    assert lost == ["ran_out"]
    assert "on_lease_lost failed" in caplog.text
    assert job.attempt == 1


@pytest.mark.parametrize("handler", ["function", "coroutine"])
@pytest.mark.parametrize("callback", ["function", "coroutine"])
async def test_a_worker_tells_of_the_job_that_its_handler_works_on(face, handler, callback):
    clock, lost, seen = testing.Clock(), [], []
    was_told = threading.Event()

    def tell(job, why):
        lost.append((job, why))
        was_told.set()

    async def tell_later(job, why):
        tell(job, why)

    def work(job):
        seen.append(job)
        clock.advance(61)
        assert was_told.wait(LIMIT)

    async def work_later(job):
        seen.append(job)
        clock.advance(61)
        await asyncio.to_thread(was_told.wait, LIMIT)

    file = testing.open(clock=clock) if face == "blocking" else await testing.open_aio(clock=clock)
    kind = bucketq.Worker if face == "blocking" else aio.Worker
    # Concurrency 1: the worker's other claims cannot get the job once its lease has expired.
    tells = tell if callback == "function" else tell_later
    worker = kind(file, lease=60, concurrency=1, on_lease_lost=tells)
    worker.handles("q")(work if handler == "function" else work_later)
    if face == "blocking":
        file.queue("q").enqueue("x", max_attempts=1)
        worked = await asyncio.to_thread(worker.run, wait=0, signals=False)
        file.close()
    else:
        await file.queue("q").enqueue("x", max_attempts=1)
        worked = await worker.run(wait=0, signals=False)
        await file.close()
    # The worker learned that the lease expired, but no other worker has the job, so its result counts.
    assert worked == bucketq.Worked(done=1)
    assert lost == [(seen[0], "ran_out")]


@pytest.mark.parametrize("handler", ["function", "coroutine"])
@pytest.mark.parametrize("end", ["ack", "nack", "reject"])
@pytest.mark.parametrize("taken", [False, True])
async def test_what_came_of_a_job_counts_after_its_lease_unless_somebody_has_it(face, handler, end, taken):
    clock = testing.Clock()
    file = await leased(face, clock)
    worker = (
        bucketq.Worker(file.blocking, lease=60, concurrency=1)
        if face == "blocking"
        else aio.Worker(file, lease=60, concurrency=1)
    )
    elsewhere = plain(file.blocking if face == "blocking" else file).queue("q")
    others = []

    def work(job):
        clock.advance(61)
        assert job.lost
        if taken:
            others.append(elsewhere.claim_one())
        if end != "ack":
            raise bucketq.Reject("never") if end == "reject" else ValueError("not now")
        return "result"

    async def work_later(job):
        return work(job)

    worker.handles("q")(work if handler == "function" else work_later)
    if face == "blocking":
        worked = await asyncio.to_thread(worker.run, wait=0, signals=False)
    else:
        worked = await worker.run(wait=0, signals=False)
    told = {
        "ack": ("done", "done", "result"),
        "nack": ("failed", "scheduled", None),
        "reject": ("rejected", "dead", None),
    }
    field, state, result = ("lost", "leased", None) if taken else told[end]
    assert worked == bucketq.Worked(**{field: 1})
    [detail] = testing.jobs(file.blocking if face == "blocking" else plain(file), "q")
    assert (detail.state, detail.result) == (state, result)
    assert not any(job.lost for job in others)
    await file.close()


@pytest.mark.parametrize("taken", [False, True])
async def test_the_block_of_a_job_acks_it_after_its_lease_unless_somebody_has_it(face, taken):
    clock = testing.Clock()
    file = await leased(face, clock)
    q = file.queue("q")
    job = await q.claim_one(lease=60)
    other = None
    with pytest.raises(bucketq.LeaseLost) if taken else nullcontext():
        async with job:
            clock.advance(61)
            assert job.lost
            other = await q.claim_one() if taken else None
    detail = await file.get(job.id)
    assert (detail.state, detail.attempt) == (("leased", 2) if taken else ("done", 1))
    assert other is None or not other.lost
    await file.close()


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="no process can be stopped here")
def test_a_process_that_slept_over_its_lease_is_told_as_soon_as_it_wakes(tmp_path):
    url = str(tmp_path / "jobs")
    code = """
import bucketq, sys, threading
told = threading.Event()
def stop(job, why):
    print(job.data, why, job.lost, flush=True)
    told.set()
with bucketq.open(sys.argv[1]) as file:
    job = file.queue("q").claim_one(lease=1, on_lease_lost=stop)
    print("claimed", flush=True)
    told.wait()
    for end in (lambda: job.extend(60), lambda: job.nack("late"), job.release, job.ack):
        try:
            end()
        except bucketq.LeaseLost as error:
            print(error.code)
"""
    with bucketq.open(url) as file:
        q = file.queue("q")
        q.enqueue("x")
        sleeper = subprocess.Popen([sys.executable, "-c", code, url], stdout=subprocess.PIPE, text=True)
        try:
            assert sleeper.stdout.readline() == "claimed\n"
            sleeper.send_signal(signal.SIGSTOP)
            taken = q.claim_one(wait=LIMIT)
            assert taken.attempt == 2
            sleeper.send_signal(signal.SIGCONT)
            out, _ = sleeper.communicate(timeout=LIMIT)
            refused = "lease_lost\n" * 4
            assert out in {f"x ran_out True\n{refused}", f"x taken True\n{refused}"}
            assert q.get(taken.id).state == "leased", "its new holder has it still"
            taken.ack()
        finally:
            sleeper.kill()
            sleeper.communicate()
