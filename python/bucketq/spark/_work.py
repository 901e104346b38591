"""Spark as a worker pool: tasks on executors claim jobs, run a function and end the jobs (:func:`process`)."""

# pyright: basic
from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, Mapping
from os import PathLike
from time import monotonic
from typing import TYPE_CHECKING, Any, Literal

from bucketq import _convert as convert
from bucketq.errors import Error, Invalid, LeaseLost, NotFound
from bucketq.spark._place import Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from bucketq.types import QueueInfo, Seconds

__all__ = ["Processed", "process"]

IDLE = 2.0
"""Seconds that a task waits for a job before it checks whether any are left."""
GONE = (LeaseLost, NotFound)
"""Another worker has the job, or it was purged."""
TOLD = "task int, acked long, failed long, lost long"
log = logging.getLogger("bucketq.spark")


class Processed:
    """Result of ``process``: counts, and the results as a DataFrame."""

    def __init__(self, spark: SparkSession, place: Place, queue: str, run: str, rows: list[Any]) -> None:
        self.run = run
        """Prefix of the worker names of this call; every job it worked on has one of them."""
        self.acked = sum(row["acked"] for row in rows)
        """Jobs acked by tasks that finished; the count of a killed executor is lost, its jobs are not."""
        self.failed = sum(row["failed"] for row in rows)
        """Attempts whose function raised."""
        self.lost = sum(row["lost"] for row in rows)
        """Attempts whose lease was lost, or whose job was purged, before they ended."""
        self._spark, self._place, self._queue = spark, place, queue

    def results(self) -> DataFrame:
        """Return the finished jobs of this call with their results, from the queue and its archive."""
        from pyspark.sql import functions as f

        reader = self._spark.read.format("bucketq")
        frame = reader.options(**self._place.as_options()).option("view", "history").load()
        mine = (f.col("queue") == self._queue) & f.col("worker").startswith(f"{self.run}-")
        return frame.filter(mine)

    def __repr__(self) -> str:
        return f"<Processed {self.run}: {self.acked} acked, {self.failed} failed, {self.lost} lost>"


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
    payload, data) and returns one result per row. An exception nacks the job, or the whole batch. Jobs of a killed
    executor become ready again when their lease runs out; Spark starts its task again, and no task ends before they are
    done. Tasks also wait for scheduled jobs: give ``seconds`` if some are far in the future. In a paused queue tasks do
    not wait for them.
    """
    if how not in ("job", "pandas"):
        raise Invalid(f"how must be 'job' or 'pandas', not {how!r}")
    place = Place.of(url, settings or {})
    # Raises if the queue file does not exist: this must not create it.
    place.objects().head().wait()
    run = f"spark-{uuid.uuid4().hex[:12]}"
    cores = tasks or spark.sparkContext.defaultParallelism
    limit = convert.maybe_millis(seconds, "seconds")
    work = _Task(
        place,
        queue,
        function,
        how,
        batch,
        convert.millis(lease, "lease") / 1000,
        None if limit is None else limit / 1000,
        run,
    )
    # Collected here, not returned as a plan: a plan that runs twice would process other jobs each time.
    rows = spark.range(0, cores, 1, cores).mapInPandas(work, TOLD).collect()
    return Processed(spark, place, queue, run, rows)


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
        run: str,
    ) -> None:
        self.place, self.queue, self.function, self.how = place, queue, function, how
        self.batch, self.lease, self.seconds, self.run = batch, lease, seconds, run

    def __call__(self, frames: Iterator[Any]) -> Iterator[Any]:
        import pandas as pd

        for frame in frames:
            for task in frame["id"].tolist():
                acked, failed, lost = self.work(task)
                yield pd.DataFrame({"task": [task], "acked": [acked], "failed": [failed], "lost": [lost]})

    def work(self, task: int) -> tuple[int, int, int]:
        until = None if self.seconds is None else monotonic() + self.seconds
        acked = failed = lost = 0
        with self.place.open() as file:
            queue = file.queue(self.queue)
            worker = f"{self.run}-{task}"
            while until is None or monotonic() < until:
                with queue.claim(self.batch, wait=IDLE, lease=self.lease, worker=worker) as jobs:
                    held = list(jobs)
                    if not held:
                        if until is None and not left(queue.counts(max_age=0)):
                            break
                        continue
                    one, two, three = self.batch_of(file, held)
                    acked, failed, lost = acked + one, failed + two, lost + three
        return acked, failed, lost

    def batch_of(self, file: Any, jobs: list[Any]) -> tuple[int, int, int]:
        """Run the function on these jobs and end them, in one commit if possible."""
        answers = self.answers(jobs)
        try:
            with file.atomic() as tx:
                for job, (result, error) in zip(jobs, answers, strict=True):
                    if error is None:
                        tx.ack(job, result=result)
                    else:
                        tx.nack(job, error)
            return sum(e is None for _, e in answers), sum(e is not None for _, e in answers), 0
        except Error as error:
            # A lost lease or an oversized result of one job must not affect the others.
            log.info("ended one by one: %s", error)
        acked = failed = lost = 0
        for job, (result, error) in zip(jobs, answers, strict=True):
            try:
                if error is None:
                    job.ack(result=result)
                    acked += 1
                else:
                    job.nack(error)
                    failed += 1
            except GONE:
                lost += 1
            except Invalid as wrong:
                try:
                    job.nack(wrong)
                    failed += 1
                except GONE:
                    lost += 1
        return acked, failed, lost

    def answers(self, jobs: list[Any]) -> list[tuple[Any, Exception | None]]:
        if self.how == "pandas":
            import pandas as pd

            try:
                names: Any = ["id", "queue", "attempt", "payload", "data"]
                frame = pd.DataFrame(
                    [(j.id, j.queue, j.attempt, j.payload, j.data) for j in jobs],
                    columns=names,
                )
                results = list(self.function(frame))
                if len(results) != len(jobs):
                    raise Invalid(f"the function returned {len(results)} results for {len(jobs)} jobs")
                return [(plain(result), None) for result in results]
            except Exception as error:
                return [(None, error)] * len(jobs)
        answers: list[tuple[Any, Exception | None]] = []
        for job in jobs:
            try:
                answers.append((self.function(job), None))
            except Exception as error:
                answers.append((None, error))
        return answers


def left(info: QueueInfo) -> int:
    """Return how many jobs to wait for. Jobs that other workers hold may come back. But a paused queue hands out no
    jobs, not even expired ones, which only a claim makes ready again.
    """
    if info.paused or info.draining:
        return info.counts["leased"] - info.expired
    return sum(info.counts[state] for state in ("ready", "leased", "scheduled"))


def plain(value: Any) -> Any:
    """Return a value of pandas or numpy as a Python value."""
    return value.item() if hasattr(value, "item") else value
