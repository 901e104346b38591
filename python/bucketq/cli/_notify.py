"""Tells systemd that a service is ready or ends: for units of ``Type=notify``."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

__all__ = ["notify"]


def notify(state: str) -> None:
    """Send the state, such as ``READY=1``, to the socket that systemd names. Does nothing without one."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address or not hasattr(socket, "AF_UNIX"):
        return
    # The name of an abstract socket begins with a zero byte; the variable has an @ in its place.
    name = f"\0{address[1:]}" if address.startswith("@") else address
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(state.encode(), name)
