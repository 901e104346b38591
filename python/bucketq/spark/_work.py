"""Spark as a worker pool: tasks on executors claim jobs, run a function and end the jobs (:func:`process`)."""

# pyright: basic
from __future__ import annotations

import json
import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from os import PathLike
from queue import Queue
from threading import Thread
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from bucketq import _convert as convert
from bucketq.errors import Error, Invalid, LeaseLost, NotFound
from bucketq.spark._child import Left, Tell, supervise
from bucketq.spark._place import Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from bucketq.types import QueueInfo, Seconds

__all__ = ["Dead", "Processed", "process"]

IDLE = 2.0
"""Seconds that a task waits for a job before it checks whether any are left."""
GONE = (LeaseLost, NotFound)
"""Another worker has the job, or it was purged."""
COUNTS = ("acked", "failed", "crashed", "lost", "dead")
TOLD = f"task int, {', '.join(f'{name} long' for name in COUNTS)}, died string"
log = logging.getLogger("bucketq.spark")


class Dead(NamedTuple):
    """A job that died in a call of ``process``."""

    id: str
    error: str


class Processed:
    """Result of ``process``: counts, the jobs that died, and the results as a DataFrame."""

    def __init__(
        self, spark: SparkSession, place: Place, queue: str, run: str, after: int, rows: list[Any]
    ) -> None:
        self.run = run
        """Prefix of the worker names of this call; every job it worked on has one of them."""
        self.acked = sum(row["acked"] for row in rows)
        """Jobs acked by tasks that finished; the count of a killed executor is lost, its jobs are not."""
        self.failed = sum(row["failed"] for row in rows)
        """Attempts whose function raised or ended its process."""
        self.crashed = sum(row["crashed"] for row in rows)
        """Those of them that ended the process, such as by a crash or for lack of memory."""
        self.lost = sum(row["lost"] for row in rows)
        """Attempts whose lease was lost, or whose job was purged, before they ended."""
        named = [Dead(*one) for row in rows for one in json.loads(row["died"])]
        lapsed = lapsed_of(place, queue, run, {one.id for one in named})
        self.dead = sum(row["dead"] for row in rows) + len(lapsed)
        """Jobs that died: they had no attempt left."""
        self.died = (*named, *lapsed)
        """Those jobs with their last error; at most a thousand for each task."""
        self._spark, self._place, self._queue, self._after = spark, place, queue, after

    def results(self) -> DataFrame:
        """Return the finished jobs of this call with their results, from the queue and its archive."""
        from pyspark.sql import functions as f

        reader = self._spark.read.format("bucketq")
        reader = reader.options(**self._place.as_options(), after=self._after)
        if "," not in self._queue:
            reader = reader.option("queues", self._queue)
        mine = (f.col("queue") == self._queue) & f.col("worker").startswith(f"{self.run}-")
        return reader.load().filter(mine)

    def __repr__(self) -> str:
        told = f"{self.acked} acked, {self.failed} failed, {self.lost} lost, {self.dead} dead"
        return f"<Processed {self.run}: {told}>"


