"""Waits that every signal ends.

If a signal comes between the interpreter's last check and its system call, it does not interrupt the call, and its
handler runs only after the call. So these waits also end at the byte that the interpreter writes for every signal.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Generator
from contextlib import contextmanager
from select import select
from threading import Event

__all__ = ["signals", "until"]


def until(event: Event) -> None:
    """Wait until a signal handler has set the event."""
    with signals() as bell:
        while not event.is_set():
            select([bell], [], [])
            bell.recv(4096)


@contextmanager
def signals() -> Generator[socket.socket]:
    """Return a socket that is readable once a signal has come."""
    bell, rope = socket.socketpair()
    with bell, rope:
        bell.setblocking(False)
        rope.setblocking(False)
        try:
            before = signal.set_wakeup_fd(rope.fileno(), warn_on_full_buffer=False)
        except ValueError:  # Not the main thread, which is the one that gets signals.
            yield bell
            return
        try:
            yield bell
        finally:
            signal.set_wakeup_fd(before)
