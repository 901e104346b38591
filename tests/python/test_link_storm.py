"""Tasks of a process that has joined another one, cancelled at any point: nothing is lost, doubled or stuck."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress

import pytest

from bucketq import aio
from test_hosts import neighbour

CALLERS = 150
CALLS = 8
PATIENCE = 60
LEASE = 600


async def storm(q, dice, kill):
    """Let callers enqueue, claim and ack, and cancel half of their calls. Returns what was enqueued, tried and done."""
    sure, tried, acked, unsure = set(), set(), Counter(), set()
    warm = asyncio.Event()

    async def enqueue(name):
        tried.add(name)
        await q.enqueue(name)
        sure.add(name)

    async def work():
        job = await q.claim_one(lease=LEASE, wait=dice.choice((0, 0.5)))
        if job is None:
            return
        name = job.data
        unsure.add(name)
        try:
            await job.ack()
        except asyncio.CancelledError:
            # The ack may have been applied; if it was not, the job is given back.
            with suppress(Exception):
                await job.release()
            raise
        acked[name] += 1
        unsure.discard(name)
        if len(acked) >= 20:
            warm.set()

    async def caller(number):
        for call in range(CALLS):
            task = asyncio.create_task(enqueue(f"{number}-{call}") if dice.random() < 0.5 else work())
            if dice.random() < 0.5:
                for _ in range(dice.randrange(12)):
                    await asyncio.sleep(0)
                if dice.random() < 0.5:
                    await asyncio.sleep(dice.random() * 0.02)
                task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    callers = [asyncio.create_task(caller(number)) for number in range(CALLERS)]
    if kill is not None:
        await warm.wait()
        kill()
    await asyncio.gather(*callers)
    return sure, tried, acked, unsure


@pytest.mark.parametrize("killed", [False, True], ids=["the leader stays", "the leader is killed"])
async def test_a_storm_of_cancels_through_another_process_loses_and_doubles_nothing(tmp_path, killed):
    url, seed = str(tmp_path / "jobs"), random.randrange(2**32)
    print(f"seed {seed}")
    with neighbour(url) as (process, role):
        assert role == "leads"
        async with await aio.open(url) as file:
            assert file.host_role.role == "joined"
            q = file.queue("q")
            kill = process.kill if killed else None
            found = await asyncio.wait_for(storm(q, random.Random(seed), kill), PATIENCE)
            sure, tried, acked, unsure = found
            assert file.host_role.role == ("leads" if killed else "joined")
            assert len(sure) < len(tried), "no enqueue was cancelled"
            assert max(acked.values()) == 1
            # A cancelled claim has given its jobs back: no lease keeps a job, though each would last ten minutes.
            left = Counter()
            while (counts := (await q.counts()).counts)["ready"] or counts["leased"]:
                async with asyncio.timeout(PATIENCE):
                    jobs = await q.claim(100, lease=LEASE, wait=PATIENCE)
                for job in jobs:
                    left[job.data] += 1
                    await job.ack()
            assert all(count == 1 for count in left.values())
            assert not left.keys() & acked.keys()
            there = left.keys() | acked.keys()
            assert sure - there <= unsure, "an enqueued job is neither done nor there"
            assert there <= tried
            done = (await q.counts()).counts["done"]
            assert len(there) <= done <= len(there | unsure)
