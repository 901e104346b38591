"""The broker for taskiq, with the worker processes of its own command line."""

import asyncio
import importlib
import itertools
import sys
from contextlib import asynccontextmanager

import pytest
from taskiq import InMemoryBroker, TaskiqResult
from taskiq.acks import AcknowledgeType
from taskiq.api import run_receiver_task
from taskiq.depends.progress_tracker import TaskProgress
from taskiq.exceptions import ResultGetError
from taskiq.serializers import PickleSerializer

import bucketq
from boxes import memory_url
from bucketq.contrib.taskiq import BucketqBroker, BucketqResultBackend
from framework import LEASE, SKEW, Program, write
from patience import PATIENCE

TASKS = """
    import asyncio, os, time
    from taskiq import SimpleRetryMiddleware
    from bucketq.contrib.taskiq import BucketqBroker, BucketqResultBackend

    broker = BucketqBroker({url}, lease={lease}, max_skew={skew})
    broker.with_result_backend(BucketqResultBackend(broker))
    broker.add_middlewares(SimpleRetryMiddleware())

    def say(*words):
        print("says", *words, flush=True)

    @broker.task
    async def add(one: int, other: int) -> int:
        say("added", one + other)
        return one + other

    @broker.task
    def long(seconds: float) -> str:
        say("began", os.getpid(), time.monotonic())
        time.sleep(seconds)
        say("ended")
        return "slept"

    @broker.task(retry_on_error=True, max_retries=3)
    async def fails() -> None:
        say("failing")
        raise ValueError("no luck")
"""


@pytest.fixture
def app(tmp_path, monkeypatch):
    """The module of the tasks, also imported here: to send them."""
    write(tmp_path, "tasks_of_taskiq", TASKS, url=str(tmp_path / "jobs"), lease=LEASE, skew=SKEW)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("tasks_of_taskiq")
    sys.modules.pop("tasks_of_taskiq")


@asynccontextmanager
async def started(broker):
    await broker.startup()
    try:
        yield await broker.file()
    finally:
        await broker.shutdown()


@asynccontextmanager
async def working(broker, **options):
    """A receiver of this broker in this process."""
    options = {"run_startup": False, "max_async_tasks": 2} | options
    receiver = asyncio.create_task(run_receiver_task(broker, **options))
    try:
        yield receiver
    finally:
        receiver.cancel()
        await asyncio.gather(receiver, return_exceptions=True)


def in_memory(**options):
    broker = BucketqBroker(memory_url(), **options)
    return broker.with_result_backend(BucketqResultBackend(broker))


def worker(directory):
    words = ("worker", "tasks_of_taskiq:broker", "--workers", "1", "--max-async-tasks", "4")
    return Program("taskiq", directory, *words)


async def states(file, queue="taskiq"):
    return [job.state for job in await file.queue(queue).list()]


async def until(true):
    """Wait for something that happens elsewhere; the test's time limit ends it."""
    while not await true():
        pass


async def again(file, job):
    return (await file.get(job.id)).attempt > 1


async def gone(backend, task):
    return not await backend.is_result_ready(task)


async def finished(file, count, queue="taskiq"):
    """Wait until this number of jobs is finished, and return them."""
    while True:
        jobs = (await file.queue(queue).list(payloads=True)).jobs
        for job in jobs:
            await file.queue(queue).wait(job.id)
        if len(jobs) >= count:
            return (await file.queue(queue).list(payloads=True)).jobs


async def test_a_worker_process_runs_a_task_and_keeps_its_result(app, tmp_path):
    async with started(app.broker) as file:
        with worker(tmp_path) as program:
            task = await app.add.kiq(1, 2)
            result = await task.wait_result(timeout=PATIENCE)
            assert (result.return_value, result.is_err) == (3, False)
            assert program.end() == 0
        (job,) = await file.queue("taskiq").list()
        (kept,) = await file.queue("taskiq-results").list()
        assert job.state == "done"
        # The result came with the commit that acked the task.
        assert kept.enqueued_at == job.finished_at


async def test_a_task_of_a_killed_worker_runs_again_after_its_lease(app, tmp_path):
    async with started(app.broker) as file:
        with worker(tmp_path) as first:
            task = await app.long.kiq(LEASE + 0.5)
            began = await asyncio.to_thread(first.says, "began")
            first.kill()
        with worker(tmp_path) as second:
            again = await asyncio.to_thread(second.says, "began")
            # The second one works for longer than a lease, and keeps the task.
            assert (await task.wait_result(timeout=PATIENCE)).return_value == "slept"
            await asyncio.to_thread(second.end)
            assert not [line for line in second.lines if "began" in line][1:]
        assert float(again.split()[1]) - float(began.split()[1]) >= LEASE - 2 * SKEW
        (job,) = await file.queue("taskiq").list()
        assert (job.state, job.attempt) == ("done", 2)


