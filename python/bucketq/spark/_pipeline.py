"""The pipeline from finished jobs to a report: ``bucketq analyze`` and :func:`bucketq.spark.pipeline`."""

# pyright: basic
from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any

from bucketq.errors import Invalid
from bucketq.spark import _tables
from bucketq.spark._files import Folder
from bucketq.spark._place import Place
from bucketq.spark._report import report
from bucketq.spark._tables import VIEWS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Analysed", "pipeline"]

Say = Callable[[str], object]
STATE = "state.json"
FORMAT = 1
"""Format version of the output directory; a directory with another version is not touched."""
WHILE = {
    # Hours and days are in UTC, wherever this runs.
    "spark.sql.session.timeZone": "UTC",
    # Half the bytes of the default, and its statistics let readers skip parts.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # A task has runs of a few days: no need to sort them first.
    "spark.sql.maxConcurrentOutputFileWriters": "40",
    # A day has percentiles for each hour and queue; by default Spark stops hashing at 128 and sorts every run.
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "50000",
}
"""Settings of the session while the pipeline runs."""


@dataclass(frozen=True)
class Analysed:
    """Result of one execution of the pipeline."""

    out: str
    """The directory, as it was given."""
    report: str | None
    """The page in it; None if no job has finished yet."""
    new: int
    """Finished runs that are new in this execution."""
    lives: int
    jobs: int
    """Jobs that ended; one that moved to a dead-letter queue counts in both queues."""
    days: int
    """Days whose hours were computed again."""
    seconds: float


def pipeline(
    spark: SparkSession,
    url: str | PathLike[str],
    out: str | PathLike[str],
    *,
    settings: Mapping[str, Any] | None = None,
    max_rows: int | None = None,
    price_put: float = 5.0,
    on_loss: str = "fail",
    say: Say = lambda text: None,
) -> Analysed:
    """Bring the tables in ``out`` up to the newest finished jobs, and write the report.

    ``out`` is a path or URL as Spark understands it: ``analysis``, ``hdfs:///analysis``, ``s3a://acme/analysis``. It
    reads only the runs that finished since the last call. Repeat a call that was interrupted: the stream has its
    checkpoint, and each table is replaced as a whole or by the day.
    """
    folder = Folder(spark, out)
    before = {name: spark.conf.get(name) for name in WHILE}
    try:
        for name, value in WHILE.items():
            spark.conf.set(name, value)
        return run(spark, url, folder, settings, max_rows, price_put, on_loss, say)
    finally:
        for name, value in before.items():
            spark.conf.set(name, value or WHILE[name])
        for name in VIEWS.values():
            # This also drops cached data of the view.
            spark.catalog.dropTempView(name)


def run(
    spark: SparkSession,
    url: str | PathLike[str],
    out: Folder,
    settings: Mapping[str, Any] | None,
    max_rows: int | None,
    price_put: float,
    on_loss: str,
    say: Say,
) -> Analysed:
    begun = time.monotonic()
    place = Place.of(url, settings or {})
    out.create()
    known = before(out, place.url)
    say("reading finished jobs")
    schema = read(spark, place, out, max_rows, on_loss, say)
    nothing = Analysed(out.name, None, 0, 0, 0, 0, time.monotonic() - begun)
    if not out.exists("lives/_spark_metadata"):
        return nothing
    # Without a run there is no file to take the schema from.
    view(spark.read.schema(schema).parquet(out.at("lives")), "lives_all")
    view(sql(spark, f"SELECT * FROM {{lives_all}} WHERE queue <> '{_tables.MARKED}'"), "lives")
    say("looking for changes")
    counts = {
        str(row["day"]): row["n"]
        for row in sql(spark, "SELECT day, count(*) AS n FROM {lives} GROUP BY day").collect()
    }
    if not counts:
        # There are only the marks of writes.
        return nothing
    changed = sorted(day for day, n in counts.items() if known.get("days", {}).get(day) != n)
    new = sum(counts.values()) - sum(known.get("days", {}).values())
    suspects(spark)
    days = affected(spark, changed, counts, known)
    if days:
        say(f"computing {len(days)} days with {new} new runs")
        hours(spark, out, days)
    view(spark.read.parquet(out.at("hours")), "hours")
    for name, text in _tables.TABLES.items():
        repriced = name == "commits" and known.get("price_put") != price_put
        if days or repriced or not out.exists(name):
            say(f"computing {name}")
            replace(sql(spark, text, price_put=price_put), out, name)
    found = sql(spark, "SELECT sum(completed + dead + cancelled) AS n FROM {hours}").collect()
    jobs = found[0]["n"] or 0
    say("writing the report")
    page = report(spark, out, place.url, price_put)
    state = {"format": FORMAT, "url": place.url, "days": counts, "price_put": price_put}
    out.write(STATE, json.dumps(state).encode())
    taken = time.monotonic() - begun
    return Analysed(out.name, page, new, sum(counts.values()), int(jobs), len(days), taken)


