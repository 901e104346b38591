"""The examples of the docs run, and print what the page says."""

import contextlib
import io
import re

import pytest

from servers import ROOT

PAGES = ["quickstart", "workers", "policies", "archive", "testing", "modes", "errors", "watching"]
PAGES += [f"moving/{page.stem}" for page in (ROOT / "docs" / "moving").glob("*.md")]


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / f"{page}.md").read_text()
    names: dict[str, object] = {}
    blocks = list(re.finditer(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```)?", text, re.DOTALL))
    assert blocks
    for block in blocks:
        code, expected = block.groups(default="")
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(compile(code, f"docs/{page}.md", "exec"), names)
        assert said.getvalue() == expected
