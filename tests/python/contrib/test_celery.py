"""Celery and Kombu on a queue file: real workers as processes, killed, stopped and asked to end."""

from __future__ import annotations

import json
import os
import pickle
import queue
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

import kombu
import pytest
from celery import Celery, chord, group
from celery.exceptions import TimeoutError as TimedOut

import bucketq
import bucketq.contrib.celery as plugin
from bucketq.contrib.celery.backend import Backend
from bucketq.contrib.celery.place import located, shown
from bucketq.errors import Invalid
from network import network
from patience import PATIENCE
from servers import BUCKET, Server

APP = """
import json, os, time
from celery import Celery
import bucketq.contrib.celery

app = Celery("app", broker=os.environ["JOBS"], backend=os.environ["JOBS"])
app.conf.update(json.loads(os.environ["CONF"]))

@app.task
def add(a, b):
    return a + b

@app.task
def total(numbers):
    return sum(numbers)

@app.task
def fail():
    raise ValueError("no address")

@app.task(bind=True, max_retries=2)
def again(self):
    if self.request.retries < 2:
        raise self.retry(countdown=0)
    return self.request.retries

def wait(name):
    print(f"begun {name}")
    while not os.path.exists("go"):
        time.sleep(0.02)
    return name

early = app.task(wait, name="app.early")
late = app.task(wait, name="app.late", acks_late=True)
"""


