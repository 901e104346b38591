"""Management of queues, on both APIs and every store."""

from datetime import timedelta
from uuid import uuid4

import pytest

import bucketq
from both import PROBE
from bucketq import Invalid, New


async def test_several_changes_are_one_commit(box):
    async with await box.open() as file:
        q = file.queue("one")
        await q.enqueue("a")
        job = await q.claim_one()
        async with file.atomic() as tx:
            tx.ack(job, result="ok")
            id = tx.enqueue("two", "b")
        none, receipt = tx.results
        assert none is None
        assert receipt.id == id
        assert job.ended
        before = (await file.stats()).commit_seq
        assert before == receipt.commit_seq
        assert (await file.queue("two").claim_one()).data == "b"


async def test_an_atomic_left_by_an_exception_changes_nothing(memory):
    async with await memory.open() as file:
        with pytest.raises(RuntimeError):
            async with file.atomic() as tx:
                tx.enqueue("q", 1)
                raise RuntimeError
        assert (await file.queue("q").counts()).counts["ready"] == 0


async def test_a_refused_change_takes_the_others_with_it(memory):
    async with await memory.open() as file:
        with pytest.raises(bucketq.NotFound):
            async with file.atomic() as tx:
                tx.enqueue("q", 1)
                tx.cancel("01a1ef22-6ca9-76da-93cf-e92b20dc67ca")
        assert (await file.queue("q").counts()).counts["ready"] == 0
        with pytest.raises(bucketq.Invalid):
            _ = tx.results


async def test_ack_enqueues_the_next_steps_in_its_commit(box):
    async with await box.open() as file:
        q = file.queue("q")
        receipt = await q.enqueue("a")
        job = await q.claim_one()
        await job.ack(result=1, then=[New("next", {"n": 1}), New("same queue")])
        jobs = (await file.list(["ready"])).jobs
        assert [(j.queue) for j in jobs] == ["next", "q"]
        assert jobs[0].commit_seq == jobs[1].commit_seq == (await file.stats()).commit_seq
        assert (await q.get(receipt.id)).state == "done"


async def test_cancel_and_requeue(memory):
    async with await memory.open() as file:
        q = file.queue("q")
        receipt = await q.enqueue(1)
        assert await q.cancel(receipt.id) == "ready"
        assert await q.claim_one() is None
        assert await q.requeue(receipt.id) == 1
        job = await q.claim_one()
        assert (job.id, job.run) == (receipt.id, 1)


async def test_purge_deletes_jobs_in_these_states(memory):
    async with await memory.open() as file:
        q = file.queue("q")
        await q.enqueue_many(range(5))
        await (await q.claim_one()).ack()
        assert await q.purge(["done"]) == 1
        assert await file.queue("unused").purge(["done"]) == 0
        assert [one.name for one in await file.queues()] == ["q"]
        assert await q.purge(["ready", "scheduled"]) == 4
        with pytest.raises(bucketq.Invalid, match="no state"):
            await q.purge(["finished"])
        with pytest.raises(bucketq.Invalid, match=r"\['done'\]"):
            await q.purge("done")


async def test_a_paused_queue_gives_nothing(memory):
    async with await memory.open() as file:
        q = file.queue("q")
        await q.enqueue(1)
        await q.pause()
        assert (await q.counts()).paused
        assert await q.claim_one() is None
        await q.resume()
        assert (await q.claim_one()).data == 1


async def test_a_list_comes_in_pages(box):
    async with await box.open() as file:
        q = file.queue("q")
        receipts = await q.enqueue_many(range(5))
        await file.queue("other").enqueue(9)
        first = await q.list(limit=3)
        rest = await q.list(limit=3, after=first.next)
        assert [j.id for j in first.jobs + rest.jobs] == [r.id for r in receipts]
        assert rest.next is None
        assert len((await file.list()).jobs) == 6


async def test_counts_queues_and_stats(box):
    async with await box.open() as file:
        q = file.queue("b")
        assert sum((await q.counts()).counts.values()) == 0
        await q.enqueue_many([New(1), New(2, delay=60)])
        await file.queue("a").enqueue(1)
        assert [info.name for info in await file.queues()] == ["a", "b"]
        info = await q.counts(max_age=60)
        assert (info.counts["ready"], info.counts["scheduled"]) == (1, 1)
        assert info.oldest_ready.total_seconds() >= 0
        stats = await file.stats()
        assert stats.pages > stats.free_pages >= 0
        assert stats.commit_time.tzinfo is not None
        assert {info.name for info in stats.queues} == {"a", "b"}
        assert await file.settle() == stats.commit_seq + 1
        # They are counted in the process that writes.
        assert ((await file.metrics()).commits >= 2) == (file.host_role.role != "joined")


async def test_one_claim_takes_from_several_queues_or_any(memory):
    async with await memory.open() as file:
        for name in "abc":
            await file.queue(name).enqueue(name)
        named = await file.claim(9, queues=["a", "b"])
        assert {job.queue for job in named} == {"a", "b"}
        assert [job.queue for job in await file.claim(9)] == ["c"]


async def test_many_jobs_go_in_chunks_and_tell_how_far_they_are(box):
    async with await box.open() as file:
        q = file.queue("q")
        told = []
        receipts = await q.enqueue_many((n for n in range(25)), chunk=10, progress=told.append)
        assert told == [10, 20, 25]
        assert len({r.commit_seq for r in receipts}) == 3
        assert [j.data for j in await q.claim(25)] == list(range(25))


