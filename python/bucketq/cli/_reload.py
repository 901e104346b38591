"""Starts a worker again when a Python file changes: for development."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

__all__ = ["again_and_again"]

LOOK = 0.5
"""Seconds between two looks at the files."""
SKIPPED = {"__pycache__", "node_modules", "site-packages", "venv"}


def files(folder: Path) -> Iterator[Path]:
    """Yield the Python files below a folder, except those of environments and hidden folders."""
    for here, folders, names in os.walk(folder):
        folders[:] = [one for one in folders if not one.startswith(".") and one not in SKIPPED]
        yield from (Path(here) / name for name in names if name.endswith(".py"))


def state(folder: Path) -> dict[Path, int]:
    """Return when each file was changed."""
    found: dict[Path, int] = {}
    for path in files(folder):
        try:
            found[path] = path.stat().st_mtime_ns
        except OSError:
            continue  # It was deleted meanwhile.
    return found


def again_and_again(words: list[str]) -> int:
    """Run ``bucketq`` with these words; end and start it when a file changes. Returns its exit code after a signal."""
    end = Event()
    got: list[int] = []
    process: subprocess.Popen[bytes] | None = None

    def passed_on(number: int, _: Any) -> None:
        got.append(number)
        end.set()
        if process is not None and process.poll() is None:
            process.send_signal(number)

    before = {number: signal.signal(number, passed_on) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        while True:
            seen = state(Path.cwd())
            # A session of its own: Ctrl-C reaches it through this process only, and once.
            process = subprocess.Popen([sys.executable, "-m", "bucketq", *words], start_new_session=True)  # noqa: S603
            while not end.wait(LOOK) and state(Path.cwd()) == seen:
                if process.poll() is not None:
                    sys.stderr.write(
                        f"the worker ended with {process.returncode}: change a file to start it again\n"
                    )
                    while not end.wait(LOOK) and state(Path.cwd()) == seen:
                        pass
                    break
            if end.is_set():
                return process.wait()
            if process.poll() is None:
                sys.stderr.write("a file has changed: the worker ends its jobs and starts again\n")
                process.terminate()
            process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
