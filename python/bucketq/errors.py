"""What can go wrong. The class says what to do next, ``code`` names the cause; docs/errors.md has every code."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bucketq.types import Enqueued

__all__ = [
    "Closed",
    "Contended",
    "Corrupt",
    "Diverged",
    "Error",
    "Invalid",
    "LeaseLost",
    "NotFound",
    "OutcomeUnknown",
    "QueueFull",
    "Unavailable",
    "table",
]


def table() -> list[tuple[str, str, int]]:
    """Every class with what to do next and the exit code of the command, in the order of docs/errors.md."""
    from bucketq import _native

    return [(python, step, code) for _, step, python, code, _ in _native.kinds()]


class Error(Exception):
    """Every error of bucketq."""

    def __init__(self, message: str, code: str = "internal") -> None:
        super().__init__(message, code)
        self.message = message
        """The sentence for a person."""
        self.code = code
        """The cause, stable across versions."""
        self.enqueued: tuple[Enqueued, ...] = ()
        """What ``enqueue_many`` had enqueued before."""

    def __str__(self) -> str:
        return f"{self.message} [{self.code}]"


class Invalid(Error, ValueError):
    """Fix the call."""

    def __init__(self, message: str, code: str = "argument") -> None:
        super().__init__(message, code)


class NotFound(Error, LookupError):
    """Look elsewhere, or create it."""


class LeaseLost(Error):
    """Drop the work: somebody else holds the job, or it is finished."""


class Contended(Error):
    """Too many writers, nothing was applied: back off, or use a broker."""


class Diverged(Error):
    """Local changes lost the race: snapshot and redo."""


class Unavailable(Error):
    """Surely not applied: retry."""


class OutcomeUnknown(Error):
    """May have been applied: look first."""


class QueueFull(Error):
    """A limit is reached: make room, or wait."""


class Corrupt(Error):
    """Stop, and restore."""


class Closed(Error):
    """The handle is closed: open a new one."""