async def test_a_bad_job_among_many_says_what_went_before(memory):
    async with await memory.open() as file:
        q = file.queue("q")
        jobs = [0, 1, 2, New("other", 3)]
        with pytest.raises(bucketq.Invalid, match="job 3 is for 'other'") as caught:
            await q.enqueue_many(jobs, chunk=2)
        assert len(caught.value.enqueued) == 2
        assert "2 jobs are enqueued" in caught.value.__notes__[0]
        assert (await q.counts()).counts["ready"] == 2


async def test_untouched_jobs_of_a_batch_are_given_back(box):
    async with await box.open() as file:
        q = file.queue("q")
        await q.enqueue_many(range(5))
        async with await q.claim(5) as batch:
            assert len(batch) == 5
            async with batch[0] as job:
                assert job.data == 0
        counts = (await q.counts()).counts
        assert (counts["ready"], counts["leased"], counts["done"]) == (4, 0, 1)
        assert (await q.claim_one()).attempt == 1


async def test_a_loop_left_early_gives_back_what_it_prefetched(box):
    async with await box.open() as file:
        q = file.queue("q")
        await q.enqueue_many(range(5))
        async with q.jobs(prefetch=5) as jobs:
            async for job in jobs:
                async with job:
                    break
        counts = (await q.counts()).counts
        assert (counts["ready"], counts["leased"], counts["done"]) == (4, 0, 1)


async def test_a_store_that_keeps_its_word_passes_the_probe(box):
    report = await PROBE[box.face](box.url, thorough=False, **box.settings)
    assert report.rounds == 3
    assert report.conflicts >= report.rounds * 2 * (report.writers - 1) - report.unanswered
    assert report.took.total_seconds() > 0


async def test_a_page_is_a_sequence_of_jobs(memory):
    async with await memory.open() as file:
        q = file.queue("q")
        assert not await q.list()
        ids = [receipt.id for receipt in await q.enqueue_many(range(3))]
        page = await q.list(limit=2)
        assert ([job.id for job in page], len(page)) == (ids[:2], 2)
        # A cursor at the end of what there is finds what comes later.
        page = await q.list(after=page.next)
        assert ([job.id for job in page], page.next) == (ids[2:], None)


async def test_a_page_can_be_followed_as_jobs_come(box):
    async with await box.open() as file:
        q = file.queue("q")
        empty = await q.list()
        assert empty.last is None
        first = await q.enqueue(1)
        page = await q.list(after=empty.last)
        assert ([job.id for job in page], page.next) == ([first.id], None)
        assert not await q.list(after=page.last)
        assert (await q.list(after=page.last)).last == page.last
        second = await q.enqueue(2)
        assert [job.id for job in await q.list(after=page.last)] == [second.id]


async def test_a_list_can_have_payloads(box):
    async with await box.open() as file:
        q = file.queue("q")
        await q.enqueue_many([{"n": n} for n in range(3)])
        job = await q.claim_one()
        await job.ack(result="done")
        page = await q.list(payloads=True)
        assert [one.data for one in page] == [{"n": 0}, {"n": 1}, {"n": 2}]
        assert [one.result for one in page] == ["done", None, None]
        assert [one.data for one in await file.list(["ready"], queue="q", payloads=True)] == [
            {"n": 1},
            {"n": 2},
        ]


async def test_a_page_with_payloads_ends_after_four_mebibytes(memory):
    async with await memory.open() as file:
        q = file.queue("q")
        await q.enqueue_many([bytes(200_000)] * 50)
        found, after, pages = 0, None, 0
        while True:
            page = await q.list(payloads=True, after=after, limit=1000)
            assert sum(len(one.payload) for one in page) <= 4 << 20
            found, after, pages = found + len(page), page.next, pages + 1
            if after is None:
                break
        assert (found, pages) == (50, 3)


async def test_several_jobs_are_read_at_once(box):
    async with await box.open() as file:
        q = file.queue("q")
        ids = [receipt.id for receipt in await q.enqueue_many([f"job {n}" for n in range(3)])]
        nobody = str(uuid4())
        found = await file.get_many([ids[2], nobody, ids[0]])
        assert [one and one.data for one in found] == ["job 2", None, "job 0"]
        assert await file.get_many([]) == []
        with pytest.raises(Invalid, match="UUID"):
            await file.get_many(["nonsense"])


async def test_many_large_jobs_are_read_at_once(memory):
    async with await memory.open() as file:
        ids = [receipt.id for receipt in await file.queue("q").enqueue_many([bytes(200_000)] * 50)]
        assert [one.id for one in await file.get_many(ids)] == ids


async def test_a_job_can_be_read_from_a_state_of_some_age(memory):
    async with await memory.open() as file:
        receipt = await file.queue("q").enqueue(1)
        gets = (await file.metrics()).requests["get"]
        for _ in range(5):
            assert (await file.get(receipt.id, max_age=60)).data == 1
            assert (await file.queue("q").get(receipt.id, max_age=timedelta(minutes=1))).data == 1
            assert len(await file.get_many([receipt.id], max_age=60)) == 1
        assert (await file.metrics()).requests["get"] == gets


async def test_the_counts_say_whether_the_queue_exists(memory):
    async with await memory.open() as file:
        q = file.queue("q")
        assert not (await q.counts()).exists
        await q.enqueue(1)
        assert (await q.counts()).exists


async def test_a_receipt_says_whether_the_job_is_new(memory):
    async with await memory.open() as file:
        q = file.queue("q")
        first = await q.enqueue(1, dedup="k")
        again = await q.enqueue(1, dedup="k", id=first.id)
        other = await q.enqueue(2, dedup="k")
        assert [one.created for one in (first, again, other)] == [True, False, False]
        assert (again.existing, other.deduplicated) == (True, True)
