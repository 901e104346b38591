"""Tells systemd that a service is ready or ends: for units of ``Type=notify``."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

__all__ = ["Watchdog", "notify"]


def notify(state: str) -> None:
    """Send the state, such as ``READY=1``, to the socket that systemd names. Does nothing without one."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address or not hasattr(socket, "AF_UNIX"):
        return
    # The name of an abstract socket begins with a zero byte; the variable has an @ in its place.
    name = f"\0{address[1:]}" if address.startswith("@") else address
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(state.encode(), name)


class Watchdog:
    """Tells systemd twice in each ``WatchdogSec`` that the service is healthy; systemd restarts one that is silent.

    Does nothing where systemd does not ask for it.
    """

    def __init__(self, healthy: Callable[[], bool]) -> None:
        self._healthy = healthy
        self._ended = threading.Event()
        self._every = interval()

    def __enter__(self) -> None:
        if self._every is not None:
            threading.Thread(target=self._run, name="bucketq-watchdog", daemon=True).start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(self._every):
            if self._healthy():
                notify("WATCHDOG=1")


def interval() -> float | None:
    """Return the seconds between two messages to the watchdog of systemd; None without one."""
    text, owner = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID")
    if not text.isdecimal() or int(text) == 0 or owner not in (None, str(os.getpid())):
        return None
    return int(text) / 2e6
