"""Another process that opens the queue file of a test first, so that the test works through it: BUCKETQ_TEST_LINK=1."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

WANTED = os.environ.get("BUCKETQ_TEST_LINK") == "1"
"""Whether the tests run through another process."""

PROGRAM = """
import json, sys
import bucketq

files = {}
for line in sys.stdin:
    order = json.loads(line)
    url = order["url"]
    if "settings" in order:
        files[url] = bucketq.open(url, **order["settings"])
        role = files[url].host_role.role
    else:
        files.pop(url).close()
        role = "closed"
    print(role, flush=True)
"""


class Leader:
    """Another process. It leads on each queue file that it has opened."""

    def __init__(self) -> None:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("BUCKETQ_")}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen([sys.executable, "-c", PROGRAM], text=True, env=environ, **pipes)

    def obeys(self, **order: Any) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    @contextmanager
    def leads(self, url: str, settings: dict[str, Any]) -> Iterator[None]:
        assert self.obeys(url=url, settings=settings) == "leads"
        yield
        assert self.obeys(url=url) == "closed"

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "own_writer(reason): the test is about a process that writes itself")


def goes_over_the_link(item: pytest.Item) -> bool:
    """Return whether another process can lead on the queue file of this test."""
    if "box" not in getattr(item, "fixturenames", ()) or item.get_closest_marker("own_writer") is not None:
        return False
    callspec = getattr(item, "callspec", None)
    return callspec is None or callspec.params.get("box") != "memory"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that would do the same as without another process."""
    if WANTED:
        others = [item for item in items if not goes_over_the_link(item)]
        items[:] = [item for item in items if goes_over_the_link(item)]
        config.hook.pytest_deselected(items=others)


@pytest.fixture(scope="session")
def leader() -> Iterator[Leader]:
    leader = Leader()
    yield leader
    leader.end()


@pytest.fixture
def led(request: pytest.FixtureRequest) -> Iterator[Callable[[str, dict[str, Any]], None]]:
    """Lets another process lead on a queue file, if the tests are to run like that."""
    with ExitStack() as led:

        def lead(url: str, settings: dict[str, Any]) -> None:
            if WANTED:
                led.enter_context(request.getfixturevalue("leader").leads(url, settings))

        yield lead
