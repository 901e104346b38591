"""The examples of the docs run, and print the output that the page shows."""

import contextlib
import io
import re

import duckdb
import pytest

import bucketq
from servers import ROOT

PAGES = [
    "quickstart",
    "questions",
    "tasks",
    "workers",
    "policies",
    "archive",
    "testing",
    "modes",
    "errors",
    "watching",
    "hosts",
]
PAGES += [f"moving/{page.stem}" for page in (ROOT / "docs" / "moving").glob("*.md")]


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / f"{page}.md").read_text()
    names: dict[str, object] = {"__name__": "__main__"}
    blocks = list(re.finditer(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```)?", text, re.DOTALL))
    assert blocks
    for block in blocks:
        code, expected = block.groups(default="")
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(compile(code, f"docs/{page}.md", "exec"), names)
        assert said.getvalue() == expected


def test_a_step_of_a_pipeline_enqueues_its_jobs_once_and_waits_for_them():
    page = (ROOT / "docs" / "airflow-prefect.md").read_text()
    (code,) = re.findall(r"```python\n(# myapp/sales.py\n.*?)```", page, re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(code.replace("s3://acme/jobs", "memory://airflow"), "myapp/sales.py", "exec"), names)
    app, finished = names["app"], names["finished"]
    with app:
        ids = names["enqueue"]("run-1", ["monday", "tuesday"])
        assert finished(ids) is None
        assert names["enqueue"]("run-1", ["monday", "tuesday"]) == ids
        assert app.worker().run(wait=0).done == 2
        assert finished(ids) == [6, 7]
        others = names["enqueue"]("run-2", ["sunday"])
        app.file.queue("days").cancel(others[0])
        with pytest.raises(RuntimeError, match="cancelled"):
            finished(others)


def test_the_sql_of_the_archive_page_answers_over_every_object(tmp_path):
    (sql,) = re.findall(r"```sql\n(.*?)```", (ROOT / "docs" / "archive.md").read_text(), re.DOTALL)
    with bucketq.open(tmp_path / "jobs") as file:
        for queue, count in (("emails", 3), ("reports", 1)):
            q = file.queue(queue)
            q.configure(keep=0, archive=True)
            for n in range(count):
                q.enqueue(n)
                q.claim_one().ack()
                file.archive()
        q.enqueue("bad")
        q.claim_one().reject("not counted")
        file.archive()
        objects = file.archives().objects
    assert len(objects) == 5
    found = duckdb.execute(sql, {"keys": [str(tmp_path / one.key) for one in objects]}).fetchall()
    assert sorted((queue, count) for queue, count, _ in found) == [("emails", 3), ("reports", 1)]
    assert all(0 <= wait < 60_000 for *_, wait in found)
