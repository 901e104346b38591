"""What tests of watching have in common."""

from __future__ import annotations

import asyncio
import subprocess
import sys

LIMIT = 60


def names(told):
    return [event.name for event in told if event.name != "committed"]


async def until(true):
    """Wait for something that another thread does; the test's time limit ends it."""
    while not true():  # noqa: ASYNC110
        await asyncio.sleep(0)


def program(code):
    """What a program of its own prints; it ends by itself."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT, check=False
    )
    return done.stdout, done.stderr, done.returncode
