"""Stores that go away and come back, and moto, which many test suites already use."""

import asyncio
import itertools
import logging

import pytest

import bucketq
from boxes import Box
from bucketq import aio
from network import network
from patience import PATIENCE
from servers import BUCKET, moto

NUMBERS = itertools.count()
# Long enough for a busy server, but short: a call to a server that has gone takes all of the deadline.
SHORT = {"deadline": 4, "grace": 3600, "connect_timeout": 1, "request_timeout": 2}


@pytest.fixture
def through(server):
    with network(server.endpoint) as through:
        yield through


@pytest.fixture
def box(face, server, through):
    """A queue file behind the network."""
    url = f"s3://{BUCKET}/trouble{next(NUMBERS)}/jobs"
    return Box(face, url, server.settings | {"endpoint": through.endpoint} | SHORT)


class Heard(logging.Handler):
    """Waits for a log message."""

    def __init__(self, *words):
        super().__init__()
        self.missing = set(words)
        self.all = asyncio.Event()
        self.loop = asyncio.get_running_loop()

    def emit(self, record):
        said = record.getMessage()
        self.missing = {words for words in self.missing if words not in said}
        if not self.missing:
            self.loop.call_soon_threadsafe(self.all.set)


@pytest.fixture
def log():
    """Listen to the worker's log for these words."""
    heard = []

    def listen(*words):
        heard.append(Heard(*words))
        logging.getLogger("bucketq.worker").addHandler(heard[-1])
        return heard[-1].all

    yield listen
    for one in heard:
        logging.getLogger("bucketq.worker").removeHandler(one)


def run(worker, face):
    """Run the worker."""
    return asyncio.create_task(asyncio.to_thread(worker.run) if face == "blocking" else worker.run())


async def test_a_worker_goes_on_when_its_store_is_back(box, through, log):
    async with await box.open() as file:
        q = file.queue("q")
        first = await q.enqueue(1)
        worker = bucketq.Worker(file.blocking) if box.face == "blocking" else aio.Worker(file)

        @worker.handles("q")
        def work(job):
            if job.data == 1:
                through.cut()
            return job.data * 2

        cannot_end = log("cannot end job")
        running = run(worker, box.face)
        await cannot_end.wait()
        through.mend()
        assert (await q.wait(first.id, timeout=PATIENCE)).result == 2
        second = await q.enqueue(2)
        assert (await q.wait(second.id, timeout=PATIENCE)).result == 4
        worker.drain()
        assert (await running).done == 2


async def test_a_worker_may_begin_while_its_store_is_away(box, through, log):
    async with await box.open() as file:
        q = file.queue("q")
        worker = bucketq.Worker(file.blocking) if box.face == "blocking" else aio.Worker(file)
        worker.handles("q")(lambda job: job.data * 2)
        through.cut()
        cannot_claim = log("cannot claim")
        running = run(worker, box.face)
        await cannot_claim.wait()
        through.mend()
        receipt = await q.enqueue(1)
        assert (await q.wait(receipt.id, timeout=PATIENCE)).result == 2
        worker.drain()
        assert (await running).done == 1


async def test_a_call_without_an_answer_says_so_and_settle_tells(box, through):
    async with await box.open() as file:
        q = file.queue("q")
        await q.enqueue("before")
        through.cut()
        id = "01a1ef22-6ca9-76da-93cf-e92b20dc67ca"
        with pytest.raises((bucketq.OutcomeUnknown, bucketq.Unavailable)):
            await q.enqueue("in doubt", id=id)
        with pytest.raises(bucketq.Unavailable):
            await q.counts()
        through.mend()
        await file.settle()
        known = await q.get(id)
        again = await q.enqueue("in doubt", id=id)
        assert again.id == id
        assert known is None or known.commit_seq == again.commit_seq
        assert (await q.counts()).counts["ready"] == 2


@pytest.fixture(scope="module")
def moto_server():
    with moto() as server:
        yield server


async def test_one_writer_on_moto(face, moto_server):
    box = Box(face, f"s3://{BUCKET}/moto{next(NUMBERS)}/jobs", moto_server.settings)
    async with await box.open() as file:
        q = file.queue("q")
        receipt = await q.enqueue({"to": "ada"})
        async with await q.claim_one() as job:
            await job.ack(result="sent")
    async with await box.open(create=False) as file:
        job = await file.get(receipt.id)
        assert (job.state, job.data, job.result) == ("done", {"to": "ada"}, "sent")
    keys = moto_server.client().list_objects_v2(Bucket=BUCKET, Prefix=box.url.split("/", 3)[3])["Contents"]
    assert [entry["Key"].rpartition("/")[2] for entry in keys] == ["jobs.head"]
