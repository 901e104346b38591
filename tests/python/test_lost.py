"""Leases that are lost: who holds the job is told at once, once, and whichever way it is noticed."""

from __future__ import annotations

import asyncio
import gc
import signal
import subprocess
import sys
import threading

import pytest

import bucketq
from both import Lifted
from bucketq import aio, events, testing
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
    worker = kind(file, lease=60, on_lease_lost=tell if callback == "function" else tell_later)
    worker.handles("q")(work if handler == "function" else work_later)
    if face == "blocking":
        file.queue("q").enqueue("x", max_attempts=1)
        worked = await asyncio.to_thread(worker.run, wait=0, signals=False)
        file.close()
    else:
        await file.queue("q").enqueue("x", max_attempts=1)
        worked = await worker.run(wait=0, signals=False)
        await file.close()
    assert worked.lost == 1
    assert lost == [(seen[0], "ran_out")]


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
