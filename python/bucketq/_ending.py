"""How a handler can end its job itself, and still be counted and logged by its worker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["Ending"]


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of an attempt. A handler may return it instead of a result; the worker then makes the call ``end``."""

    what: Literal["done", "failed", "rejected", "released"]
    """The counter of the worker to raise."""
    end: Callable[[], Awaitable[Any]]
    """Ends the job; the worker repeats it after errors that may pass."""
    name: str = ""
    """The task or step, for the log."""
    summary: str = ""
    """Why it failed, in one line."""
    traceback: str = ""
    """Where it failed."""
    overtaken: bool = False
    """Whether a lost lease is expected: another job's commit may have ended this one. Then it counts as ``what``."""
    error: BaseException | None = None
    """The exception, if it was raised in this process."""
