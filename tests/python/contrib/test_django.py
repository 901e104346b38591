"""The backend for Django's TASKS: a real project, with a web process that enqueues and two workers.

BUCKETQ_TEST_DJANGO names a second interpreter, for example one with Django 6: every test runs with that one too.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from django_site import PAGE, Site

import bucketq
from patience import PATIENCE
from programs import until
from servers import free_port

PYTHONS = [sys.executable, *filter(None, [os.environ.get("BUCKETQ_TEST_DJANGO")])]


@pytest.fixture(scope="module", params=PYTHONS)
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A web process and two workers."""
    site, port = Site(tmp_path_factory.mktemp("site"), request.param), free_port()
    notified = str(site.place / "notified")
    site.url = f"http://127.0.0.1:{port}"
    with ExitStack() as stack:
        ready = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        ready.bind(notified)
        ready.settimeout(PATIENCE)
        site.file = stack.enter_context(bucketq.open(site.place / "jobs"))
        site.file.queue("slow").configure(backoff=bucketq.Backoff.none(), max_attempts=2)
        site.file.queue("killed").configure(lease=3)
        site.file.queue("once").configure(lease=None)
        site.file.queue("children").configure(max_attempts=1)
        site.processes = []
        for words in (
            ["runserver", "--noreload", str(port)],
            ["bucketq_worker", "--queues", "default,mails,slow,killed", "--concurrency", "4"],
            ["bucketq_worker", "--queues", "default,mails,slow,killed", "--concurrency", "4"],
        ):
            process = stack.enter_context(site.start(*words, NOTIFY_SOCKET=notified))
            stack.callback(process.kill)
            site.processes.append(process)
        assert [ready.recv(100), ready.recv(100)] == [b"READY=1"] * 2
        yield site
        for process in site.processes[1:]:
            process.terminate()
        for process in site.processes[1:]:
            out, log = process.communicate(timeout=PATIENCE)
            assert process.returncode in {0, -signal.SIGKILL}, out + log


def test_the_program_of_the_page_enqueues_a_task_and_reads_its_result(site):
    status, order = site.ask("order")
    assert status == 202
    site.finished(order["id"])
    _, shown = site.ask(f"status/{order['id']}")
    assert shown == {
        "status": "SUCCESSFUL",
        "value": {"sent": "ada@example.org", "subject": "your order"},
    }


def test_a_result_has_times_arguments_worker_and_value(site):
    given = site.call("add", 40, kwargs={"b": 2})
    assert (given["status"], given["attempts"], given["started_at"], given["value"]) == (
        "READY",
        0,
        None,
        None,
    )
    found = site.finished(given["id"])
    assert (found["status"], found["value"], found["attempts"], found["errors"]) == ("SUCCESSFUL", 42, 1, [])
    assert (found["args"], found["kwargs"], found["backend"]) == ([40], {"b": 2}, "default")
    assert found["enqueued_at"] == given["enqueued_at"]
    assert found["enqueued_at"] <= found["started_at"] <= found["finished_at"]
    assert found["worker_ids"][0].rpartition(":")[2] in {str(process.pid) for process in site.processes}
    assert found["task"]["module_path"] == "shop.more.add"


def test_coroutines_are_enqueued_run_and_read(site):
    given = site.call("wait", "hello", how="acall")
    found = site.finished(given["id"], how="aresult")
    assert (found["status"], found["value"]) == ("SUCCESSFUL", ["hello", True, "shop.more.wait"])
    lines = ["enqueued READY 0", "started RUNNING 1", "finished SUCCESSFUL 1"]
    assert site.signals(given["id"]) == [f"{line} BucketqBackend" for line in lines]


