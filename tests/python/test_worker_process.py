"""Worker processes that get signals: asked to end, stopped, killed."""

import signal
import subprocess
import sys
import textwrap
from contextlib import contextmanager

import pytest

import bucketq
from patience import PATIENCE

LIMIT = PATIENCE

# Prints its progress to standard output, and finishes a job when it reads a line from standard input.
PROGRAM = """
import asyncio, logging, sys, threading
import bucketq
from bucketq import aio

class Tell(logging.Handler):
    def emit(self, record):
        print("log", record.getMessage(), flush=True)

log = logging.getLogger("bucketq")
log.addHandler(Tell())
log.setLevel(logging.INFO)

def work(job):
    print("working", job.data, flush=True)
    assert sys.stdin.readline()
    return "finished"

async def wait(job):
    print("working", job.data, flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    return "finished"

def stuck(job):
    print("working", job.data, flush=True)
    threading.Event().wait()

async def endless(job):
    print("working", job.data, flush=True)
    await asyncio.Event().wait()

def blocking(url):
    with bucketq.open(url) as file:
        worker = bucketq.Worker(file, concurrency=1, lease=1)
        worker.handles("q")({handler})
        print("worked", worker.run(), flush=True)

async def awaiting(url):
    async with await aio.open(url) as file:
        worker = aio.Worker(file, concurrency=1, lease=1)
        worker.handles("q")({handler})
        print("worked", await worker.run(), flush=True)

if {aio}:
    asyncio.run(awaiting(sys.argv[1]))
else:
    blocking(sys.argv[1])
"""


class Child:
    def __init__(self, url, handler, face):
        program = textwrap.dedent(PROGRAM).format(handler=handler, aio=face == "aio")
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def says(self, what):
        """Wait until it prints a line that begins like this."""
        for line in self.process.stdout:
            if line.startswith(what):
                return line
        pytest.fail(f"the worker ended without saying {what!r}")

    def go_on(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def ends(self):
        return self.process.wait(LIMIT)


@contextmanager
def child(url, handler="work", face="blocking"):
    one = Child(url, handler, face)
    try:
        yield one
    finally:
        one.process.kill()
        one.process.wait()
        one.process.stdin.close()
        one.process.stdout.close()


@pytest.fixture
def url(tmp_path):
    return str(tmp_path / "jobs")


@pytest.mark.parametrize("handler", ["work", "wait"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_finishes_the_job_under_way(url, face, handler, number):
    with bucketq.open(url) as file:
        q = file.queue("q")
        first, second = q.enqueue_many([1, 2])
        with child(url, handler, face) as worker:
            worker.says("working 1")
            worker.process.send_signal(number)
            worker.says(f"log {number.name}: finishing")
            worker.go_on()
            assert (
                worker.says("worked").strip()
                == "worked Worked(done=1, failed=0, rejected=0, released=0, lost=0)"
            )
            assert worker.ends() == 0
        assert q.get(first.id).result == "finished"
        assert q.get(second.id).state == "ready"


@pytest.mark.parametrize("handler", ["stuck", "endless"])
def test_the_second_signal_gives_the_job_back(url, face, handler):
    with bucketq.open(url) as file:
        q = file.queue("q")
        receipt = q.enqueue(1)
        with child(url, handler, face) as worker:
            worker.says("working 1")
            worker.process.send_signal(signal.SIGTERM)
            worker.says("log SIGTERM: finishing")
            worker.process.send_signal(signal.SIGTERM)
            worker.says("log SIGTERM: giving back")
            assert "released=1" in worker.says("worked")
            assert worker.ends() == 0
        detail = q.get(receipt.id)
        assert (detail.state, detail.attempt) == ("ready", 0)


def test_an_idle_process_ends_at_the_first_signal(url, face):
    with child(url, face=face) as worker:
        worker.says("log working on q")
        worker.process.terminate()
        worker.says("worked")
        assert worker.ends() == 0


def test_the_job_of_a_killed_process_comes_back(url):
    with bucketq.open(url) as file:
        q = file.queue("q")
        receipt = q.enqueue(1)
        with child(url) as worker:
            worker.says("working 1")
            worker.process.kill()
            assert worker.ends() == -signal.SIGKILL
        with child(url) as other:
            other.says("working 1")
            other.go_on()
            detail = q.wait(receipt.id, timeout=LIMIT)
            other.process.terminate()
            assert other.ends() == 0
        assert (detail.state, detail.attempt, detail.result) == ("done", 2, "finished")
