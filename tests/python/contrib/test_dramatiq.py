"""The broker for dramatiq, with the worker processes of its own command line."""

import importlib
import itertools
import os
import signal
import subprocess
import sys
import threading
import time

import dramatiq
import pytest
from dramatiq.errors import QueueJoinTimeout, QueueNotFound
from dramatiq.results import ResultMissing, Results

import bucketq
from boxes import memory_url
from bucketq.contrib.dramatiq import BucketqBackend, BucketqBroker
from framework import LEASE, SKEW, Program, write
from patience import PATIENCE

ACTORS = """
    import os, sys, threading, time
    import dramatiq
    from dramatiq.results import Results
    from bucketq.contrib.dramatiq import BucketqBackend, BucketqBroker

    broker = BucketqBroker({url}, lease={lease}, max_skew={skew})
    broker.add_middleware(Results(backend=BucketqBackend(broker)))
    dramatiq.set_broker(broker)

    def say(*words):
        print("says", *words, flush=True)

    @dramatiq.actor(store_results=True)
    def add(one, other):
        say("added", one + other, os.getpid())
        return one + other

    @dramatiq.actor
    def long(seconds):
        say("began", os.getpid(), time.monotonic())
        time.sleep(seconds)
        say("ended")

    @dramatiq.actor(max_retries=2, min_backoff=10, max_backoff=20)
    def fails():
        say("failing")
        raise RuntimeError("no luck")

    @dramatiq.actor(time_limit=300, max_retries=0)
    def limited():
        say("waiting")
        for _ in range(1000):
            time.sleep(0.01)
"""


@pytest.fixture
def url(tmp_path):
    return str(tmp_path / "jobs")


@pytest.fixture
def app(tmp_path, url, monkeypatch):
    """The module of the actors, also imported here: to send messages."""
    write(tmp_path, "actors", ACTORS, url=url, lease=LEASE, skew=SKEW)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("actors", None)
    yield importlib.import_module("actors")
    sys.modules.pop("actors").broker.close()


@pytest.fixture
def program(tmp_path, app):
    words = ("actors", "--processes", "1", "--threads", "2")
    with Program("dramatiq", tmp_path, *words) as program:
        yield program


@pytest.fixture
def broker(monkeypatch):
    broker = BucketqBroker(memory_url(), middleware=[])
    # Messages ask the broker of the process for their results.
    monkeypatch.setattr(dramatiq.broker, "global_broker", broker)
    yield broker
    broker.close()


def actor(broker, function, **options):
    return dramatiq.actor(function, broker=broker, **options)


def working(broker, **options):
    worker = dramatiq.Worker(broker, worker_timeout=50, worker_threads=2, **options)
    worker.start()
    return worker


def states(file, queue="default"):
    return [job.state for job in file.queue(queue).list()]


def test_a_worker_process_runs_a_message_and_keeps_its_result(app, program):
    message = app.add.send(1, 2)
    assert program.says("added").split()[0] == "3"
    assert message.get_result(block=True, timeout=PATIENCE * 1000) == 3
    app.broker.join("default", timeout=PATIENCE * 1000)
    assert states(app.broker.file) == ["done"]
    assert program.end() == 0
    assert "You've found a bug" not in "".join(program.lines)


def test_a_message_of_a_killed_worker_runs_again_after_its_lease(app, tmp_path):
    words = ("actors", "--processes", "1", "--threads", "2")
    with Program("dramatiq", tmp_path, *words) as first:
        app.long.send(0.2 + LEASE)
        pid, began = first.says("began").split()
        os.kill(int(pid), signal.SIGKILL)
        first.kill()
    with Program("dramatiq", tmp_path, *words) as second:
        again = second.says("began").split()[1]
        # The second one works for longer than a lease, and keeps the message.
        second.says("ended")
        app.broker.join("default", timeout=PATIENCE * 1000)
        second.end()
        assert not [line for line in second.lines if "began" in line][1:]
    assert float(again) - float(began) >= LEASE - 2 * SKEW
    (job,) = app.broker.file.queue("default").list()
    assert (job.state, job.attempt) == ("done", 2)


def test_a_delayed_message_waits_in_the_queue_file_for_longer_than_a_lease(app, program):
    message = app.add.send_with_options(args=(2, 2), delay=(LEASE + 1) * 1000)
    queue = app.broker.file.queue("default")
    (job,) = queue.list()
    assert job.state == "scheduled"
    assert message.get_result(block=True, timeout=PATIENCE * 1000) == 4
    (job,) = queue.list()
    assert job.attempt == 1
    assert (job.claimed_at - job.enqueued_at).total_seconds() >= LEASE + 1


def test_retries_then_the_dead_letter(app, program):
    app.fails.send()
    app.broker.join("default", timeout=PATIENCE * 1000)
    jobs = app.broker.file.queue("default").list(payloads=True).jobs
    assert [job.state for job in jobs] == ["done", "done", "dead"]
    assert [job.data["options"].get("retries", 0) for job in jobs] == [0, 1, 2]
    assert jobs[-1].last_error == "RuntimeError: no luck"
    # Each retry came with the commit that acked the attempt before it.
    for before, after in itertools.pairwise(jobs):
        assert before.finished_at == after.enqueued_at
    # A redrive of the dead letter begins a new run.
    assert app.broker.file.queue("default").requeue_all() == 1
    program.says("failing")


