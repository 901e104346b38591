"""Shared code of the tests of watching."""

from __future__ import annotations

import asyncio
import subprocess
import sys

from patience import PATIENCE

LIMIT = PATIENCE


def names(told):
    return [event.name for event in told if event.name != "committed"]


async def until(true):
    """Wait for something that another thread does; the test's time limit ends it."""
    while not true():  # noqa: ASYNC110
        await asyncio.sleep(0)


def program(code):
    """Run a program to its end, and return its output."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT, check=False
    )
    return done.stdout, done.stderr, done.returncode