def test_a_failing_task_runs_again_and_its_result_has_an_error_for_each_attempt(site):
    found = site.result("refuse", "no such address")
    assert (found["status"], found["attempts"], found["value"]) == ("FAILED", 2, None)
    assert [one["path"] for one in found["errors"]] == ["shop.more.Refused"] * 2
    assert {one["class"] for one in found["errors"]} == {"Refused"}
    trace = found["errors"][0]["traceback"]
    assert trace.startswith("Traceback (most recent call last):\n")
    assert "in refuse\n    raise Refused(text)\n" in trace
    assert trace.rstrip().endswith("shop.more.Refused: no such address")
    lines = ["enqueued READY 0", "started RUNNING 1", "started RUNNING 2", "finished FAILED 2"]
    assert site.signals(found["id"]) == [f"{line} BucketqBackend" for line in lines]


def test_the_context_has_the_earlier_attempts(site):
    found = site.result("late", 2)
    attempt, workers, errors, id = found["value"]
    assert (attempt, errors, id) == (2, ["builtins.ConnectionError"], found["id"])
    assert (found["worker_ids"], found["attempts"]) == (workers, 2)
    assert found["errors"][0]["traceback"].rstrip().endswith("ConnectionError: attempt 1")


def test_a_rejected_task_fails_at_once(site):
    found = site.result("never")
    assert (found["status"], found["attempts"]) == ("FAILED", 1)
    assert [(one["class"], one["traceback"]) for one in found["errors"]] == [("Reject", "it cannot succeed")]
    assert "finished FAILED 1 BucketqBackend" in site.signals(found["id"])


def test_a_task_that_is_handed_out_at_most_once_fails_with_its_first_attempt(site):
    given = site.call("refuse", "once", using={"queue_name": "once"})
    site.run("bucketq_worker", "--queues", "once", "--wait", "0")
    found = site.finished(given["id"])
    assert (found["status"], found["attempts"], found["errors"][0]["class"]) == ("FAILED", 1, "Refused")
    assert "finished FAILED 1 BucketqBackend" in site.signals(given["id"])


def test_a_task_that_was_moved_to_a_queue_of_others_keeps_its_result(site):
    given = site.call("refuse", "gone", using={"queue_name": "ordered", "priority": 7})
    site.file.queue("ordered").move(given["id"], "letters")
    found = site.ask(f"result/{given['id']}")[1]
    assert (found["status"], found["task"]["queue_name"], found["task"]["priority"]) == ("READY", "slow", 7)


def test_values_become_json_as_with_the_other_backends_of_django(site):
    assert site.result("pair")["value"] == [1, {"2": "three"}]
    given = site.call("unstorable", using={"queue_name": "slow"})
    found = site.finished(given["id"])
    assert (found["status"], found["errors"][0]["class"]) == ("FAILED", "TypeError")


def test_a_task_waits_until_its_time(site):
    after = datetime.now(UTC) + timedelta(seconds=1.5)
    given = site.call("add", 1, using={"run_after": after.isoformat(), "priority": -5})
    later = site.call("add", 1, using={"run_after": (after + timedelta(hours=1)).isoformat()})
    assert site.ask(f"result/{later['id']}")[1]["status"] == "READY"
    found = site.finished(given["id"])
    assert datetime.fromisoformat(found["started_at"]) >= after - timedelta(milliseconds=1)
    assert found["task"]["priority"] == -5
    assert abs((datetime.fromisoformat(found["task"]["run_after"]) - after).total_seconds()) < 0.001


def test_a_larger_priority_runs_first(site):
    for word, priority in (("d", -100), ("c", 0), ("a", 100), ("b", 1)):
        site.call("note", str(site.place / "order"), word, using={"priority": priority})
    log = site.run("bucketq_worker", "--queues", "ordered", "--concurrency", "1", "--wait", "0")
    assert (site.place / "order").read_text() == "abcd"
    assert "4 jobs done" in log
    assert re.search(r" INFO ordered \w{8} done shop\.more\.note attempt 1 ", log)


def test_a_task_that_does_not_exist_fails_with_a_reason_and_can_be_requeued(site):
    payload = {"task": "shop.more.gone", "args": [], "kwargs": {}}
    for path in ("shop.more.gone", "shop.nothing.gone", "os.getcwd", "gone", "..gone"):
        job = site.file.queue("default").enqueue(payload | {"task": path})
        found = site.file.queue("default").wait(job.id, timeout=PATIENCE)
        assert (found.state, found.attempt) == ("dead", 1)
        assert found.last_error.startswith(f"there is no task {path}: ")
        status, reply = site.ask(f"result/{job.id}")
        assert (status, reply["error"]) == (400, "TaskResultMismatch")
    site.file.queue("default").requeue(job.id)


