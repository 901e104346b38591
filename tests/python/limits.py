"""A time limit for each test: a test that hangs fails alone, with its own stack, and the other tests run.

The limit is the ini option ``limit``, or the mark ``limit(seconds)``. At the limit, the test is interrupted in Python.
Native code that does not return cannot be interrupted: some seconds later faulthandler, which needs no GIL, ends the
worker process of pytest-xdist. The controller reports the test and starts another worker (docs/decisions/0028).
"""

from __future__ import annotations

import faulthandler
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

AGAIN = 5.0
"""Seconds after which an interruption is repeated, if the test swallowed it."""

STACKS = pytest.StashKey[Path]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("limit", "seconds that a test may take, with its fixtures", default="300")
    parser.addini(
        "limit_grace", "seconds after which a test that ignores its limit ends its worker", default="15"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "limit(seconds): the time that this test may take, with its fixtures")
    worker = getattr(config, "workerinput", None)
    if worker is None and getattr(config.option, "dist", "no") != "no":
        config.stash[STACKS] = Path(tempfile.mkdtemp(prefix="bucketq-stacks-"))
        config.pluginmanager.register(Controller(config.stash[STACKS]), "bucketq-controller")
    else:
        config.pluginmanager.register(Limits(config, worker), "bucketq-limits")


def limit_of(item: pytest.Item) -> float:
    """Return the seconds that this test may take."""
    mark = item.get_closest_marker("limit")
    return float(mark.args[0] if mark else item.config.getini("limit"))


class Limits:
    """The limits, in the process that runs tests."""

    def __init__(self, config: pytest.Config, worker: dict[str, Any] | None) -> None:
        self._grace = float(config.getini("limit_grace"))
        self._told = ""
        self._interruptible = False
        self._file = sys.__stderr__
        if worker is not None:
            # A process group of its own: the controller ends the processes that a dead worker leaves behind.
            os.setpgid(0, 0)
            self._file = (Path(worker["stacks"]) / worker["workerid"]).open("w")
            print(os.getpid(), threading.main_thread().ident, file=self._file, flush=True)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        limit = limit_of(item)
        self._told = f"not over within its limit of {limit:g} s"
        faulthandler.enable(self._file, all_threads=False)
        faulthandler.dump_traceback_later(limit + self._grace, exit=True, file=self._file)
        before = signal.signal(signal.SIGALRM, self._interrupt)
        signal.setitimer(signal.ITIMER_REAL, limit, AGAIN)
        try:
            return (yield)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
            faulthandler.cancel_dump_traceback_later()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Generator[None, Any, Any]:
        return (yield from self._phase())

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Generator[None, Any, Any]:
        before = set(threading.enumerate())
        result = yield from self._phase()
        for thread in threading.enumerate():
            if thread not in before and not thread.daemon:
                self._join(thread)
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Generator[None, Any, Any]:
        return (yield from self._phase())

    @pytest.hookimpl(tryfirst=True)
    def pytest_internalerror(self, excrepr: object) -> None:
        # Pytest would end the whole run: this ends only this worker, which fails the test.
        if self._file is not sys.__stderr__:
            told = str(excrepr).splitlines()[-12:]
            print("Internal error of pytest:", *told, sep="\n", file=self._file, flush=True)
            os._exit(3)

    def _phase(self) -> Generator[None, Any, Any]:
        self._interruptible = True
        try:
            return (yield)
        finally:
            self._interruptible = False

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        __tracebackhide__ = True
        # Raised between two phases it would end pytest itself; the timer repeats it in the next phase.
        if self._interruptible:
            raise pytest.fail.Exception(self._told)

    def _join(self, thread: threading.Thread) -> None:
        """Fail a test that leaves a thread which is no daemon: such a thread would keep the process from ending."""
        thread.join(self._grace)
        frame = sys._current_frames().get(thread.ident or 0)
        if thread.is_alive() and frame is not None:
            stack = "".join(traceback.format_stack(frame))
            pytest.fail(f"left a thread that does not end, {thread.name}:\n{stack}", pytrace=False)


class Controller:
    """The limits, in the process that hands tests to workers."""

    def __init__(self, stacks: Path) -> None:
        self._stacks = stacks
        self._workers: list[str] = []

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["stacks"] = str(self._stacks)
        self._workers.append(node.gateway.id)

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, report: Any) -> None:
        report.location = (*report.location[:2], report.nodeid.rpartition("::")[2])
        with suppress(OSError):
            text = (self._stacks / report.node.gateway.id).read_text()
            report.longrepr = why_it_ended(text) or report.longrepr

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._end_what_is_left(node.gateway.id)

    def pytest_unconfigure(self) -> None:
        for worker in self._workers.copy():
            self._end_what_is_left(worker)
        shutil.rmtree(self._stacks, ignore_errors=True)

    def _end_what_is_left(self, worker: str) -> None:
        """End the worker's children: servers and programs of a test that could not clean up."""
        self._workers.remove(worker)
        with suppress(OSError, IndexError):
            group = (self._stacks / worker).read_text().split()[0]
            os.killpg(int(group), signal.SIGKILL)


def why_it_ended(text: str) -> str | None:
    """Return faulthandler's report on the test: the stack of the main thread, or of the one that crashed."""
    first, _, told = text.partition("\n")
    if told.startswith("Internal"):
        return told
    if told.startswith("Fatal"):
        return without_pytest(told)
    if not told.startswith("Timeout"):
        return None
    for stack in re.split(r"\n(?=Thread |Current thread )", told):
        thread = re.match(r"(?:Current thread|Thread) (0x[0-9a-f]+)", stack)
        if thread and int(thread[1], 16) == int(first.split()[1]):
            words = "not over within its limit, and it could not be interrupted: its worker was ended here"
            return f"{words}\n{without_pytest(stack)}"
    return None


def without_pytest(stack: str) -> str:
    """Return the part of the stack that belongs to the test."""
    return re.split(r"\n  File [^\n]*/_pytest/", stack)[0]
