"""Reads the answer to a question. Ctrl-C ends it at any moment; ``input`` can miss Ctrl-C."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from select import select

from bucketq.cli._signals import signals

__all__ = ["typed"]


def typed() -> str:
    """Return the line that the user types. Raises EOFError at the end of the input."""
    if os.name == "nt":
        return input()
    with terminal() as fd, signals() as bell:
        line = b""
        while not line.endswith(b"\n"):
            ready, _, _ = select([fd, bell], [], [])
            if bell in ready:
                # The signal's handler runs before the next line of this loop, and may raise.
                bell.recv(4096)
                continue
            with suppress(BlockingIOError):  # Ctrl-C discarded the typed text.
                part = os.read(fd, 4096)
                if not part:
                    raise EOFError
                line += part
    return line.decode(errors="replace")


@contextmanager
def terminal() -> Generator[int]:
    """Open standard input again if possible: flags of an open terminal are shared with other processes."""
    fd = sys.stdin.fileno()
    try:
        fd = own = os.open(os.ttyname(fd), os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        own = None
    try:
        yield fd
    finally:
        if own is not None:
            os.close(own)