async def test_a_delayed_task_waits_in_the_queue_file_for_longer_than_a_lease(app, tmp_path):
    async with started(app.broker) as file:
        with worker(tmp_path):
            task = await app.add.kicker().with_labels(delay=LEASE + 1).kiq(2, 2)
            assert await states(file) == ["scheduled"]
            assert (await task.wait_result(timeout=PATIENCE)).return_value == 4
        (job,) = await file.queue("taskiq").list()
        assert job.attempt == 1
        assert (job.claimed_at - job.enqueued_at).total_seconds() >= LEASE + 1


async def test_retries_then_the_error(app, tmp_path):
    async with started(app.broker) as file:
        with worker(tmp_path):
            task = await app.fails.kiq()
            result = await task.wait_result(timeout=PATIENCE)
            with pytest.raises(ValueError, match="no luck"):
                result.raise_for_error()
        jobs = (await file.queue("taskiq").list()).jobs
        assert [job.state for job in jobs] == ["done"] * 3
        # Each retry came with the commit that acked the attempt before it.
        for before, after in itertools.pairwise(jobs):
            assert before.finished_at == after.enqueued_at


async def test_a_larger_priority_runs_first_and_a_label_names_the_queue():
    broker = in_memory()

    @broker.task
    async def one() -> None: ...

    async with started(broker) as file:
        for priority in (1, 5, "3"):
            await one.kicker().with_labels(priority=priority).kiq()
        await one.kicker().with_labels(queue_name="other").kiq()
        assert await states(file, "other") == ["ready"]
        listening = broker.listen()
        order = []
        for _ in range(3):
            message = await anext(listening)
            order.append(broker.formatter.loads(message.data).labels["priority"])
            await message.ack()
        await listening.aclose()
        assert order == ["5", "3", "1"]


async def test_a_waiting_listener_gets_a_task_with_its_commit():
    broker = in_memory()

    @broker.task
    async def one() -> None: ...

    async with started(broker):
        listening = broker.listen()
        waiting = asyncio.create_task(anext(listening))
        assert not (await asyncio.wait({waiting}, timeout=0.2))[0]
        await one.kiq()
        message = await asyncio.wait_for(waiting, PATIENCE)
        await message.ack()
        await listening.aclose()


async def test_a_broker_that_ends_gives_its_tasks_back():
    broker = in_memory(prefetch=2)
    url = broker._url

    @broker.task
    async def one() -> None: ...

    async with await bucketq.aio.open(url) as file:
        async with started(broker):
            await one.kiq()
            await one.kiq()
            listening = broker.listen()
            message = await anext(listening)
            # One has been handed out, the other waits in the listener.
            assert await states(file) == ["leased", "leased"]
            await listening.aclose()
        jobs = (await file.queue("taskiq").list()).jobs
        assert [(job.state, job.attempt) for job in jobs] == [("ready", 0), ("ready", 0)]
        # Acking it now changes nothing.
        await message.ack()


async def test_a_task_that_no_worker_knows_is_a_dead_letter(caplog):
    sender = InMemoryBroker()
    broker = in_memory()

    async with started(broker) as file, working(broker):
        message = sender.formatter.dumps(sender.task("gone")(lambda: None).kicker()._prepare_message())
        await broker.kick(message)
        (job,) = await finished(file, 1)
    assert (job.state, job.last_error) == ("dead", "task gone is unknown")
    assert "is unknown here" in caplog.text


@pytest.mark.parametrize("when", list(AcknowledgeType))
async def test_every_time_to_ack_stores_the_result(when):
    broker = in_memory(lease=LEASE, max_skew=SKEW)

    @broker.task
    async def one() -> int:
        return 1

    async with started(broker) as file, working(broker, ack_time=when):
        task = await one.kiq()
        if when is AcknowledgeType.MANUAL:
            # Nobody acks it: it is handed out again, and its result is not stored. The receiver keeps a task until it
            # has the next one.
            (job,) = (await file.queue("taskiq").list()).jobs
            await one.kiq()
            await until(lambda: again(file, job))
            assert not await task.is_ready()
        else:
            assert (await task.wait_result(timeout=PATIENCE)).return_value == 1
            assert await states(file) == ["done"]


