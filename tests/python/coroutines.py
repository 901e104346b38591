"""Tests that are coroutines."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine
from typing import Any

import pytest

from limits import limit_of

SHARE = 0.8
"""Share of a test's limit: a coroutine is cancelled earlier, so that its stack shows where it waits."""


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine as a test, with a limit."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    coroutine = pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names})
    asyncio.run(within(SHARE * limit_of(pyfuncitem), coroutine))
    return True


async def within(seconds: float, test: Coroutine[Any, Any, None]) -> None:
    """Fail a test that swallows its cancellation, too."""
    async with asyncio.timeout(seconds) as limit:
        await test
    assert not limit.expired(), f"not over within {seconds} s"
