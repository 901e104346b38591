"""Jobs that a worker claims ahead: started without a wait, never more than asked for, and given back."""

import asyncio

import pytest

import bucketq
from both import Lifted
from bucketq import Worked, _native, aio


def worker_on(file, **options):
    """Return a worker of the file's API."""
    return (
        Lifted(bucketq.Worker(file.blocking, **options))
        if isinstance(file, Lifted)
        else aio.Worker(file, **options)
    )


@pytest.mark.parametrize(("prefetch", "waits"), [(0, True), (1, False)])
def test_the_next_handler_starts_before_the_end_of_the_last_job_is_stored(prefetch, waits):
    request_us = 200_000
    with bucketq.QueueFile(_native.open_test({}, None, request_us).wait(), "slow") as file:
        file.queue("q").enqueue_many(range(4))
        begun, waited = [], []
        worker = bucketq.Worker(file, concurrency=1, prefetch=prefetch)

        @worker.handles("q")
        def work(job):
            if begun:
                waited.append(begun[-1].ended)
            begun.append(job)

        assert worker.run(wait=0, signals=False) == Worked(done=4)
        # The first jobs come with one claim, the others with the ends of earlier jobs.
        assert waited[0] is waits
        assert [job.data for job in begun] == [0, 1, 2, 3]


async def test_a_drain_gives_back_what_was_claimed_ahead(memory):
    async with await memory.open() as file:
        q = file.queue("q")
        await q.enqueue_many(range(9))
        worker = worker_on(file, concurrency=2, prefetch=3)
        leased, drained = [], asyncio.Event()

        @worker.handles("q")
        async def work(job):
            if job.data == 0:
                leased.append((await q.counts()).counts["leased"])
                worker.drain()
                drained.set()
            await drained.wait()

        worked = await worker.run()
        assert leased == [5]
        assert worked.done == 2
        assert (await q.counts()).counts["ready"] == 9 - worked.done
        jobs = await q.list(states=["ready"])
        assert [job.attempt for job in jobs] == [0] * len(jobs)


async def test_no_more_is_claimed_than_concurrency_and_prefetch(memory):
    async with await memory.open() as file:
        q = file.queue("q")
        await q.enqueue_many(range(40))
        worker, running, most = worker_on(file, concurrency=2, prefetch=2), set(), [0, 0]

        @worker.handles("q")
        async def work(job):
            running.add(job.id)
            most[0] = max(most[0], len(running))
            most[1] = max(most[1], (await q.counts()).counts["leased"])
            running.discard(job.id)

        assert await worker.run(wait=0) == Worked(done=40)
        assert most == [2, 4]


async def test_each_job_counts_when_a_handler_fails_or_ends_its_job_itself(memory):
    async with await memory.open() as file:
        q = file.queue("q")
        await q.configure(max_attempts=1)
        await q.enqueue_many(range(12))
        worker = worker_on(file, concurrency=1, prefetch=4)

        @worker.handles("q")
        async def work(job):
            if job.data % 3 == 0:
                raise ValueError("every third")
            if job.data % 3 == 1:
                await job.ack(result="own")

        assert await worker.run(wait=0) == Worked(done=8, failed=4)
        counts = (await q.counts()).counts
        assert (counts["done"], counts["dead"], counts["ready"], counts["leased"]) == (8, 4, 0, 0)


@pytest.mark.parametrize("wrong", [-1, 1.5, "2", None])
def test_a_prefetch_that_is_no_number_is_refused(wrong):
    with bucketq.open("memory://wrong-prefetch") as file, pytest.raises(bucketq.Invalid, match="prefetch"):
        bucketq.Worker(file, prefetch=wrong)
