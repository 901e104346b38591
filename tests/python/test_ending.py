"""How jobs end: with the next one in the same commit, from other processes, at once, by time, and from elsewhere."""

import asyncio
import threading

import pytest

import bucketq
from both import Lifted
from bucketq import Backoff, LeaseLost, Worked, aio
from patience import PATIENCE
from test_leases import until


def worker_on(file, **options):
    """Return a worker of the file's API."""
    return (
        Lifted(bucketq.Worker(file.blocking, **options))
        if isinstance(file, Lifted)
        else aio.Worker(file, **options)
    )


async def puts(file):
    return (await file.metrics(max_age=None)).requests["put"]


@pytest.mark.own_writer("it counts the requests of this process")
async def test_a_job_and_the_claim_of_the_next_are_one_commit(box):
    async with await box.open() as file:
        q = file.queue("q")
        await q.enqueue_many(range(4))
        job, seen, before = await q.claim_one(lease=600), [], await puts(file)
        while job is not None:
            seen.append(job.data)
            job = await job.ack(next=True)
        assert seen == [0, 1, 2, 3]
        assert await puts(file) - before == 4


async def test_the_next_job_is_claimed_as_the_first_was(memory):
    async with await memory.open() as file:
        await file.queue("p").enqueue(1)
        await file.queue("q").enqueue(2)
        await file.queue("other").enqueue(3, priority=-5)
        (job,) = await file.claim(queues=["p", "q"], lease=600, worker="ann")
        second = await job.ack(next=True)
        assert (second.data, second.info.worker, second.info.expires_at is not None) == (2, "ann", True)
        assert second.remaining > 500
        assert await second.ack(next=True) is None
        assert second.ended


async def test_a_job_that_is_lost_brings_no_other(memory):
    async with await memory.open() as file:
        q = file.queue("q")
        await q.enqueue_many([1, 2])
        job = await q.claim_one()
        await q.cancel(job.id, leased=True)
        with pytest.raises(LeaseLost):
            await job.ack(next=True)
        assert job.lost
        assert (await q.counts()).counts["ready"] == 1


@pytest.mark.own_writer("it counts the requests of this process")
async def test_a_lone_worker_needs_one_commit_a_job(memory):
    async with await memory.open() as file:
        q = file.queue("q")
        await q.enqueue_many(range(20))
        worker = worker_on(file, concurrency=1)
        worker.handles("q")(lambda job: None)
        before = await puts(file)
        assert await worker.run(wait=0) == Worked(done=20)
        assert await puts(file) - before <= 21


async def test_no_handler_sees_the_context_of_another_job(memory):
    from contextvars import ContextVar

    mark, seen = ContextVar("mark", default=0), []
    async with await memory.open() as file:
        await file.queue("q").enqueue_many([1, 2, 3])
        worker = worker_on(file, concurrency=1)

        @worker.handles("q")
        async def look(job):
            seen.append(mark.get())
            mark.set(job.data)

        await worker.run(wait=0)
    assert seen == [0, 0, 0]


async def test_another_process_ends_a_job_by_its_id_and_token(box):
    async with await box.open() as file, await box.open() as other:
        q = file.queue("q")
        ids = [receipt.id for receipt in await q.enqueue_many(range(5))]
        tokens = {job.id: job.token for job in await q.claim(5, lease=600)}
        await other.extend(ids[0], tokens[ids[0]], 300)
        await other.ack(ids[0], tokens[ids[0]], result={"sent": True})
        assert await other.nack(ids[1], tokens[ids[1]], "no luck", delay=60) == "scheduled"
        await other.release(ids[2], tokens[ids[2]])
        await other.reject(ids[3], tokens[ids[3]], "never")
        with pytest.raises(LeaseLost):
            await other.ack(ids[4], "0" * 31 + "1")
        states = [(await other.get(id)).state for id in ids]
        assert states == ["done", "scheduled", "ready", "dead", "leased"]
        assert (await other.get(ids[0])).result == {"sent": True}


async def test_another_process_ends_a_job_and_claims_the_next_in_one_commit(box):
    async with await box.open() as file, await box.open() as other:
        q = file.queue("q")
        await file.queue("elsewhere").enqueue("not this")
        await q.enqueue_many(["a", "b"])
        job = await q.claim_one(lease=600)
        before = (await file.stats()).commit_seq
        following = await other.ack(job.id, job.token, result="sent", next=True)
        assert (await other.stats(max_age=0)).commit_seq == before + 1
        assert following.data == "b"
        assert (await other.get(job.id)).result == "sent"
        assert await file.ack(following.id, following.token, next=True) is None
        assert (await q.counts(max_age=0)).counts["done"] == 2
        with pytest.raises(LeaseLost):
            await file.ack(job.id, "1" * 32, next=True)
        assert (await file.queue("elsewhere").counts(max_age=0)).counts["ready"] == 1


async def test_one_job_is_claimed_by_its_id(memory):
    async with await memory.open() as file:
        q = file.queue("q")
        first, second = [receipt.id for receipt in await q.enqueue_many([1, 2])]
        job = await q.claim_one(id=second)
        assert job.data == 2
        assert await q.claim_one(id=second) is None
        assert (await q.claim_one()).id == first


async def test_jobs_end_in_the_commit_that_claims_them(memory):
    async with await memory.open() as file:
        q = file.queue("q")
        await q.enqueue_many([1, 2, 3])
        jobs = await q.claim(2, ack=True)
        assert [(job.data, job.ended) for job in jobs] == [(1, True), (2, True)]
        async with jobs[0] as job:
            assert job.data == 1
        assert (await q.counts()).counts["done"] == 2


