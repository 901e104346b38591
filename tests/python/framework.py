"""Runs the command line of a framework on a module that a test wrote, and reads what it prints."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Self

import pytest

from patience import PATIENCE

LEASE = 3
SKEW = 0.4
"""A lease is longer than twice this."""


class Program:
    """A process of a framework in its own process group, whose workers print lines."""

    def __init__(self, module: str, directory: Path, *words: str) -> None:
        path = os.pathsep.join([str(directory), *sys.path])
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *words],
            cwd=directory,
            env=os.environ | {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.lines: list[str] = []

    def says(self, what: str) -> str:
        """Wait until it prints a line with this text, and return what follows the text."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if what in line:
                return line.partition(what)[2].strip()
        pytest.fail(f"the program ended without saying {what!r}:\n{''.join(self.lines)}")

    def end(self) -> int:
        """Ask it to end, and wait until it has."""
        self.process.send_signal(signal.SIGTERM)
        self.lines += self.process.communicate(timeout=PATIENCE)[0].splitlines(keepends=True)
        return self.process.returncode

    def kill(self) -> None:
        """Kill it with all its processes."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate(timeout=PATIENCE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()


def write(directory: Path, name: str, text: str, **values: object) -> None:
    """Write a module. ``{url}`` and the like in it become the reprs of these values."""
    text = textwrap.dedent(text)
    for key, value in values.items():
        text = text.replace(f"{{{key}}}", repr(value))
    (directory / f"{name}.py").write_text(text)
