"""Queue files read as DataFrames."""

from __future__ import annotations

from datetime import UTC
from typing import Any

import pytest
from kit import archive, work


def life(row: Any) -> tuple[str, int]:
    return row["id"], row["run"]


@pytest.mark.parametrize("place", ["file", "s3"], indirect=True)
def test_history_is_the_archive_and_what_is_not_archived_each_life_once(place):
    with place.open() as file:
        archive(file, "mail", keep=7)
        archive(file, "reports", keep=2)
        for part in range(3):
            work(file, "mail", 40, dead=3, at=40 * part)
            work(file, "reports", 20, at=20 * part)
            file.archive()
        work(file, "mail", 5, at=1000)
        (again,) = [j.id for j in file.list(queue="mail", states=["dead"]).jobs][:1]
        file.queue("mail").requeue(again)
        with file.queue("mail").claim_one() as job:
            assert job.id == again
        seq = file.stats().commit_seq
    rows = place.rows(view="history")
    assert len({life(row) for row in rows}) == len(rows) == 3 * 60 + 6
    assert {row["commit_seq"] for row in rows} == {seq}
    assert len({row["finish_seq"] for row in rows}) == len(rows)
    both = sorted((row["run"], row["state"]) for row in rows if row["id"] == again)
    assert both == [(0, "dead"), (1, "done")], "its first life as well"
    assert sum(row["state"] == "dead" for row in rows) == 9
    done = [row for row in rows if row["queue"] == "mail" and row["state"] == "done" and row["result"]]
    assert all(b'{"was":' in bytes(row["result"]) and row["worker"] for row in done)


def test_options_choose_rows_and_filters_on_one_frame_do_not_disturb_each_other(place):
    with place.open() as file:
        for queue in ("mail", "reports"):
            archive(file, queue, keep=3)
        file.create_queue("none")
        for part in range(3):
            work(file, "mail", 20, dead=2, at=20 * part)
            work(file, "reports", 20, at=20 * part)
            file.archive()
    everything = place.rows()
    seqs = sorted(row["finish_seq"] for row in everything)
    low, high = seqs[17], seqs[90]
    middle = sorted(row["finished_at"] for row in everything)[60]
    told = middle.replace(tzinfo=UTC).isoformat()
    for options, wanted in (
        ({"queues": "mail", "after": low, "until": high},
         lambda r: r["queue"] == "mail" and low < r["finish_seq"] <= high),
        ({"states": "dead,cancelled"}, lambda r: r["state"] == "dead"),
        ({"since": told}, lambda r: r["finished_at"] >= middle),
        ({"before": told, "queues": "reports, none"},
         lambda r: r["finished_at"] < middle and r["queue"] == "reports"),
    ):  # fmt: skip
        assert {life(r) for r in place.rows(**options)} == {life(r) for r in everything if wanted(r)}, options
    frame = place.frame()
    assert frame.filter("queue = 'mail'").count() == 60
    assert frame.count() == 120


def test_filters_spare_objects(place):
    with place.open() as file:
        archive(file, "mail")
        archive(file, "reports")
        for part in range(3):
            work(file, "mail", 10, at=part)
            work(file, "reports", 10, at=part)
            file.archive()
    from pyspark.sql import datasource as ds
    from pyspark.sql.datasource import CaseInsensitiveDict

    from bucketq.spark.source import PushingReader, Source

    source = Source(CaseInsensitiveDict(place.options(partitionRows=1)))
    reader = PushingReader(source, source.schema())
    assert len(reader.partitions()) == 6
    list(reader.pushFilters([ds.EqualTo(("queue",), "mail")]))
    assert len(reader.partitions()) == 3
    last = max(row["finish_seq"] for row in place.rows())
    list(
        reader.pushFilters([ds.EqualTo(("queue",), "reports"), ds.GreaterThanOrEqual(("finish_seq",), last)])
    )
    assert len(reader.partitions()) == 1


def test_a_dataframe_shows_one_commit_whatever_happens_meanwhile(place):
    with place.open() as file:
        archive(file, "mail", keep=5)
        work(file, "mail", 30)
        file.archive()
        history, jobs = place.frame(), place.frame(view="jobs")
        before = {life(row) for row in history.collect()}
        live = {row["id"] for row in jobs.collect()}
        seq = file.stats().commit_seq
        work(file, "mail", 30, at=100)
        file.archive()
        file.queue("mail").enqueue("one more")
        assert {life(row) for row in history.collect()} == before
        assert {row["id"] for row in jobs.collect()} == live
        assert {row["commit_seq"] for row in history.union(history).collect()} == {seq}


