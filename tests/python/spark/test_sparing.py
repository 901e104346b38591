"""The requests of a read: options choose archive objects before they are fetched."""

from __future__ import annotations

import pytest
from door import door
from kit import archive, work


@pytest.mark.parametrize("place", ["s3"], indirect=True)
def test_options_choose_objects_before_they_are_fetched_and_a_frame_can_be_used_again(place, spark):
    with place.open() as file:
        for queue in ("mail", "reports"):
            archive(file, queue)
        for part in range(4):
            work(file, "mail", 6, dead=1, at=part)
            work(file, "reports", 6, at=part)
            file.archive()
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
