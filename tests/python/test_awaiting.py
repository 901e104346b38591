"""Awaitables: cancelled tasks leave nothing claimed, loops start and end, threads have their own loops."""

from __future__ import annotations

import asyncio
import gc
import importlib
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

import bucketq
from bucketq import Block, aio
from patience import PATIENCE


async def settled(q):
    """Return the counts once every returned job is back."""
    await q._file.flush()
    return (await q.counts()).counts


@pytest.mark.parametrize("turns", range(12))
async def test_a_claim_cancelled_at_any_turn_leaves_the_job_ready(turns):
    async with await aio.open(f"memory://cancel{turns}") as file:
        q = file.queue("q")
        await q.enqueue("x")
        task = asyncio.create_task(q.claim_one(wait=None))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        try:
            job = await task
        except asyncio.CancelledError:
            job = None
        del task
        if job is not None:
            await job.release()
        again = await q.claim_one(wait=30)
        assert (again.data, again.attempt) == ("x", 1)


async def test_a_claim_cancelled_when_its_answer_is_there_gives_the_job_back():
    # The claim has its job, but the task has not run yet: the worst moment.
    async with await aio.open("memory://cancel-late") as file:
        q = file.queue("q")
        waiting = asyncio.create_task(q.claim_one(wait=None))
        await asyncio.sleep(0)
        waiting.get_coro()
        await q.enqueue("x")
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        again = await q.claim_one(wait=30)
        assert (again.data, again.attempt) == ("x", 1)


async def test_an_enqueue_cancelled_while_it_waits_for_room_adds_nothing():
    async with await aio.open("memory://room") as file:
        q = file.queue("q")
        await q.configure(max_pending=1, overflow=Block(PATIENCE))
        await q.enqueue("first")
        blocked = asyncio.create_task(q.enqueue("second"))
        await file.queue("other").enqueue(1)
        blocked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await blocked
        job = await q.claim_one()
        assert job.data == "first"
        await job.ack()
        await file.queue("other").enqueue(1)
        assert await q.claim_one() is None


async def test_a_timeout_around_a_claim_is_a_cancel():
    async with await aio.open("memory://timeout") as file:
        q = file.queue("q")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(q.claim(wait=None), 0.01)
        await q.enqueue("x")
        assert (await q.claim_one()).data == "x"


async def test_a_cancelled_worker_gives_its_job_and_its_prefetched_ones_back():
    async with await aio.open("memory://worker") as file:
        q = file.queue("q")
        await q.enqueue_many(range(5))
        working = asyncio.Event()

        async def work() -> None:
            async for job in q.jobs(prefetch=5):
                async with job:
                    working.set()
                    await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await working.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        del task
        gc.collect()
        counts = await settled(q)
        assert (counts["ready"], counts["leased"]) == (5, 0)
        assert [job.attempt for job in await q.claim(5)] == [1] * 5


async def test_many_tasks_share_commits():
    async with await aio.open("memory://many", commit_interval=0.02) as file:
        q = file.queue("q")
        receipts = await asyncio.gather(*(q.enqueue(n) for n in range(500)))
        assert len({r.id for r in receipts}) == 500
        assert len({r.commit_seq for r in receipts}) < 100


async def test_an_awaitable_runs_once():
    async with await aio.open("memory://once") as file:
        call = file.queue("q")._file.stats(None)
        await call
        with pytest.raises(RuntimeError, match="has run"):
            await call


def test_a_handle_works_in_one_loop_after_another():
    async def opened():
        return await aio.open("memory://loops")

    file = asyncio.run(opened())
    for n in range(3):
        assert asyncio.run(file.queue("q").enqueue(n)).commit_seq
    asyncio.run(file.close())


