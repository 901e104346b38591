"""The README's program runs as it stands there, and its figures and commands are those of the pages and the code."""

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bucketq import fit
from patience import PATIENCE
from servers import ROOT

README = (ROOT / "README.md").read_text()
BIN = Path(sys.executable).parent


def fenced(kind: str, page: str = README) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", page, re.DOTALL)


def section(name: str, page: str = README) -> str:
    return page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]


@pytest.fixture
def environ() -> dict[str, str]:
    """That of a terminal where the package is installed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BUCKETQ_")}
    return kept | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "NO_COLOR": "1"}


def test_the_program_and_its_worker_print_what_the_readme_shows(tmp_path, environ):
    (program,), (shown,) = fenced("python"), fenced("text")
    name = re.match(r"# (\w+\.py)\n", program)[1]
    (tmp_path / name).write_text(program)
    worker, enqueuer, looker = (
        line.partition("#")[0].split()
        for line in fenced("sh", section("A task and its worker"))[0].splitlines()
    )
    assert (worker[:2], enqueuer, looker[:2]) == (
        ["bucketq", "worker"],
        ["python", name],
        ["bucketq", "stats"],
    )
    at = {"cwd": tmp_path, "env": environ, "text": True}
    with subprocess.Popen(worker, stderr=subprocess.PIPE, **at) as working:
        try:
            told = subprocess.run(enqueuer, capture_output=True, timeout=PATIENCE, check=True, **at)
            assert (told.stdout, told.stderr) == (shown, "")
            assert "default" in subprocess.check_output(looker, timeout=PATIENCE, **at)
            working.terminate()
            _, log = working.communicate(timeout=PATIENCE)
            assert working.returncode == 0, log
        finally:
            working.kill()


def test_the_figures_are_those_of_the_measurements_and_of_the_model():
    measured = (ROOT / "docs" / "benchmarks.md").read_text()
    wrong = []
    for row in section("In figures").splitlines():
        if row.startswith("| ") and not row.startswith(("| cost", "| tested")):
            for figure in re.findall(r"\d[\d.,]*\d", row.partition("|")[2]):
                wrong += [] if re.search(rf"(?<![\d.,]){re.escape(figure)}(?![\d])", measured) else [figure]
    assert wrong == []
    (cost,) = (row for row in section("In figures").splitlines() if row.startswith("| cost"))
    table = {row[0]: row for row in months() if row[2] == "90"}
    said = re.findall(r"(\d+) jobs?/s: (\d+), (\d+), ([\d.]*\d), ([\d.]*\d)", cost)
    assert [one[0] for one in said] == list(table)
    for rate, at_once, apart, one, ten in said:
        _, _, _, no_interval, _, second, *sqs = table[rate]
        assert (no_interval.split(",")[0], second.split(",")[0]) == (at_once, apart)
        assert [float(one), float(ten)] == pytest.approx([float(found) for found in sqs], abs=0.5)
        assert all("." not in said or said == found for said, found in zip((one, ten), sqs, strict=True))


def months() -> list[list[str]]:
    """Return the rows of the table of costs."""
    page = (
        (ROOT / "docs" / "fit.md").read_text().partition("\n### Cost of a month\n")[2].partition("\n### ")[0]
    )
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if re.match(r"\| \d", line)]
    assert len(rows) >= 4
    return rows


@pytest.mark.parametrize("row", months(), ids=lambda row: f"{row[0]} a second, {row[2]} ms")
def test_the_table_of_costs_is_that_of_the_model(row):
    rate, callers, put, *told = row
    producers, consumers = (float(count) for count in callers.split(", "))
    given = {"arrival": float(rate), "producers": producers, "consumers": consumers}
    given |= {"latency_ms": float(put), "latency_min_ms": min(float(put), 60.0)}
    found = []
    for interval in (0, 250, 1000):
        result = fit.evaluate(commit_interval_ms=interval, **given)
        found.append(f"{result.month.cost:,.0f}, {result.engine.dispatch_ms / 1000:.2f} s")
    found += [f"{fit.evaluate(sqs_batch=batch, **given).month.sqs_cost:,.1f}" for batch in (1, 10)]
    assert told == found


def test_every_command_that_a_page_for_users_names_exists(environ):
    helps = subprocess.check_output(["bucketq", "--help"], env=environ, text=True)
    commands = set(re.findall(r"^│ ([a-z-]+) ", helps, re.MULTILINE))
    for page in ("README.md", "docs/questions.md", "docs/production.md"):
        text = (ROOT / page).read_text()
        blocks = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
        prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
        code = "\n".join([text for kind, text in blocks if kind not in {"python", "rust"}])
        code += "\n" + "\n".join(re.findall(r"`([^`\n]+)`", prose))
        named = re.findall(r"(?:^|\s|/)bucketq ([a-z][a-z-]*)", code)
        assert named
        assert set(named) <= commands, page


def test_the_picture_shows_what_the_command_shows_and_loads_nothing(tmp_path):
    words = [
        "queue",
        "scheduled",
        "ready",
        "leased",
        "done",
        "dead",
        "cancelled",
        "waiting",
        "emails",
        "reports",
    ]
    assert "](docs/stats.svg)" in README
    subprocess.run(
        [sys.executable, ROOT / "docs" / "picture.py", tmp_path / "new.svg"], check=True, timeout=PATIENCE
    )
    for picture in (ROOT / "docs" / "stats.svg", tmp_path / "new.svg"):
        drawn = ElementTree.parse(picture)
        texts = [
            text.text.replace("\xa0", " ").strip() for text in drawn.iter("{http://www.w3.org/2000/svg}text")
        ]
        assert [text for text in texts if text in words] == words
        assert any("per second" in text for text in texts)
        source = picture.read_text()
        assert not re.search(r"url\((?!#)|href|@import|/tmp", source)


def test_the_index_of_the_docs_has_every_page():
    index = (ROOT / "docs" / "README.md").read_text()
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "moving").glob("*.md")]
    names = {page.relative_to(ROOT / "docs").as_posix() for page in pages}
    assert names - {"README.md"} <= set(re.findall(r"\]\(([^)#]+)", index))
