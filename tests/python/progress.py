"""The progress output of `pytest -q`: a line for each file of tests, and one for each failure at once."""

from __future__ import annotations

from collections import Counter
from time import monotonic
from typing import Any

import pytest


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and config.option.verbose < 0 and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Progress(reporter), "bucketq-progress")


class Progress:
    """Prints the progress on the console. Counts tests as they end, in any worker."""

    def __init__(self, reporter: pytest.TerminalReporter) -> None:
        self._reporter = reporter
        self._began = monotonic()
        self._left: Counter[str] = Counter()
        self._all = self._done = 0
        self._seconds: Counter[str] = Counter()
        self._bad: Counter[str] = Counter()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._expect([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        # The second worker collects the same tests, and so does one that replaces another.
        if not self._all:
            self._expect(ids)

    def _expect(self, ids: list[str]) -> None:
        self._left, self._all = Counter(map(file_of, ids)), len(ids)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: Any) -> tuple[str, str, str] | None:
        # Only counted: pytest shows no letter for it.
        if not isinstance(report, pytest.TestReport) or report.skipped or hasattr(report, "wasxfail"):
            return None
        if report.failed:
            return (
                ("error", "", "ERROR") if report.when in ("setup", "teardown") else ("failed", "", "FAILED")
            )
        return ("passed" if report.when == "call" else "", "", "")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = file_of(report.nodeid)
        self._seconds[file] += report.duration
        if report.failed:
            self._bad[file] += 1
            self._line(f"FAILED  {report.nodeid}")
        if report.when in ("setup", "call"):
            return
        self._done += 1
        self._left[file] -= 1
        if self._left[file] == 0:
            bad = f", {self._bad[file]} FAILED" if self._bad[file] else ""
            self._line(
                f"{100 * self._done // max(self._all, 1):3} %  {file}  {self._seconds[file]:.1f} s{bad}"
            )

    def _line(self, text: str) -> None:
        self._reporter.ensure_newline()
        self._reporter.write_line(f"{monotonic() - self._began:4.0f} s  {text}")


def file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]