async def test_a_lease_that_is_left_alone_runs_out(memory):
    async with await memory.open() as file:
        q = file.queue("q")
        await q.enqueue(1)
        job = await q.claim_one(lease=3, extend=False)
        assert job.data == 1
        again = await q.claim_one(wait=PATIENCE)
        assert again.id == job.id
        assert job.lost


@pytest.mark.parametrize("by", ["handler", "policy", "job"])
async def test_work_that_takes_too_long_is_a_failed_attempt(memory, by):
    async with await memory.open() as file:
        q = file.queue("q")
        if by == "policy":
            await q.configure(max_run=0.3)
        ended = []
        worker = worker_on(file, concurrency=2)

        @worker.handles("q", max_run=0.3 if by == "handler" else None)
        async def hang(job):
            try:
                await asyncio.sleep(PATIENCE)
            except asyncio.CancelledError:
                ended.append(job.attempt)
                raise

        own = {"max_run": 0.3} if by == "job" else {}
        receipt = await q.enqueue(1, max_attempts=2, backoff=Backoff(base=0), **own)
        assert await worker.run(wait=0) == Worked(failed=2)
        detail = await file.get(receipt.id)
        assert (detail.state, detail.last_error, ended) == ("dead", "timed out", [1, 2])


async def test_a_function_that_takes_too_long_sees_that_its_job_is_lost(memory):
    async with await memory.open() as file:
        over, held = threading.Event(), []
        worker = worker_on(file, concurrency=1)

        @worker.handles("q", max_run=0.3)
        def hang(job):
            held.append(job)
            over.wait(PATIENCE)

        @worker.handles("other")
        def quick(job):
            return "done meanwhile"

        first = await file.queue("q").enqueue(1, max_attempts=1)
        second = await file.queue("other").enqueue(2)
        assert await worker.run(wait=0) == Worked(done=1, failed=1)
        assert held[0].lost
        over.set()
        assert (await file.get(first.id)).last_error == "timed out"
        assert (await file.get(second.id)).state == "done"


async def test_the_policy_limits_work_outside_a_worker_too(memory):
    async with await memory.open() as file:
        q = file.queue("q")
        await q.configure(max_run=0.2)
        await q.enqueue(1, max_attempts=1)
        job = await q.claim_one()
        assert not job.lost
        assert job.data == 1
        await until(lambda: job.lost, "the end of the work")
        detail = await q.wait(job.id, timeout=PATIENCE)
        assert (detail.state, detail.last_error) == ("dead", "timed out")
        with pytest.raises(LeaseLost):
            await job.ack()


async def test_a_cancel_reaches_a_running_coroutine(box):
    async with await box.open() as file, await box.open() as other:
        worker, began, ended = worker_on(file, concurrency=1), asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        @worker.handles("q")
        async def hang(job):
            loop.call_soon_threadsafe(began.set)
            try:
                await asyncio.sleep(PATIENCE)
            finally:
                loop.call_soon_threadsafe(ended.set)

        receipt = await file.queue("q").enqueue(1)
        async with worker:
            async with asyncio.timeout(PATIENCE):
                await began.wait()
                await other.queue("q").cancel(receipt.id, leased=True)
                await ended.wait()
        assert worker.worked == Worked(lost=1)
        assert (await file.get(receipt.id)).state == "cancelled"


async def test_a_loop_that_waits_is_ended_from_elsewhere(memory):
    async with await memory.open() as file:
        q = file.queue("q")
        receipt = await q.enqueue(1)
        jobs, seen = q.jobs(lease=600), []

        async def work():
            async for job in jobs:
                await job.ack()
                seen.append(job.data)

        task = asyncio.create_task(work())
        await q.wait(receipt.id, timeout=PATIENCE)
        await jobs.close()
        await asyncio.wait_for(task, PATIENCE)
        assert seen == [1]


async def test_draining_a_queue_ends_claims_that_wait_for_it(box):
    async with await box.open() as file, await box.open() as other:
        q = file.queue("q")
        await q.enqueue(1)
        await (await q.claim_one()).ack()
        waiting = asyncio.create_task(q.claim(wait=None))
        await asyncio.sleep(0)
        await other.queue("q").drain()
        assert len(await asyncio.wait_for(waiting, PATIENCE)) == 0
        await q.resume()
        await q.enqueue(2)
        assert (await q.claim_one(wait=None)).data == 2


async def test_a_worker_of_a_drained_queue_works_again_once_it_is_resumed(memory):
    async with await memory.open() as file:
        q = file.queue("q")
        first = await q.enqueue(1)
        worker = worker_on(file)
        worker.handles("q")(lambda job: None)
        async with worker:
            await q.wait(first.id, timeout=PATIENCE)
            await q.drain()
            await q.resume()
            second = await q.enqueue(2)
            assert await q.wait(second.id, timeout=PATIENCE) is not None


async def test_attempts_without_end(memory):
    async with await memory.open() as file:
        q = file.queue("q")
        assert (await q.configure(max_attempts=None)).max_attempts is None
        receipt = await q.enqueue(1, backoff=Backoff(base=0))
        for _ in range(12):
            assert await (await q.claim_one(wait=PATIENCE)).nack("again", delay=0) == "ready"
        assert (await q.get(receipt.id)).attempt == 12
