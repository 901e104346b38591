"""Workers of an app as real processes: children that die, signals, the log, the options of the command."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

import bucketq
from bucketq import testing
from command import TIMEOUT
from patience import PATIENCE

MODULE = """
import asyncio, os, signal, sys, threading, time
import bucketq

app = bucketq.App()

def make():
    return app

@app.task(max_attempts=1)
def add(a, b=1):
    return a + b

@app.task(max_attempts=1)
def pid():
    return [os.getpid(), os.getppid(), bucketq.current_job().attempt]

@app.task(max_attempts=1)
async def waits():
    await asyncio.sleep(0)
    return os.getpid()

@app.task(max_attempts=1)
async def block(seconds):
    time.sleep(seconds)

@app.task(max_attempts=1)
def die(how):
    if how == "exit":
        os._exit(3)
    if how == "fork":
        if os.fork() == 0:
            time.sleep(30)
            os._exit(0)
        os._exit(4)
    if how == "print":
        for _ in range(2000):
            print("x" * 10_000)
        return "printed"
    if how == "stdin":
        sys.stdin.close()
        os.close(0)
        return "closed"
    if how == "interrupt":
        raise KeyboardInterrupt
    if how == "leave":
        sys.exit(5)
    if how == "hang":
        threading.Event().wait()
    os.kill(os.getpid(), getattr(signal, how))

@app.task(max_attempts=2)
def hang(path):
    with open(path, "a") as file:
        file.write(f"{os.getpid()}\\n")
    while True:
        pass

@app.task(queue="other", max_attempts=1)
def grow(size):
    grow.kept = bytearray(os.urandom(1)) * size
    return os.getpid()

@app.every(3600)
@app.task(queue="hours")
def hourly():
    pass

def write(path, text):
    with open(path, "a") as file:
        file.write(f"{text}\\n")

@app.task
def note(path, n):
    write(path, n)
    return n

@app.task(queue="sums")
def total(path, values):
    write(path, "total")
    return sum(values)

def needs_local():
    local = bucketq.App()
    local.task(lambda: 1)
    return local