class Worker:
    """A worker process and the lines that it logs."""

    def __init__(self, home: Home, *words: str, **conf: Any) -> None:
        command = [sys.executable, "-m", "celery", "-A", "app", *words]
        environ = {**os.environ, "JOBS": home.url, "CONF": json.dumps({**home.conf, **conf})}
        self.process = subprocess.Popen(
            command,
            cwd=home.directory,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.seen: list[str] = []
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def until(self, text: str) -> str:
        """Return the next line with this text."""
        while True:
            line = self._lines.get(timeout=PATIENCE)
            assert line is not None, f"no {text!r} in:\n{''.join(self.seen)}"
            self.seen.append(line)
            if text in line:
                return line

    def kill(self) -> None:
        """Kill the worker with its children."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE)

    def stop(self) -> str:
        """Ask the worker to end. Returns what it logged."""
        self.process.terminate()
        assert self.process.wait(PATIENCE) == 0
        self._reader.join()
        return self.text()

    def text(self) -> str:
        """Return what the worker has logged until now."""
        while not self._lines.empty():
            self.seen.append(self._lines.get() or "")
        return "".join(self.seen)

    def end(self) -> None:
        if self.process.poll() is None:
            self.kill()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


class Home:
    """A queue file, the tasks, and the side of the caller."""

    def __init__(self, directory: Path, **options: Any) -> None:
        self.directory = directory
        self.url = f"bucketq://{directory}/jobs"
        # One message more than processes, so that tests see what waits; no clash with the workers of other tests.
        self.conf = {"broker_transport_options": {"lease": 1, **options}, "worker_prefetch_multiplier": 1}
        (directory / "app.py").write_text(APP)
        self.app = Celery("caller", broker=self.url, backend=self.url, set_as_current=False)
        self.app.conf.update(self.conf)
        self.file = bucketq.open(directory / "jobs")
        self.workers: list[Worker] = []

    def call(self, task: str, *args: Any, **options: Any) -> Any:
        """Call a task. Returns its result."""
        return self.app.send_task(f"app.{task}", args, **options)

    def part(self, task: str, *args: Any) -> Any:
        """Return the signature of a task."""
        return self.app.signature(f"app.{task}", args)

    def worker(self, *words: str, **conf: Any) -> Worker:
        """Start a worker, and wait until it consumes."""
        worker = self.start("worker", "-l", "INFO", *words, **conf)
        worker.until(" ready.")
        return worker

    def start(self, *words: str, **conf: Any) -> Worker:
        """Start a command of Celery."""
        self.workers.append(Worker(self, *words, **conf))
        return self.workers[-1]

    def go(self) -> None:
        """Let the tasks that wait return."""
        (self.directory / "go").touch()

    def counts(self, name: str = "celery") -> dict[str, int]:
        """Return the numbers of messages that are not zero."""
        return {state: count for state, count in self.file.queue(name).counts().counts.items() if count}

    def close(self) -> None:
        for worker in self.workers:
            worker.end()
        backend = self.app.backend
        self.app.close()
        self.app.pool.force_close_all()
        backend.file.close()
        self.file.close()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    yield home
    home.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """A queue file with two workers, one with processes and one with threads, for tests that disturb neither."""
    home = Home(tmp_path_factory.mktemp("shared"))
    home.worker("-P", "prefork", "-c", "2", "-n", "one@%h", "-E")
    home.worker("-P", "threads", "-c", "2", "-n", "two@%h", "-E")
    yield home
    home.close()


@contextmanager
def connected(url: str, **options: Any) -> Iterator[kombu.Connection]:
    with kombu.Connection(url, transport_options=options) as connection:
        yield connection


def test_tasks_run_and_return_results(shared: Home) -> None:
    results = [shared.call("add", n, 1) for n in range(10)]
    assert [result.get(timeout=PATIENCE) for result in results] == list(range(1, 11))
    with pytest.raises(ValueError, match="no address"):
        shared.call("fail").get(timeout=PATIENCE)
    assert shared.call("again").get(timeout=PATIENCE) == 2


def test_a_task_with_a_countdown_runs_after_it(shared: Home) -> None:
    begun = monotonic()
    assert shared.call("add", 1, 2, countdown=1).get(timeout=PATIENCE) == 3
    assert monotonic() - begun >= 1


def test_groups_and_chords_call_the_body_once(shared: Home) -> None:
    parts = [shared.part("add", n, n) for n in range(30)]
    assert group(parts, app=shared.app)().get(timeout=PATIENCE) == [2 * n for n in range(30)]
    sums = [chord(parts, app=shared.app)(shared.part("total")) for _ in range(3)]
    assert [one.get(timeout=PATIENCE) for one in sums] == [870, 870, 870]
    bodies = [
        job
        for job in shared.file.list(queue="celery", limit=1000, payloads=True)
        if job.data["headers"]["task"] == "app.total"
    ]
    assert len(bodies) == 3
    assert shared.counts("celery.chords") == {"scheduled": 3}  # One sign each that its body was called.


def test_a_failed_part_fails_the_chord(shared: Home) -> None:
    body = chord([shared.part("add", 1, 1), shared.part("fail")], app=shared.app)(shared.part("total"))
    # Its ``get`` would also look at the parts.
    meta = shared.app.backend.wait_for(body.id, timeout=PATIENCE)
    assert (meta["status"], "no address" in str(meta["result"])) == ("FAILURE", True)


def test_every_worker_gets_a_remote_control_command(shared: Home) -> None:
    replies = shared.app.control.ping(timeout=PATIENCE, limit=2)
    assert sorted(name.partition("@")[0] for reply in replies for name in reply) == ["one", "two"]
    (one,) = [name for reply in replies for name in reply if name.startswith("one@")]
    inspect = shared.app.control.inspect([one], timeout=PATIENCE, limit=1)
    assert list(inspect.registered()) == [one]
    # The queues of the replies are gone again.
    assert [info.name for info in shared.file.queues() if "reply" in info.name] == []


def test_events_come_to_those_who_listen(shared: Home) -> None:
    seen: list[dict[str, Any]] = []
    result = None
    with shared.app.connection_for_read() as connection:
        receiver = shared.app.events.Receiver(connection, handlers={"task-succeeded": seen.append})
        # Its first event is the heartbeat that it asks all workers for.
        for _ in receiver.itercapture(timeout=PATIENCE):
            result = result or shared.call("add", 20, 22)
            if seen:
                break
    assert [event["result"] for event in seen] == ["42"]
    assert [info.name for info in shared.file.queues() if info.name.startswith("celeryev")] == []


def test_a_killed_worker_s_message_is_delivered_again(home: Home) -> None:
    first = home.worker("-P", "prefork", "-c", "1", "-n", "first@%h")
    result = home.call("late", "ada")
    first.until("begun ada")
    assert home.counts() == {"leased": 1}
    first.kill()
    home.go()
    home.worker("-P", "solo", "-n", "second@%h")
    assert result.get(timeout=PATIENCE) == "ada"
    (job,) = home.file.list(["done"], queue="celery").jobs
    assert job.attempt == 2


def test_acks_late_acks_after_the_work(home: Home) -> None:
    worker = home.worker("-P", "threads", "-c", "2")
    late = home.call("late", "late")
    worker.until("begun late")
    assert home.counts() == {"leased": 1}
    early = home.call("early", "early")
    worker.until("begun early")
    # The ack of the early one is on its way: wait for the commit.
    home.file.queue("celery").wait(home.file.list(queue="celery").jobs[1].id, timeout=PATIENCE)
    assert home.counts() == {"leased": 1, "done": 1}
    home.go()
    assert [late.get(timeout=PATIENCE), early.get(timeout=PATIENCE)] == ["late", "early"]


@pytest.fixture
def holding(tmp_path: Path) -> Iterator[Home]:
    """A queue file whose workers take messages with an ETA early."""
    home = Home(tmp_path, hold_eta=True)
    yield home
    home.close()


def test_a_worker_that_ends_gives_back_what_it_has_not_begun(holding: Home) -> None:
    worker = holding.worker("-P", "threads", "-c", "1", worker_prefetch_multiplier=2)
    running = holding.call("late", "ada")
    worker.until("begun ada")
    later = holding.call("add", 1, 2, countdown=3600)
    worker.until(f"[{later.id}] received")
    assert holding.counts() == {"leased": 2}
    worker.process.terminate()
    worker.until("Warm shutdown")
    holding.go()
    worker.stop()
    assert running.get(timeout=PATIENCE) == "ada"
    assert {job.state: job.attempt for job in holding.file.list(queue="celery")} == {"done": 1, "ready": 0}


def test_a_message_that_a_worker_holds_stays_leased(holding: Home) -> None:
    first = holding.worker("-P", "solo", "-n", "first@%h")
    result = holding.call("add", 1, 2, countdown=4)  # Four times the lease.
    first.until("received")
    second = holding.worker("-P", "solo", "-n", "second@%h")
    assert result.get(timeout=PATIENCE) == 3
    (job,) = holding.file.list(queue="celery").jobs
    assert (job.attempt, "received" in second.text()) == (1, False)


def test_urgent_messages_come_first(home: Home) -> None:
    for priority in (0, 9, 5, 20, None):
        home.call("add", 0, 0, priority=priority, task_id=f"priority {priority}")
    worker = home.worker("-P", "solo")
    names = [worker.until("received").split("[")[2].split("]")[0].split()[1] for _ in range(5)]
    assert names == ["9", "20", "5", "0", "None"]


def test_a_message_with_an_eta_stays_in_the_queue_until_then(home: Home) -> None:
    home.call("add", 1, 2, countdown=3600)
    home.call("add", 1, 2)
    assert home.counts() == {"scheduled": 1, "ready": 1}
    with home.app.connection_for_write() as connection:
        assert connection.default_channel.queue_declare("celery", passive=True).message_count == 1
    assert home.app.control.purge() == 2
    assert home.counts() == {}


def test_beat_and_the_command_line_work(home: Home) -> None:
    every = {"often": {"task": "app.add", "schedule": 0.2, "args": [1, 2]}}
    beat = home.start("beat", "-l", "INFO", "-s", str(home.directory / "times"), beat_schedule=every)
    beat.until("Sending due task often")
    beat.until("Sending due task often")
    beat.kill()
    sent = home.counts()["ready"]
    assert sent >= 1
    purge = home.start("purge", "-f")
    purge.until(f"Purged {sent} message")
    assert home.counts() == {}


def test_a_finished_task_wakes_the_caller_without_polling(home: Home) -> None:
    class Counting(Backend):
        looks = 0

        def mget(self, keys: Any) -> Any:
            Counting.looks += 1
            return super().mget(keys)

    caller = Counting(home.app, url=home.url)
    storing = Backend(home.app, url=home.url)
    with pytest.raises(TimedOut):
        caller.wait_for("slow", timeout=2)
    assert Counting.looks <= 3
    waiting = threading.Thread(target=caller.wait_for, args=("slow",), kwargs={"timeout": PATIENCE})
    waiting.start()
    storing.store_result("slow", None, "STARTED")
    storing.store_result("slow", 42, "SUCCESS")
    waiting.join()
    assert (caller.get_result("slow"), Counting.looks <= 8) == (42, True)
    caller.file.close()
    storing.file.close()


def test_results_change_are_forgotten_and_expire(home: Home) -> None:
    backend = home.app.backend
    for number in range(20):
        backend.store_result("a", number, "STARTED")
        assert backend.get_task_meta("a")["result"] == number
    backend.store_result("a", 0, "STARTED")
    assert backend.get_task_meta("a")["result"] == 0
    backend.store_result("a", 42, "SUCCESS")
    assert backend.get_result("a") == 42
    backend.store_result("a", 43, "SUCCESS")  # Celery keeps the first success.
    assert dict(backend.get_many(["a", "b"], timeout=PATIENCE, max_iterations=1))["a"]["result"] == 42
    backend.forget("a")
    assert (backend.get_state("a"), home.counts("celery.results")) == ("PENDING", {"scheduled": 3})
    backend.store_result("a", 44, "SUCCESS")
    assert backend.get_task_meta("a", cache=False)["result"] == 44
    short = Backend(home.app, url=home.url, expires=1)
    short.store_result("b", 1, "SUCCESS")
    (job,) = [one for one in home.file.list(queue="celery.results") if one.run_at.year == 9999][-1:]
    while home.file.get(job.id) is not None:
        threading.Event().wait(0.1)
        home.file.queue("other").enqueue("the next enqueue deletes what has expired")
    assert short.get_task_meta("b", cache=False)["status"] == "PENDING"
    short.file.close()


def test_a_part_that_returns_twice_counts_once(home: Home) -> None:
    backend = home.app.backend
    places: list[int] = []

    class Parts(Backend):
        def incr(self, key: Any) -> int:
            places.append(super().incr(key))
            return places[-1]

    parts = Parts(home.app, url=home.url)
    result = home.app.GroupResult("g", [home.app.AsyncResult(id) for id in "abc"])
    result.save(backend=backend)
    body = home.part("total")
    body["chord_size"] = 3
    body.set(task_id="total")

    def come_back(id: str) -> None:
        parts.store_result(id, 5, "SUCCESS")
        parts.on_chord_part_return(SimpleNamespace(id=id, group="g", chord=body), "SUCCESS", 5)

    for id in "aabac":
        come_back(id)
    assert places == [1, 1, 2, 1, 3]
    assert home.counts() == {"ready": 1}
    come_back("c")  # Its message was delivered again after the body was called.
    assert (len(places), home.counts()) == (5, {"ready": 1})
    assert backend.get_state("total") == "PENDING"
    parts.file.close()


def test_the_queue_of_a_dead_worker_is_bounded_and_goes(tmp_path: Path) -> None:
    url = f"bucketq://{tmp_path}/jobs"
    news = kombu.Exchange("news", type="fanout")
    alive = kombu.Queue("alive", news, expires=1, max_length=3)
    dead = kombu.Queue("dead", news, expires=1, max_length=3)
    with bucketq.open(tmp_path / "jobs") as file, connected(url, leftover_after=1) as connection:
        names = lambda: {info.name for info in file.queues()} - {"celery.bindings"}
        with connected(url, leftover_after=1) as other:
            dead(other.default_channel).declare()  # Its process ends without a word.
        got: list[str] = []
        with connection.Consumer([alive], callbacks=[lambda body, _: got.append(body)], no_ack=True):
            producer = connection.Producer(exchange=news)
            for number in range(5):
                producer.publish(str(number))
            assert file.queue("dead").counts().counts["ready"] == 3  # The oldest two were dropped.
            sent = 5
            # Two lives: what is in use must outlast its own.
            for unused in (dead, kombu.Queue("unused", news, expires=1)):
                with connected(url, leftover_after=1) as other:
                    unused(other.default_channel).declare()
                while unused.name in names():
                    producer.publish(str(sent))
                    sent += 1
                    while len(got) < sent:
                        connection.drain_events(timeout=PATIENCE)
                    # Any process that declares such a queue deletes those that nobody uses.
                    kombu.Queue("passer-by", news, expires=1)(connection.default_channel).declare()
            assert got == [str(number) for number in range(sent)]
            assert {"alive", "passer-by"} >= names() >= {"alive"}
        assert "alive" in names()  # It is not deleted with its consumer.


def test_commands_for_a_worker_that_is_away_expire(tmp_path: Path) -> None:
    with connected(f"bucketq://{tmp_path}/jobs") as connection, bucketq.open(tmp_path / "jobs") as file:
        file.strict_queues()
        for lasts, expires in ((None, 10), (300, 10), (5, 60)):
            box = kombu.Queue(f"box {expires} {lasts}", expires=expires, message_ttl=lasts, auto_delete=True)
            box(connection.default_channel).declare()
            policy = file.queue(box.name).policy()
            assert policy.expires is not None
            assert policy.expires.total_seconds() == min(lasts or expires, expires)
            assert (policy.keep, policy.on_expiry, policy.overflow) == (0, "delete", "drop_oldest")
        durable = kombu.Queue("durable", message_ttl=7, max_length=9)
        durable(connection.default_channel).declare()
        policy = file.queue("durable").policy()
        assert (policy.max_attempts, policy.max_pending, policy.keep) == (None, 9, 1000)
        # A policy that somebody has set stays.
        file.queue("durable").configure(max_attempts=3)
        with connection.clone() as other:
            other.default_channel.queue_declare("durable")
        assert file.queue("durable").policy().max_attempts == 3


def test_bindings_are_those_of_all_processes(tmp_path: Path) -> None:
    url = f"bucketq://{tmp_path}/jobs"
    logs = kombu.Exchange("logs", type="topic")
    with connected(url) as one, connected(url) as other:
        errors = kombu.Queue("errors", logs, routing_key="*.error")(one.default_channel)
        errors.declare()
        # The other connection has declared nothing.
        producer = other.Producer(auto_declare=False)
        producer.publish("lost", exchange="logs", routing_key="db.info")
        producer.publish("disk", exchange="logs", routing_key="db.error")
        message = errors.get()
        assert (message.payload, errors.get()) == ("disk", None)
        message.ack()
        assert other.get_manager().get_bindings() == [
            {"destination": "errors", "source": "logs", "routing_key": "*.error"}
        ]
        errors.unbind_from(logs, routing_key="*.error")
        producer.publish("nobody", exchange="logs", routing_key="db.error")
        assert errors.get() is None
        errors.delete()
    with bucketq.open(tmp_path / "jobs") as file:
        assert {info.name: info.counts["scheduled"] for info in file.queues()} == {"celery.bindings": 0}


def test_rejected_messages_come_back_or_die(tmp_path: Path) -> None:
    with bucketq.open(tmp_path / "jobs") as file:
        with connected(f"bucketq://{tmp_path}/jobs") as connection, connection.SimpleQueue("q") as simple:
            simple.put({"n": 1})
            simple.get(timeout=PATIENCE).requeue()
            message = simple.get(timeout=PATIENCE)
            assert (message.payload, message.delivery_info["redelivered"]) == ({"n": 1}, False)
            message.reject()
            file.queue("q").enqueue("no message")
            simple.put({"n": 2})
            assert simple.get(timeout=PATIENCE).payload == {"n": 2}
        # Closing gave back the message that was not acked.
        states = [(job.state, job.attempt) for job in file.list(queue="q")]
        assert states == [("dead", 1), ("dead", 1), ("ready", 0)]


def test_the_prefetch_count_limits_what_a_channel_holds(tmp_path: Path) -> None:
    with connected(f"bucketq://{tmp_path}/jobs") as connection, bucketq.open(tmp_path / "jobs") as file:
        q, got = kombu.Queue("q"), list[Any]()
        producer = connection.Producer()
        for number in range(5):
            producer.publish(number, routing_key="q", declare=[q])
        with connection.Consumer([q], callbacks=[lambda _, message: got.append(message)], prefetch_count=2):
            while len(got) < 2:
                connection.drain_events(timeout=PATIENCE)
            with pytest.raises(TimeoutError):
                connection.drain_events(timeout=0.3)
            assert file.queue("q").counts().counts["leased"] == 2
            got[0].ack()
            connection.drain_events(timeout=PATIENCE)
            assert [message.payload for message in got] == [0, 1, 2]


def test_a_forked_child_publishes_on_a_connection_of_its_own(tmp_path: Path) -> None:
    program = """
        import os, sys, kombu, bucketq.contrib.celery
        q = kombu.Queue("q")
        with kombu.Connection(sys.argv[1]) as connection:
            producer, got = connection.Producer(), []
            producer.publish("parent", routing_key="q", declare=[q])
            with connection.Consumer([q], callbacks=[lambda body, _: got.append(body)]):
                connection.drain_events(timeout=60)
                child = os.fork()
                if child == 0:
                    producer.publish("child", routing_key="q")
                    connection.release()
                    os._exit(0)
                assert os.waitpid(child, 0)[1] == 0
                connection.drain_events(timeout=60)
            print(got)
    """
    command = [sys.executable, "-c", textwrap.dedent(program), f"bucketq://{tmp_path}/jobs"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.stdout, done.returncode) == ("['parent', 'child']\n", 0), done.stderr
    with bucketq.open(tmp_path / "jobs") as file:
        assert [(job.state, job.attempt) for job in file.list(queue="q")] == [("ready", 0), ("ready", 0)]


def test_a_bucket_is_named_with_its_settings(server: Server) -> None:
    settings = {
        name: str(value).lower() if value is True else value for name, value in server.settings.items()
    }
    url = f"bucketq+s3://{BUCKET}/celery/jobs?{urlencode(settings)}"
    with connected(url) as connection, connection.SimpleQueue("q") as simple:
        simple.put("to the bucket")
        message = simple.get(timeout=PATIENCE)
        assert message.payload == "to the bucket"
        message.ack()
        shows = connection.as_uri()
    assert shows.startswith(f"bucketq+s3://{BUCKET}/celery/jobs?")
    assert str(server.settings["secret_key"]) not in shows
    backend = Backend(Celery(set_as_current=False), url=url.removeprefix("bucketq+"))
    backend.store_result("a", 1, "SUCCESS")
    again = pickle.loads(pickle.dumps(backend))
    assert (again.get_result("a"), again.expires) == (1, 86400)
    again.file.close()
    assert (backend.get_result("a"), "secret_key=**" in backend.as_uri()) == (1, True)
    backend.file.close()


def test_an_outage_delays_messages_and_loses_none(server: Server) -> None:
    q, got = kombu.Queue("q"), list[Any]()
    with network(server.endpoint) as through:
        settings = {**server.settings, "endpoint": through.endpoint, "deadline": 1}
        url = f"bucketq+s3://{BUCKET}/celery-outage/jobs?{urlencode(settings)}"
        with connected(url) as connection:
            producer = connection.Producer()

            def callback(body: Any, message: Any) -> None:
                if body == "before":
                    through.cut()
                got.append(body)
                message.ack()

            with connection.Consumer([q], callbacks=[callback]):
                producer.publish("before", routing_key="q")
                connection.drain_events(timeout=PATIENCE)
                with pytest.raises(connection.connection_errors):
                    producer.publish("meanwhile", routing_key="q")
                through.mend()
                producer.publish("after", routing_key="q")
                while got[-1] != "after":
                    connection.drain_events(timeout=PATIENCE)
            assert got.count("meanwhile") <= 1
    with bucketq.open(f"s3://{BUCKET}/celery-outage/jobs", settings=server.settings) as file:
        assert {(job.state, job.attempt) for job in file.list(queue="q")} == {("done", 1)}


def test_a_misspelt_setting_is_an_error() -> None:
    with pytest.raises(Invalid, match="deadline"):
        located("bucketq:///jobs?deadlin=10")
    assert shown("bucketq:///jobs") == "bucketq:///jobs"
    with pytest.raises(Invalid, match="not both"):
        kombu.Connection("bucketq:///jobs", transport_options={"lease": 1, "visibility_timeout": 1}).connect()


def test_nothing_else_imports_kombu() -> None:
    program = (
        "import sys, bucketq, bucketq.contrib, bucketq.aio, bucketq.tasks; print('kombu' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout == "False\n", done.stderr
    assert plugin.Transport.driver_type == "bucketq"
