"""The programs of docs/examples, each run in an empty directory as its first lines say."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from patience import PATIENCE
from servers import ROOT

EXAMPLES = ROOT / "docs" / "examples"
BIN = Path(sys.executable).parent


class Place:
    """An empty directory with one program."""

    def __init__(self, directory: Path, name: str) -> None:
        self.directory = directory
        shutil.copy(EXAMPLES / name, directory)
        head = (EXAMPLES / name).read_text().split('"""')[1]
        self.lines = [
            line.partition("  # ")[0].strip() for line in head.splitlines() if line.startswith("    ")
        ]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("BUCKETQ_")}
        self.environ = kept | {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "100"}

    def line(self, begins: str) -> list[str]:
        """Return the words of the line of the program's head that begins like this."""
        (found,) = (line for line in self.lines if line.startswith(begins))
        return shlex.split(found)

    @contextmanager
    def running(self, words: list[str], **environ: str) -> Iterator[subprocess.Popen]:
        at = {"cwd": self.directory, "env": self.environ | environ}
        with subprocess.Popen(words, stderr=subprocess.PIPE, **at) as process:
            try:
                yield process
                process.terminate()
                process.communicate(timeout=PATIENCE)
            finally:
                process.kill()

    def run(self, words: list[str]) -> str:
        out, err = self.both(words)
        assert err == ""
        return out

    def both(self, words: list[str]) -> tuple[str, str]:
        """Run a program that says something on standard error too."""
        done = subprocess.run(
            words, cwd=self.directory, env=self.environ, capture_output=True, text=True, timeout=PATIENCE
        )
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr


def until(look: Callable[[], object]) -> None:
    """Wait for something that other processes do."""
    end = time.monotonic() + PATIENCE
    while not look():
        assert time.monotonic() < end
        time.sleep(0.02)


def ask(url: str, body: object = None, **headers: str) -> tuple[int, dict]:
    data = None if body is None else json.dumps(body).encode()
    until = time.monotonic() + PATIENCE
    while True:
        try:
            with urllib.request.urlopen(
                urllib.request.Request(url, data, headers), timeout=PATIENCE
            ) as reply:
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)
        except urllib.error.URLError:
            # The server is starting.
            assert time.monotonic() < until
            time.sleep(0.02)