def test_jobs_are_the_live_state(place):
    with place.open() as file:
        q = file.queue("mail")
        ids = [
            q.enqueue({"n": n}, priority=n, headers={"h": str(n)}, group="g" if n else None).id
            for n in range(4)
        ]
        q.enqueue(b"x" * 3000, delay=3600, dedup="k")
        file.queue("other").enqueue("text")
        taken = q.claim_one(worker="me")
        dead = q.claim_one()
        dead.reject("bad")
        rows = {row["id"]: row for row in place.rows(view="jobs")}
        assert len(rows) == 6
        for info in file.list().jobs:
            row = rows[info.id]
            assert (row["state"], row["queue"], row["priority"]) == (info.state, info.queue, info.priority)
            assert (row["attempts"], row["worker"], row["group"]) == (info.attempt, info.worker, info.group)
            assert row["enqueued_at"] == info.enqueued_at.replace(tzinfo=None)
            assert row["last_error"] == info.last_error
        assert rows[taken.id]["state"] == "leased"
        assert rows[taken.id]["expires_at"] is not None
        assert rows[ids[2]]["headers"] == {"h": "2"}
        assert bytes(rows[ids[2]]["payload"]) == b'{"n":2}'
        (large,) = [row for row in rows.values() if row["dedup"] == "k"]
        assert bytes(large["payload"]) == b"x" * 3000
        assert large["state"] == "scheduled"
        chosen = place.rows(view="jobs", columns="id,state,queue", queues="mail", states="ready")
        assert {row["id"] for row in chosen} == {i for i in ids if rows[i]["state"] == "ready"}


def test_jobs_are_read_in_parts_and_filters_apply_to_columns_that_are_not_asked_for(place):
    with place.open() as file:
        q = file.queue("mail")
        old = {q.enqueue({"n": n}).id for n in range(5)}
        taken = q.claim_one(worker="me")
        rows = place.rows(view="jobs", batchRows=2)
        assert {row["id"] for row in rows} == old
        assert len(rows) == 5
        told = {row["id"]: row for row in rows}
        assert told[taken.id]["expired"] is False
        assert told[taken.id]["claim_commit_seq"] == taken.fence
        assert (told[taken.id]["headers"], told[taken.id]["payload_type"]) == ({}, "application/json")
        taken.ack()
        file.create_queue("none")
        for options in ({"states": "cancelled"}, {"queues": "none"}):
            assert place.rows(view="jobs", **options) == []
        since = "2020-01-01T00:00:00+00:00"
        assert [row["id"] for row in place.rows(view="jobs", columns="id", since=since)] == [taken.id]


def test_queues_and_commits(place):
    with place.open() as file:
        work(file, "mail", 3, dead=1)
        file.queue("other").enqueue("text")
        (mail, other) = sorted(place.rows(view="queues"), key=lambda row: row["name"])
        assert (mail["done"], mail["dead"], mail["ready"]) == (2, 1, 0)
        assert (other["name"], other["ready"], other["paused"]) == ("other", 1, False)
        commits = place.rows(view="commits")
        assert [c["commit"] for c in commits] == [c.commit_seq for c in reversed(file.history(limit=1000))]
        assert {c["commit_seq"] for c in commits} == {file.stats().commit_seq}


def test_what_makes_no_sense_is_refused_at_once(place, spark):
    with place.open():
        pass
    for options, told in (
        ({"view": "jbos"}, "there is no view 'jbos'.*jobs"),
        ({"maxRow": 5}, "no option 'maxrow'.*maxRows"),
        ({"columns": "id,status"}, "no column 'status'.*state"),
        ({"partitionRows": "many"}, "partitionRows must be a whole number"),
    ):
        with pytest.raises(Exception, match=f"(?s){told}"):
            place.frame(**options).collect()
    with pytest.raises(Exception, match="a memory:// queue file exists in only one"):
        spark.read.format("bucketq").option("url", "memory://x").load()
    with pytest.raises(Exception, match="there is no queue file none"):
        spark.read.format("bucketq").option("url", f"{place.url}-none/none").load()


@pytest.mark.parametrize("place", ["file", "s3"], indirect=True)
def test_a_dataframe_shows_one_commit_while_writers_are_at_work_between_its_partitions(place):
    with place.open() as file:
        archive(file, "mail", keep=6)
        for part in range(4):
            work(file, "mail", 12, dead=2, at=12 * part)
            file.archive()
        expected = {life(row): row["finish_seq"] for row in place.rows()}
        seq = file.stats().commit_seq
        frame = place.frame(partitionRows=1)
        # A DataFrame shows the file at the time it was made, not at the time it is read.
        work(file, "mail", 1, at=999)
        found: list[Any] = []
        for row in frame.toLocalIterator():
            # Spark reads a partition when its rows are requested: the file has changed before each of them.
            if len(found) % 5 == 0:
                work(file, "mail", 1, at=1000 + len(found))
                for job in file.list(queue="mail", states=["dead"], limit=1).jobs:
                    file.queue("mail").requeue(job.id)
                file.archive()
            found.append(row)
        assert frame.rdd.getNumPartitions() >= 4
        assert {row["commit_seq"] for row in found} == {seq}
        assert file.stats().commit_seq > seq + 20
        assert {life(row): row["finish_seq"] for row in found} == expected
        assert len(found) == 48
