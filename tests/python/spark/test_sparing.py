"""The requests of a read: options choose archive objects before they are fetched."""

from __future__ import annotations

from pathlib import Path

import pytest
from door import door
from kit import archive, drain, stream, work

from bucketq.spark import process


@pytest.mark.parametrize("place", ["s3"], indirect=True)
def test_options_choose_objects_before_they_are_fetched_and_a_frame_can_be_used_again(place, spark):
    with place.open() as file:
        for queue in ("mail", "reports"):
            archive(file, queue)
        for part in range(4):
            work(file, "mail", 6, dead=1, at=part)
            work(file, "reports", 6, at=part)
            file.archive()
        file.create_queue("none")
        objects = file.archives().objects
        assert len(objects) == 8
    third = sorted(one.first_seq for one in objects if one.queue == "mail")[2]
    with door(place.server.endpoint) as through:

        def fetched(**options: object) -> tuple[int, int]:
            """Return the rows, and the number of archive objects fetched for them."""
            before = through.count("GET", ".arch-")
            rows = place.rows(endpoint=through.endpoint, **options)
            return len(rows), through.count("GET", ".arch-") - before

        assert fetched() == (48, 8)
        assert fetched(queues="mail") == (24, 4)
        assert fetched(queues="mail", after=third - 1) == (12, 2)
        assert fetched(queues="mail", until=third - 1) == (12, 2)
        assert fetched(since="2100-01-01T00:00:00+00:00") == (0, 0)
        assert fetched(before="2000-01-01T00:00:00+00:00", queues="reports") == (0, 0)
        assert fetched(queues="none") == (0, 0)
        # States are known only inside of objects.
        assert fetched(queues="mail", states="dead") == (4, 4)
        # One DataFrame in several queries, and twice in one query: each use has its own filter.
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
        try:
            frame = place.frame(endpoint=through.endpoint)
            mail = frame.filter("queue = 'mail'")
            counts = [mail.count(), frame.count(), frame.filter("state = 'dead'").count(), mail.count()]
            assert counts == [24, 48, 4, 24]
            assert mail.union(frame.filter("queue = 'reports'")).count() == 48
            assert mail.join(frame.select("id"), "id").count() == 24
        finally:
            spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_results_are_read_without_the_objects_of_earlier_jobs(place, spark):
    with place.open() as file:
        archive(file, "mail", keep=0)
        work(file, "mail", 5)
        file.archive()
        (old,) = [key for key in place.objects() if ".arch-" in key]
        Path(place.url).with_name(old).unlink()
        file.queue("mail").enqueue({"n": 1})
        done = process(spark, place.url, "mail", lambda job: job.data, tasks=1, settings=place.settings)
        assert [row["state"] for row in done.results().collect()] == ["done"]
        with pytest.raises(Exception, match="was deleted"):
            place.rows()


def test_the_marks_of_writes_are_rows_only_where_their_queue_is_named(place, spark, tmp_path):
    batches: list[int] = []
    with place.open() as file:
        file.create_queue("mail")
        archive(file, "bucketq-writes", keep=1)
    for n in range(3):
        rows = spark.sql("SELECT struct(id AS n) AS payload FROM range(3)")
        rows.write.format("bucketq").mode("append").options(**place.options(queue="mail", key=n)).save()
    with place.open() as file:
        file.archive()
    assert place.rows() == []
    assert {row["queue"] for row in place.rows(view="jobs")} == {"mail"}
    drain(stream(place), tmp_path, lambda rows, n: batches.append(rows.count()))
    assert sum(batches) == 0
    assert {row["queue"] for row in place.rows(queues="bucketq-writes", columns="id,queue")} == {
        "bucketq-writes"
    }
    assert place.frame().count() == 0