def test_a_time_limit_ends_an_actor(app, program):
    app.limited.send()
    program.says("waiting")
    app.broker.join("default", timeout=PATIENCE * 1000)
    (job,) = app.broker.file.queue("default").list()
    assert job.state == "dead"
    assert job.last_error.startswith("TimeLimitExceeded")


class Seen:
    """Waits for events of the queue file."""

    def __init__(self, file):
        self.names = []
        self.changed = threading.Condition()
        file.on_event(self.add)

    def add(self, event):
        with self.changed:
            self.names.append(event.name)
            self.changed.notify_all()

    def wait(self, name, count):
        with self.changed:
            assert self.changed.wait_for(lambda: self.names.count(name) >= count, PATIENCE), self.names


def test_a_worker_that_ends_gives_back_what_it_has_prefetched(broker):
    began, end = threading.Event(), threading.Event()

    def busy():
        began.set()
        end.wait(PATIENCE)

    busy, idle = actor(broker, busy), actor(broker, lambda: None, actor_name="idle")
    seen = Seen(broker.file)
    worker = dramatiq.Worker(broker, worker_timeout=50, worker_threads=1)
    worker.start()
    busy.send()
    assert began.wait(PATIENCE)
    idle.send()
    seen.wait("claimed", 2)
    # The worker waits for the actor, and then gives the other message back.
    ending = threading.Thread(target=worker.stop)
    ending.start()
    while worker.workers[0].running:
        time.sleep(0)
    end.set()
    ending.join(PATIENCE)
    done, waits = broker.file.queue("default").list()
    assert (done.state, waits.state, waits.attempt) == ("done", "ready", 0)


def test_a_worker_prefetches_only_as_much_as_it_may(broker):
    consumer = consumed(broker, prefetch=2)
    for _ in range(3):
        send(broker)
    held = [next(consumer), next(consumer)]
    assert states(broker.file) == ["leased", "leased", "ready"]
    assert next(consumer) is None
    consumer.ack(held[0])
    consumer.nack(held[1])
    assert next(consumer) is not None
    assert states(broker.file) == ["done", "dead", "leased"]


def test_a_waiting_consumer_gets_a_message_with_its_commit(broker):
    consumer = consumed(broker, timeout=PATIENCE * 1000)
    waiting = threading.Thread(target=lambda: got.append(next(consumer)))
    got = []
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    send(broker)
    waiting.join(PATIENCE)
    assert [message.actor_name for message in got] == ["none"]


def test_a_consumer_that_holds_all_it_may_claims_again_when_a_message_ends(broker):
    consumer = consumed(broker, prefetch=1, timeout=PATIENCE * 1000)
    send(broker)
    send(broker)
    first = next(consumer)
    got = []
    waiting = threading.Thread(target=lambda: got.append(next(consumer)))
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    consumer.ack(first)
    waiting.join(PATIENCE / 2)
    assert len(got) == 1


def test_a_smaller_priority_runs_first(broker):
    consumer = consumed(broker)
    broker.declare_actor(actor(broker, lambda: None, actor_name="usual"))
    broker.declare_actor(actor(broker, lambda: None, actor_name="urgent", priority=-5))
    broker.declare_actor(actor(broker, lambda: None, actor_name="lazy", priority=5))
    for name in ("lazy", "usual", "urgent"):
        broker.get_actor(name).send()
    broker.get_actor("usual").send_with_options(priority=-9)
    order = []
    for _ in range(4):
        message = next(consumer)
        order.append((message.actor_name, message.job.info.priority))
        consumer.ack(message)
    assert order == [("usual", -9), ("urgent", -5), ("usual", 0), ("lazy", 5)]


def test_a_message_that_cannot_be_read_is_dead_and_the_next_one_runs(broker):
    consumer = consumed(broker)
    broker.file.queue("default").enqueue(b"no message")
    send(broker)
    assert next(consumer) is None
    assert next(consumer).actor_name == "none"
    dead = broker.file.queue("default").list(["dead"]).jobs[0]
    assert dead.last_error.startswith("DecodeError")


def test_a_message_of_an_unknown_actor_is_a_dead_letter(broker):
    actor(broker, lambda: None, actor_name="known")
    worker = working(broker)
    send(broker)
    broker.join("default", timeout=PATIENCE * 1000)
    worker.stop()
    (job,) = broker.file.queue("default").list()
    assert (job.state, job.last_error) == ("dead", "ActorNotFound: none")


def test_a_lost_lease_leaves_the_message_to_its_new_holder(broker, caplog):
    consumer = consumed(broker)
    send(broker)
    message = next(consumer)
    broker.file.queue("default").purge(["leased"])
    consumer.ack(message)
    assert "runs again or was deleted" in caplog.text
    # Its place is free again.
    send(broker)
    assert next(consumer) is not None


