"""The pipeline, compared with an independent computation in pandas on the same rows."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path
from typing import Any

import pandas as pd
from kit import archive, work

import bucketq
from bucketq.spark import pipeline

HOUR = 3_600_000
BEGIN = 1_700_000_000_000 // HOUR * HOUR


def over_days(place: Any, tmp_path: Path, seed: int) -> None:
    """Spread the runs in the queue file over three days, as if they had happened then."""
    image = tmp_path / "image.sqlite"
    with place.open() as file:
        file.export(image, replace=True)
    dice = random.Random(seed)
    connection = sqlite3.connect(image)
    at = BEGIN
    for seq, _finish_seq in connection.execute(
        "SELECT seq, finish_seq FROM jobs WHERE state >= 5 ORDER BY finish_seq"
    ):
        at += dice.randrange(HOUR)
        run, wait = dice.randrange(HOUR * 2), dice.randrange(HOUR)
        connection.execute(
            "UPDATE jobs SET ends_ms = ?, claimed_ms = ?, first_ms = ?, enqueued_ms = ? WHERE seq = ?",
            (at, at - run, at - run, at - run - wait, seq),
        )
    connection.commit()
    connection.close()
    bucketq.restore(place.url, image, **place.settings)


def expected(place: Any) -> pd.DataFrame:
    """Return arrivals, ends and percentiles by queue and hour, computed by pandas alone."""
    rows = pd.DataFrame([row for row in place.rows() if row["queue"] != "bucketq-writes"])
    rows = rows.sort_values("finish_seq").groupby(["id", "queue"]).tail(1)
    rows["came"], rows["hour"] = rows["enqueued_at"].dt.floor("h"), rows["finished_at"].dt.floor("h")
    arrivals = rows.groupby(["queue", "came"]).size().rename("arrivals")
    arrivals.index.names = ["queue", "hour"]
    ended = rows.groupby(["queue", "hour"]).agg(
        completed=("state", lambda s: int((s == "done").sum())),
        dead=("state", lambda s: int((s == "dead").sum())),
        retries=("attempts", lambda s: int((s - 1).clip(lower=0).sum())),
        wait_p95_ms=("wait_ms", lambda s: s.astype(float).quantile(0.95)),
        run_p50_ms=("run_ms", lambda s: s.astype(float).quantile(0.5)),
        busy_ms=("run_ms", "sum"),
    )
    whole = pd.concat([arrivals, ended], axis=1).sort_index()
    counts = ["arrivals", "completed", "dead", "retries", "busy_ms"]
    whole[counts] = whole[counts].fillna(0).astype("int64")
    return whole


def found(out: Path) -> pd.DataFrame:
    hours = pd.read_csv(out / "csv" / "hours.csv", parse_dates=["hour"])
    columns = ["arrivals", "completed", "dead", "retries", "wait_p95_ms", "run_p50_ms", "busy_ms"]
    hours["hour"] = hours["hour"].dt.tz_convert("UTC").dt.tz_localize(None)
    return hours.set_index(["queue", "hour"])[columns].sort_index()


def same(out: Path, place: Any) -> None:
    left, right = found(out), expected(place)
    pd.testing.assert_frame_equal(left, right[left.columns], check_dtype=False, check_index_type=False)


def test_hours_are_what_pandas_makes_of_the_same_rows_also_after_late_and_reopened_jobs(
    place, spark, tmp_path
):
    out = tmp_path / "out"
    with place.open() as file:
        for queue in ("mail", "reports"):
            archive(file, queue, keep=30)
        work(file, "mail", 80, dead=6)
        work(file, "reports", 40, dead=2)
    over_days(place, tmp_path, 1)
    said: list[str] = []
    with place.open() as file:
        file.archive()
        first = pipeline(spark, place.url, out, settings=place.settings, say=said.append)
        assert (first.new, first.lives, first.jobs) == (120, 120, 120)
        same(out, place)
        # Dead jobs are requeued and now succeed: the hours in which they died are corrected.
        for job in file.list(states=["dead"]).jobs:
            file.queue(job.queue).requeue(job.id)
            with file.queue(job.queue).claim_one() as taken:
                assert taken.id == job.id
        work(file, "mail", 5, at=500)
        file.archive()
        second = pipeline(spark, place.url, out, settings=place.settings)
        assert second.new == 13
        assert second.jobs == 125
        assert second.lives == 133
        assert found(out)["dead"].sum() == 0
        same(out, place)
    page = (out / "report.html").read_text()
    assert page.count("<svg") == 9
    assert "http://" not in page
    assert "https://" not in page
    assert "Does a queue in object storage fit?" in page
    assert "reports" in page
    assert any("writing the report" in line for line in said)
    commits = pd.read_csv(out / "csv" / "commits.csv")
    assert (commits["ops_per_commit"] > 0).all()
    backlog = pd.read_csv(out / "csv" / "backlog.csv")
    assert (backlog.groupby("queue")["backlog"].last() == 0).all()


def test_a_queue_file_with_nothing_but_a_write_has_nothing_to_analyse(place, spark, tmp_path):
    with place.open():
        pass
    rows = spark.sql("SELECT struct(id AS n) AS payload FROM range(3)")
    assert pipeline(spark, place.url, tmp_path / "out", settings=place.settings).report is None
    with place.open() as file:
        file.queue("mail").cancel(file.queue("mail").enqueue({}, delay=60).id)
        file.queue("mail").purge(["cancelled"])
    assert pipeline(spark, place.url, tmp_path / "out", settings=place.settings).report is None
    rows.write.format("bucketq").mode("append").options(**place.options(queue="mail")).save()
    for _ in range(2):
        empty = pipeline(spark, place.url, tmp_path / "out", settings=place.settings)
        assert (empty.jobs, empty.lives, empty.report) == (0, 0, None)
    with place.open() as file, file.queue("mail").claim(3) as batch:
        for job in batch:
            job.ack()
    assert pipeline(spark, place.url, tmp_path / "out", settings=place.settings).jobs == 3


def test_a_session_is_left_as_it_was(place, spark, tmp_path):
    def held() -> tuple[Any, ...]:
        views = sorted(table.name for table in spark.catalog.listTables())
        return (
            views,
            spark.conf.get("spark.sql.session.timeZone"),
            spark.sparkContext._jsc.getPersistentRDDs(),
        )

    with place.open() as file:
        archive(file, "mail", keep=10)
        work(file, "mail", 5, dead=1)
        (job,) = file.list(states=["dead"]).jobs
        file.queue("mail").requeue(job.id)
        with file.queue("mail").claim_one() as taken:
            assert taken.id == job.id
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        for name in ("lives", "hours"):
            spark.sql("SELECT 'mine' AS whose").createOrReplaceTempView(name)
        before = held()
        pipeline(spark, place.url, tmp_path / "out", settings=place.settings)
        assert held() == before
        assert [spark.table(name).first()["whose"] for name in ("lives", "hours")] == ["mine", "mine"]
    finally:
        spark.conf.unset("spark.sql.session.timeZone")
        for name in ("lives", "hours"):
            spark.catalog.dropTempView(name)
