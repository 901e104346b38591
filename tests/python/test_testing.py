"""bucketq.testing, which users need to test their programs."""

from datetime import timedelta

import pytest

from bucketq import Invalid, testing


def test_files_of_tests_share_nothing():
    with testing.open() as one, testing.open() as other:
        one.queue("q").enqueue(1)
        assert other.queues() == []


def test_a_lease_runs_out_when_the_clock_says_so():
    clock = testing.Clock()
    with testing.open(clock=clock) as file:
        file.queue("q").enqueue(1)
        first = file.queue("q").claim_one(lease=60)
        before = clock.now
        clock.advance(timedelta(seconds=61))
        assert clock.now - before >= timedelta(seconds=61)
        again = file.queue("q").claim_one()
        assert (again.id, again.attempt) == (first.id, 2)
        assert first.lost


def test_what_was_enqueued_is_found_by_data_and_fields():
    with testing.open() as file:
        q = file.queue("q")
        q.enqueue({"to": "ada"}, priority=3)
        q.enqueue({"to": "bob"}, group="g")
        q.enqueue({"to": "bob"})
        assert testing.assert_enqueued(file, "q", {"to": "ada"}, priority=3)[0].data == {"to": "ada"}
        assert len(testing.assert_enqueued(file, "q", {"to": "bob"}, times=2)) == 2
        testing.assert_enqueued(file, "q", group="g", state="ready")
        testing.assert_enqueued(file, "q", times=3)
        testing.assert_enqueued(file, "r", times=0)


def test_what_was_not_enqueued_fails_and_says_what_is_there():
    with testing.open() as file:
        file.queue("q").enqueue({"to": "ada"})
        with pytest.raises(
            AssertionError, match=r"(?s)0 of 1 jobs in 'q' with data=.*bob.*ready: \{'to': 'ada'\}"
        ):
            testing.assert_enqueued(file, "q", {"to": "bob"})
        with pytest.raises(AssertionError, match="1 of 2 jobs in 'q' with data=ANY, priority=0"):
            testing.assert_enqueued(file, "q", times=2, priority=0)
        with pytest.raises(TypeError, match="did you mean priority"):
            testing.assert_enqueued(file, "q", prio=1)


async def test_a_file_of_asyncio_will_do():
    async with await testing.open_aio() as file:
        await file.queue("q").enqueue(1)
        testing.assert_enqueued(file, "q", 1)


def test_a_clock_jumps_over_seasons_but_not_over_ages():
    clock = testing.Clock()
    with testing.open(clock=clock) as file:
        q = file.queue("q")
        q.schedule("yearly", "happy new year", cron="0 0 1 1 *")
        clock.advance(timedelta(days=366))
        assert [job.data for job in q.claim(5)] == ["happy new year"]
    with pytest.raises(Invalid, match="a hundred years"):
        clock.advance(timedelta(days=40_000))
