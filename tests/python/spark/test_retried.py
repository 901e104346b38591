"""Tasks that die and are run again, sinks that fail, writes that fail permanently."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from door import LIMIT, Trap, asks, door
from kit import Place, archive, drain, stream, work

from bucketq import QueueFile


def owner(port: int) -> int:
    """Return the process that has this end of a connection."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, here, _, state, *_ = fields = line.split()
        if int(here.rsplit(":", 1)[1], 16) == port and state == "01":
            wanted = f"socket:[{fields[9]}]"
            for link in Path("/proc").glob("[0-9]*/fd/*"):
                with suppress(OSError):
                    if str(link.readlink()) == wanted:
                        return int(link.parts[2])
    raise AssertionError(f"nobody has port {port}")


def numbers(file: QueueFile) -> list[int]:
    jobs = file.list(queue="mail", limit=1000).jobs
    return sorted(json.loads(file.get(job.id).payload)["n"] for job in jobs)


@contextmanager
def killed_by(trap: Trap) -> Iterator[None]:
    """Kill the process that sends the trapped request, which the block has to cause."""
    killed: list[int] = []

    def kill() -> None:
        if trap.caught.wait(LIMIT):
            killed.append(owner(trap.port))
            os.kill(killed[0], signal.SIGKILL)
            trap.opened.set()

    thread = threading.Thread(target=kill)
    thread.start()
    yield
    thread.join()
    assert killed


@pytest.mark.parametrize("place", ["s3"], indirect=True)
@pytest.mark.parametrize("how", ["batch", "stream"])
def test_the_rows_of_a_task_that_died_after_it_had_put_them_aside_are_enqueued_once(
    place, spark, tmp_path, how
):
    with place.open() as file, door(place.server.endpoint) as through:
        trap = through.trap = Trap(asks("PUT", ".stage-", 2), answered=True)
        options = place.options(queue="mail", endpoint=through.endpoint)
        with killed_by(trap):
            if how == "batch":
                rows = spark.range(0, 60, 1, 3).selectExpr("struct(id AS n) AS payload")
                rows.write.format("bucketq").mode("append").options(**options).save()
            else:
                spark.range(0, 60).selectExpr("id AS n").write.json(str(tmp_path / "in"))
                rows = spark.readStream.schema("n bigint").json(str(tmp_path / "in")).repartition(3)
                out = rows.selectExpr("struct(n) AS payload").writeStream.format("bucketq").options(**options)
                out = out.option("checkpointLocation", str(tmp_path / "checkpoint"))
                assert out.trigger(availableNow=True).start().awaitTermination(LIMIT)
        assert numbers(file) == list(range(60))
        assert through.count("PUT", ".stage-") == 4, "the task was run again"
        assert place.staged() == []


@pytest.mark.parametrize("place", ["s3"], indirect=True)
def test_after_a_sink_failed_its_batch_comes_again_row_for_row_in_another_query(place, tmp_path):
    first: list[Any] = []
    again: list[Any] = []

    def fails(rows: Any, n: int) -> None:
        first.extend(rows.collect())
        raise OSError("the sink failed")

    with place.open() as file:
        archive(file, "mail", keep=10)
        work(file, "mail", 30, dead=2)
        file.archive()
        with pytest.raises(Exception, match="the sink failed"):
            drain(stream(place, maxRows=25), tmp_path, fails)
        # Live rows leave for the archive, and more follow.
        work(file, "mail", 20, at=50)
        file.archive()
        drain(stream(place, maxRows=25), tmp_path, lambda rows, n: again.append(rows.collect()))
    # The commit in each row is the one at which the batch was planned, which is part of its offsets.
    assert len(first) == 25
    assert sorted(map(tuple, again[0])) == sorted(map(tuple, first))
    assert len({row["id"] for batch in again for row in batch}) == 50


@pytest.mark.parametrize("place", ["s3"], indirect=True)
def test_a_write_that_failed_for_good_leaves_no_jobs_and_nothing_aside(place: Place, spark: Any):
    with place.open() as file:
        before = file.stats().commit_seq
        broken = spark.range(0, 90, 1, 3).selectExpr(
            "struct(if(id = 80, raise_error('boom'), id) AS n) AS payload"
        )
        with pytest.raises(Exception, match="boom"):
            broken.write.format("bucketq").mode("append").options(**place.options(queue="mail")).save()
        assert file.stats().commit_seq == before
        assert numbers(file) == []
        assert place.staged() == []
