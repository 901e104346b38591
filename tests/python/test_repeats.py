"""Calls that are repeated because their outcome is unknown: one effect each, on both APIs."""

import itertools

import pytest

import bucketq
from boxes import Box
from bucketq import New
from network import network
from servers import BUCKET

NUMBERS = itertools.count()
SHORT = {"deadline": 2, "grace": 3600, "connect_timeout": 0.5, "request_timeout": 1}


@pytest.fixture
def through(server):
    with network(server.endpoint) as through:
        yield through


@pytest.fixture
def box(face, server, through):
    """A queue file behind the network."""
    url = f"s3://{BUCKET}/repeats{next(NUMBERS)}/jobs"
    settings = server.settings | {"endpoint": through.endpoint}
    # A busy machine needs longer for the requests that create it, and for the probe of the store.
    bucketq.open(url, **settings, grace=3600).close()
    return Box(face, url, settings | SHORT)


async def unknown(through, call):
    """Make a call that takes effect, while its caller gets OutcomeUnknown."""
    through.mute()
    with pytest.raises(bucketq.OutcomeUnknown):
        await call()
    through.mend()


async def names(queue):
    """Return the data of the jobs that are ready, oldest first."""
    page = await queue.list(["ready"])
    return [(await queue.get(job.id)).payload for job in page.jobs]


@pytest.mark.parametrize("keep", [1000, 0])
async def test_an_ack_with_next_steps_is_repeated_on_the_same_job(box, through, keep):
    async with await box.open() as file:
        q, step = file.queue("q"), file.queue("step")
        await q.configure(keep=keep)
        await q.enqueue("first")
        job = await q.claim_one(lease=600)

        async def ack():
            await job.ack(result=1, then=[New("step", "a"), New("step", "a"), New("step", "b", priority=1)])

        await unknown(through, ack)
        await ack()
        await ack()
        assert await names(step) == [b"a", b"a", b"b"]
        for _ in range(3):
            await (await step.claim_one()).ack()
        await ack()
        assert await step.claim_one() is None


async def test_an_ack_that_claims_the_next_job_is_repeated_on_the_same_job(box, through):
    async with await box.open() as file:
        q = file.queue("q")
        await q.enqueue_many(["first", "second", "third"])
        job, found = await q.claim_one(lease=600), []

        async def ack():
            found.append(await job.ack(next=True))

        await unknown(through, ack)
        await ack()
        assert [job.data for job in found] == ["second"]
        assert await names(q) == [b"third"]
        await found[0].ack()
        await ack()
        assert found[1] is None


async def test_a_block_of_changes_is_written_again_after_the_end_of_a_job(box, through):
    async with await box.open() as file:
        q, step = file.queue("q"), file.queue("step")
        await q.enqueue("first")
        job = await q.claim_one(lease=600)

        async def block():
            async with file.atomic() as tx:
                tx.ack(job)
                tx.enqueue("step", "a")
                tx.enqueue("step", "b")
            return tx

        await unknown(through, block)
        tx = await block()
        assert [r.existing for r in tx.results[1:]] == [True, True]
        assert await names(step) == [b"a", b"b"]


async def test_a_block_that_enqueues_before_it_ends_a_job_is_one_effect(box, through):
    async with await box.open() as file:
        q, step, blocks = file.queue("q"), file.queue("step"), []
        receipt = await q.enqueue("first")
        job = await q.claim_one(lease=600)

        async def block():
            async with file.atomic() as tx:
                blocks.append(tx)
                tx.enqueue("step", "a")
                tx.ack(job, result="done")
                tx.enqueue("step", "b")

        await unknown(through, block)
        # The block draws a new id for the job before the end: the engine notices that the end is a repeat.
        with pytest.raises(bucketq.LeaseLost) as again:
            await block()
        assert again.value.id == job.id
        assert await names(step) == [b"a", b"b"]
        await blocks[0].repeat()
        assert [blocks[0].results[n].existing for n in (0, 2)] == [True, True]
        assert await names(step) == [b"a", b"b"]
        assert (await file.get(receipt.id)).result == "done"


async def test_a_block_of_changes_without_a_job_is_sent_again(box, through):
    async with await box.open() as file:
        step, blocks = file.queue("step"), []

        async def block():
            async with file.atomic() as tx:
                blocks.append(tx)
                tx.enqueue("step", "a")
                tx.pause("other")

        await unknown(through, block)
        (tx,) = blocks
        await tx.repeat()
        assert tx.results[0].existing
        assert await names(step) == [b"a"]
        with pytest.raises(bucketq.Invalid):
            await tx.repeat()


async def test_an_enqueue_is_repeated_with_its_id(box, through):
    async with await box.open() as file:
        q = file.queue("q")
        await q.configure(keep=0)
        first = (await q.enqueue("x")).id
        id = first[:-2] + ("00" if first[-2:] != "00" else "01")

        async def enqueue():
            return await q.enqueue("y", id=id)

        await unknown(through, enqueue)
        receipt = await enqueue()
        assert (receipt.id, receipt.existing, receipt.deduplicated) == (id, True, False)
        async for job in q.jobs(wait=0):
            async with job:
                pass
        assert await q.get(id) is None
        assert (await enqueue()).existing
        assert await q.claim_one() is None


async def test_an_id_with_other_content_is_refused(memory):
    async with await memory.open() as file:
        q = file.queue("q")
        receipt = await q.enqueue({"to": "ada"})
        assert not receipt.existing
        assert (await q.enqueue({"to": "ada"}, id=receipt.id)).existing
        for queue, data in [(q, {"to": "bob"}), (file.queue("other"), {"to": "ada"})]:
            with pytest.raises(bucketq.Invalid) as refused:
                await queue.enqueue(data, id=receipt.id)
            assert refused.value.code == "id_taken"
