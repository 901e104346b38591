"""Every part of a queue's policy is set, read, and takes effect, on both APIs and every store."""

import asyncio
from dataclasses import fields
from datetime import UTC, datetime, timedelta

import pytest

import bucketq
from both import OPEN
from bucketq import Backoff, Block, Closed, Invalid, LeaseLost, Policy, QueueFull, Rate, aio, testing

EVERYTHING = {
    "max_attempts": 3,
    "backoff": Backoff.linear(2.0, max=30.0),
    "lease": timedelta(minutes=5),
    "dead_letter": "failed",
    "expires": timedelta(hours=2),
    "on_expiry": "delete",
    "expire_claimed": True,
    "dedup_content": True,
    "dedup_window": timedelta(days=1),
    "max_run": timedelta(minutes=5),
    "max_pending": 100,
    "overflow": Block(timeout=1.5),
    "group_concurrency": 1,
    "group_batch": 3,
    "concurrency": 4,
    "rate": Rate(100, 60.0, 5),
    "keep": 10,
    "keep_for": timedelta(days=7),
    "keep_done": 5,
    "keep_done_for": timedelta(hours=1),
    "keep_dead": 1_000,
    "keep_dead_for": timedelta(days=30),
    "keep_cancelled": 0,
    "keep_cancelled_for": timedelta(minutes=1),
    "archive": True,
    "archive_for": timedelta(days=365),
    "archive_payloads": False,
}
BACKOFFS = [
    Backoff(),
    Backoff(2.0, 8.0, 0.25),
    Backoff.none(),
    Backoff.fixed(30.0),
    Backoff.linear(1.0),
    Backoff.list([1.0, 0.5, 60.0]),
]


async def test_a_policy_is_read_as_it_was_set_by_whoever_opens_the_file(box):
    async with await box.open() as file:
        told = await file.queue("q").configure(**EVERYTHING)
        assert {part.name: getattr(told, part.name) for part in fields(Policy)} == EVERYTHING
    async with await box.open() as file:
        q = file.queue("q")
        assert await q.policy() == told
        assert (await q.configure(max_attempts=4)).backoff == told.backoff
        lifted = await q.configure(lease=None, dead_letter=None, concurrency=None, rate=None, keep_for=None)
        assert (lifted.lease, lifted.dead_letter, lifted.concurrency, lifted.rate) == (None,) * 4
        assert (lifted.max_attempts, lifted.dedup_window) == (4, timedelta(days=1))
        assert (await q.configure(dedup_window="unfinished")).dedup_window is None


@pytest.mark.parametrize("backoff", BACKOFFS, ids=repr)
async def test_a_backoff_comes_back_as_it_went_in(memory, backoff):
    async with await memory.open() as file:
        q = file.queue("q")
        assert (await q.configure(backoff=backoff)).backoff == backoff
        receipt = await q.enqueue("x", backoff=backoff)
        assert (await q.get(receipt.id)).backoff == backoff
        assert eval(repr(backoff)) == backoff


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("100/min", Rate(100, 60.0)),
        ("5/s burst 1", Rate(5, 1.0, 1)),
        ("10/30s", Rate(10, 30.0)),
        ("7 / 250ms", Rate(7, 0.25)),
        (Rate(3, timedelta(days=2)), Rate(3, 172800.0)),
    ],
)
async def test_a_rate_is_text_or_a_rate(memory, given, read):
    async with await memory.open() as file:
        assert (await file.queue("q").configure(rate=given)).rate == read
        assert (await file.queue("q").configure(rate=str(read))).rate == read


REFUSED = [
    ({"rate": "fast"}, "argument", '"100/min"'),
    ({"rate": Rate(0)}, "argument", "pause the queue"),
    ({"rate": 5}, "argument", "'100/min'"),
    ({"max_pending": 2}, "policy", "at least 3"),
    ({"max_pending": 0}, "policy", "drain the queue"),
    ({"overflow": "drop_oldest"}, "policy", "overflow needs max_pending"),
    ({"overflow": "wait"}, "argument", "drop_oldest"),
    ({"group_concurrency": 3, "concurrency": 2}, "policy", "more than the concurrency 2"),
    ({"concurrency": 0}, "policy", "pause the queue"),
    ({"dead_letter": "q"}, "policy", "in a circle"),
    ({"max_attempts": 0}, "policy", "at least 1"),
    ({"backoff": None}, "argument", "Backoff.none()"),
    ({"backoff": 30}, "argument", "Backoff.fixed(30)"),
    ({"backoff": Backoff.list([])}, "argument", "1 to 100"),
    ({"backoff": Backoff(jitter=2)}, "argument", "between 0 and 1"),
    ({"lease": 0}, "argument", "longer than"),
    ({"lease": "a minute"}, "argument", "5min"),
    ({"dedup_window": "finished"}, "argument", "'unfinished'"),
    ({"keep": 10**9}, "policy", "archive"),
    ({"archive": "yes"}, "argument", "True or False"),
    ({"keep_for": 0}, "argument", "keep=0 retains none"),
    ({"archive_for": 0}, "argument", "None means forever"),
    ({"archive": True, "keep_for": 60, "archive_for": 60}, "policy", "archive for longer"),
    ({"backoff": Backoff(7200)}, "argument", "larger max"),
    ({"backoff": Backoff.linear(5, max=1)}, "argument", "larger max"),
    ({}, "argument", "name the fields to change"),
]