async def test_a_task_whose_result_is_too_large_is_dead():
    broker = in_memory()

    @broker.task
    async def large() -> str:
        return "x" * 2**21

    async with started(broker) as file, working(broker):
        await large.kiq()
        (job,) = await finished(file, 1)
    assert job.state == "dead"
    assert "payload" in job.last_error


async def test_a_task_whose_result_has_no_room_now_runs_again():
    broker = in_memory()

    @broker.task
    async def one() -> int:
        return 1

    async with started(broker) as file:
        results = file.queue("taskiq-results")
        await results.configure(max_pending=1)
        await results.enqueue(b"other")
        await file.queue("taskiq").configure(backoff=bucketq.Backoff.none())
        async with working(broker):
            task = await one.kiq()
            (job,) = (await file.queue("taskiq").list()).jobs
            await until(lambda: again(file, job))
            await results.configure(max_pending=None)
            assert (await task.wait_result(timeout=PATIENCE)).return_value == 1


async def test_a_lost_lease_leaves_the_task_to_its_new_holder(caplog):
    broker = in_memory()

    @broker.task
    async def one() -> None: ...

    async with started(broker) as file:
        await one.kiq()
        listening = broker.listen()
        message = await anext(listening)
        await file.queue("taskiq").purge(["leased"])
        await message.ack()
        await listening.aclose()
    assert "runs again or was deleted" in caplog.text


async def test_results_and_progress():
    broker = in_memory()
    backend, short = broker.result_backend, BucketqResultBackend(broker, ttl=0.2, queue="short")
    async with started(broker) as file:
        assert await backend.get_progress("a") is None
        for state in ("begun", "half"):
            await backend.set_progress("a", TaskProgress(state=state, meta={"done": 1}))
        progress = await backend.get_progress("a")
        assert (progress.state, progress.meta) == ("half", {"done": 1})
        assert len(await file.queue("taskiq-results").list()) == 1
        assert not await backend.is_result_ready("a")
        with pytest.raises(bucketq.NotFound):
            await backend.get_result("a")
        for value in (1, 2):
            await backend.set_result(
                "a", TaskiqResult(is_err=False, return_value=value, execution_time=0, log="l")
            )
        result = await backend.get_result("a")
        assert (result.return_value, result.log) == (2, None)
        assert (await backend.get_result("a", with_logs=True)).log == "l"
        await short.set_result("a", result)
        assert await states(file, "short") == ["ready"]
        await until(lambda: gone(short, "a"))
        # A commit after its time deletes it.
        while await states(file, "short"):
            await file.queue("other").enqueue(1)
        assert (await file.queue("short").policy()).on_expiry == "delete"


async def test_a_task_without_a_result_says_so():
    broker = in_memory()

    @broker.task
    async def one() -> None: ...

    async with started(broker):
        task = await one.kiq()
        with pytest.raises(ResultGetError):
            await task.get_result()


async def test_a_drained_queue_hands_out_tasks_again_after_resume(monkeypatch):
    monkeypatch.setattr("bucketq.contrib.taskiq.PAUSE", 0.01)
    broker = in_memory()

    @broker.task
    async def one() -> None: ...

    async with started(broker) as file:
        await one.kiq()
        await file.queue("taskiq").drain(timeout=0)
        listening = broker.listen()
        waiting = asyncio.create_task(anext(listening))
        assert not (await asyncio.wait({waiting}, timeout=0.2))[0]
        await file.queue("taskiq").resume()
        message = await asyncio.wait_for(waiting, PATIENCE)
        await message.ack()
        await listening.aclose()


async def test_payloads_and_results_have_the_content_type_of_their_serializers():
    broker = BucketqBroker(memory_url())
    broker.with_result_backend(BucketqResultBackend(broker, serializer=PickleSerializer()))

    @broker.task
    async def one() -> int:
        return 1

    async with started(broker) as file, working(broker):
        task = await one.kiq()
        assert (await task.wait_result(timeout=PATIENCE)).return_value == 1
        (job,) = await file.queue("taskiq").list(payloads=True)
        (result,) = await file.queue("taskiq-results").list(payloads=True)
        assert (job.content_type, result.content_type) == ("application/json", "application/octet-stream")
        assert job.data["task_id"] == task.task_id


async def test_a_broker_opens_its_queue_file_again():
    broker = in_memory()
    async with started(broker) as first:
        assert await broker.file() is first
    assert await broker.file() is not first
    await broker.shutdown()
