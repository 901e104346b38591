"""Every test here runs on both faces and on every store it asks for: see the fixtures ``box`` and ``face``."""

from __future__ import annotations

import asyncio
import inspect
import io
import os
import signal
import sys
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis.configuration import set_hypothesis_home_dir

from boxes import NUMBERS, Box, memory_url
from bucketq.cli import main
from command import Command, as_process
from servers import BUCKET, ROOT, Server, s3

# A shell has Ctrl-C ignored by what it starts in the background, and so would every program that a test starts.
signal.signal(signal.SIGINT, signal.default_int_handler)

TIME_LIMIT = 60.0

set_hypothesis_home_dir(ROOT / ".venv" / "hypothesis")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine as a test, with a limit: a hang is a failure."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    coroutine = pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names})
    asyncio.run(within_limit(coroutine))
    return True


async def within_limit(test: Coroutine[Any, Any, None]) -> None:
    """A test that swallows its cancellation has not passed either."""
    async with asyncio.timeout(TIME_LIMIT) as limit:
        await test
    assert not limit.expired(), f"not over within {TIME_LIMIT} s"


@pytest.fixture(params=["blocking", "aio"])
def face(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with s3() as server:
        yield server


@pytest.fixture(params=["memory", "file", "s3"])
def box(request: pytest.FixtureRequest, face: str, tmp_path: Path) -> Box:
    """On every store."""
    match request.param:
        case "memory":
            return Box(face, memory_url(), {})
        case "file":
            return Box(face, str(tmp_path / "jobs"), {})
        case _:
            server: Server = request.getfixturevalue("server")
            return Box(face, f"s3://{BUCKET}/python{next(NUMBERS)}/jobs", server.settings)


@pytest.fixture
def memory(face: str) -> Box:
    """In memory only: for what does not depend on the store."""
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
