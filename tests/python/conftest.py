"""Every test here runs on both APIs and on every store it requests: see the fixtures ``box`` and ``face``."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis.configuration import set_hypothesis_home_dir

from boxes import NUMBERS, Box, memory_url
from bucketq.cli import main
from command import Command, as_process
from servers import BUCKET, ROOT, Server, s3

# A shell makes its background programs ignore Ctrl-C, and every program that a test starts would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["meeting", "limits", "progress", "coroutines", "leading"]

set_hypothesis_home_dir(ROOT / ".venv" / "hypothesis")


@pytest.fixture(params=["blocking", "aio"])
def face(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with s3() as server:
        yield server


@pytest.fixture(params=["memory", "file", "s3"])
def box(request: pytest.FixtureRequest, face: str, tmp_path: Path, led: Callable[..., None]) -> Box:
    """A queue file on every store."""
    match request.param:
        case "memory":
            return Box(face, memory_url(), {})
        case "file":
            box = Box(face, str(tmp_path / "jobs"), {})
        case _:
            server: Server = request.getfixturevalue("server")
            box = Box(face, f"s3://{BUCKET}/python{next(NUMBERS)}/jobs", server.settings)
    led(box.url, box.settings)
    return box


@pytest.fixture
def memory(face: str) -> Box:
    """A queue file in memory only: for tests that do not depend on the store."""
    return Box(face, memory_url(), {})


@pytest.fixture
def process(tmp_path: Path) -> Command:
    """The command as a process."""
    return Command(str(tmp_path / "jobs"), tmp_path, as_process)


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command in this process."""

    def here(command: Command, words: tuple[str, ...], given: str) -> tuple[int, str, str]:
        with monkeypatch.context() as patch:
            patch.setattr(os, "environ", command.environ)
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given.encode())))
            patch.chdir(command.directory)
            code = main(words)
        return code, *capsys.readouterr()

    return Command(str(tmp_path / "jobs"), tmp_path, here)
