"""The examples of docs/spark.md, and the notebook beside it, run unchanged."""

from __future__ import annotations

import re

import pytest
from program import program

from servers import ROOT

# These tests run separate programs, each of which starts a Spark.
pytestmark = pytest.mark.limit(900)

SHOP = """\
90 mails wait
81 sent, 18 attempts failed
de: 3 without mail
fr: 3 without mail
it: 3 without mail
ConnectionError: no mail server for nowhere.invalid
90 finished jobs copied
9 mails once more
9 sent, 9 finished jobs copied
99 lives of 90 jobs: 90 sent, 0 dead
"""


def test_the_examples_of_the_page_and_the_notebook_run_in_an_empty_directory(spark, tmp_path):
    text = (ROOT / "docs" / "spark.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```)?", text, re.DOTALL)
    assert len(blocks) >= 5
    notebook = (ROOT / "docs" / "examples" / "shop.py").read_text()
    assert notebook.count("# %% [markdown]") >= 6
    with program(
        "examples.py", tmp_path / "here", page=[code for code, _ in blocks], notebook=notebook
    ) as run:
        told = run.answer(limit=360)
    assert told["page"] == [expected for _, expected in blocks]
    assert told["notebook"] == SHOP
    assert {"analysis", "finished", "shop-finished", "shop.head", "jobs.head"} <= set(told["made"])
    report = (tmp_path / "here" / "shop-analysis" / "report.html").read_text()
    assert "Does a queue in object storage fit?" in report
    assert "<svg" in report
