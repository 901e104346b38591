"""The log of finished jobs as a stream, and streams into queues."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kit import archive, drain, stream, work

from patience import PATIENCE


def lives(rows: Any) -> list[tuple[Any, ...]]:
    """Return the rows without the commit, which is that of the reading."""
    return sorted(tuple(v for k, v in row.asDict().items() if k != "commit_seq") for row in rows)


def test_available_now_drains_in_batches_of_at_most_so_many_rows_and_stops(place, tmp_path):
    batches: list[list[Any]] = []
    with place.open() as file:
        archive(file, "mail", keep=5)
        archive(file, "reports", keep=0)
        for part in range(2):
            work(file, "mail", 20, dead=1, at=20 * part)
            work(file, "reports", 12, at=part)
            file.archive()
        frame = stream(place, maxRows=17)
        drain(frame, tmp_path, lambda rows, n: batches.append(rows.collect()))
        assert sum(map(len, batches)) == 64
        assert all(0 < len(b) <= 17 for b in batches)
        seqs = [row["finish_seq"] for batch in batches for row in batch]
        assert len(set(seqs)) == 64
        ends = [max(row["finish_seq"] for row in batch) for batch in batches]
        assert all(min(r["finish_seq"] for r in b) > e for b, e in zip(batches[1:], ends, strict=False))
        batches.clear()
        drain(frame, tmp_path, lambda rows, n: batches.append(rows.collect()))
        assert batches == [], "nothing new, nothing again"
        work(file, "mail", 3, at=100)
        drain(frame, tmp_path, lambda rows, n: batches.append(rows.collect()))
        assert [len(batch) for batch in batches] == [3]


def test_the_progress_of_a_stream_has_the_newest_offset_beside_that_of_the_batch(place, tmp_path):
    with place.open() as file:
        archive(file, "mail", keep=50)
        work(file, "mail", 10)
        query = drain(stream(place, maxRows=4), tmp_path, lambda rows, n: rows.collect())
        newest = file.stats().commit_seq
    told = [progress["sources"][0] for progress in query.recentProgress if progress["numInputRows"]]
    assert len(told) == 3
    for source in told:
        latest, end = source["latestOffset"], source["endOffset"]
        latest, end = (json.loads(one) if isinstance(one, str) else one for one in (latest, end))
        assert latest["commit"] == newest
        assert latest["seq"] >= end["seq"]


def test_the_same_offsets_give_the_same_rows_after_a_failed_sink_whatever_became_of_the_jobs(place, tmp_path):
    seen: list[Any] = []

    def fails(rows: Any, n: int) -> None:
        seen.extend(rows.collect())
        raise ValueError("the sink failed")

    with place.open() as file:
        archive(file, "mail", keep=10)
        work(file, "mail", 30, dead=2)
        file.archive()
        work(file, "plain", 5, dead=1)
        with pytest.raises(Exception, match="the sink failed"):
            drain(stream(place), tmp_path, fails)
        first = lives(seen)
        assert len(first) == 35
        # Dead jobs are requeued, others are purged or archived, new ones finish: the batch does not change.
        for job in file.list(states=["dead"]).jobs:
            file.queue(job.queue).requeue(job.id)
        file.queue("plain").purge(["done"])
        work(file, "mail", 20, at=50)
        file.archive()
        batches: list[list[Any]] = []
        drain(stream(place), tmp_path, lambda rows, n: batches.append(rows.collect()))
        assert lives(batches[0]) == first
        assert len(batches) == 2
        assert len(batches[1]) >= 20


def test_what_was_put_aside_and_collected_is_put_aside_anew_from_the_archive(place, tmp_path):
    def fails(rows: Any, n: int) -> None:
        raise ValueError("the sink failed")

    with place.open() as file:
        archive(file, "mail", keep=100)
        work(file, "mail", 8, dead=1)
        with pytest.raises(Exception, match="the sink failed"):
            drain(stream(place, columns="id,state"), tmp_path, fails)
        archive(file, "mail", keep=0)
        # One object has runs of this batch and of the next.
        work(file, "mail", 4, at=50)
        file.archive()
    (aside,) = place.staged()
    (tmp_path / aside).unlink()
    batches: list[list[Any]] = []
    # This stream stages rows that another one reads with other columns.
    with pytest.raises(Exception, match="the sink failed"):
        drain(stream(place, columns="id,state"), tmp_path, fails)
    drain(stream(place, columns="id,attempts"), tmp_path, lambda rows, n: batches.append(rows.collect()))
    assert [len(batch) for batch in batches] == [8, 4]
    assert batches[0][0].asDict().keys() == {"id", "attempts"}


def test_a_stream_that_fell_behind_says_so(place, tmp_path):
    batches: list[Any] = []
    with place.open() as file:
        file.queue("mail").configure(keep=10)
        work(file, "mail", 5)
        drain(stream(place), tmp_path, lambda rows, n: batches.append(rows.collect()))
        work(file, "mail", 30, at=100)
        with pytest.raises(Exception, match="the stream fell behind: the queue mail has no archive"):
            drain(stream(place), tmp_path, lambda rows, n: batches.append(rows.collect()))
        assert sum(map(len, batches)) == 5
        drain(stream(place, onLoss="ignore"), tmp_path, lambda rows, n: batches.append(rows.collect()))
        assert sum(map(len, batches)) == 15


def test_each_write_of_foreach_batch_happens_once_without_a_key_or_is_refused(place, spark, tmp_path):
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    spark.range(0, 40, 1, 2).selectExpr("struct(id AS n) AS payload").write.json(str(source))

    def into(rows: Any, queue: str) -> None:
        rows.write.format("bucketq").mode("append").options(**place.options(queue=queue)).save()

    def run(each: Any) -> None:
        rows = spark.readStream.schema("payload struct<n: bigint>").json(str(source))
        query = rows.writeStream.foreachBatch(each).option("checkpointLocation", str(checkpoint))
        query.trigger(availableNow=True).start().awaitTermination(PATIENCE)

    def to_two(rows: Any, n: int) -> None:
        into(rows, "mail")
        into(rows, "reports")

    def again() -> None:
        """Forget the end of the batch, as a driver that died before Spark recorded it."""
        for path in (checkpoint / "commits").iterdir():
            path.unlink()

    with place.open() as file:
        run(to_two)
        again()
        run(to_two)
        assert [file.queue(q).counts().counts["ready"] for q in ("mail", "reports")] == [40, 40]
        again()

        def twice(rows: Any, n: int) -> None:
            into(rows, "other")
            into(rows, "other")

        with pytest.raises(Exception, match=r'writes twice to the queue other.*option\("key", f"'):
            run(twice)
        assert file.queue("other").counts().counts["ready"] == 40


def test_a_stream_into_a_queue_enqueues_each_batch_once(place, spark, tmp_path):
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    spark.range(0, 40, 1, 2).selectExpr("struct(id AS n) AS payload").write.json(str(source))

    def run() -> None:
        rows = spark.readStream.schema("payload struct<n: bigint>").json(str(source))
        query = (
            rows.writeStream.format("bucketq")
            .options(**place.options(queue="mail"))
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(PATIENCE)

    with place.open() as file:
        run()
        jobs = file.list(queue="mail", limit=1000).jobs
        assert sorted(json.loads(file.get(job.id).payload)["n"] for job in jobs) == list(range(40))
        # The driver died after the jobs were enqueued and before Spark recorded that the batch was done.
        for path in (checkpoint / "commits").iterdir():
            path.unlink()
        run()
        assert file.queue("mail").counts().counts["ready"] == 40
        assert place.staged() == []
