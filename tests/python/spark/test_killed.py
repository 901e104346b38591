"""A driver that is killed, and started again from its checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from door import Asks, Door, Trap, asks, door
from kit import NUMBERS, Place, archive, work
from program import program

from servers import BUCKET, Server

# These tests run separate programs, each of which starts a Spark.
pytestmark = pytest.mark.limit(900)

INTO = {
    "a task puts rows aside": (asks("PUT", ".stage-", 2), False),
    "the first chunk is enqueued, and nobody has heard": (asks("PUT", ".head"), True),
    "all chunks are enqueued, and what was put aside goes": (asks("DELETE", ".stage-"), False),
}
OUT = {
    "half of a batch is in Parquet": (asks("GET", ".arch-", 2), False),
    "rows are put aside for a batch that is not written down": (asks("PUT", ".stage-"), True),
}
"""Where the driver dies: before the request reaches the store, or after the store has replied."""


@pytest.fixture
def through(server: Server) -> Iterator[Door]:
    with door(server.endpoint) as made:
        yield made


@pytest.fixture
def place(through: Door, server: Server, spark: Any) -> Place:
    settings = server.settings | {"endpoint": through.endpoint}
    return Place(f"s3://{BUCKET}/killed{next(NUMBERS)}", settings, spark, server)


def run(through: Door, points: list[tuple[Asks, bool]], scratch: Path, **asked: Any) -> None:
    """Kill the program at each of these points, and then let it run to its end."""
    for wanted, answered in points:
        trap = through.trap = Trap(wanted, answered)
        with program("two_streams.py", scratch, **asked) as driver:
            driver.until(trap.caught)
            driver.kill()
        trap.opened.set()
    through.trap = None
    with program("two_streams.py", scratch, **asked) as driver:
        assert driver.answer() == "done"


def rows(found: list[Any]) -> list[tuple[Any, ...]]:
    """Return the rows without the commit, which is that of the reading."""
    ordered = sorted(found, key=lambda row: row["finish_seq"])
    return [tuple(v for k, v in sorted(row.asDict().items()) if k != "commit_seq") for row in ordered]


def test_a_stream_into_a_queue_whose_driver_is_killed_enqueues_every_row_once(place, through, tmp_path):
    files = tmp_path / "files"
    files.mkdir()
    for part in range(4):
        lines = "".join(f'{{"n":{n}}}\n' for n in range(part * 10, part * 10 + 10))
        (files / f"{part}.json").write_text(lines)
    asked = {
        "stream": "into",
        "options": place.options(),
        "from": str(files),
        "checkpoint": str(tmp_path / "c"),
    }
    with place.open():
        pass
    run(through, list(INTO.values()), tmp_path / "scratch", **asked)
    with place.open() as file:
        jobs = file.list(queue="mail", limit=1000).jobs
        assert sorted(json.loads(file.get(job.id).payload)["n"] for job in jobs) == list(range(40))
        assert len({job.commit_seq for job in jobs}) == 6, "two batches of three chunks"
        assert file.queue("bucketq-writes").counts().counts["scheduled"] == 0
    assert place.staged() == []


def test_a_stream_out_of_a_queue_whose_driver_is_killed_has_every_row_once(place, through, tmp_path):
    with place.open() as file:
        archive(file, "mail")
        for part in range(4):
            work(file, "mail", 10, dead=1, at=part * 10)
            file.archive()
        archive(file, "mail", keep=100)
        work(file, "mail", 5, at=100)
    asked = {"stream": "out", "options": place.options(), "limits": {"maxRows": "25", "partitionRows": "1"}}
    asked |= {"to": str(tmp_path / "out"), "checkpoint": str(tmp_path / "c")}
    run(through, list(OUT.values()), tmp_path / "scratch", **asked)
    found = place.spark.read.parquet(asked["to"]).collect()
    assert len(found) == 45
    assert rows(found) == rows(place.frame().collect())
    # The objects staged by the last batch and by the one that was not recorded are collected after days.
    assert len(place.staged()) <= 2