@pytest.mark.parametrize(("changes", "code", "says"), REFUSED, ids=str)
async def test_a_policy_that_cannot_be_says_what_would_be_right_and_writes_nothing(
    memory, changes, code, says
):
    async with await memory.open() as file:
        q = file.queue("q")
        await q.enqueue_many(range(3))
        before = await file.stats()
        with pytest.raises(Invalid) as refused:
            await q.configure(**changes)
        assert refused.value.code == code
        assert says in refused.value.message
        assert (await file.stats()).commit_seq == before.commit_seq


async def test_a_misspelt_part_of_a_policy_says_what_was_meant(memory):
    async with await memory.open() as file:
        with pytest.raises(TypeError, match="did you mean max_attempts"):
            await file.queue("q").configure(max_attempt=3)


async def test_dead_jobs_keep_every_attempt_and_live_again(box):
    async with await box.open() as file:
        q = file.queue("q")
        await q.configure(max_attempts=2, backoff=Backoff.none())
        await q.enqueue_many(["one", "two"])
        for n in range(4):
            await (await q.claim_one(worker=f"w{n}")).nack(OSError(f"no answer {n % 2}"))
        dead = (await q.list(["dead"], error="answer 1")).jobs
        assert len(dead) == 2 - len((await q.list(["dead"], error="answer 0")).jobs)
        told = await q.get(dead[0].id)
        assert [(one.attempt, one.ended, one.run) for one in told.attempts] == [
            (1, "failed", 0),
            (2, "failed", 0),
        ]
        assert told.attempts[1].error == told.last_error
        assert told.attempts[1].worker == told.worker
        assert told.attempts[0].claimed_at <= told.attempts[0].ended_at <= datetime.now(UTC) + timedelta(1)
        assert await q.requeue_all(error="answer 7") == 0
        assert await q.requeue_all(error="no answer") == 2
        again = await q.get(dead[0].id)
        assert (again.state, again.run, again.attempt, again.last_error) == ("ready", 1, 0, None)
        assert [one.run for one in again.attempts][:2] == [0, 0]


async def test_dead_jobs_move_to_the_dead_letter_queue(box):
    async with await box.open() as file:
        q = file.queue("q")
        await q.configure(dead_letter="failed")
        receipt = await q.enqueue("x")
        await (await q.claim_one()).reject("never")
        job = await file.queue("failed").claim_one()
        assert (job.id, job.data) == (receipt.id, "x")
        [attempt] = (await file.get(job.id)).attempts
        assert (attempt.queue, attempt.ended, attempt.error) == ("q", "rejected", "never")


async def test_the_policy_says_how_long_a_claim_holds_and_a_claim_may_say_otherwise(box):
    async with await box.open() as file:
        q = file.queue("q")
        await q.configure(lease=300)
        await q.enqueue_many(range(3))
        job = await q.claim_one()
        assert 200 < job.remaining <= 300
        assert 20 < (await q.claim_one(lease=40)).remaining <= 40
        endless = await q.claim_one(lease=None)
        assert endless.remaining == float("inf")
        assert ((await q.get(endless.id)).expires_at, endless.lost) == (None, False)
        await endless.extend(60)
        assert endless.remaining == float("inf")
        assert ((await q.get(endless.id)).expires_at, endless.lost) == (None, False)
        assert await endless.nack("no") == "dead"


async def test_a_queue_may_hand_out_each_job_once_only(memory):
    async with await memory.open() as file:
        q = file.queue("q")
        await q.configure(lease=None)
        await q.enqueue("x")
        job = await q.claim_one()
        assert job.remaining == float("inf")
        await q.cancel(job.id, leased=True)
        with pytest.raises(LeaseLost):
            await job.ack()


