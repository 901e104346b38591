"""The pipeline keeps its tables wherever Spark can, in any file system of Hadoop."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit import NUMBERS, archive, work

import bucketq
from bucketq.spark import pipeline


@pytest.fixture
def mounted(spark: Any, tmp_path: Path) -> Iterator[Path]:
    """A directory that Spark knows as /bucketq-data in a file system of the directory's name."""
    # Hadoop keeps a file system as long as its process lives.
    mounted = tmp_path / f"mounted{next(NUMBERS)}"
    mounted.mkdir()
    conf = spark.sparkContext._jsc.hadoopConfiguration()
    before = conf.get("fs.defaultFS")
    conf.set(f"fs.viewfs.mounttable.{mounted.name}.link./bucketq-data", f"file://{mounted}")
    yield mounted
    conf.set("fs.defaultFS", before)


@pytest.mark.parametrize("default", [False, True])
def test_tables_and_report_are_where_the_path_says_and_nothing_is_elsewhere(
    place, spark, mounted, tmp_path, monkeypatch, default
):
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    system, out = f"viewfs://{mounted.name}", "/bucketq-data/analysis"
    if default:
        spark.sparkContext._jsc.hadoopConfiguration().set("fs.defaultFS", f"{system}/")
    else:
        out = f"{system}{out}"
    with place.open() as file:
        archive(file, "mail", keep=5)
        work(file, "mail", 20, dead=2)
        first = pipeline(spark, place.url, out, settings=place.settings)
        assert (first.jobs, first.new, first.out) == (20, 20, out)
        assert first.report == f"{out}/report.html"
        work(file, "mail", 5, at=100)
        second = pipeline(spark, place.url, out, settings=place.settings)
        assert (second.jobs, second.new) == (25, 5)
    found = mounted / "analysis"
    names = {path.name for path in found.iterdir()}
    assert {"lives", "hours", "errors", "csv", "report.html", "state.json"} <= names
    assert "<svg" in (found / "report.html").read_text()
    assert (found / "csv" / "hours.csv").read_text().startswith("queue,hour,")
    assert [name for name in names if name.endswith((".new", ".old"))] == []
    assert list(here.iterdir()) == []
    assert not Path("/bucketq-data").exists()
    with place.open() as file, pytest.raises(bucketq.Invalid, match="holds the analysis of"):
        file.export(tmp_path / "image")
        bucketq.restore(f"{place.url}-other", tmp_path / "image", **place.settings)
        pipeline(spark, f"{place.url}-other", out, settings=place.settings)


def test_a_url_of_the_local_disk_and_a_relative_path_make_the_same_directory(
    place, spark, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with place.open() as file:
        work(file, "mail", 4)
        assert pipeline(spark, place.url, f"file://{tmp_path}/out", settings=place.settings).new == 4
        assert pipeline(spark, place.url, "out", settings=place.settings).new == 0
        assert pipeline(spark, place.url, tmp_path / "out", settings=place.settings).jobs == 4
    assert not (tmp_path / "file:").exists()
    (tmp_path / "text").write_text("")
    with pytest.raises(bucketq.Invalid, match="is a file: give a directory"):
        pipeline(spark, place.url, "text", settings=place.settings)


def test_a_new_state_that_was_not_renamed_yet_counts(place, spark, tmp_path):
    with place.open() as file:
        work(file, "mail", 4)
    pipeline(spark, place.url, tmp_path / "out", settings=place.settings)
    # A call that is killed has deleted the old file, and has not renamed the new one.
    (tmp_path / "out" / "state.json").rename(tmp_path / "out" / "state.json.new")
    assert pipeline(spark, place.url, tmp_path / "out", settings=place.settings).days == 0
    (tmp_path / "out" / "state.json").write_text("{")
    with pytest.raises(bucketq.Invalid, match="is not a finished analysis"):
        pipeline(spark, place.url, tmp_path / "out", settings=place.settings)