def process(
    spark: SparkSession,
    url: str | PathLike[str],
    queue: str,
    function: Callable[..., Any],
    *,
    how: Literal["job", "pandas"] = "job",
    tasks: int | None = None,
    batch: int = 100,
    lease: Seconds = 60,
    seconds: Seconds | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Processed:
    """Process a queue on executors until no jobs are left, or for ``seconds``.

    Each of ``tasks`` (by default one per core) claims ``batch`` jobs at a time. With ``how="job"`` the function gets a
    job and its return value becomes the result; with "pandas" it gets a DataFrame of the batch (id, queue, attempt,
    payload, data) and returns one result per row. An exception nacks the job, or the whole batch. So does a function
    that ends its process. A second attempt, and the last one that a job has, runs alone: no other job is begun or
    unfinished in its process. After ``seconds`` no job is begun; the running ones finish, the others are released.

    Jobs of a killed executor become ready again when their lease runs out; Spark starts its task again, and no task
    ends before they are done. Tasks also wait for scheduled jobs: give ``seconds`` if some are far in the future. In a
    paused queue tasks do not wait for them.
    """
    if how not in ("job", "pandas"):
        raise Invalid(
            f"how must be 'job' or 'pandas', not {how!r}: {convert.nearest(how, ('job', 'pandas'))}"
        )
    begun = time.time()
    place = Place.of(url, settings or {})
    after = place.check_queues([queue])
    run = f"spark-{uuid.uuid4().hex[:12]}"
    cores = tasks or spark.sparkContext.defaultParallelism
    limit = convert.maybe_millis(seconds, "seconds")
    span = None if limit is None else limit / 1000
    end = None if span is None else begun + span
    held = convert.millis(lease, "lease") / 1000
    work = _Task(place, queue, function, how, batch, held, span, end, run)
    # Collected here, not returned as a plan: a plan that runs twice would process other jobs each time.
    rows = spark.range(0, cores, 1, cores).mapInPandas(work, TOLD).collect()
    return Processed(spark, place, queue, run, after, rows)


def lapsed_of(place: Place, name: str, run: str, known: set[str]) -> list[Dead]:
    """Return the jobs that died with an executor of this call: their last lease expired."""
    found: list[Dead] = []
    with place.open() as file:
        queue = file.queue(name)
        after = None
        while True:
            page = queue.list(["dead"], error="lease expired", after=after, limit=1000)
            found += [
                Dead(job.id, job.last_error or "")
                for job in page.jobs
                if job.id not in known and (job.worker or "").startswith(f"{run}-")
            ]
            after = page.next
            if after is None:
                return found


class _Task:
    """The work of one task; it is sent to the executor."""

    def __init__(
        self,
        place: Place,
        queue: str,
        function: Callable[..., Any],
        how: str,
        batch: int,
        lease: float,
        seconds: float | None,
        end: float | None,
        run: str,
    ) -> None:
        self.place, self.queue, self.function, self.how = place, queue, function, how
        self.batch, self.lease, self.seconds, self.end, self.run = batch, lease, seconds, end, run

    def __call__(self, frames: Iterator[Any]) -> Iterator[Any]:
        import pandas as pd

        for frame in frames:
            for task in frame["id"].tolist():
                until = self.until()
                books = supervise(
                    lambda tell, left, task=task, until=until: self.work(task, until, tell, left)
                )
                told = {name: [getattr(books, name)] for name in COUNTS}
                yield pd.DataFrame({"task": [task], **told, "died": [json.dumps(books.died)]})

    def until(self) -> float | None:
        """Return when to end on the steady clock of this machine, whose other clock may differ from the driver's."""
        if self.seconds is None or self.end is None:
            return None
        return monotonic() + min(self.seconds, self.end - time.time())

    def work(self, task: int, until: float | None, tell: Tell, left: Left) -> None:
        """In a child: end the jobs of the one before, and work until no jobs are left or the time is over."""
        with self.place.open() as file:
            worker, alone = f"{self.run}-{task}", 0
            settle(file, tell, left, worker)
            queue, ender = file.queue(self.queue), Ender(file, tell)
            while (rest := IDLE if until is None else until - monotonic()) > 0:
                most = 1 if alone else self.batch
                with queue.claim(most, wait=min(IDLE, rest), lease=self.lease, worker=worker) as jobs:
                    if not len(jobs):
                        alone = 0
                        if until is None and not remaining(queue.counts(max_age=0)):
                            break
                        continue
                    tell("held", {job.id: job.token for job in jobs})
                    risky = [job for job in jobs if is_risky(job)]
                    now = [job for job in jobs if not is_risky(job)] or risky[:1]
                    # Before a job begins that may end this process: with it a held job would lose an attempt.
                    later = [job for job in risky if job not in now]
                    alone = max(alone - 1, 0) + len(later)
                    ender.release(later)
                    ender.release(self.run_jobs(now, until, ender, tell))

    def run_jobs(self, jobs: list[Any], until: float | None, ender: Ender, tell: Tell) -> list[Any]:
        """Run the function on these jobs, and return those that the time was too short for."""
        if self.how == "pandas":
            for job in jobs:
                job._begin()
            tell("begun", [job.id for job in jobs])
            for job, (result, error) in zip(jobs, self.of_frame(jobs), strict=True):
                tell("ran", [job.id])
                ender.put(job, result, error)
            jobs = []
        while jobs and (until is None or monotonic() < until):
            job, *jobs = jobs
            job._begin()
            tell("begun", [job.id])
            result, error = None, None
            try:
                result = self.function(job)
            except (Exception, SystemExit) as failure:
                error = failure
            tell("ran", [job.id])
            ender.put(job, result, error)
        ender.wait()
        return jobs

    def of_frame(self, jobs: list[Any]) -> list[tuple[Any, BaseException | None]]:
        import pandas as pd

        try:
            names: Any = ["id", "queue", "attempt", "payload", "data"]
            frame = pd.DataFrame([(j.id, j.queue, j.attempt, j.payload, j.data) for j in jobs], columns=names)
            results = list(self.function(frame))
            if len(results) != len(jobs):
                raise Invalid(f"the function returned {len(results)} results for {len(jobs)} jobs")
            return [(plain(result), None) for result in results]
        except (Exception, SystemExit) as error:
            return [(None, error)] * len(jobs)


class Ender:
    """Ends jobs in a thread while others run: all that wait go into one commit."""

    def __init__(self, file: Any, tell: Tell) -> None:
        self.file, self.tell = file, tell
        self.waiting: Queue[tuple[Any, Any, BaseException | None]] = Queue()
        self.failure: Exception | None = None
        Thread(target=self.loop, name="bucketq-ender", daemon=True).start()

    def put(self, job: Any, result: Any, error: BaseException | None) -> None:
        self.waiting.put((job, result, error))

    def wait(self) -> None:
        """Wait until all jobs have ended."""
        self.waiting.join()
        if self.failure is not None:
            raise self.failure

    def loop(self) -> None:
        while True:
            found = [self.waiting.get()]
            while not self.waiting.empty():
                found.append(self.waiting.get())
            try:
                if self.failure is None:
                    self.end(found)
            except Exception as error:
                self.failure = error
            for _ in found:
                self.waiting.task_done()

    def end(self, answers: list[tuple[Any, Any, BaseException | None]]) -> None:
        """End these jobs, in one commit if possible."""
        try:
            with self.file.atomic() as tx:
                for job, result, error in answers:
                    if error is None:
                        tx.ack(job, result=result)
                    else:
                        tx.nack(job, error)
        except Error as error:
            # A lost lease or an oversized result of one job must not affect the others.
            log.info("ended one by one: %s", error)
            for answer in answers:
                self.end_one(*answer)
            return
        for (job, _, error), state in zip(answers, tx.results, strict=True):
            self.ended(job, error, state)

    def end_one(self, job: Any, result: Any, error: BaseException | None) -> None:
        try:
            try:
                state = job.ack(result=result) if error is None else job.nack(error)
            except Invalid as wrong:
                error = wrong
                state = job.nack(wrong)
        except GONE:
            self.tell("lost", 1)
            self.tell("ended", [job.id])
        else:
            self.ended(job, error, state)

    def ended(self, job: Any, error: BaseException | None, state: Any) -> None:
        self.tell("ended", [job.id])
        self.tell("acked" if error is None else "failed", 1)
        if state == "dead":
            self.tell("died", (job.id, f"{type(error).__name__}: {error}"))

    def release(self, jobs: list[Any]) -> None:
        """Give back jobs that have not begun: the attempt does not count."""
        if not jobs:
            return
        try:
            with self.file.atomic() as tx:
                for job in jobs:
                    tx.release(job)
        except GONE:
            for job in jobs:
                with suppress(*GONE):
                    job.release()
        self.tell("ended", [job.id for job in jobs])


def settle(file: Any, tell: Tell, left: Left, worker: str) -> None:
    """End the jobs of a child that died: the attempt of the one that ran has failed, the others are released."""
    for id, token, why in left:
        try:
            if why is None:
                file.release(id, token)
                continue
            state = file.nack(id, token, why)
        except GONE:
            ended_before(file.get(id), tell, worker)
            continue
        tell("failed", 1)
        tell("crashed", 1)
        if state == "dead":
            tell("died", (id, why))


def ended_before(job: Any, tell: Tell, worker: str) -> None:
    """Count an attempt whose end was committed, but not reported before the child died."""
    if job is not None and job.worker == worker and job.state == "done":
        tell("acked", 1)
    elif job is not None and job.attempts and job.attempts[-1].worker == worker:
        tell("failed", 1)
        if job.died is not None:
            tell("died", (job.id, job.attempts[-1].error or ""))
    else:
        tell("lost", 1)


def is_risky(job: Any) -> bool:
    """Return True for a job that must run alone: it has failed before, or another one's crash would be its death."""
    return job.attempt > 1 or job.attempt >= job.info.max_attempts


def remaining(info: QueueInfo) -> int:
    """Return how many jobs to wait for. Jobs that other workers hold may come back. But a paused queue hands out no
    jobs, not even expired ones, which only a claim makes ready again.
    """
    if info.paused or info.draining:
        return info.counts["leased"] - info.expired
    return sum(info.counts[state] for state in ("ready", "leased", "scheduled"))


def plain(value: Any) -> Any:
    """Return a value of pandas or numpy as a Python value."""
    return value.item() if hasattr(value, "item") else value
