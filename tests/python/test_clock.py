"""A test's queue file on a clock that jumps."""

from datetime import timedelta

import pytest

import bucketq
from bucketq import _native


@pytest.fixture
def clock():
    return _native.Clock()


@pytest.fixture
def q(clock):
    with bucketq.QueueFile(_native.open_test({}, clock).wait(), "test") as file:
        yield file.queue("q")


def test_a_scheduled_job_is_due_once_the_clock_says_so(q, clock):
    q.enqueue("x", delay=3600)
    clock.advance(3_599_000)
    assert q.claim_one() is None
    clock.advance(1_000)
    assert q.claim_one().data == "x"


def test_a_lease_runs_out_when_the_clock_says_so(q, clock):
    q.enqueue("x")
    job = q.claim_one(lease=60)
    clock.advance(59_000)
    assert not job.lost
    assert q.claim_one() is None
    clock.advance(1_000)
    assert job.lost
    again = q.claim_one()
    assert again.attempt == 2
    with pytest.raises(bucketq.LeaseLost):
        job.ack()
    again.ack()


def test_a_lease_without_end_does_not_run_out(q, clock):
    q.configure(lease=None)
    q.enqueue("x")
    job = q.claim_one()
    clock.advance(400 * 24 * 3600 * 1000)
    assert q.claim_one() is None
    assert not job.lost
    job.ack()


def test_a_backoff_passes_when_the_clock_says_so(q, clock):
    q.enqueue("x", backoff=bucketq.Backoff(base=60, jitter=0))
    assert q.claim_one().nack("no") == "scheduled"
    clock.advance(60_000)
    assert q.claim_one().attempt == 2


def test_times_are_those_of_the_clock(q, clock):
    clock.advance(10 * 24 * 3600 * 1000)
    receipt = q.enqueue("x")
    told = q.get(receipt.id).enqueued_at.timestamp() * 1000
    assert abs(told - clock.now_ms()) < 60_000


def test_two_queue_files_of_tests_share_nothing():
    with (
        bucketq.QueueFile(_native.open_test({}).wait(), "one") as one,
        bucketq.QueueFile(_native.open_test({}).wait(), "two") as two,
    ):
        one.queue("q").enqueue("x")
        assert two.queue("q").claim_one() is None


def test_a_slow_store_takes_its_time():
    with bucketq.QueueFile(_native.open_test({}, None, 50_000).wait(), "slow") as file:
        info = file.queue("q").enqueue("x")
        commit = file.stats().commit_time
        file.queue("q").enqueue("y")
        assert file.stats().commit_time - commit >= timedelta(milliseconds=50)
        assert info.commit_seq
