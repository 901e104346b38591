"""Several queries on one queue file at once, while workers claim and ack."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from kit import archive, stream
from program import program

from patience import PATIENCE

# These tests run separate programs, each of which starts a Spark.
pytestmark = pytest.mark.limit(900)

FILES, ROWS = 3, 20


def write_files(path: Path, first: int) -> None:
    path.mkdir()
    for part in range(FILES):
        begin = first + part * ROWS
        (path / f"{part}.json").write_text("".join(f'{{"n":{n}}}\n' for n in range(begin, begin + ROWS)))


@pytest.mark.parametrize("place", ["file", "s3"], indirect=True)
def test_two_streams_in_one_out_and_workers_beside_them_lose_and_double_nothing(place, spark, tmp_path):
    jobs = 2 * FILES * ROWS
    seen: list[Any] = []
    everything = threading.Event()

    def each(rows: Any, n: int) -> None:
        seen.extend(row for row in rows.collect() if row["queue"] == "mail")
        if len(seen) >= jobs:
            everything.set()

    def into(name: str) -> Any:
        rows = spark.readStream.schema("n bigint").option("maxFilesPerTrigger", 1).json(str(tmp_path / name))
        out = rows.selectExpr("struct(n) AS payload").writeStream.format("bucketq")
        out = out.options(**place.options(queue="mail"))
        return (
            out.option("checkpointLocation", str(tmp_path / f"{name}-in")).trigger(availableNow=True).start()
        )

    write_files(tmp_path / "a", 0)
    write_files(tmp_path / "b", FILES * ROWS)
    asked = {"url": place.url, "settings": place.settings, "jobs": jobs}
    with place.open() as file:
        archive(file, "mail", keep=jobs)
        with (
            program("claiming.py", tmp_path / "one", **asked) as one,
            program("claiming.py", tmp_path / "two", **asked) as two,
        ):
            out = stream(place, pollSeconds=0.1).writeStream.foreachBatch(each)
            out = out.option("checkpointLocation", str(tmp_path / "out")).start()
            try:
                for query in [into("a"), into("b")]:
                    assert query.awaitTermination(PATIENCE)
                had = one.answer() + two.answer()
                assert everything.wait(PATIENCE), f"{len(seen)} of {jobs} came out of the stream"
            finally:
                out.stop()
        assert out.exception() is None
        assert sorted(had) == list(range(jobs)), "each job was worked on once"
        assert len({row["id"] for row in seen}) == len(seen) == jobs
        assert {row["state"] for row in seen} == {"done"}
        assert len({row["finish_seq"] for row in seen}) == jobs
        # One mark for each chunk, and one for the end of each write.
        assert file.queue("bucketq-writes").counts().counts["cancelled"] == 2 * FILES * 2