async def test_a_dedup_key_counts_for_the_window_of_the_policy_or_its_own(box):
    async with await box.open() as file:
        q = file.queue("q")
        first = await q.enqueue(1, dedup="k")
        own = await q.enqueue(1, dedup="unfinished", dedup_window=None)
        for job in await q.claim(2):
            await job.ack()
        again = await q.enqueue(2, dedup="k")
        assert (again.deduplicated, again.id) == (True, first.id)
        assert not (await q.enqueue(2, dedup="unfinished", dedup_window="unfinished")).deduplicated
        await q.configure(dedup_window="unfinished")
        assert not (await q.enqueue(3, dedup="other")).deduplicated
        assert own.id != first.id


async def test_the_same_content_is_one_job(box):
    async with await box.open() as file:
        q = file.queue("q")
        await q.configure(dedup_content=True)
        first = await q.enqueue({"a": 1, "b": [1.0]})
        second = await q.enqueue({"b": [1], "a": 1})
        assert (second.id, second.deduplicated) == (first.id, True)
        assert not (await q.enqueue({"a": 2})).deduplicated


async def test_a_full_queue_refuses_and_takes_what_is_there_already(box):
    async with await box.open() as file:
        q = file.queue("q")
        await q.configure(max_pending=2)
        await q.enqueue(1, dedup="k")
        await q.enqueue(2, delay=60)
        with pytest.raises(QueueFull) as refused:
            await q.enqueue(3)
        assert refused.value.code == "queue_full"
        assert (await q.enqueue(1, dedup="k")).deduplicated
        with pytest.raises(QueueFull):
            await q.enqueue_many([1, 2, 3])
        assert sum((await q.counts()).counts.values()) == 2


async def test_a_full_queue_that_drops_the_oldest_says_which(box):
    async with await box.open() as file:
        q = file.queue("q")
        await q.configure(max_pending=2, overflow="drop_oldest")
        first, second = await q.enqueue_many([1, 2])
        assert (await q.enqueue(3)).dropped == (first.id,)
        told = await q.get(first.id)
        assert (told.state, [one.ended for one in told.attempts]) == ("cancelled", ["dropped"])
        receipts = await q.enqueue_many([4, 5])
        assert receipts[0].dropped[0] == second.id
        assert (await q.counts()).dropped == 3


async def test_an_enqueue_into_a_full_queue_waits_for_room(box):
    async with await box.open() as file:
        q = file.queue("q")
        await q.configure(max_pending=1, overflow=Block(timeout=0.05))
        await q.enqueue(1)
        with pytest.raises(QueueFull) as refused:
            await q.enqueue(2)
        assert refused.value.code == "blocked"
        assert (await q.configure(overflow="block")).overflow == Block(timeout=30.0)
        waiting = asyncio.create_task(q.enqueue(3))
        async with await q.claim_one(wait=20) as job:
            assert job.data == 1
        receipt = await waiting
        assert (await q.claim_one(wait=20)).id == receipt.id


