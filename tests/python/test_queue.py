"""Queues on both APIs and every store: enqueue, claim, finish, inspect."""

from datetime import UTC, datetime, timedelta

import pytest

import bucketq
from bucketq import Backoff, New
from patience import PATIENCE


async def test_a_job_is_enqueued_claimed_and_acked(box):
    async with await box.open() as file:
        q = file.queue("emails")
        receipt = await q.enqueue({"to": "ada"}, headers={"trace": "1"})
        assert receipt.commit_seq > 0
        assert not receipt.deduplicated
        assert receipt.commit_time == (await q.get(receipt.id)).enqueued_at
        job = await q.claim_one()
        assert (job.id, job.queue, job.attempt, job.run) == (receipt.id, "emails", 1, 0)
        assert job.data == {"to": "ada"}
        assert job.payload == b'{"to":"ada"}'
        assert job.headers == {"trace": "1"}
        assert job.fence > receipt.commit_seq
        assert not job.lost
        assert 0 < job.remaining <= 60
        await job.ack(result={"sent": True})
        assert job.ended
        assert not job.lost
        detail = await q.get(receipt.id)
        assert detail.state == "done"
        assert detail.result == {"sent": True}
        assert await q.claim_one() is None


async def test_leaving_the_block_acks_the_job(box):
    async with await box.open() as file:
        q = file.queue("q")
        await q.enqueue_many(range(3))
        seen = []
        async for job in q.jobs(wait=0, prefetch=2):
            async with job:
                seen.append(job.data)
        assert seen == [0, 1, 2]
        assert (await q.counts()).counts["done"] == 3


async def test_an_exception_nacks_the_job_and_goes_on(box):
    async with await box.open() as file:
        q = file.queue("q")
        receipt = await q.enqueue(1, backoff=Backoff(base=3600))
        with pytest.raises(ZeroDivisionError):
            async for job in q.jobs(wait=0):
                async with job:
                    _ = 1 / 0
        detail = await q.get(receipt.id)
        assert detail.state == "scheduled"
        assert detail.last_error == "ZeroDivisionError: division by zero"
        assert detail.attempt == 1


async def test_swallow_nacks_and_stays_in_the_loop(memory, caplog):
    async with await memory.open() as file:
        q = file.queue("q")
        await q.enqueue_many([New(n, max_attempts=1) for n in range(3)])
        async for job in q.jobs(wait=0, swallow=True):
            async with job:
                if job.data == 1:
                    raise RuntimeError("no")
        counts = (await q.counts()).counts
        assert (counts["done"], counts["dead"]) == (2, 1)
    assert "failed" in caplog.text


async def test_being_stopped_gives_the_job_back_unharmed(memory):
    async with await memory.open() as file:
        q = file.queue("q")
        await q.enqueue(1)
        job = await q.claim_one()
        with pytest.raises(KeyboardInterrupt):
            async with job:
                raise KeyboardInterrupt
        again = await q.claim_one()
        assert (again.id, again.attempt) == (job.id, 1)


async def test_a_job_ended_in_the_block_is_left_alone(memory):
    async with await memory.open() as file:
        q = file.queue("q")
        await q.enqueue(1)
        async with await q.claim_one() as job:
            await job.reject("nobody can do this")
        page = await q.list(["dead"])
        assert page.jobs[0].last_error == "nobody can do this"


async def test_nack_tells_the_new_state(memory):
    async with await memory.open() as file:
        q = file.queue("q")
        await q.enqueue(1, max_attempts=2, backoff=Backoff(base=0))
        job = await q.claim_one()
        assert await job.nack(ValueError("once")) == "ready"
        job = await q.claim_one()
        assert job.info.last_error == "ValueError: once"
        assert await job.nack("twice") == "dead"


async def test_nack_with_a_delay_schedules_the_job(memory):
    async with await memory.open() as file:
        q = file.queue("q")
        await q.enqueue(1)
        assert await (await q.claim_one()).nack("later", delay=timedelta(hours=1)) == "scheduled"
        info = (await q.list(["scheduled"])).jobs[0]
        assert info.run_at - info.enqueued_at > timedelta(minutes=59)


async def test_a_release_does_not_count_the_attempt(memory):
    async with await memory.open() as file:
        q = file.queue("q")
        await q.enqueue(1)
        await (await q.claim_one()).release()
        assert (await q.claim_one()).attempt == 1


async def test_a_stale_ack_is_refused(memory):
    async with await memory.open() as file:
        q = file.queue("q")
        receipt = await q.enqueue(1)
        job = await q.claim_one()
        await q.cancel(receipt.id, leased=True)
        with pytest.raises(bucketq.LeaseLost) as caught:
            await job.ack()
        assert caught.value.code == "lease_lost"