"""


@pytest.fixture
def place(process, monkeypatch):
    """A directory with the module above, imported here too."""
    name = f"jobs{os.getpid()}_{time.monotonic_ns()}"
    (process.directory / f"{name}.py").write_text(MODULE)
    monkeypatch.syspath_prepend(process.directory)
    monkeypatch.setenv("BUCKETQ_URL", process.environ["BUCKETQ_URL"])
    module = __import__(name)
    process.name, process.module = name, module
    yield process
    module.app.close()
    del sys.modules[name]


def line_with(stream, words):
    for line in stream:
        if words in line:
            return line
    pytest.fail(f"it ended without {words!r}")


def until(found):
    """Wait for an event that only the file system shows."""
    end = time.monotonic() + PATIENCE
    while not (value := found()):
        assert time.monotonic() < end
        time.sleep(0.01)
    return value


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_children_run_tasks_and_their_results_come_back(place, method):
    app = place.module.app
    results = [place.module.add.enqueue(n) for n in range(5)]
    mine, waits = place.module.pid.enqueue(), place.module.waits.enqueue()
    chain = app.chain(place.module.add.job(1), place.module.add.job(bucketq.PREVIOUS, b=5))
    worked = app.worker(processes=2, start_method=method).run(wait=0, signals=False)
    assert worked.done == 9
    assert [one.result() for one in results] == [1, 2, 3, 4, 5]
    assert mine.result()[0] != os.getpid()
    assert waits.result() != os.getpid()
    assert chain.result() == 7


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("exit", "ended with exit code 3"),
        ("fork", "ended with exit code 4"),
        ("SIGSEGV", "killed by SIGSEGV"),
        ("SIGKILL", "killed by SIGKILL, perhaps because memory ran out"),
        ("interrupt", "KeyboardInterrupt"),
        ("leave", "SystemExit: 5"),
        ("hang", "it ran longer than 1 s"),
    ],
)
def test_a_child_that_dies_fails_only_its_own_job(place, how, reason):
    die = place.module.die.enqueue(how)
    good = [place.module.add.enqueue(n) for n in range(4)]
    worked = place.module.app.worker(processes=2, kill_after=1).run(wait=0, signals=False)
    assert (worked.done, worked.failed, worked.lost) == (4, 1, 0)
    assert [one.result() for one in good] == [1, 2, 3, 4]
    with pytest.raises(bucketq.TaskFailed, match=re.escape(reason)):
        die.result(timeout=0)


def test_a_child_may_print_and_close_its_input(place):
    printed, closed = place.module.die.enqueue("print"), place.module.die.enqueue("stdin")
    place("worker", f"{place.name}:app", "--processes", "1", "--wait", "0")
    assert printed.result(timeout=PATIENCE) == "printed"
    assert closed.result(timeout=PATIENCE) == "closed"


def test_children_are_replaced_after_their_jobs_or_when_they_are_large(place):
    few = [place.module.pid.enqueue() for _ in range(6)]
    place.module.app.worker(processes=1, jobs_per_child=2).run(wait=0, signals=False)
    assert len({one.result()[0] for one in few}) == 3
    large = [place.module.grow.enqueue(200_000_000) for _ in range(2)]
    place.module.app.worker(processes=1, memory_per_child=150_000_000).run(wait=0, signals=False)
    assert len({one.result() for one in large}) == 2


def test_children_end_when_their_parent_is_killed(place):
    ran = place.directory / "ran"
    place.module.hang.enqueue(str(ran))
    place.module.hang.enqueue(str(ran))
    worker = place.start("worker", f"{place.name}:app", "--processes", "2")
    try:
        pids = until(
            lambda: (
                ran.exists() and len(found := ran.read_text().split()) == 2 and [int(one) for one in found]
            )
        )
        assert all(map(alive, pids))
        worker.kill()
        killed = time.monotonic()
        until(lambda: not any(map(alive, pids)))
        assert time.monotonic() - killed < 2
    finally:
        worker.kill()
        worker.communicate()


def test_the_second_signal_kills_children_and_gives_their_jobs_back(place):
    ran = place.directory / "ran"
    result = place.module.hang.enqueue(str(ran))
    waiting = place.module.hang.enqueue(str(ran))
    worker = place.start("worker", f"{place.name}:app", "--processes", "1", "--concurrency", "2")
    try:
        (pid,) = until(lambda: ran.exists() and ran.read_text().split())
        worker.terminate()
        line_with(worker.stderr, "SIGTERM: finishing")
        # The job without a child is given back at once.
        line_with(worker.stderr, "released")
        worker.terminate()
        line_with(worker.stderr, "giving back")
        worker.communicate(timeout=TIMEOUT)
        assert worker.returncode == 1
        assert not alive(int(pid))
    finally:
        worker.kill()
        worker.communicate()
    jobs = [place.module.app.file.get(one.id) for one in (result, waiting)]
    assert [(job.state, job.attempt) for job in jobs] == [("ready", 0), ("ready", 0)]


def test_ctrl_c_reaches_children_too_and_they_finish_their_task(place):
    worker = subprocess.Popen(
        [sys.executable, "-m", "bucketq", "worker", f"{place.name}:app", "--processes", "1"],
        cwd=place.directory,
        env=place.environ,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        place.module.pid.enqueue().result(timeout=PATIENCE)
        os.killpg(worker.pid, signal.SIGINT)
        _, said = worker.communicate(timeout=TIMEOUT)
        assert worker.returncode == 0
        assert "Traceback" not in said
    finally:
        worker.kill()
        worker.communicate()


def test_a_task_that_a_child_cannot_import_is_refused(place):
    assert "define it at the top of a module" in place.fails(
        "Invalid", "worker", f"{place.name}:needs_local", "--processes", "1", "--wait", "0"
    )


def test_a_child_that_cannot_start_fails_no_job_and_ends_the_worker(place):
    result = place.module.add.enqueue(1)
    program = (
        f"if __name__ == '__mp_main__': raise RuntimeError('no children here')\nimport {place.name} as jobs\n"
    )
    (place.directory / "program.py").write_text(program + "print(jobs.app.worker(processes=1).run())\n")
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=place.directory,
        env=place.environ,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert "no children here" in done.stderr
    assert "a child process did not start" in done.stderr
    assert "released=1" in done.stdout
    job = place.module.app.file.get(result.id)
    assert (job.state, job.attempt) == ("ready", 0)


def test_a_group_is_complete_once_although_its_workers_are_killed(place):
    app, ran = place.module.app, place.directory / "ran"
    for name in ("default", "sums"):
        app.file.queue(name).configure(lease=1, backoff=bucketq.Backoff.none(), max_attempts=1000)
    note = place.module.note
    group = app.group(
        [note.job(str(ran), n) for n in range(40)],
        then=place.module.total.job(str(ran), bucketq.PREVIOUS),
    )
    for killed in range(1, 5):
        worker = place.start("worker", f"{place.name}:app", "--concurrency", "4")
        try:
            until(lambda least=8 * killed: ran.exists() and len(ran.read_text().splitlines()) >= least)
        finally:
            worker.kill()
            worker.communicate()
    workers = [place.start("worker", f"{place.name}:app") for _ in range(2)]
    try:
        assert group.then.result(timeout=PATIENCE) == sum(range(40))
    finally:
        for worker in workers:
            worker.terminate()
            worker.communicate(timeout=TIMEOUT)
    totals = [job for job in testing.jobs(app.file, "sums") if job.data["task"] == place.module.total.name]
    assert [job.id for job in totals] == [group.then.id]
    assert 1 <= ran.read_text().splitlines().count("total") <= totals[0].attempt
    counts = app.file.queue("sums").counts().counts
    assert (counts["scheduled"], counts["ready"], counts["leased"], counts["dead"]) == (0, 0, 0, 0)


STAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d"


def test_the_log_has_one_line_a_record_and_says_what_happened(place):
    good, bad = place.module.add.enqueue(1), place.module.die.enqueue("leave")
    place("worker", f"{place.name}:make", "--queues", "default", "--wait", "0", "--concurrency", "1")
    lines = [line for line in place.err.splitlines() if not line.startswith("  ")]
    assert all(re.match(rf"{STAMP} (INFO|WARNING) ", line) for line in lines), place.err
    name = place.name
    assert (
        f"{name}:make starts: queues default; 1 at a time; store {place.environ['BUCKETQ_URL']}" in lines[0]
    )
    done = next(line for line in lines if good.id[-8:] in line)
    assert re.search(rf"INFO default {good.id[-8:]} done {name}\.add attempt 1 \d+\.\d{{3}} s$", done)
    assert re.search(
        rf"WARNING default {bad.id[-8:]} failed {name}\.die attempt 1 .* s: SystemExit: 5$",
        place.err,
        re.MULTILINE,
    )
    assert "  SystemExit: 5" in place.err
    assert "1 job done, 1 failed, in" in lines[-1]
    assert "\x1b" not in place.err


@pytest.mark.parametrize("processes", ["0", "1"])
def test_the_log_as_json_has_the_same_as_fields(place, processes):
    good, bad = place.module.add.enqueue(1), place.module.die.enqueue("leave")
    place("worker", f"{place.name}:app", "--log-format", "json", "--wait", "0", "--processes", processes)
    records = [json.loads(line) for line in place.err.splitlines()]
    by_id = {one["id"]: one for one in records if "id" in one}
    done, failed = by_id[good.id], by_id[bad.id]
    assert (done["event"], done["queue"], done["attempt"], done["task"]) == (
        "done",
        "default",
        1,
        f"{place.name}.add",
    )
    assert (failed["event"], failed["level"], failed["error"]) == ("failed", "warning", "SystemExit: 5")
    assert "Traceback" in failed["traceback"]


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_learns_when_a_worker_is_ready_and_when_it_ends(place, abstract):
    name = f"bucketq-{os.getpid()}-{time.monotonic_ns()}"
    path = str(place.directory / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as service:
        service.settimeout(PATIENCE)
        service.bind(f"\0{name}" if abstract else path)
        place.environ["NOTIFY_SOCKET"] = f"@{name}" if abstract else path
        place("worker", f"{place.name}:app", "--wait", "0")
        assert [service.recv(100), service.recv(100)] == [b"READY=1", b"STOPPING=1"]


def health(url):
    """Return the status and the text of a GET."""
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_worker_whose_loop_is_blocked_is_not_healthy(place):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}/health"
    worker = place.start("worker", f"{place.name}:app", "--metrics", f"127.0.0.1:{port}")
    try:
        line_with(worker.stderr, "working on")
        assert health(url) == (200, "ok\n")
        assert health(url.replace("health", "nothing"))[1] == "there is only /metrics and /health\n"
        result = place.module.block.enqueue(15)
        while place.module.app.file.get(result.id).state != "leased":
            time.sleep(0.05)
        assert health(url) == (503, "the worker does not react\n")
        result.result(timeout=PATIENCE)
        assert health(url) == (200, "ok\n")
    finally:
        worker.terminate()
        worker.communicate(timeout=TIMEOUT)


def test_the_watchdog_of_systemd_hears_from_a_worker_that_reacts(place):
    path = str(place.directory / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as service:
        service.settimeout(PATIENCE)
        service.bind(path)
        place.environ |= {"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "200000"}
        worker = place.start("worker", f"{place.name}:app")
        try:
            heard = [service.recv(100) for _ in range(4)]
            assert heard[0] == b"READY=1"
            assert heard[1:] == [b"WATCHDOG=1"] * 3
        finally:
            worker.terminate()
            worker.communicate(timeout=TIMEOUT)


def test_a_worker_ends_after_max_jobs(place):
    for n in range(5):
        place.module.add.enqueue(n)
    (worked,) = place.json("worker", f"{place.name}:app", "--max-jobs", "2", "--concurrency", "1")
    assert worked["done"] == 2


def test_options_of_an_app_are_refused_for_a_worker(place):
    (place.directory / "plain.py").write_text("import bucketq\nworker = bucketq.Worker(bucketq.open())\n")
    assert "--concurrency is for an app" in place.fails(
        "Invalid", "worker", "plain:worker", "--concurrency", "1"
    )
    assert "nothing to do" in place.fails("Invalid", "worker", "plain:worker")


def test_autoreload_starts_the_worker_again_when_a_file_changes(place):
    worker = place.start("worker", f"{place.name}:app", "--autoreload")
    try:
        line_with(worker.stderr, "working on")
        path = place.directory / f"{place.name}.py"
        path.write_text(path.read_text() + "\n@app.task\ndef fresh():\n    return 'fresh'\n")
        line_with(worker.stderr, "a file has changed")
        line_with(worker.stderr, "working on")
        worker.terminate()
        worker.communicate(timeout=TIMEOUT)
        assert worker.returncode == 0
    finally:
        worker.terminate()
        worker.communicate()
