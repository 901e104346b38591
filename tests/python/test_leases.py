"""Leases of held jobs are renewed; lost ones are noticed; jobs that were never looked at go back to the queue."""

from __future__ import annotations

import asyncio
import gc

import pytest

import bucketq


async def until(look, what):
    """Wait for an event that can only be polled."""
    for _ in range(3000):
        if look():
            return
        await asyncio.sleep(0.01)
    pytest.fail(f"waited in vain: {what}")


# Longer than a busy machine delays a process.
LEASE = 3


@pytest.mark.parametrize("lease", [{"lease": LEASE}, {}], ids=["of the claim", "of the policy"])
async def test_a_held_job_is_extended_for_as_long_as_it_is_held(memory, lease):
    async with await memory.open() as file:
        q = file.queue("q")
        await q.configure(lease=LEASE)
        await q.enqueue("x")
        async with await q.claim_one(**lease) as job:
            first = (await q.get(job.id)).expires_at
            # Three renewals outlast the lease: without them, this claim would get the job.
            seen = set()

            async def look():
                seen.add((await q.get(job.id)).expires_at)
                return len(seen) > 4

            while not await look():
                assert await q.claim_one(wait=0.05) is None
            assert max(seen) > first
            assert not job.lost
        assert (await q.counts()).counts["done"] == 1


@pytest.mark.parametrize(("lease", "state"), [(60, "ready"), (None, "dead")])
async def test_work_that_is_cut_off_is_handed_out_again_unless_that_is_never_to_happen(memory, lease, state):
    async with await memory.open() as file:
        q = file.queue("q")
        await q.enqueue("x")
        job = await q.claim_one(lease=lease)
        with pytest.raises(KeyboardInterrupt):
            if hasattr(job, "blocking"):
                with job.blocking:
                    raise KeyboardInterrupt
            async with job:
                raise KeyboardInterrupt
        assert (await q.get(job.id)).state == state


async def test_what_nobody_has_looked_at_goes_back_even_without_an_end_of_its_lease(memory):
    async with await memory.open() as file:
        q = file.queue("q")
        await q.enqueue("x")
        async with await q.claim(1, lease=None) as batch:
            assert len(batch) == 1
        assert (await q.claim_one()).attempt == 1


async def test_a_job_cancelled_under_its_worker_is_lost(memory):
    async with await memory.open() as file:
        q = file.queue("q")
        receipt = await q.enqueue("x")
        with pytest.raises(bucketq.LeaseLost):
            async with await q.claim_one(lease=0.3) as job:
                await q.cancel(receipt.id, leased=True)
                await until(lambda: job.lost, "the keeper finds out")
        assert "lost" in repr(job)


async def test_an_exception_in_a_lost_job_is_still_raised(memory):
    async with await memory.open() as file:
        q = file.queue("q")
        receipt = await q.enqueue("x")
        with pytest.raises(ZeroDivisionError) as caught:
            async with await q.claim_one():
                await q.cancel(receipt.id, leased=True)
                _ = 1 / 0
        assert "could not be given back" in caught.value.__notes__[0]


async def test_extend_changes_the_length_of_the_lease(memory):
    async with await memory.open() as file:
        q = file.queue("q")
        await q.enqueue("x")
        job = await q.claim_one(lease=10)
        assert job.remaining <= 10
        await job.extend(1000)
        assert 900 < job.remaining <= 1000
        await job.extend(20)
        assert job.remaining <= 20
        await job.ack()


async def test_a_job_nobody_looked_at_goes_back_when_nobody_refers_to_it(memory):
    async with await memory.open() as file:
        q = file.queue("q")
        await q.enqueue("x")
        job = await q.claim_one()
        id = job.id
        del job
        gc.collect()
        again = await q.claim_one(wait=30)
        assert (again.id, again.attempt) == (id, 1)


async def test_a_job_somebody_looked_at_waits_for_its_lease_to_run_out(memory):
    async with await memory.open() as file:
        q = file.queue("q")
        await q.enqueue("x")
        job = await q.claim_one(lease=0.4)
        assert job.data == "x"
        del job
        gc.collect()
        again = await q.claim_one(wait=30)
        assert again.attempt == 2


async def test_a_long_lease_may_follow_a_short_clock_skew(box):
    async with await box.open() as file:
        q = file.queue("q")
        await q.enqueue("x")
        job = await q.claim_one(lease=20)
        assert 0 < job.remaining <= 20
        await job.ack()
