"""Kombu's transport: connections to queue files.

Kombu and Celery call it. It claims nothing itself: ``pump`` does that, in a thread.
"""

# Kombu has no types, and the arguments of its methods are given, used or not.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportIncompatibleMethodOverride=false
# ruff: noqa: ARG002

from __future__ import annotations

import os
from time import monotonic
from typing import Any

from kombu.exceptions import ChannelError
from kombu.transport import virtual

import bucketq
from bucketq.contrib.celery.channel import Channel
from bucketq.contrib.celery.link import Link, Options
from bucketq.contrib.celery.place import shown
from bucketq.errors import Closed, Contended, Error, OutcomeUnknown, Unavailable

BURST = 20
"""Messages delivered in one turn of a worker's event loop."""


class Transport(virtual.Transport):
    """The transport ``bucketq``."""

    Channel = Channel
    can_parse_url = True
    default_port = None
    driver_type = "bucketq"
    driver_name = "bucketq"
    connection_errors = (Unavailable, Contended, OutcomeUnknown, Closed, OSError)
    channel_errors = (ChannelError, Error)
    recoverable_connection_errors = connection_errors
    recoverable_channel_errors = ()
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset({"direct", "topic", "fanout"})
    )

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        self._link: Link | None = None

    @property
    def link(self) -> Link:
        """The link of this process; a forked child makes its own."""
        if self._link is None or self._link.pid != os.getpid():
            self._link = Link(self.client.hostname, Options.of(self.client.transport_options or {}))
        return self._link

    def is_open(self) -> bool:
        """Return whether this process has a link."""
        return self._link is not None and self._link.pid == os.getpid()

    def establish_connection(self) -> Any:
        """Open the queue file."""
        _ = self.link
        return super().establish_connection()

    def close_connection(self, connection: Any) -> None:
        """Close the channels, wait until their messages are given back, and close the handle."""
        try:
            super().close_connection(connection)
        finally:
            link, self._link = self._link, None
            if link is not None:
                link.close()

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Give one message to its consumer. Raises TimeoutError when none comes in time."""
        until = None if timeout is None else monotonic() + timeout
        while True:
            channel, job = self.link.next(None if until is None else max(until - monotonic(), 0))
            if channel.hand_out(job):
                return

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Let the event loop of a worker call ``on_readable`` when messages come."""
        loop.add_reader(self.link.bell.fileno(), self.on_readable, connection, loop)

    def unregister_from_event_loop(self, connection: Any, loop: Any) -> None:
        """Undo ``register_with_event_loop``."""
        if self.is_open():
            loop.remove_reader(self.link.bell.fileno())

    def on_readable(self, connection: Any, loop: Any) -> None:
        """Give the messages that came to their consumers."""
        for _ in range(BURST):
            try:
                self.drain_events(connection, timeout=0)
            except TimeoutError:
                return

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        """Return the URL for logs."""
        return uri if include_password else shown(uri, mask)

    def driver_version(self) -> str:
        """Return the version of bucketq."""
        return bucketq.__version__

    @property
    def default_connection_params(self) -> dict[str, Any]:
        """The queue file of the settings."""
        return {"hostname": "bucketq://", "port": None}
