"""The command ``bucketq analyze``, as a process."""

from __future__ import annotations

import json

import pytest
from kit import archive, work
from program import LIMIT

import bucketq

# These tests run separate programs, each of which starts a Spark.
pytestmark = pytest.mark.limit(900)


@pytest.fixture
def process(spark, process):
    """The command as a process, if Java is installed."""
    return process


def analyze(process, *words: str) -> tuple[str, str]:
    """Return its standard output and standard error."""
    with process.start("analyze", *words, "--master", "local[1]") as running:
        out, err = running.communicate(timeout=LIMIT)
    assert running.returncode == 0, err
    return out, err


def test_analyze_writes_tables_and_a_report_and_adds_what_is_new(process, tmp_path):
    url, out = process.environ["BUCKETQ_URL"], tmp_path / "analysis"
    assert "no queue file" in process.fails("NotFound", "analyze", url, "--out", str(out))
    with bucketq.open(url) as file:
        archive(file, "mail", keep=5)
        work(file, "mail", 20, dead=2)
        file.archive()
        said, told = analyze(process, url, "--out", str(out))
        assert said.startswith("20 jobs, 20 runs new, in ")
        assert "computing" in told
        work(file, "mail", 5)
    said, _ = analyze(process, url, "--out", str(out), "--json")
    answer = json.loads(said)
    assert (answer["new"], answer["jobs"]) == (5, 25)
    assert "Does a queue in object storage fit?" in (out / "report.html").read_text()
    assert "give a directory" in process.fails("Invalid", "analyze", url, "--out", str(out / "report.html"))
    with bucketq.open(f"{url}-other") as file:
        said, _ = analyze(process, f"{url}-other", "--out", str(tmp_path / "empty"))
        assert said == f"{url}-other has no finished jobs yet: there is nothing to analyse\n"
        file.queue("mail").enqueue({})
        said, _ = analyze(process, f"{url}-other", "--out", str(tmp_path / "empty"), "--json")
        assert (json.loads(said)["jobs"], json.loads(said)["report"]) == (0, None)
    assert "holds the analysis of" in process.fails("Invalid", "analyze", f"{url}-other", "--out", str(out))
