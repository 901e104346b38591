"""The size of a stream's batches, where the stream ends, and which rows it has missed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from kit import archive, drain, stream, work
from pyspark.sql.datasource import CaseInsensitiveDict

from bucketq.spark.source import Source


def sizes(batches: list[list[Any]]) -> list[int]:
    return [len(batch) for batch in batches]


def archived(place: Any, objects: int, jobs: int) -> None:
    """Make this number of archive objects with this number of runs each."""
    with place.open() as file:
        archive(file, "mail")
        for part in range(objects):
            work(file, "mail", jobs, at=part * jobs)
            file.archive()


def listed(place: Any) -> list[Any]:
    with place.open() as file:
        return list(file.archives(queue="mail").objects)


def by_hand(place: Any, **options: int) -> list[int]:
    """Return the sizes of the batches that a reader would pass to Spark."""
    source = Source(CaseInsensitiveDict(place.options(**options)))
    reader = source.streamReader(source.schema())
    reader.prepareForTriggerAvailableNow()
    offset, found, seqs = reader.initialOffset(), [], []
    while (end := reader.latestOffset(offset, reader.getDefaultReadLimit())) != offset:
        batches = [batch for part in reader.partitions(offset, end) for batch in reader.read(part)]
        seqs.append([seq for batch in batches for seq in batch.column("finish_seq").to_pylist()])
        found.append(len(seqs[-1]))
        offset = end
    flat = [seq for batch in seqs for seq in sorted(batch)]
    assert flat == sorted(set(flat)), "in order, and each once"
    return found


def test_bytes_and_rows_limit_a_batch_whichever_is_reached_first(place, tmp_path):
    archived(place, 6, 10)
    largest = max(one.bytes for one in listed(place))
    assert by_hand(place) == [60]
    assert by_hand(place, maxBytes=2 * largest + 1) == [20, 20, 20]
    assert by_hand(place, maxBytes=largest + 1, maxRows=45) == [10] * 6
    assert by_hand(place, maxBytes=100 * largest, maxRows=25) == [20, 20, 20], "objects stay whole"
    # Less than one object fits: the batch is a proportional part of the object, and never empty.
    parts = by_hand(place, maxBytes=largest // 2)
    assert sum(parts) == 60
    assert max(parts) <= 6
    assert by_hand(place, maxBytes=1) == [1] * 60
    # Rows that are not archived count with the usual size of such rows.
    with place.open() as file:
        work(file, "mail", 10, at=100)
    assert by_hand(place, maxBytes=1024, maxRows=60)[-3:] == [4, 4, 2]
    batches: list[list[Any]] = []
    frame = stream(place, maxBytes=2 * largest + 1, maxRows=20)
    drain(frame, tmp_path, lambda rows, n: batches.append(rows.collect()))
    assert [size for size in sizes(batches) if size == 20] == [20, 20, 20]
    assert sum(sizes(batches)) == 70


def test_available_now_reads_what_was_there_when_it_began_and_stops_though_more_comes(place, tmp_path):
    batches: list[list[Any]] = []
    with place.open() as file:
        archive(file, "mail", keep=1000)
        work(file, "mail", 30)

        def each(rows: Any, n: int) -> None:
            batches.append(rows.collect())
            # More jobs finish during every batch than a batch takes.
            work(file, "mail", 12, at=100 * len(batches))

        drain(stream(place, maxRows=10), tmp_path, each)
        assert sizes(batches) == [10, 10, 10]
        first = {row["id"] for batch in batches for row in batch}
        batches.clear()
        drain(stream(place), tmp_path, lambda rows, n: batches.append(rows.collect()))
        assert sizes(batches) == [36]
        assert not first & {row["id"] for row in batches[0]}


def test_a_batch_whose_archive_objects_were_given_up_is_said_to_be_collected(place, tmp_path):
    def fails(rows: Any, n: int) -> None:
        raise ValueError("the sink failed")

    archived(place, 3, 5)
    with pytest.raises(Exception, match="the sink failed"):
        drain(stream(place), tmp_path, fails)
    batches: list[list[Any]] = []
    with place.open() as file:
        file.queue("mail").configure(archive=True, keep=0, archive_for=0.001)
        work(file, "mail", 5, at=100)
        file.archive()
        work(file, "mail", 5, at=200)
        file.archive()
    assert len(listed(place)) < 5
    with pytest.raises(
        Exception, match=r"3 archive objects of the batch .* expired before it was read"
    ) as told:
        drain(stream(place), tmp_path, lambda rows, n: batches.append(rows.collect()))
    assert "fell behind" in str(told.value)
    assert batches == []


def test_a_stream_is_told_of_archive_objects_that_went_unread_unless_it_does_not_mind(place, tmp_path):
    batches: list[list[Any]] = []

    def read(out: Path = tmp_path, **options: Any) -> list[int]:
        batches.clear()
        drain(stream(place, **options), out, lambda rows, n: batches.append(rows.collect()))
        return sizes(batches)

    archived(place, 1, 5)
    assert read() == [5]
    with place.open() as file:
        file.create_queue("other")
        file.queue("mail").configure(archive=True, keep=0, archive_for=0.001)
        for part in range(1, 4):
            work(file, "mail", 5, at=100 * part)
            file.archive()
        assert len(listed(place)) < 3
        work(file, "mail", 5, at=900)
    with pytest.raises(Exception, match="archive objects of the queue mail may have expired unread"):
        read()
    kept = tmp_path / "kept"
    shutil.copytree(tmp_path / "checkpoint", kept / "checkpoint")
    assert read(kept, queues="other") == [0], "of a queue that is not asked for nothing is missed"
    assert 5 <= sum(read(onLoss="ignore")) < 20


def test_quiet_times_are_no_falling_behind(place, tmp_path):
    batches: list[list[Any]] = []

    def read() -> list[int]:
        batches.clear()
        drain(stream(place), tmp_path, lambda rows, n: batches.append(rows.collect()))
        return sizes(batches)

    def one_ends() -> None:
        with file.atomic() as tx:
            tx.cancel(tx.enqueue("mail", {"n": 0}))

    with place.open() as file:
        archive(file, "mail", keep=1000, archive_for=0.001)
        work(file, "mail", 3, dead=3)
        assert read() == [3]
        # Nothing happened for longer than archive_for, until the first job of its kind ended.
        one_ends()
        assert read() == [1]
        file.queue("mail").purge(["cancelled"])
        file.queue("mail").enqueue({"n": 1}, delay=3600)
        assert sum(read()) == 0
        assert read() == [], "told once"
        # There were commits but no job ended: the reader was up to date.
        one_ends()
        assert read() == [1]


def test_a_stream_of_some_queues_and_states(place, tmp_path):
    batches: list[list[Any]] = []
    with place.open() as file:
        for queue in ("mail", "reports"):
            archive(file, queue, keep=3)
            work(file, queue, 12, dead=2)
        file.archive()
    frame = stream(place, queues="mail", states="done")
    drain(frame, tmp_path, lambda rows, n: batches.append(rows.collect()))
    assert [(row["queue"], row["state"]) for row in batches[0]] == [("mail", "done")] * 10
    with pytest.raises(Exception, match="since is an option of batch reads"):
        drain(stream(place, since="2026-01-01T00:00:00+00:00"), tmp_path / "other", lambda rows, n: None)


def test_the_marks_of_writes_are_not_missed(place, tmp_path):
    with place.open() as file:
        archive(file, "mail", keep=0)
        work(file, "mail", 3)
        file.archive()
        drain(stream(place), tmp_path, lambda rows, n: None)
        marks = file.queue("bucketq-writes")
        marks.configure(keep=2)
        for n in range(5):
            marks.cancel(marks.enqueue(n).id)
        work(file, "mail", 3, at=10)
        batches: list[list[Any]] = []
        drain(stream(place), tmp_path, lambda rows, n: batches.append(rows.collect()))
        assert sum(row["queue"] == "mail" for row in batches[0]) == 3
