"""The tutorials and the how-to pages work from top to bottom: Python, commands, settings and policies."""

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from bucketq import settings
from command import Command
from patience import PATIENCE
from servers import ROOT

DOCS = ROOT / "docs"
BIN = Path(sys.executable).parent
GUIDES = ["tutorial", "etl", *sorted(f"how-to/{page.stem}" for page in DOCS.glob("how-to/*.md"))]
BLOCK = re.compile(
    r"^( *)```(?!text)(\w+)\n(.*?)^\1```\n(?:\n\1```text\n(.*?)^\1```\n)?", re.DOTALL | re.MULTILINE
)


OPEN = {"etl", "how-to/retries"}
"""Pages whose Python has the queue file open while commands run. Those are processes of their own then."""


class Place:
    """An empty directory with a terminal, in which a page is followed."""

    def __init__(self, command: Command, page: str) -> None:
        self.command, self.directory, self.page = command, command.directory, page
        command.environ |= {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "BUCKETQ_URL": "jobs"}
        self.names: dict[str, object] = {}

    def python(self, code: str) -> str:
        """Run it, or write the program that its first line names. Returns what it printed."""
        if found := re.match(r"# (\w+\.py)\n", code):
            (self.directory / found[1]).write_text(code)
            return ""
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(compile(code, f"docs/{self.page}.md", "exec"), self.names)
        return said.getvalue()

    def sh(self, code: str) -> str:
        """Run each line; none may fail. Returns what the last one printed."""
        told = ""
        for line in code.splitlines():
            words = shlex.split(line, comments=True)
            # In this process it is faster.
            is_here = words[0] == "bucketq" and words[1] != "worker" and self.page not in OPEN
            told = self.command(*words[1:]) if is_here else self.shell(line)
        return told

    def shell(self, line: str) -> str:
        """Run a line in a shell."""
        at = {"cwd": self.directory, "env": self.command.environ, "text": True, "timeout": PATIENCE}
        done = subprocess.run(["bash", "-c", line], capture_output=True, **at)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout

    def toml(self, text: str) -> str:
        """Read it as settings: each name and value must be one."""
        path = self.directory / "bucketq.toml"
        path.write_text(text)
        assert settings.load(path, environ={})["url"].startswith("s3://")
        return ""

    def json(self, text: str) -> str:
        """Read it as a policy of AWS: its actions must be among those of the page of stores."""
        (whole,) = re.findall(r"```json\n(.*?)```", (DOCS / "stores.md").read_text(), re.DOTALL)
        allowed = set(re.findall(r"s3:[A-Z]\w+", whole))
        for statement in json.loads(text)["Statement"]:
            assert {statement["Action"]} <= allowed
        return ""


@pytest.mark.parametrize("page", GUIDES)
def test_a_guide_can_be_followed_from_top_to_bottom(page, command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BUCKETQ_URL", "jobs")
    monkeypatch.syspath_prepend(tmp_path)
    programs = {path.stem for path in DOCS.glob("examples/*.py")} | {"letters"}
    for name in programs & set(sys.modules):
        monkeypatch.delitem(sys.modules, name)
    text = (DOCS / f"{page}.md").read_text()
    for name in re.findall(r"This tutorial runs \[(\w+\.py)\]", text):
        shutil.copy(DOCS / "examples" / name, tmp_path)
    place = Place(command, page)
    blocks = list(BLOCK.finditer(text))
    assert blocks
    try:
        for block in blocks:
            kind, code, expected = (dedent(part or "") for part in block.groups()[1:])
            shown = getattr(place, kind)(code)
            if expected or kind == "python":
                assert shown == expected
    finally:
        for name in programs:
            sys.modules.pop(name, None)
