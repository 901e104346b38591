"""Schedules, on both APIs and every store."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from bucketq import Backoff, Invalid, testing

HOUR = timedelta(hours=1)


async def test_a_schedule_is_kept_in_the_file_and_taken_away(box):
    async with await box.open() as file:
        q = file.queue("q")
        berlin = await q.schedule(
            "nightly", {"n": 1}, cron="30 2 * * *", timezone=ZoneInfo("Europe/Berlin"), missed="catch_up"
        )
        assert berlin.astimezone(ZoneInfo("Europe/Berlin")).time().isoformat() == "02:30:00"
        start = datetime.now(UTC).replace(microsecond=0) + HOUR
        given = {"priority": 3, "max_attempts": 2, "backoff": Backoff.fixed(5.0), "headers": {"a": "b"}}
        assert await q.schedule("hourly", "go", every=HOUR, start=start, **given) == start
    async with await box.open() as file:
        hourly, nightly = await file.schedules()
        assert (hourly.queue, hourly.name, hourly.every, hourly.start) == ("q", "hourly", HOUR, start)
        assert {name: getattr(hourly, name) for name in given} == given
        assert (hourly.data, hourly.next_at, hourly.last_at, hourly.fired) == ("go", start, None, 0)
        assert (nightly.cron, nightly.timezone, nightly.missed) == ("30 2 * * *", "Europe/Berlin", "catch_up")
        assert (nightly.data, nightly.next_at) == ({"n": 1}, berlin)
        q = file.queue("q")
        assert await q.unschedule("nightly")
        assert not await q.unschedule("nightly")
        assert [one.name for one in await q.schedules()] == ["hourly"]
        assert await file.queue("other").schedules() == []


async def test_the_same_schedule_again_moves_nothing_and_commits_nothing(box):
    async with await box.open() as file:
        q = file.queue("q")
        first = await q.schedule("tick", {"n": 1}, every=60)
        before = (await file.stats()).commit_seq
        assert await q.schedule("tick", {"n": 1}, every=60) == first
        assert (await file.stats()).commit_seq == before
        assert await q.schedule("tick", {"n": 2}, every=60) == first
        assert [one.data for one in await q.schedules()] == [{"n": 2}]


async def test_a_waiting_claim_gets_what_is_due_once(box):
    async with await box.open() as file:
        q = file.queue("q")
        # A start that is past when the schedule is made is not due for another hour: retry until it is in the future.
        at, start = datetime.max.replace(tzinfo=UTC), datetime.now(UTC)
        while at - start > timedelta(minutes=1):
            start = datetime.now(UTC) + timedelta(seconds=0.3)
            at = await q.schedule("tick", "go", every=HOUR, start=start)
        job = await q.claim_one(wait=20)
        assert job.headers["bucketq-schedule"] == "tick"
        assert int(job.headers["bucketq-due-ms"]) == round(at.timestamp() * 1000)
        assert await q.claim_one() is None
        [told] = await q.schedules()
        assert (told.fired, told.last_at, told.next_at) == (1, at, at + HOUR)


def test_schedules_follow_a_clock_that_jumps():
    clock = testing.Clock()
    with testing.open(clock=clock) as file:
        q = file.queue("q")
        q.schedule("skips", "s", every=60)
        q.schedule("catches", "c", every=60, missed="catch_up")
        assert q.claim_one() is None
        clock.advance(185)
        data = sorted(job.data for job in q.claim(10))
        assert data == ["c", "c", "c", "s"]
        assert [one.fired for one in q.schedules()] == [3, 1]
        assert q.claim_one() is None
        clock.advance(60)
        dues = {job.data: job.headers["bucketq-due-ms"] for job in q.claim(10)}
        assert set(dues) == {"c", "s"}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "one of them"),
        ({"cron": "@daily", "every": 5}, "one of them"),
        ({"cron": "61 * * * *"}, "between 0 and 59"),
        ({"cron": "tomorrow"}, "five fields"),
        ({"cron": "0 0 30 2 *"}, "no date"),
        ({"cron": 5}, "give text"),
        ({"cron": "@daily", "timezone": "Mars/Crater"}, "Europe/Berlin"),
        ({"cron": "@daily", "timezone": UTC}, "IANA name"),
        ({"cron": "@daily", "start": datetime(2026, 1, 1, tzinfo=UTC)}, "start goes with every"),
        ({"every": 0}, "1 ms"),
        ({"every": 5, "timezone": "UTC"}, "timezone goes with cron"),
        ({"every": 5, "start": datetime(2026, 1, 1)}, "time zone"),
        ({"every": 5, "missed": "all"}, "catch_up"),
        ({"every": 5, "delay": 3}, "delay is not allowed in a schedule"),
        ({"every": 5, "id": "01" * 16}, "id is not allowed in a schedule"),
    ],
    ids=str,
)
async def test_a_schedule_that_cannot_be_says_what_would_be_right_and_writes_nothing(memory, given, says):
    async with await memory.open() as file:
        before = (await file.stats()).commit_seq
        with pytest.raises(Invalid, match=says):
            await file.queue("q").schedule("s", 1, **given)
        assert (await file.stats()).commit_seq == before


async def test_a_schedule_stands_in_an_atomic(memory):
    async with await memory.open() as file:
        async with file.atomic() as tx:
            tx.schedule("q", "tick", 1, every=60)
            tx.unschedule("q", "tock")
        next_at, was_there = tx.results
        assert ([one.next_at for one in await file.schedules()], was_there) == ([next_at], False)
