"""A queue file with Celery: its tasks, its workers as processes, and the side of the caller."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import kombu
from celery import Celery

import bucketq
import bucketq.contrib.celery
from patience import PATIENCE

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
        self.conf = {
            "broker_transport_options": {"lease": 1, **options},
            "worker_prefetch_multiplier": 1,
            "event_queue_expires": 1,
        }
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

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until this is true."""
        begun = monotonic()
        while not condition():
            assert monotonic() - begun < PATIENCE
            threading.Event().wait(0.05)

    def close(self) -> None:
        for worker in self.workers:
            worker.end()
        backend = self.app.backend
        self.app.close()
        self.app.pool.force_close_all()
        backend.file.close()
        self.file.close()


@contextmanager
def connected(url: str, **options: Any) -> Iterator[kombu.Connection]:
    with kombu.Connection(url, transport_options=options) as connection:
        yield connection