def test_a_result_that_is_not_there_does_not_exist(site):
    other = site.file.queue("letters").enqueue({"to": "ada"}).id
    for id in ("nonsense", "0198c0a0-0000-7000-8000-000000000000", other):
        status, reply = site.ask(f"result/{id}")
        assert (status, reply["error"]) == (400, "TaskResultDoesNotExist")


def test_a_cancelled_task_has_failed(site):
    given = site.call("connected")
    site.file.queue("one").cancel(given["id"])
    found = site.finished(given["id"])
    assert (found["status"], found["attempts"], found["is_finished"]) == ("FAILED", 0, True)
    assert [(one["class"], one["traceback"]) for one in found["errors"]] == [
        ("TaskFailed", "the job was cancelled")
    ]


@pytest.mark.parametrize(
    ("using", "says"),
    [
        ({"queue_name": "unknown"}, "unknown"),
        ({"priority": 101}, "100"),
        ({"run_after": "2026-01-01T00:00:00"}, "aware"),
    ],
)
def test_calls_that_the_backend_refuses(site, using, says):
    status, reply = site.ask("call", {"task": "add", "args": [1], "using": using})
    assert (status, reply["error"].removesuffix("Error")) == (400, "InvalidTask")
    assert says in reply["says"]


def test_connections_of_the_database_are_closed_between_tasks(site):
    ids = [site.call("connected")["id"] for _ in range(3)]
    site.run("bucketq_worker", "--queues", "one", "--concurrency", "1", "--wait", "0")
    assert [site.finished(id)["value"] for id in ids] == [False] * 3
    site.result("connected", using={"queue_name": "default"})

    def opened() -> list[str]:
        found = []
        for process in site.processes[1:]:
            for link in Path(f"/proc/{process.pid}/fd").iterdir():
                with suppress(OSError):  # It was closed just now.
                    found.append(str(link.readlink()))
        return [path for path in found if path.endswith("db.sqlite3")]

    until(lambda: not opened())


def test_child_processes_run_tasks_and_one_that_dies_fails_alone(site):
    ids = [site.call("child", n)["id"] for n in range(4)]
    died = site.call("die")["id"]
    with site.start("bucketq_worker", "--queues", "children", "--processes", "2", "--wait", "0") as worker:
        _, log = worker.communicate(timeout=PATIENCE)
        assert worker.returncode == 0, log
    values = [site.finished(id)["value"] for id in ids]
    assert [value[1:] for value in values] == [[worker.pid, n, 1, True] for n in range(4)]
    assert worker.pid not in {value[0] for value in values}
    assert site.signals(ids[0])[1:] == [
        "started RUNNING 1 BucketqBackend",
        "finished SUCCESSFUL 1 BucketqBackend",
    ]
    found = site.finished(died)
    assert (found["status"], found["errors"][0]["class"]) == ("FAILED", "TaskFailed")
    assert "SIGKILL" in found["errors"][0]["traceback"]


def test_a_task_of_a_killed_worker_is_finished_by_the_other_one(site):
    path = site.place / "hangs"
    given = site.call("hang", str(path))
    until(path.exists)
    pid = int(path.read_text())
    assert site.ask(f"result/{given['id']}")[1]["status"] == "RUNNING"
    assert pid in [process.pid for process in site.processes[1:]]
    os.kill(pid, signal.SIGKILL)
    found = site.finished(given["id"])
    assert (found["status"], found["value"]) == ("SUCCESSFUL", "finished by another worker")
    assert found["attempts"] == 2
    assert len(set(found["worker_ids"])) == 2
    assert found["errors"][0]["class"] == "LeaseLost"
    assert found["started_at"] < found["last_attempted_at"]


