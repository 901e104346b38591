"""The errors. The class says what to do next, ``code`` names the cause, ``advice`` says what to do about it.

docs/errors.md lists every code.
"""

from __future__ import annotations

import json
import re
from functools import cache
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
    """Return every class with what to do next and the exit code of the command, in the order of docs/errors.md."""
    from bucketq import _native

    return [(python, step, code) for _, step, python, code, _ in _native.kinds()]


@cache
def _advice() -> dict[str, str]:
    """Return the advice for every code of the engine."""
    from bucketq import _native

    return {code: advice for code, _, _, advice in _native.codes()}


QUEUE = re.compile(r'\bqueue ("(?:[^"\\]|\\.)*")')
JOB = re.compile(r"\bjob ([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\b")
PAGE = 4096
LIMITS = {
    "queue_full": (re.compile(r"max_pending is (\d+)"), 1),
    "blocked": (re.compile(r"max_pending is (\d+)"), 1),
    "payload_too_large": (re.compile(r"max_payload allows (\d+)"), 1),
    "file_full": (re.compile(r"max_file allows (\d+) pages"), PAGE),
    "mailbox_full": (re.compile(r"(?:^|mailbox_bytes, )(\d+)"), 1),
}
"""For the codes of limits: where the message says the limit, and the size of its unit."""


ADVICE = {
    "there are no credentials": "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, choose a profile with AWS_PROFILE, "
    "or give the settings access_key and secret_key; on AWS, give the machine a role.",
    "Read-only file system": "Mount the directory writable. If you only want to read, open the queue file with "
    "read_only=True, or set BUCKETQ_READ_ONLY=true.",
}
"""For words in the message of a ``denied`` error: advice that fits better than that for the code."""


def _queue(message: str) -> str | None:
    """Return the queue that the message names."""
    found = QUEUE.search(message)
    if found is None:
        return None
    try:
        name = json.loads(re.sub(r"\\u\{([0-9a-f]+)\}", lambda one: f"\\u{one[1]:0>4}", found[1]))
    except ValueError:
        return None  # A name with characters that only the engine's own form can show.
    return str(name)


def _job(message: str) -> str | None:
    """Return the id of the job that the message names."""
    found = JOB.search(message)
    return None if found is None else found[1]


def _limit(message: str, code: str) -> int | None:
    """Return the limit that the message names."""
    pattern, unit = LIMITS.get(code, (None, 1))
    found = None if pattern is None else pattern.search(message)
    return None if found is None else int(found[1]) * unit


class Error(Exception):
    """Base class of all errors of bucketq."""

    def __init__(self, message: str, code: str = "internal") -> None:
        super().__init__(message, code)
        self.message = message
        """The message for people."""
        self.code = code
        """The cause, as a name that is stable across versions."""
        self.queue = _queue(message)
        """The queue that the message names, if any."""
        self.id = _job(message)
        """The id of the job that the message names, if any."""
        self.limit = _limit(message, code)
        """The limit that was reached, as its setting or policy has it: jobs, bytes or operations."""
        self.enqueued: tuple[Enqueued, ...] = ()
        """The jobs that ``enqueue_many`` had enqueued before the error."""

    @property
    def advice(self) -> str:
        """The next step for the caller or the operator, as docs/errors.md has it for the code."""
        if self.code == "denied":
            for words, advice in ADVICE.items():
                if words in self.message:
                    return advice
        return _advice().get(self.code, "")

    def add_note(self, note: str) -> None:
        """Add a note; the engine's advice for the code gives way to advice that fits better."""
        is_advice = note == f"advice: {_advice().get(self.code)}"
        super().add_note(f"advice: {self.advice}" if is_advice else note)

    def __str__(self) -> str:
        return f"{self.message} [{self.code}]"


class Invalid(Error, ValueError):
    """Fix the call."""

    def __init__(self, message: str, code: str = "argument") -> None:
        super().__init__(message, code)


class NotFound(Error, LookupError):
    """Look elsewhere, or create it."""


class LeaseLost(Error):
    """Drop the work: another worker holds the job, or it is finished."""


class Contended(Error):
    """Not applied, too many writers: back off, or use a broker."""


class Diverged(Error):
    """Local changes lost the race: snapshot and redo."""


class Unavailable(Error):
    """Certainly not applied: retry."""


class OutcomeUnknown(Error):
    """May have been applied: check first."""


class QueueFull(Error):
    """A limit is reached: make room, or wait."""


class Corrupt(Error):
    """Stop, and restore."""


class Closed(Error):
    """The handle is closed: open a new one."""
