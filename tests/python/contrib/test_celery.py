"""Celery on a queue file: real workers as processes, killed, stopped and asked to end; results and chords."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest
from celery import chord, group
from celery.exceptions import TimeoutError as TimedOut
from celery_home import Home

from bucketq.contrib.celery.backend import Backend
from patience import PATIENCE


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    yield home
    home.close()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """A queue file with two workers, one with processes and one with threads, for tests that disturb neither."""
    home = Home(tmp_path_factory.mktemp("shared"), leftover_after=2)
    home.worker("-P", "prefork", "-c", "2", "-n", "one@%h", "-E")
    home.worker("-P", "threads", "-c", "2", "-n", "two@%h", "-E")
    yield home
    home.close()


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
    # One sign each that its body was called; the parts are deleted after the call.
    shared.until(lambda: shared.counts("celery.chords") == {"scheduled": 3})


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
    with shared.app.connection_for_read() as connection:
        receiver = shared.app.events.Receiver(connection, handlers={"task-succeeded": seen.append})
        # Heartbeats come first. A worker may not know of a listener in its first second.
        for _ in receiver.itercapture(timeout=PATIENCE):
            if seen:
                break
            shared.call("add", 20, 22)
    assert seen[0]["result"] == "42"

    def gone() -> bool:
        # A worker that had read the bindings may have created the queue again: the next reply queue deletes it.
        shared.app.control.ping(timeout=0.1)
        return not any(info.name.startswith("celeryev") for info in shared.file.queues())

    shared.until(gone)


def test_a_killed_worker_s_message_is_delivered_again(home: Home) -> None:
    first = home.worker("-P", "prefork", "-c", "1", "-n", "first@%h")
    result = home.call("late", "ada")
    first.until("begun ada")
    assert home.counts() == {"leased": 1}
    first.kill()
    home.go()
    home.worker("-P", "solo", "-n", "second@%h")
    assert result.get(timeout=PATIENCE) == "ada"
    (job,) = home.file.list(queue="celery").jobs
    # Its ack follows the result.
    done = home.file.queue("celery").wait(job.id, timeout=PATIENCE)
    assert done is not None
    assert (done.state, done.attempt) == ("done", 2)


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

    def gone() -> bool:
        home.file.queue("other").enqueue("the next enqueue deletes what has expired")
        return home.file.get(job.id) is None

    home.until(gone)
    assert short.get_task_meta("b", cache=False)["status"] == "PENDING"
    short.file.close()


@pytest.mark.parametrize("final", ["SUCCESS", "FAILURE"])
def test_a_retry_that_is_stored_late_hides_no_final_state(home: Home, final: str) -> None:
    backend = home.app.backend
    key = backend.get_key_for_task("a")
    late = backend.encode({"status": "RETRY", "result": None, "task_id": "a"})
    backend.store_result("a", None, "STARTED")
    backend.store_result("a", ValueError("no") if final == "FAILURE" else 1, final)
    # Its process has looked before the final state was there.
    backend._set_with_state(key, late, "RETRY")
    assert backend.get_state("a") == final
    again = backend.encode({"status": "STARTED", "result": None, "task_id": "a"})
    backend._set_with_state(key, again, "STARTED")
    assert backend.get_task_meta("a", cache=False)["status"] == (
        "SUCCESS" if final == "SUCCESS" else "STARTED"
    )


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
