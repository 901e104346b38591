"""The storage for huey, with huey's own tests of storages and with the consumer processes of its command line."""

import importlib
import os
import pickle
import sys
import threading
import time
from datetime import datetime, timedelta

os.environ["HUEY_SLOW_TESTS"] = "1"  # Read when the tests of huey are imported.

import pytest
from huey import Huey, crontab
from huey.exceptions import TaskException
from huey.tests import test_api, test_storage
from huey.tests.base import BaseTestCase

import bucketq
from boxes import memory_url
from bucketq.contrib._opening import Opening
from bucketq.contrib._values import Values
from bucketq.contrib.huey import BucketqHuey, BucketqStorage
from framework import LEASE, SKEW, Program, write
from patience import PATIENCE

TASKS = """
    import os, time
    from bucketq.contrib.huey import BucketqHuey

    huey = BucketqHuey("app", url={url}, lease={lease}, max_skew={skew})

    def say(*words):
        print("says", *words, flush=True)

    @huey.task()
    def add(one, other):
        say("added", one + other)
        return one + other

    @huey.task()
    def long(seconds):
        say("began", os.getpid(), time.monotonic())
        time.sleep(seconds)
        say("ended")
        return "slept"

    @huey.task(retries=2, retry_delay=0.2)
    def fails():
        say("failing")
        raise RuntimeError("no luck")
"""


class Closing(BaseTestCase):
    def tearDown(self):
        super().tearDown()
        self.huey.storage.close()


class Leased(Closing):
    def get_huey(self):
        return BucketqHuey(url=memory_url(), wait=0.05, utc=False)


class TestTheStorage(test_storage.StorageTests, Closing):
    """Every test that huey has for all storages."""

    def get_huey(self):
        return Huey(storage_class=BucketqStorage, url=memory_url(), wait=0, utc=False)

    test_put_if_empty_concurrent = test_storage.TestMemoryStorage.test_put_if_empty_concurrent
    test_float_priority = test_storage.TestFileStorageMethods.test_float_priority


class TestTheHuey(test_storage.StorageTests, Leased):
    """The same with leases."""


class TestLocks(Leased, test_api.TestTaskLocking):
    """The tests that huey has for its locks."""


class TestChains(Leased, test_api.TestTaskChaining):
    """The tests that huey has for its pipelines."""


@pytest.fixture
def app(tmp_path, monkeypatch):
    """The module of the tasks, also imported here: to call them."""
    write(tmp_path, "tasks_of_huey", TASKS, url=str(tmp_path / "jobs"), lease=LEASE, skew=SKEW)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("tasks_of_huey")
    sys.modules.pop("tasks_of_huey").huey.storage.close()


@pytest.fixture
def huey():
    huey = BucketqHuey(url=memory_url(), wait=0)
    yield huey
    huey.storage.close()


def consumer(directory, kind="thread"):
    words = ("tasks_of_huey.huey", "--workers", "2", "--worker-type", kind, "--no-periodic")
    return Program("huey.bin.huey_consumer", directory, *words)


def result(task):
    """Wait for the result of a task, and until it is acked: a consumer that ends meanwhile gives it back."""
    value = task.get(blocking=True, timeout=PATIENCE)
    acked(task.huey)
    return value


def acked(huey):
    queue = huey.storage.file.queue(huey.name)
    for job in queue.list():
        assert queue.wait(job.id, timeout=PATIENCE) is not None


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_a_consumer_runs_a_task_and_stores_its_result(app, tmp_path, kind):
    task = app.add(1, 2)
    with consumer(tmp_path, kind) as program:
        assert result(task) == 3
        later = app.add.schedule((2, 3), delay=0.2)
        assert result(later) == 5
        assert app.huey.scheduled_count() == 0
        program.end()
    tasks = app.huey.storage.file.queue("app")
    assert [job.state for job in tasks.list()] == ["done", "done"]


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_a_task_of_a_killed_consumer_runs_again_after_its_lease(app, tmp_path, kind):
    with consumer(tmp_path, kind) as first:
        task = app.long(LEASE + 0.5)
        began = first.says("began").split()[1]
        first.kill()
    with consumer(tmp_path, kind) as second:
        again = second.says("began").split()[1]
        # The second one works for longer than a lease, and keeps the task.
        assert result(task) == "slept"
        second.end()
        assert not [line for line in second.lines if "began" in line][1:]
    assert float(again) - float(began) >= LEASE - 2 * SKEW
    (job,) = app.huey.storage.file.queue("app").list()
    assert (job.state, job.attempt) == ("done", 2)


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_a_consumer_that_must_end_at_once_gives_its_task_back(app, tmp_path, kind):
    with consumer(tmp_path, kind) as program:
        app.long(PATIENCE)
        program.says("began")
        program.end()
    (job,) = app.huey.storage.file.queue("app").list()
    assert (job.state, job.attempt) == ("ready", 0), "".join(program.lines)