def read(spark: SparkSession, place: Place, out: Folder, max_rows: int | None, on_loss: str, say: Say) -> Any:
    """Append newly finished runs, by day, each run once: stream offsets and Spark's file sink ensure that.

    Returns their schema.
    """
    stream = spark.readStream.format("bucketq").options(**place.as_options())
    stream = stream.option("columns", _tables.LIFE_COLUMNS).option("onLoss", on_loss)
    if max_rows is not None:
        stream = stream.option("maxRows", str(max_rows))
    lives = stream.load().selectExpr("*", "to_date(finished_at) AS day")
    query = (
        lives.writeStream.format("parquet")
        .partitionBy("day")
        .option("path", out.at("lives"))
        .option("checkpointLocation", out.at("checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    told = -1
    while not query.awaitTermination(2):
        last = query.lastProgress
        if last is not None and last["batchId"] != told:
            told = last["batchId"]
            say(f"batch {told}: {last['numInputRows']} runs")
    return lives.schema


def sql(spark: SparkSession, text: str, **more: Any) -> Any:
    return spark.sql(text.format(**VIEWS, **more))


def view(frame: Any, name: str) -> None:
    frame.createOrReplaceTempView(VIEWS[name])


def suspects(spark: SparkSession) -> None:
    """Find the jobs with several runs, and leave out all but the newest run of each."""
    several = sql(spark, _tables.SUSPECTS).cache()
    view(several, "suspects")
    if several.isEmpty():
        view(spark.table(VIEWS["lives"]), "finished")
        return
    view(sql(spark, _tables.SUPERSEDED).cache(), "superseded")
    view(sql(spark, _tables.FINISHED), "finished")


def affected(
    spark: SparkSession, changed: list[str], counts: dict[str, int], known: dict[str, Any]
) -> list[str]:
    """Return the days whose hours have changed."""
    if not changed:
        return []
    if not known:
        found = sql(spark, "SELECT DISTINCT to_date(enqueued_at) AS day FROM {lives}").collect()
        return sorted({str(row["day"]) for row in found} | set(counts))
    found = sql(spark, _tables.AFFECTED, days=listed(changed)).collect()
    return sorted({str(row["day"]) for row in found} | set(changed))


def listed(days: list[str]) -> str:
    return ", ".join(f"DATE'{day}'" for day in days)


def hours(spark: SparkSession, out: Folder, days: list[str]) -> None:
    """Replace the hours of these days."""
    table = sql(spark, _tables.BY_HOUR, days=listed(days))
    table = table.repartition(1) if len(days) < 100 else table.repartition("day")
    # All rows of an hour may move to another one, so delete the day first; if this is interrupted, it is repeated.
    for day in days:
        out.delete(f"hours/day={day}")
    table.write.mode("append").partitionBy("day").parquet(out.at("hours"))


def replace(table: Any, out: Folder, name: str) -> None:
    """Replace a table; the old one stays until the new one is complete."""
    fresh, old = f".{name}.new", f".{name}.old"
    table.coalesce(1).write.mode("overwrite").parquet(out.at(fresh))
    out.delete(old)
    if out.exists(name):
        out.rename(name, old)
    out.rename(fresh, name)
    out.delete(old)


def before(out: Folder, url: str) -> dict[str, Any]:
    """Return the state of the last execution, if it is for the same queue file."""
    body = out.read(STATE)
    if body is None:
        return {}
    try:
        known = json.loads(body)
        wrong = known["url"] != url or known["format"] != FORMAT
    except (ValueError, LookupError, TypeError):
        raise Invalid(f"{out.shown(STATE)} is not a finished analysis: choose another directory") from None
    if wrong:
        raise Invalid(f"{out.name} holds the analysis of {known['url']}: give another directory")
    return known
