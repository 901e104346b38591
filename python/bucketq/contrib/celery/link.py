"""A connection of Kombu to a queue file: the handle, the bindings, the thread that claims, and the messages that came.

It belongs to one process: a forked child gets a link of its own.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, Any

from bucketq.contrib.celery.place import opened
from bucketq.contrib.celery.pump import Bell, Pump, log
from bucketq.contrib.celery.table import Entry, Table
from bucketq.errors import Error, Invalid

if TYPE_CHECKING:
    from bucketq import aio
    from bucketq.contrib.celery.channel import Channel
    from bucketq.types import Changes

DEADLINE = 10.0
"""Seconds for which closing waits for the ends of messages."""
LEFTOVER = 600.0
"""Seconds after which a queue that nobody uses may be deleted."""
BOUND = 10_000
"""Messages that a queue holds at most if it expires; beyond, the oldest are dropped."""
RENEWALS = 3
"""How often a queue in use is renewed in its life."""


@dataclass(frozen=True)
class Options:
    """``broker_transport_options``."""

    lease: float = 60.0
    """Seconds after which the messages of a killed worker are delivered again."""
    visibility_timeout: float | None = None
    """Another name of ``lease``, as the transports for Redis and SQS have it."""
    hold_eta: bool = False
    """True: workers take messages with an ETA early and hold them. False: the queue keeps them until then."""
    leftover_after: float = LEFTOVER
    """Seconds after which a reply queue or an event queue is deleted when nobody uses it."""
    settings: Mapping[str, Any] | None = None
    """Settings of the queue file, as ``bucketq.open`` takes them."""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        """Return the options among those given; Kombu's own are for its classes."""
        options = cls(**{name: given[name] for name in cls.__dataclass_fields__ if name in given})
        if options.visibility_timeout is None:
            return options
        if "lease" in given:
            raise Invalid("give lease or visibility_timeout, not both: they mean the same")
        return replace(options, lease=options.visibility_timeout)


@dataclass(frozen=True)
class Declared:
    """A queue that expires when nobody uses it."""

    life: float
    auto_delete: bool


class Link:
    """The things that a connection needs in one process."""

    def __init__(self, url: str | None, options: Options) -> None:
        self.options = options
        self.file = opened(url, options.settings)
        self.table = Table(self.file)
        self.pid = os.getpid()
        self._bell: Bell | None = None
        self.expiring: dict[str, Declared] = {}
        """The queues that expire, as this connection declared them."""
        self.lock = threading.Condition()
        self._inbox: deque[tuple[Channel, aio.Job]] = deque()
        self._failure: Error | None = None
        self._pump: Pump | None = None
        self._closed = False

    @property
    def pump(self) -> Pump:
        """The thread; it starts when something is to be claimed or ended."""
        with self.lock:
            if self._pump is None:
                self._pump = Pump(self.file)
                self._pump.start(self._renew)
            return self._pump

    @property
    def bell(self) -> Bell:
        """It rings while there are messages; made for an event loop that asks for it."""
        with self.lock:
            if self._bell is None:
                self._bell = Bell()
                if self._inbox:
                    self._bell.ring()
            return self._bell

    def _wake(self) -> None:
        self.lock.notify_all()
        if self._bell is not None:
            self._bell.ring()

    def arrive(self, channel: Channel, job: aio.Job) -> None:
        """Add a message to the inbox. The caller has the lock."""
        self._inbox.append((channel, job))
        self._wake()

    def fail(self, error: Error) -> None:
        """Make the next ``next`` raise this."""
        with self.lock:
            self._failure = error
            self._wake()

    def next(self, timeout: float | None) -> tuple[Channel, aio.Job]:
        """Return a message, first come, first served. Raises TimeoutError when none comes in time."""
        until = None if timeout is None else monotonic() + timeout
        with self.lock:
            while not self._inbox:
                if self._failure is not None:
                    failure, self._failure = self._failure, None
                    raise failure
                left = None if until is None else until - monotonic()
                if left is not None and left <= 0:
                    if self._bell is not None:
                        self._bell.silence()
                    raise TimeoutError("timed out")
                self.lock.wait(left)
            return self._inbox.popleft()

    def take_back(self, channel: Channel, queues: set[str] | None) -> list[aio.Job]:
        """Remove a channel's messages from the inbox, those of some queues or all. The caller has the lock."""
        mine = [job for one, job in self._inbox if one is channel and (queues is None or job.queue in queues)]
        self._inbox = deque(item for item in self._inbox if item[1] not in mine)
        return mine

    def declare(self, queue: str, declared: Declared | None, policy: Changes) -> None:
        """Create a queue if it does not exist. One that expires is entered in the table."""
        if declared is not None:
            self.expiring[queue] = declared
            self.table.sweep()
            self.table.put([Entry("", "direct", queue, queue)], declared.life)
        if self.file.create_queue(queue):
            self.file.queue(queue).configure(**policy)

    def delete(self, queue: str) -> int:
        """Delete a queue with its messages and bindings. Returns how many messages it had.

        The entry of one that expires stays until then. A process that has read the bindings before may still send a
        message, which creates the queue again, and then ``sweep`` deletes it.
        """
        self.expiring.pop(queue, None)
        self.table.drop(lambda entry: entry.queue == queue and bool(entry.exchange))
        return self.file.delete_queue(queue) or 0

    def renew(self) -> None:
        """Enter the bindings of the queues in use anew, so that they do not expire."""
        with self.lock:
            lives = dict(self.expiring)
        entries = self.table.entries()
        for queue, declared in lives.items():
            mine = {entry for entry in entries if entry.queue == queue}
            self.table.put({*mine, Entry("", "direct", queue, queue)}, declared.life)

    async def _renew(self) -> None:
        while True:
            lives = [declared.life for declared in list(self.expiring.values())]
            await asyncio.sleep(min(lives, default=self.options.leftover_after) / RENEWALS)
            if self.expiring:
                try:
                    await asyncio.to_thread(self.renew)
                except Error as error:
                    log.warning("cannot keep reply queues in use: %s", error)

    def close(self) -> None:
        """End the thread and close the handle. In a forked child, this does nothing."""
        if self.pid != os.getpid() or self._closed:
            return
        self._closed = True
        try:
            if self._pump is not None:
                self._pump.close(DEADLINE)
        finally:
            self.file.close()
            if self._bell is not None:
                self._bell.close()