def test_a_scheduled_task_waits_in_the_queue_file_for_longer_than_a_lease(app, tmp_path):
    with consumer(tmp_path) as program:
        task = app.add.schedule((2, 2), delay=LEASE + 2)
        assert app.huey.scheduled_count() == 1
        assert [one.args for one in app.huey.scheduled()] == [(2, 2)]
        assert result(task) == 4
        program.end()
    (job,) = app.huey.storage.file.queue("app").list()
    assert job.attempt == 1
    assert job.claimed_at >= job.run_at
    assert (job.run_at - job.enqueued_at).total_seconds() > LEASE


def test_a_consumer_that_ends_begins_no_task(huey):
    @huey.task()
    def one(): ...

    consumer = huey.create_consumer()
    one()
    consumer.stop_flag.set()
    assert huey.dequeue() is None
    (job,) = huey.storage.file.queue("huey").list()
    assert (job.state, job.attempt) == ("ready", 0)


def test_retries_then_the_error(app, tmp_path):
    with consumer(tmp_path) as program:
        task = app.fails()
        for _ in range(3):
            program.says("failing")
        acked(app.huey)
        program.end()
    with pytest.raises(TaskException, match="no luck"):
        task.get()
    jobs = app.huey.storage.file.queue("app").list().jobs
    assert [job.state for job in jobs] == ["done"] * 3


def test_a_task_that_cannot_be_read_is_dead_and_the_next_one_runs(huey):
    @huey.task()
    def one():
        return 1

    huey.storage.enqueue(b"no task")
    task = one()
    with pytest.raises(pickle.UnpicklingError):
        huey.dequeue()
    huey.execute(huey.dequeue())
    assert task.get() == 1
    assert [job.state for job in huey.storage.file.queue("huey").list()] == ["dead", "done"]


def test_a_task_whose_end_cannot_be_stored_now_runs_again(huey):
    huey.storage.file.queue("huey-values").configure(max_pending=1)
    huey.storage.put_data("other", b"")

    @huey.task()
    def one():
        return 1

    one()
    with pytest.raises(bucketq.QueueFull):
        huey.execute(huey.dequeue())
    (job,) = huey.storage.file.queue("huey").list()
    assert (job.state, job.attempt) == ("scheduled", 1)
    assert "max_pending" in job.last_error


def test_a_task_whose_result_is_too_large_is_dead(huey):
    @huey.task()
    def large():
        return bytes(2**21)

    large()
    with pytest.raises(bucketq.Invalid):
        huey.execute(huey.dequeue())
    (job,) = huey.storage.file.queue("huey").list()
    assert job.state == "dead"
    assert "payload" in job.last_error


def test_a_lost_lease_leaves_the_task_to_its_new_holder(huey, caplog):
    @huey.task()
    def one():
        huey.storage.file.queue("huey").purge(["leased"])

    one()
    huey.execute(huey.dequeue())
    assert "runs again or was deleted" in caplog.text


@pytest.fixture
def new_york(monkeypatch):
    """The local time of a place far from UTC."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "America/New_York")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="the system cannot change its time zone")
@pytest.mark.parametrize("utc", [True, False])
def test_a_task_runs_at_its_eta_in_utc_and_in_local_time(utc, new_york):
    huey = BucketqHuey(url=memory_url(), wait=0, utc=utc)

    @huey.task()
    def one():
        return 1

    one.schedule(eta=datetime.now() + timedelta(hours=1))
    (job,) = huey.storage.file.queue("huey").list()
    assert 3590 < (job.run_at - job.enqueued_at).total_seconds() < 3601
    assert huey.dequeue() is None
    huey.storage.flush_all()
    assert huey.scheduled_count() == 0
    huey.storage.close()


def test_a_periodic_task_is_enqueued_once_a_minute_for_all_consumers(huey):
    @huey.periodic_task(crontab())
    def one(): ...

    for second in (5, 50, 65):
        for task in huey.read_periodic(datetime(2026, 1, 1) + timedelta(seconds=second)):
            huey.enqueue(task)
    assert huey.pending_count() == 2
    huey.execute(huey.dequeue())
    assert huey.pending_count() == 1


def test_a_result_ends_with_its_time():
    storage = BucketqStorage(url=memory_url(), result_ttl=0.2)
    storage.put_data("other", b"2")
    storage.put_data("result", b"1", is_result=True)
    assert storage.result_store_size() == 2
    while storage.has_data_for_key("result"):
        time.sleep(0)
    assert storage.result_items() == {"other": b"2"}
    storage.close()


def test_values_with_long_keys_and_from_many_threads():
    opening = Opening(memory_url(), {})
    values = Values(opening, "values")
    values.put("k" * 1000, b"1")
    assert dict(values.items()) == {"k" * 1000: b"1"}
    assert values.pop("k" * 1000) == b"1"
    threads = [threading.Thread(target=lambda: [values.add("sum", 1) for _ in range(10)]) for _ in range(8)]
    threads += [
        threading.Thread(target=lambda: [values.put("one", b"1") for _ in range(10)]) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert values.add("sum", 0) == 80
    assert dict(values.items()) == {"sum": b"80", "one": b"1"}
    # More than a page of them.
    for number in range(150):
        values.put(str(number), b"x")
    assert len(dict(values.items())) == len(values) == 152
    opening.close()