def test_threads_have_loops_of_their_own_on_one_handle():
    with bucketq.open("memory://loop-threads"), ThreadPoolExecutor(4) as pool:

        async def work(n: int) -> int:
            async with await aio.open("memory://loop-threads") as file:
                q = file.queue("q")
                await asyncio.gather(*(q.enqueue(n) for _ in range(50)))
                return (await q.counts()).counts["ready"]

        assert max(pool.map(lambda n: asyncio.run(work(n)), range(4))) == 200


def test_without_a_loop_the_awaitable_says_so():
    call = aio.open("memory://no-loop")
    with pytest.raises(RuntimeError, match="no running event loop"):
        call.send(None)


def test_a_loop_closed_over_a_waiting_claim_leaves_the_job_to_others():
    with bucketq.open("memory://closed-loop") as file:
        loop = asyncio.new_event_loop()
        other = loop.run_until_complete(aio.open("memory://closed-loop"))
        task = loop.create_task(other.queue("q").claim_one(wait=None))
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        file.queue("q").enqueue("x")
        # That task will never run again.
        task._log_destroy_pending = False
        del task
        gc.collect()
        job = file.queue("q").claim_one(wait=30)
        assert (job.data, job.attempt) == ("x", 1)


async def test_closing_ends_waiting_claims():
    file = await aio.open("memory://aclose")
    tasks = [asyncio.create_task(file.queue("q").claim(wait=None)) for _ in range(3)]
    await asyncio.sleep(0)
    await file.close()
    for task in tasks:
        with pytest.raises(bucketq.Closed):
            await task
    with pytest.raises(bucketq.Closed):
        await file.queue("q").enqueue(1)


async def test_an_exception_group_of_a_task_group_leaves_nothing_claimed():
    async with await aio.open("memory://group") as file:
        q = file.queue("q")
        await q.enqueue_many(range(4))

        async def work(n: int) -> None:
            async with await q.claim_one() as job:
                if n == 3:
                    raise RuntimeError(job.id)
                await asyncio.Event().wait()

        with pytest.raises(ExceptionGroup):
            async with asyncio.TaskGroup() as group:
                for n in range(4):
                    group.create_task(work(n))
        counts = await settled(q)
        assert (counts["leased"], counts["ready"], counts["scheduled"]) == (0, 3, 1)


async def everyday(url):
    """Many calls at once, a claim that waits, one that is cancelled, a worker."""
    async with await aio.open(url) as file:
        q = file.queue("q")
        waiting = [asyncio.create_task(q.claim_one(wait=None)) for _ in range(5)]
        await asyncio.sleep(0)
        await asyncio.gather(*(q.enqueue(n) for n in range(50)))
        await asyncio.gather(*(job.ack() for job in await asyncio.gather(*waiting)))
        late = asyncio.create_task(file.claim(wait=None, queues=["empty"]))
        await asyncio.sleep(0)
        late.cancel()
        with pytest.raises(asyncio.CancelledError):
            await late
        worker = aio.Worker(file)

        @worker.handles("q")
        async def work(job):
            await asyncio.sleep(0)
            return job.data

        assert (await worker.run(wait=0)).done == 45
        assert (await q.counts()).counts["done"] == 50


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_any_loop_will_do(loop):
    with asyncio.Runner(loop_factory=importlib.import_module(loop).new_event_loop) as runner:
        for time in ("first", "second"):
            runner.run(asyncio.wait_for(everyday(f"memory://{loop}-{time}"), PATIENCE))


def test_what_runs_when_the_interpreter_ends_may_await():
    code = """
import asyncio, atexit

async def more():
    await file.queue("q").enqueue_many(range(3), chunk=1)
    await asyncio.gather(*(file.queue("q").enqueue(n) for n in range(20)))
    print((await file.queue("q").counts()).counts["ready"])
    await file.close()

atexit.register(lambda: asyncio.run(more()))  # Runs after what the package registers later.
from bucketq import Block, aio

async def main():
    global file
    file = await aio.open("memory://end")
    await file.queue("q").enqueue(1)

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    assert (done.stdout, done.stderr, done.returncode) == ("24\n", "", 0)