def test_with_on_commit_a_task_follows_its_transaction(site):
    kept = site.call("later", 1, within="commit")
    assert kept["before"] is None
    assert kept["after"]
    for within in ("rollback", "rollback, awaited"):
        lost = site.call("later", 2, within=within)
        assert (lost["before"], lost["after"]) == (None, None)
    alone = site.call("later", 3)
    assert alone["enqueued_at"]
    inside = site.call("later", 4, how="acall")
    assert inside["enqueued_at"]
    site.run("bucketq_worker", "--backend", "late", "--queues", "any", "--wait", "0", "--log-format", "own")
    for id, value in ((kept["id"], 1), (alone["id"], 3), (inside["id"], 4)):
        found = site.ask(f"result/{id}?backend=late")[1]
        assert (found["status"], found["value"]) == ("SUCCESSFUL", value)
        assert found["task"]["backend"] == found["backend"] == "late"
    assert site.ask(f"result/{lost['id']}?backend=late")[1]["error"] == "TaskResultDoesNotExist"
    assert "3 jobs done" in (site.place / "django.log").read_text()


def test_without_on_commit_a_task_is_enqueued_at_once(site):
    found = site.call("add", 7, within="rollback")
    assert found["before"]
    assert site.finished(found["id"])["value"] == 8


CHECKED = """
from shop.settings import *
BACKEND = "bucketq.contrib.django.BucketqBackend"
TASKS |= {
    "wrong": {"BACKEND": BACKEND, "OPTIONS": {"url": "x", "lesae": 5}},
    "nowhere": {"BACKEND": BACKEND},
}
TASKS["default"]["OPTIONS"]["on_commit"] = "other"
"""


def test_mistakes_in_the_settings_are_reported(site):
    (site.place / "checked.py").write_text(CHECKED)
    said = site.run("check", code=1, DJANGO_SETTINGS_MODULE="checked")
    assert "(bucketq.E001) TASKS['wrong']: " in said
    assert "lesae" in said
    assert "(bucketq.E001) TASKS['nowhere']: no queue file is named" in said
    assert "(bucketq.E002) TASKS['default']: on_commit is 'other'" in said


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--backend", "none"], 1, "none"),
        (["--backend", "late"], 1, "name those to work on with --queues"),
        (["--jobs-per-child", "5"], 2, "needs child processes"),
        (["--wait", "soon"], 2, "--wait is 'soon'"),
    ],
)
def test_mistakes_in_the_command_are_reported(site, words, code, says):
    said = site.run("bucketq_worker", *words, code=code)
    assert says in said
    assert "Traceback" not in said


def test_the_tests_of_a_project_run_the_worker(site):
    said = site.run("test", "shop")
    assert "Ran 2 tests in " in said
    assert "\nOK\n" in said


def test_a_schedule_of_the_queue_file_enqueues_a_task(site):
    (line,) = re.findall(r"```sh\n(bucketq schedule .*)\n```", PAGE)
    words = shlex.split(line)
    words[words.index("--cron") :] = ["--every", "100ms", "--url", str(site.place / "jobs")]
    subprocess.run([Path(sys.executable).parent / words[0], *words[1:]], check=True, timeout=PATIENCE)
    queue = site.file.queue("mails")
    before = {job.id for job in queue.list().jobs}
    until(lambda: {job.id for job in queue.list(["done"]).jobs} - before)
    queue.unschedule("nightly")
    id = ({job.id for job in queue.list(["done"]).jobs} - before).pop()
    assert site.finished(id)["value"] == {"sent": "ada@example.org", "subject": "hello"}


@pytest.mark.parametrize(
    ("missing", "says"),
    [("django", "bucketq[django]"), ("django.tasks django_tasks", "install 'django-tasks'")],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(missing, says):
    code = f"import sys; sys.modules.update(dict.fromkeys({missing.split()})); import bucketq.contrib.django"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    assert done.stderr.splitlines()[-1].startswith("ImportError: ")
    assert says in done.stderr.splitlines()[-1]


def test_the_package_imports_django_only_for_this():
    code = "import sys, bucketq, bucketq.contrib, bucketq.tasks.worker; print('django' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"
