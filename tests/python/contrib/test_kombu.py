"""Kombu on a queue file, without Celery: what a connection declares, publishes, consumes and gives back."""

from __future__ import annotations

import pickle
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import urlencode

import kombu
import pytest
from celery import Celery
from celery_home import connected

import bucketq
import bucketq.contrib.celery as plugin
from bucketq.contrib.celery.backend import Backend
from bucketq.contrib.celery.place import located, shown
from bucketq.errors import Invalid
from network import network
from patience import PATIENCE
from servers import BUCKET, Server


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


def test_a_queue_that_a_late_message_creates_again_goes_too(tmp_path: Path) -> None:
    url = f"bucketq://{tmp_path}/jobs"
    with bucketq.open(tmp_path / "jobs") as file, connected(url, leftover_after=1) as connection:
        reply = kombu.Queue("reply", expires=1, auto_delete=True)
        with connection.Consumer([reply], no_ack=True):
            assert file.queue("reply").counts().exists
        assert not file.queue("reply").counts().exists  # Its only consumer ended.
        # A process that has read the bindings before.
        connection.Producer().publish("late", routing_key="reply")
        assert file.queue("reply").counts().exists
        begun = monotonic()
        while file.queue("reply").counts().exists:
            kombu.Queue("next", expires=1)(connection.default_channel).declare()
            assert monotonic() - begun < PATIENCE


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
        errors.bind_to(logs, routing_key="db.*")
        errors.delete()
    with bucketq.open(tmp_path / "jobs") as file:
        assert {info.name: info.counts["scheduled"] for info in file.queues()} == {"celery.bindings": 0}


def test_rejected_messages_come_back_or_die(tmp_path: Path) -> None:
    threads = threading.active_count()
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
    assert threading.active_count() == threads


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
    again: list[Any] = []
    for url, options in (
        ("bucketq:///jobs", {"lease": 1, "visibility_timeout": 1}),
        ("bucketq:///jobs?deadlin=10", {}),
    ):
        with pytest.raises(Invalid, match=r"not both|deadlin"):
            kombu.Connection(url, transport_options=options).ensure_connection(
                lambda *error: again.append(error)
            )
    assert again == []  # It was not tried again: that would not help.


def test_a_message_that_is_too_large_is_an_error_at_once(tmp_path: Path) -> None:
    again: list[Any] = []
    with connected(f"bucketq://{tmp_path}/jobs?max_payload=1000") as connection:
        policy = {"errback": lambda *error: again.append(error)}
        with pytest.raises(Invalid, match="max_payload"):
            connection.Producer().publish("x" * 1001, routing_key="q", retry=True, retry_policy=policy)
    assert again == []


def test_nothing_else_imports_kombu() -> None:
    program = (
        "import sys, bucketq, bucketq.contrib, bucketq.aio, bucketq.tasks; print('kombu' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE)
    assert done.stdout == "False\n", done.stderr
    assert plugin.Transport.driver_type == "bucketq"
