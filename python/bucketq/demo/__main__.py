"""Starts the processes, watches the queue file, replaces a worker that crashed, and prints a summary."""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import bucketq
from bucketq import JobInfo, QueueFile

PRODUCERS = ("p1", "p2")
WORKERS = ("w1", "w2", "w3")
EACH = 40
"""Jobs per producer."""
LIMIT = 120.0
"""Seconds after which the demo gives up."""
LOOK = 0.1
"""Seconds between two updates."""

Process = subprocess.Popen[bytes]


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


@dataclass
class Scene:
    """The processes of the demo and what was seen of them."""

    url: str
    total: int
    producers: list[Process]
    workers: dict[str, Process]
    events: list[str] = field(default_factory=list[str])
    seen: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    crashed: int = 0

    def tell(self, what: str) -> None:
        """Record a notable event."""
        self.events.append(what)


def start(part: str, url: str, name: str, *more: str) -> Process:
    """Start a producer or worker process."""
    return subprocess.Popen([sys.executable, "-m", "bucketq.demo.parts", part, url, name, *more])  # noqa: S603


@contextmanager
def scene(url: str, each: int) -> Generator[Scene]:
    """Run the processes; none is left running after the block."""
    producers = [start("produce", url, name, str(each)) for name in PRODUCERS]
    workers = {name: start("work", url, name) for name in WORKERS}
    made = Scene(url, each * len(PRODUCERS), producers, workers)
    try:
        yield made
    finally:
        for process in (*made.producers, *made.workers.values()):
            if process.poll() is None:
                process.kill()
            process.wait()


def look_after(now: Scene, file: QueueFile) -> None:
    """Notice jobs that failed or came back, and replace a worker that crashed."""
    for name, process in list(now.workers.items()):
        if process.poll() is not None:
            fresh = f"{name}b"
            now.tell(f"worker {name} was killed; {fresh} replaces it")
            now.crashed += 1
            del now.workers[name]
            now.workers[fresh] = start("work", now.url, fresh)
    queue = file.queue("reports")
    for job in (*queue.list(["scheduled"]).jobs, *queue.list(["leased"]).jobs):
        once(now, job)


def once(now: Scene, job: JobInfo) -> None:
    """Record what happened to a job, once."""
    if job.state == "scheduled" and job.last_error:
        what = f"job {job.id[-6:]} failed: {job.last_error}; again in 1 s"
    elif job.state == "leased" and job.expired:
        what = f"job {job.id[-6:]}: its lease has run out; it can be claimed again"
    elif job.state == "leased" and job.attempt > 1:
        what = f"job {job.id[-6:]} is back: attempt {job.attempt}, by {job.worker}"
    elif job.state == "done" and job.attempt > 1:
        what = f"job {job.id[-6:]} is done: attempt {job.attempt}, by {job.worker}"
    else:
        return
    if (job.id, what) not in now.seen:
        now.seen.add((job.id, what))
        now.tell(what)


def finished(file: QueueFile) -> int:
    """Return the number of jobs done."""
    return file.queue("reports").counts().counts["done"]


def watch(now: Scene, file: QueueFile, show: Callable[[int], None]) -> None:
    """Update the display until all jobs are done."""
    until = monotonic() + LIMIT
    tick = threading.Event()
    while (done := finished(file)) < now.total:
        if monotonic() > until:
            raise SystemExit("the demo did not finish in time: please report it, with the lines above")
        look_after(now, file)
        show(done)
        tick.wait(LOOK)
    for job in file.list(["done"], queue="reports", limit=1000).jobs:
        once(now, job)
    show(done)


def end(now: Scene) -> None:
    """Drain the workers."""
    for process in now.workers.values():
        process.send_signal(signal.SIGTERM)
    for process in (*now.producers, *now.workers.values()):
        process.wait(LIMIT)


def picture(now: Scene, file: QueueFile, bar: Any) -> Any:
    """Return the table, the bar, and the last events."""
    from rich.console import Group
    from rich.text import Text

    from bucketq.cli import _show

    table = _show.queues(file.queues(max_age=1), width=80)
    last = [Text(f"  {what}", style="dim") for what in now.events[-4:]]
    return Group(Text(), table, Text(), bar, *last)


def live(now: Scene, file: QueueFile) -> None:
    """Show the demo on a terminal."""
    from rich.live import Live
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    bar = Progress(TextColumn("reports"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    task = bar.add_task("reports", total=now.total)
    with Live(auto_refresh=False) as screen:

        def show(done: int) -> None:
            bar.update(task, completed=done)
            screen.update(picture(now, file, bar), refresh=True)

        watch(now, file, show)


def lines(now: Scene, file: QueueFile) -> None:
    """Show the demo in a log: a line for each notable event."""
    told = [0, -1]

    def show(done: int) -> None:
        for what in now.events[told[0] :]:
            say(f"  {what}")
        told[0] = len(now.events)
        tenth = done * 10 // now.total
        if tenth > told[1]:
            told[1] = tenth
            say(f"{done} of {now.total} reports done")

    watch(now, file, show)


def summary(now: Scene, file: QueueFile, took: float) -> str:
    """Return the totals, and commands to inspect the queue file."""
    stats = file.stats()
    page = file.list(["done"], queue="reports", limit=1000)
    again = sum(1 for job in page.jobs if job.attempt > 1)
    per_job = stats.commit_seq / now.total
    return f"""
{now.total} jobs done in {took:.1f} s by {len(WORKERS)} workers
{again} of them needed a second attempt: one had failed, the killed worker held the others
{stats.commit_seq} commits to enqueue, claim and ack: {per_job:.1f} PUTs per job, one more per lost race

the queue file is {now.url}.head with the objects beside it; inspect it:
  export BUCKETQ_URL={now.url}
  {command()} stats
  {command()} ls reports --state done -n 5
  {command()} show {page.jobs[0].id}"""


def command() -> str:
    """Return how to call the command here."""
    beside = Path(sys.executable).with_name("bucketq")
    if shutil.which("bucketq") or not beside.exists():
        return "bucketq"
    here = Path.cwd()
    return str(beside.relative_to(here) if beside.is_relative_to(here) else beside)


def main() -> None:
    """Run the demo."""
    parser = argparse.ArgumentParser(prog="python -m bucketq.demo", description=__doc__)
    parser.add_argument("--url", help="where to put the queue file; by default a new directory")
    parser.add_argument("--jobs", type=int, default=EACH, help="jobs per producer (default: %(default)s)")
    arguments = parser.parse_args()
    each = max(arguments.jobs, 20)  # With fewer jobs none would fail or crash.
    url = arguments.url or str(Path(tempfile.mkdtemp(prefix="bucketq-demo-")) / "jobs")
    begun = monotonic()
    say(f"{len(PRODUCERS)} producers, {len(WORKERS)} workers, {each * len(PRODUCERS)} jobs, on {url}")
    with bucketq.open(url) as file, scene(url, each) as now:
        (live if sys.stdout.isatty() else lines)(now, file)
        end(now)
        say(summary(now, file, monotonic() - begun))


if __name__ == "__main__":
    main()