async def test_an_enqueue_that_waits_for_room_is_not_made_when_its_caller_has_gone():
    async with await aio.open("memory://policies-gone") as file:
        q = file.queue("q")
        await q.configure(max_pending=1, overflow="block")
        await q.enqueue(1)
        waiting = asyncio.create_task(q.enqueue(2))
        await asyncio.wait([waiting], timeout=0.1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await (await q.claim_one()).ack()
        assert await q.claim_one(wait=0.1) is None


async def test_closing_ends_an_enqueue_that_waits_for_room(memory):
    file = await memory.open()
    q = file.queue("q")
    await q.configure(max_pending=1, overflow="block")
    await q.enqueue(1)
    waiting = asyncio.create_task(q.enqueue(2))
    await asyncio.wait([waiting], timeout=0.1)
    await file.close()
    with pytest.raises(Closed):
        await waiting


async def test_groups_take_turns_and_their_jobs_are_limited(box):
    async with await box.open() as file:
        q = file.queue("q")
        await q.enqueue_many([bucketq.New(n, group="many") for n in range(5)])
        await q.enqueue_many([bucketq.New("few", group="few") for _ in range(2)])
        for expected in ([0, "few"], [1, "few"], [2]):
            jobs = await q.claim(10)
            assert [job.data for job in jobs] == expected
            for job in jobs:
                await job.ack()
        assert (await q.configure(group_concurrency=2)).group_concurrency == 2
        assert [job.data for job in await q.claim(10)] == [3, 4]


async def test_no_more_jobs_are_worked_on_together_than_the_policy_allows(box):
    async with await box.open() as file:
        q = file.queue("q")
        await q.configure(concurrency=2)
        await q.enqueue_many(range(5))
        jobs = await q.claim(10)
        assert len(jobs) == 2
        assert await q.claim_one() is None
        await jobs[0].ack()
        assert (await q.claim_one()).data == 2


async def test_a_rate_limits_claims(box):
    async with await box.open() as file:
        q = file.queue("q")
        await q.configure(rate="3/h")
        await q.enqueue_many(range(5))
        assert len(await q.claim(10)) == 3
        assert await q.claim_one() is None


async def test_a_drained_queue_takes_nothing_and_gives_nothing_until_it_is_resumed(box):
    async with await box.open() as file:
        q = file.queue("q")
        await q.enqueue_many([1, 2])
        job = await q.claim_one()
        assert await q.drain(timeout=0) == 1
        with pytest.raises(Closed) as refused:
            await q.enqueue(3)
        assert refused.value.code == "draining"
        assert await q.claim_one() is None
        assert (await q.counts()).draining
        waiting = asyncio.create_task(q.drain())
        await job.ack()
        assert await waiting == 0
        await q.resume()
        assert not (await q.counts()).draining
        assert (await q.claim_one()).data == 2


async def test_what_is_finished_is_kept_by_number_and_leaves_for_the_archive(box):
    async with await box.open() as file:
        q = file.queue("q")
        await q.configure(keep=1, archive=True)
        receipts = await q.enqueue_many([{"n": n} for n in range(3)])
        for n in range(3):
            await (await q.claim_one(worker="w")).ack(result={"n": n})
        await file.archive()
        [kept] = (await file.lives()).lives
        assert (kept.id, kept.state, kept.worker, kept.attempts) == (receipts[2].id, "done", "w", 1)
        assert (kept.payload, kept.result_payload) == (b'{"n":2}', b'{"n":2}')
        assert kept.wait >= timedelta(0)
        told = await file.archives(queue="q")
        [there] = told.objects
        assert (there.queue, there.jobs) == ("q", 2)
        assert there.last_seq < kept.finish_seq
        assert len(there.hash) == 32
        assert told.commit_seq == (await file.stats()).commit_seq
        assert (await file.archives(after=there.last_seq)).objects == ()
        assert (await file.lives(until=there.last_seq)).lives == ()
        assert await file.get(receipts[0].id) is None


async def test_a_policy_changes_together_with_what_needs_it(box):
    async with await box.open() as file:
        q = file.queue("q")
        await q.configure(max_pending=1)
        with pytest.raises(QueueFull):
            async with file.atomic() as tx:
                tx.configure("q", max_attempts=7)
                tx.enqueue("q", 1)
                tx.enqueue("q", 2)
        assert (await q.policy()).max_attempts == 10
        async with file.atomic() as tx:
            tx.configure("q", max_pending=2)
            tx.enqueue("q", 1)
            tx.enqueue("q", 2)
        assert tx.results[0].max_pending == 2


async def test_a_pause_stops_claims_of_another_handle(box):
    async with await box.open() as file, await OPEN[box.face](box.url, **box.settings) as other:
        await file.queue("q").enqueue(1)
        await other.queue("q").pause()
        assert await file.queue("q").claim_one() is None


def test_windows_attempts_and_kept_jobs_on_a_clock_that_jumps():
    clock = testing.Clock()
    with testing.open(clock=clock) as file:
        q = file.queue("q")
        q.configure(dedup_window=60, backoff=Backoff.list([5, 50]), keep_for=3600)
        first = q.enqueue(1, dedup="k")
        q.claim_one().nack("no")
        clock.advance(4.9)
        assert q.claim_one() is None
        clock.advance(0.1)
        q.claim_one().nack("no")
        clock.advance(50)
        q.claim_one().ack()
        assert q.enqueue(2, dedup="k").deduplicated
        clock.advance(5)
        assert not q.enqueue(2, dedup="k").deduplicated
        clock.advance(3600)
        q.claim_one().ack()
        assert q.get(first.id) is None


async def test_a_file_of_asyncio_reads_what_a_blocking_one_set(memory):
    with bucketq.open(memory.url) as file:
        file.queue("q").configure(rate="1/s")
        async with await aio.open(memory.url) as other:
            assert (await other.queue("q").policy()).rate == Rate(1, 1.0)


def test_jobs_that_nobody_claims_in_time_are_dead_or_deleted():
    clock = testing.Clock()
    with testing.open(clock=clock) as file:
        q, other = file.queue("q"), file.queue("other")
        receipt = q.enqueue("late", expires=60)
        other.configure(expires=30, on_expiry="delete")
        gone = other.enqueue("gone")
        clock.advance(60)
        assert q.claim_one() is None
        late = q.get(receipt.id)
        assert (late.state, late.died.reason, late.died.attempts) == ("dead", "expired", 0)
        assert q.get(gone.id) is None
