"""DataFrames and streams written to queues: everything once, or nothing."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from door import LIMIT, Trap, asks, door

import bucketq
from bucketq.spark._enqueue import MARKS


def payloads(file: Any, queue: str) -> list[int]:
    """Return the numbers in the payloads of the jobs that are ready."""
    found, after = [], None
    while True:
        page = file.list(queue=queue, after=after, limit=1000)
        found += [json.loads(file.get(job.id).payload)["n"] for job in page.jobs]
        after = page.next
        if after is None:
            return sorted(found)


def write(place: Any, frame: Any, **options: Any) -> None:
    frame.write.format("bucketq").mode("append").options(**place.options(**options)).save()


def numbers(spark: Any, n: int, parts: int = 3) -> Any:
    return spark.range(0, n, 1, parts).selectExpr("struct(id AS n) AS payload")


@pytest.mark.parametrize("place", ["file", "s3"], indirect=True)
def test_rows_become_jobs_with_all_that_their_columns_say(place, spark):
    with place.open() as file:
        frame = spark.range(0, 9, 1, 3).selectExpr(
            "struct(id AS n) AS payload", "cast(id AS int) AS priority", "if(id = 1, 3600D, null) AS delay",
            "if(id = 2, timestamp'2199-01-01 00:00:00', null) AS run_at", "concat('k', id div 2) AS dedup",
            "if(id > 3, 'g', null) AS `group`", "map('h', cast(id AS string)) AS headers",
            "if(id = 8, 'other', 'mail') AS queue",
        )  # fmt: skip
        write(place, frame)
        jobs = file.list(queue="mail").jobs
        found = {json.loads(file.get(job.id).payload)["n"]: job for job in jobs}
        assert len(found) == 4, "of two with one dedup key the first counts"
        assert all(job.priority == n and job.headers == {"h": str(n)} for n, job in found.items())
        assert file.list(queue="other").jobs[0].dedup == "k4"
        assert file.get(jobs[0].id).content_type == "application/json"
        assert len({job.commit_seq for job in jobs}) == 1


def test_a_write_with_a_key_happens_once_and_in_chunks_as_well(place, spark):
    with place.open() as file:
        write(place, numbers(spark, 100), queue="mail", key="nightly", chunk=30)
        before = file.stats().commit_seq
        assert payloads(file, "mail") == list(range(100))
        commits = {job.commit_seq for job in file.list(queue="mail", limit=1000).jobs}
        assert len(commits) == 4
        write(place, numbers(spark, 100), queue="mail", key="nightly", chunk=30)
        assert payloads(file, "mail") == list(range(100))
        assert file.stats().commit_seq == before, "a replay commits nothing"
        write(place, numbers(spark, 100), queue="mail", chunk=30)
        assert Counter(Counter(payloads(file, "mail")).values()) == {2: 100}
        assert place.staged() == []
        assert file.queue(MARKS).counts().counts["scheduled"] == 0


@pytest.mark.parametrize(("first", "again"), [(60, 30), (50_000, 30), (30, 60)])
def test_a_write_with_a_key_happens_once_whatever_its_chunks_are_when_it_is_repeated(
    place, spark, first, again
):
    with place.open() as file:
        write(place, numbers(spark, 100), queue="mail", key="nightly", chunk=first)
        before = file.stats().commit_seq
        write(place, numbers(spark, 100), queue="mail", key="nightly", chunk=again)
        write(place, numbers(spark, 150, 5), queue="mail", key="nightly", chunk=again)
        assert payloads(file, "mail") == list(range(100))
        assert file.stats().commit_seq == before
        assert place.staged() == []


@contextmanager
def ended_after_two_chunks(place: Any, spark: Any) -> Iterator[tuple[Any, Any]]:
    """A write of 35 rows whose driver has died after 20 of them."""
    from pyspark.sql.datasource import CaseInsensitiveDict

    from bucketq.spark.source import Source

    with place.open():
        pass
    source = Source(CaseInsensitiveDict(place.options(queue="mail", key="k", chunk=10)))
    with source.place.open() as file:
        frame = numbers(spark, 35, 1)
        table = frame.toArrow()
        writer = source.writer(frame.schema, False)
        message = writer.write(iter(table.to_batches()))
        whole = writer.writing.write(message.key, message.group)
        commit = whole.commit

        def dies(file: Any, number: int, *rest: Any) -> bool:
            if number == 2:
                raise KeyboardInterrupt
            return commit(file, number, *rest)

        whole.commit = dies  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            whole.run(message.pieces, 35)
        assert payloads(file, "mail") == list(range(20))
        yield file, frame


def test_a_write_that_ended_between_chunks_goes_on_with_the_rows_it_had(place, spark):
    with ended_after_two_chunks(place, spark) as (file, frame):
        # The replay has the rows in another order, and its staged rows are not the ones that are used.
        other = frame.orderBy("payload.n", ascending=False)
        write(place, other, queue="mail", key="k", chunk=10)
        assert payloads(file, "mail") == list(range(35))
        assert place.staged() == []


@pytest.mark.parametrize("place", ["s3"], indirect=True)
@pytest.mark.parametrize("before", [2, 3, 4])
def test_a_write_whose_plan_is_purged_meanwhile_enqueues_every_row_once(place, spark, before):
    with place.open() as file, door(place.server.endpoint) as through:
        # Each chunk is one PUT of HEAD: this one is held back until the plan is gone, and is then sent again.
        trap = through.trap = Trap(asks("PUT", ".head", before), answered=False)

        def purge() -> int:
            assert trap.caught.wait(LIMIT)
            purged = file.queue(MARKS).purge(["scheduled"])
            trap.opened.set()
            return purged

        options = {"queue": "mail", "key": "nightly", "chunk": 30}
        with ThreadPoolExecutor() as pool:
            purging = pool.submit(purge)
            write(place, numbers(spark, 100), endpoint=through.endpoint, **options)
            assert purging.result(LIMIT) == 1
        assert payloads(file, "mail") == list(range(100))
        assert place.staged() == []
        # The same write again finds that it is complete.
        seq = file.stats().commit_seq
        write(place, numbers(spark, 100), **options)
        assert file.stats().commit_seq == seq


def test_a_write_that_ended_between_chunks_and_lost_its_plan_says_so_each_time(place, spark):
    with ended_after_two_chunks(place, spark) as (file, frame):
        assert file.queue(MARKS).purge(["scheduled", "cancelled"]) == 3
        aside = place.staged()
        assert aside
        for _ in range(2):
            with pytest.raises(Exception, match="its plan was deleted"):
                write(place, frame, queue="mail", key="k", chunk=10)
            assert payloads(file, "mail") == list(range(20))
            assert set(aside) <= set(place.staged()), "the rows that are not enqueued are still there"


def test_a_failed_write_leaves_no_jobs_and_nothing_aside(place, spark):
    with place.open() as file:
        frame = spark.range(0, 100, 1, 2).selectExpr("if(id = 77, null, struct(id AS n)) AS payload")
        with pytest.raises(Exception, match=r"row 27 of partition 1 is a bad job: it has no payload"):
            write(place, frame, queue="mail")
        broken = spark.range(0, 100, 1, 2).selectExpr(
            "struct(if(id = 60, raise_error('boom'), id) AS n) AS payload"
        )
        with pytest.raises(Exception, match="boom"):
            write(place, broken, queue="mail")
        assert file.stats().queues == () or file.queue("mail").counts().counts["ready"] == 0
    assert place.staged() == []


def test_bad_rows_go_to_rejects_if_there_is_a_path(place, spark, tmp_path):
    with place.open(max_payload=1000) as file:
        frame = spark.range(0, 20, 1, 2).selectExpr(
            "if(id = 3, null, to_json(struct(id AS n, if(id = 15, repeat('x', 2000), '') AS pad))) AS payload",
            "if(id = 7, -1D, null) AS delay",
        )
        write(place, frame, queue="mail", rejects=str(tmp_path / "bad"), max_payload=1000)
        assert payloads(file, "mail") == [n for n in range(20) if n not in (3, 7, 15)]
        bad = spark.read.parquet(str(tmp_path / "bad")).collect()
        told = {(row["bad_partition"], row["bad_row"]): row["bad_reason"] for row in bad}
        assert told == {
            (0, 3): "it has no payload",
            (0, 7): "its delay is below zero",
            (1, 5): "its payload has more than 1000 bytes",
        }


def test_frames_that_hold_no_jobs_are_refused_before_anything_runs(place, spark):
    from pyspark.sql.datasource import CaseInsensitiveDict

    from bucketq.spark.source import Source

    with place.open():
        pass
    for frame, options, told in (
        (spark.range(1), {"queue": "mail"}, "a job has no column 'id'"),
        (spark.sql("SELECT 'a' AS payload"), {}, "no queue is named"),
        (spark.sql("SELECT 1 AS payload"), {"queue": "mail"}, "payload has the type int32"),
        (spark.sql("SELECT 'a' AS payload, 'x' AS priority"), {"queue": "mail"}, "must be a whole number"),
        (spark.sql("SELECT 'a' AS payload, 1D AS run_at"), {"queue": "mail"}, "must be a timestamp"),
        (spark.sql("SELECT 'a' AS payload"), {"queue": "n" * 300}, "queue"),
    ):
        source = Source(CaseInsensitiveDict(place.options(**options)))
        with pytest.raises(bucketq.Invalid, match=told):
            source.writer(frame.schema, False)
    with pytest.raises(Exception, match="cannot be overwritten"):
        numbers(spark, 1).write.format("bucketq").mode("overwrite").options(**place.options(queue="m")).save()
    assert place.staged() == []