async def test_delay_and_at_schedule_a_job(box):
    async with await box.open() as file:
        q = file.queue("q")
        await q.enqueue("later", delay=3600)
        await q.enqueue("then", at=datetime(2100, 1, 1, tzinfo=UTC))
        assert await q.claim_one() is None
        jobs = (await q.list(["scheduled"])).jobs
        assert jobs[1].run_at == datetime(2100, 1, 1, tzinfo=UTC)
        assert timedelta(minutes=59) < jobs[0].run_at - jobs[0].enqueued_at < timedelta(minutes=61)


async def test_a_waiting_claim_sees_a_due_job(memory):
    async with await memory.open() as file:
        q = file.queue("q")
        await q.enqueue("soon", delay=0.05)
        assert (await q.claim_one(wait=30)).data == "soon"


async def test_lower_priority_runs_first(box):
    async with await box.open() as file:
        q = file.queue("q")
        await q.enqueue_many([New("b", priority=5), New("a", priority=-5), New("c", priority=5)])
        assert [job.data for job in await q.claim(3)] == ["a", "b", "c"]


async def test_a_dedup_key_keeps_the_second_job_out_while_the_first_is_unfinished(box):
    async with await box.open() as file:
        q = file.queue("q")
        first = await q.enqueue(1, dedup="welcome-42", dedup_window="unfinished")
        second = await q.enqueue(2, dedup="welcome-42")
        assert second.deduplicated
        assert second.id == first.id
        await (await q.claim_one()).ack()
        assert not (await q.enqueue(3, dedup="welcome-42")).deduplicated


@pytest.mark.parametrize("window", [{}, {"dedup_window": 3600}])
async def test_a_dedup_window_outlives_the_job(memory, window):
    async with await memory.open() as file:
        q = file.queue("q")
        await q.enqueue(1, dedup="k", **window)
        await (await q.claim_one()).ack()
        assert (await q.enqueue(2, dedup="k")).deduplicated


async def test_the_same_id_is_the_same_job(memory):
    async with await memory.open() as file:
        q = file.queue("q")
        first = await q.enqueue("one")
        again = await q.enqueue("one", id=first.id)
        assert again.id == first.id
        assert (await q.counts()).counts["ready"] == 1


async def test_a_group_runs_one_at_a_time(memory):
    async with await memory.open() as file:
        q = file.queue("q")
        await q.enqueue_many([New(1, group="g"), New(2, group="g"), New(3)])
        first = await q.claim(3)
        assert [job.data for job in first] == [1, 3]
        await first[0].ack()
        assert (await q.claim_one()).data == 2


@pytest.mark.parametrize(
    ("data", "payload", "content_type"),
    [
        ({"a": [1, None, "ü"]}, '{"a":[1,null,"ü"]}'.encode(), "application/json"),
        (None, b"null", "application/json"),
        (b"", b"", "application/octet-stream"),
        (bytes(range(256)), bytes(range(256)), "application/octet-stream"),
        (b"x" * 256 * 1024, b"x" * 256 * 1024, "application/octet-stream"),
        ("", b"", "text/plain"),
        ("\N{PARTY POPPER} \0 x", "\N{PARTY POPPER} \0 x".encode(), "text/plain"),
    ],
    ids=["json", "null", "nothing", "every-byte", "256-KiB", "no-text", "emoji"],
)
async def test_data_come_back_as_they_went_in_even_from_a_dead_job(box, data, payload, content_type):
    async with await box.open() as file:
        q = file.queue("q")
        receipt = await q.enqueue(data)
        job = await q.claim_one()
        assert (job.data, job.payload, job.content_type) == (data, payload, content_type)
        await job.reject()
        detail = await q.get(receipt.id)
        assert (detail.state, detail.data, detail.payload) == ("dead", data, payload)


async def test_a_content_type_of_ones_own_is_kept(memory):
    async with await memory.open() as file:
        q = file.queue("q")
        await q.enqueue(b"<a/>", content_type="application/xml")
        await q.enqueue(b'{"a":1}', content_type="application/vnd.acme+json; charset=utf-8")
        await q.enqueue(b"\xff", content_type="application/json")
        xml, acme, wrong = await q.claim(3)
        assert (xml.data, xml.text) == (b"<a/>", "<a/>")
        assert acme.data == {"a": 1}
        with pytest.raises(bucketq.Invalid, match="not JSON"):
            _ = wrong.data
        assert wrong.payload == b"\xff"
        with pytest.raises(bucketq.Invalid, match="UTF-8"):
            _ = wrong.text


async def test_wait_gives_the_finished_job_with_its_result(box):
    async with await box.open() as file:
        q = file.queue("q")
        receipt = await q.enqueue(20)
        assert await q.wait(receipt.id, timeout=0) is None
        async with await q.claim_one() as job:
            await job.ack(result=job.data + 1)
        assert (await q.wait(receipt.id, timeout=PATIENCE)).result == 21
        with pytest.raises(bucketq.NotFound):
            await q.wait("01a1ef22-6ca9-76da-93cf-e92b20dc67ca")
