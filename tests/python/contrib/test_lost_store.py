"""The adapters while the store cannot be reached: a task that has run is acked when the store is back."""

import asyncio
import itertools
import logging
import threading

import dramatiq
import pytest
from huey.signals import SIGNAL_COMPLETE
from taskiq.api import run_receiver_task

import bucketq
from bucketq.contrib.dramatiq import BucketqBroker
from bucketq.contrib.huey import BucketqHuey
from bucketq.contrib.taskiq import BucketqBroker as TaskiqBroker
from bucketq.contrib.taskiq import BucketqResultBackend
from network import network
from patience import PATIENCE
from servers import BUCKET

NUMBERS = itertools.count()
# Long enough for a busy server, but short: a call to a server that has gone takes all of the deadline.
SHORT = {"deadline": 4, "connect_timeout": 1, "request_timeout": 2}


@pytest.fixture
def through(server):
    with network(server.endpoint) as through:
        yield through


@pytest.fixture
def place(server, through):
    """A queue file behind the network: its URL and settings."""
    settings = server.settings | {"endpoint": through.endpoint} | SHORT
    return f"s3://{BUCKET}/contrib{next(NUMBERS)}/jobs", settings


class Heard(logging.Handler):
    """Mends the network when it hears these words."""

    def __init__(self, through, words):
        super().__init__()
        self.through = through
        self.words = words
        self.said = threading.Event()

    def emit(self, record):
        if self.words in record.getMessage():
            self.through.mend()
            self.said.set()


@pytest.fixture
def heard(through, caplog):
    handlers = []

    def listen(name, words):
        handlers.append((name, Heard(through, words)))
        logging.getLogger(name).addHandler(handlers[-1][1])
        return handlers[-1][1].said

    yield listen
    for name, one in handlers:
        logging.getLogger(name).removeHandler(one)


def job(place, queue):
    url, settings = place
    with bucketq.open(url, **settings) as file:
        (job,) = file.queue(queue).list()
        return job


def test_dramatiq(place, through, heard, monkeypatch):
    monkeypatch.setattr("dramatiq.worker.POST_PROCESS_MESSAGE_RETRY_DELAY_SECS", 0)
    monkeypatch.setattr("dramatiq.worker.CONSUMER_RESTART_DELAY_SECS", 0)
    said = heard("dramatiq.worker", "Failed to post_process_message")
    url, settings = place
    broker = BucketqBroker(url, **settings)
    times = []

    @dramatiq.actor(broker=broker)
    def cut():
        times.append(1)
        through.cut()

    cut.send()
    worker = dramatiq.Worker(broker, worker_timeout=100, worker_threads=1)
    worker.start()
    assert said.wait(PATIENCE)
    broker.join("default", timeout=PATIENCE * 1000)
    worker.stop()
    broker.close()
    assert times == [1]
    assert (job(place, "default").state, job(place, "default").attempt) == ("done", 1)


@pytest.mark.parametrize(("when", "state"), [("after", "done"), ("during", "scheduled")])
def test_huey(when, state, place, through, heard, monkeypatch):
    monkeypatch.setattr("bucketq.contrib.huey.PAUSE", 0)
    said = heard("bucketq.contrib.huey", "cannot be stored")
    url, settings = place
    huey = BucketqHuey("app", url=url, **settings)

    @huey.task()
    def one():
        if when == "during":
            through.cut()

    @huey.signal(SIGNAL_COMPLETE)
    def complete(signal, task):
        through.cut()

    one()
    task = huey.dequeue()
    if when == "after":
        huey.execute(task)
    else:
        # huey looks in its storage after the task, which fails: the attempt has failed.
        with pytest.raises(bucketq.Unavailable):
            huey.execute(task)
    assert said.is_set()
    huey.storage.close()
    assert (job(place, "app").state, job(place, "app").attempt) == (state, 1)


def test_huey_gives_an_interrupted_task_back_or_leaves_it_to_its_lease(place, through, heard):
    said = heard("bucketq.contrib.huey", "cannot be stored")
    url, settings = place
    huey = BucketqHuey("app", url=url, **settings)

    @huey.task()
    def one():
        through.cut()
        raise KeyboardInterrupt

    one()
    huey.execute(huey.dequeue())
    assert said.is_set()
    huey.storage.close()
    # Its outcome is unknown, but nothing acked the task.
    assert job(place, "app").state in {"leased", "ready"}


async def test_taskiq(place, through, heard, monkeypatch):
    monkeypatch.setattr("bucketq.contrib.taskiq.PAUSE", 0)
    said = heard("bucketq.contrib.taskiq", "cannot be acked")
    url, settings = place
    broker = TaskiqBroker(url, **settings)
    broker.with_result_backend(BucketqResultBackend(broker))
    times = []

    @broker.task
    async def cut() -> int:
        times.append(1)
        through.cut()
        return 1

    await broker.startup()
    task = await cut.kiq()
    receiver = asyncio.create_task(run_receiver_task(broker))
    assert await asyncio.to_thread(said.wait, PATIENCE)
    assert (await task.wait_result(timeout=PATIENCE)).return_value == 1
    receiver.cancel()
    await asyncio.gather(receiver, return_exceptions=True)
    await broker.shutdown()
    assert times == [1]
    assert (job(place, "taskiq").state, job(place, "taskiq").attempt) == ("done", 1)