def test_a_retry_that_cannot_be_enqueued_leaves_the_message_to_a_later_attempt(broker, caplog):
    broker.add_middleware(dramatiq.middleware.Retries(min_backoff=1, max_backoff=1))
    broker.file.queue("default").configure(backoff=bucketq.Backoff.fixed(3600), max_pending=1)

    def fill_and_fail():
        broker.file.queue("default").enqueue(b"another one", delay=3600)
        raise RuntimeError("no luck")

    failing = actor(broker, fill_and_fail)
    seen = Seen(broker.file)
    worker = working(broker)
    failing.send()
    seen.wait("nacked", 1)
    worker.stop()
    message = broker.file.queue("default").list().jobs[0]
    assert (message.state, message.attempt) == ("scheduled", 1)
    assert "has no room" in caplog.text


def test_a_message_whose_result_is_too_large_is_dead(broker):
    broker.add_middleware(Results(backend=BucketqBackend(broker)))
    large = actor(broker, lambda: "x" * 2**21, actor_name="large", store_results=True)
    worker = working(broker)
    large.send()
    broker.join("default", timeout=PATIENCE * 1000)
    worker.stop()
    (job,) = broker.file.queue("default").list()
    assert job.state == "dead"
    assert "payload" in job.last_error


def test_the_next_step_of_a_pipeline_comes_with_the_ack(broker):
    for each in (dramatiq.middleware.Pipelines(), Results(backend=BucketqBackend(broker))):
        broker.add_middleware(each)
    one = actor(broker, lambda number: number + 1, actor_name="one", store_results=True)
    pipe = dramatiq.pipeline([one.message(1), one.message()])
    worker = working(broker)
    pipe.run()
    assert pipe.get_result(block=True, timeout=PATIENCE * 1000) == 3
    assert list(pipe.get_results()) == [2, 3]
    broker.join("default", timeout=PATIENCE * 1000)
    worker.stop()
    first, second = broker.file.queue("default").list()
    results = broker.file.queue("dramatiq-results").list()
    assert first.finished_at == second.enqueued_at == results.jobs[0].enqueued_at
    assert second.finished_at == results.jobs[1].enqueued_at


def test_a_result_ends_with_its_time(broker):
    backend = BucketqBackend(broker)
    broker.add_middleware(Results(backend=backend))
    message = send(broker)
    backend.store_result(message, 1, ttl=200)
    assert states(broker.file, "dramatiq-results") == ["ready"]
    with pytest.raises(ResultMissing):
        while True:
            message.get_result()
    # A commit after its time deletes it.
    while states(broker.file, "dramatiq-results"):
        send(broker)
    assert broker.file.queue("dramatiq-results").policy().on_expiry == "delete"


def test_flush_deletes_what_waits_and_what_is_dead(broker):
    consumer = consumed(broker, prefetch=2)
    for delay in (None, None, None, 3600_000):
        send(broker, delay=delay)
    consumer.nack(next(consumer))
    held = next(consumer)
    broker.flush_all()
    assert states(broker.file) == ["leased"]
    consumer.ack(held)
    broker.join("default")
    assert states(broker.file) == ["done"]


def test_join_ends_after_its_timeout(broker):
    broker.declare_queue("default")
    send(broker)
    with pytest.raises(QueueJoinTimeout):
        broker.join("default", timeout=50)


def test_a_queue_that_nobody_declared_is_an_error(broker):
    with pytest.raises(QueueNotFound):
        broker.consume("typo")
    with pytest.raises(QueueNotFound):
        broker.join("typo")
    broker.declare_queue("known")
    assert broker.get_declared_queues() == {"known"}
    assert broker.get_declared_delay_queues() == set()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
def test_a_forked_process_opens_the_queue_file_itself(tmp_path):
    broker = BucketqBroker(str(tmp_path / "jobs"), middleware=[])
    broker.declare_queue("default")
    send(broker)
    child = os.fork()
    if child == 0:
        try:
            send(broker)
            broker.close()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(broker.file.queue("default").list()) == 2
    broker.close()
    # A later use opens it again.
    assert len(broker.file.queue("default").list()) == 2
    broker.close()


def test_a_worker_whose_queue_file_was_closed_tries_again(broker):
    consumer = consumed(broker)
    send(broker)
    message = next(consumer)
    message.job._file.close().wait()
    with pytest.raises(dramatiq.errors.ConnectionClosed):
        consumer.ack(message)


def test_the_url_may_come_from_the_environment(monkeypatch):
    monkeypatch.setenv("BUCKETQ_URL", memory_url())
    broker = BucketqBroker(middleware=[])
    send(broker)
    assert broker.file.url == os.environ["BUCKETQ_URL"]
    broker.close()


def test_bucketq_itself_loads_no_framework():
    code = (
        "import bucketq.contrib, sys; print([n for n in ('dramatiq', 'huey', 'taskiq') if n in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def consumed(broker, prefetch=8, timeout=0):
    broker.declare_queue("default")
    return broker.consume("default", prefetch, timeout)


def send(broker, delay=None, **options):
    message = dramatiq.Message(queue_name="default", actor_name="none", args=(), kwargs={}, options=options)
    return broker.enqueue(message, delay=delay)
