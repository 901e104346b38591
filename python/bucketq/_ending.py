"""How a handler can end its job itself, and still be counted and logged by its worker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

__all__ = ["EndOp", "Ending"]


class EndOp(NamedTuple):
    """How a job ends in one op, so that the same commit can claim the next job."""

    how: str
    """The name of the op: ack, nack, release or reject."""
    op: Callable[[], Any]
    """Returns the op."""


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of an attempt. A handler may return it instead of a result; the worker then ends the job by ``end``."""

    what: Literal["done", "failed", "rejected", "released"]
    """The counter of the worker to raise."""
    end: EndOp | Callable[[], Awaitable[Any]]
    """Ends the job; the worker repeats it after errors that may pass."""
    name: str = ""
    """The task or step, for the log."""
    summary: str = ""
    """Why it failed, in one line."""
    traceback: str = ""
    """Where it failed."""
    overtaken: bool = False
    """Whether a lost lease is expected: another job's commit may have ended this one. Then it counts as ``what``."""
    requeued: EndOp | None = None
    """The end if an id is taken: the job was requeued, and its first run has enqueued what follows."""
    error: BaseException | None = None
    """The exception, if it was raised in this process."""
