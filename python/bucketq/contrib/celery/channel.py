"""The part of a channel that consumes: its consumers, and the messages that it holds until they are ended."""

# Kombu has no types, and the arguments of its methods are given, used or not.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportIncompatibleMethodOverride=false
# ruff: noqa: ARG002

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from kombu.transport import virtual
from kombu.utils.json import loads

from bucketq.contrib.celery.pump import Claims, End, log
from bucketq.contrib.celery.routing import Routing
from bucketq.errors import Error

if TYPE_CHECKING:
    from bucketq import aio
    from bucketq.contrib.celery.link import Link

LOOKAHEAD = 10
"""Messages that a channel without a prefetch count claims before they are consumed."""


class QoS(virtual.QoS):
    """The messages that a channel has delivered and that are not ended yet."""

    def __init__(self, channel: Channel, prefetch_count: int = 0) -> None:
        self.channel = channel
        self.prefetch_count = prefetch_count or 0

    def can_consume(self) -> bool:
        """Return whether another message may be delivered."""
        return not self.prefetch_count or len(self.channel.held) < self.prefetch_count

    def can_consume_max_estimate(self) -> int | None:
        """Return how many more messages may be delivered; None: any number."""
        return max(self.prefetch_count - len(self.channel.held), 0) if self.prefetch_count else None

    def append(self, message: Any, delivery_tag: str) -> None:
        """Do nothing: a message is held since its claim."""

    def get(self, delivery_tag: str) -> aio.Job:
        """Return the job of a message."""
        return self.channel.held[delivery_tag]

    def ack(self, delivery_tag: str) -> None:
        """Ack a message."""
        self.channel.end(delivery_tag, "ack")

    def reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Give a message back to its queue, or mark it dead."""
        self.channel.end(delivery_tag, "release" if requeue else "reject")

    def restore_unacked(self) -> list[Any]:
        """Give all messages back."""
        for tag in list(self.channel.held):
            self.channel.end(tag, "release")
        return []

    def restore_unacked_once(self, stderr: object = None) -> None:
        """Give all messages back."""
        self.restore_unacked()


class Channel(Routing):
    """A channel: its consumers, and the messages that it holds."""

    QoS = QoS
    connection: Any

    def __init__(self, connection: Any, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self.held: dict[str, aio.Job] = {}
        """The messages that are claimed and not ended, by delivery tag; the undelivered ones too."""
        self._subscribed: dict[str, tuple[str, bool, Callable[[Any], object]]] = {}
        self._claims: Claims | None = None
        self._arrived = 0
        self._link: Link = connection.link

    @property
    def link(self) -> Link:
        """The link of this process. A forked child begins without the consumers and messages of its parent."""
        link: Link = self.connection.link
        if link is not self._link:
            self._link, self._claims, self._arrived = link, None, 0
            self.held = {}
            self._subscribed = {}
            self._active_queues = []
        return link

    def basic_consume(
        self, queue: str, no_ack: bool, callback: Callable[[Any], object], consumer_tag: str, **kwargs: Any
    ) -> None:
        """Consume the messages of a queue until ``basic_cancel``."""
        with self.link.lock:
            self._subscribed[consumer_tag] = (queue, no_ack, callback)
        self._consumers.add(consumer_tag)
        self._active_queues.append(queue)
        self._claim(restart=True)

    def basic_cancel(self, consumer_tag: str) -> None:
        """End a consumer. Messages that it did not get are given back."""
        link = self.link
        with link.lock:
            subscription = self._subscribed.pop(consumer_tag, None)
            if subscription is None:
                return
            queue = subscription[0]
            self._active_queues.remove(queue)
            self._consumers.discard(consumer_tag)
            last = queue not in self._active_queues
            back = link.take_back(self, {queue}) if last else []
            self._arrived -= len(back)
        self._give_back(back)
        if last:
            self._claim(restart=True)
            declared = link.expiring.get(queue)
            if declared is not None and declared.auto_delete:
                try:
                    link.delete(queue)
                except Error as error:
                    log.warning("cannot delete queue %s: %s; it will expire", queue, error)

    def _claim(self, *, restart: bool) -> None:
        """See to it that what is wanted now is claimed."""
        link = self.link
        if self._claims is None:
            self._claims = Claims(
                link.pump,
                self._wanted,
                self._deliver,
                link.fail,
                lease=link.options.lease,
                worker=f"{socket.gethostname()}:{os.getpid()}",
            )
        elif restart:
            self._claims.restart()
        else:
            self._claims.freed()

    def _wanted(self) -> tuple[Sequence[str], int]:
        """Return the queues, and how many more messages may come. The pump calls this."""
        with self._link.lock:
            limit = self.qos.prefetch_count
            room = limit - len(self.held) if limit else LOOKAHEAD - self._arrived
            return sorted(set(self._active_queues)), room

    def _deliver(self, job: aio.Job) -> None:
        """Take a message that was claimed. The pump calls this."""
        link = self._link
        with link.lock:
            wanted = job.queue in self._active_queues
            if wanted:
                self._arrived += 1
                self.held[tag_of(job)] = job
                link.arrive(self, job)
        if not wanted:
            link.pump.end(job, "release")

    def hand_out(self, job: aio.Job) -> bool:
        """Give a message to its consumer. Returns False if it has none any more, or cannot be read."""
        with self.link.lock:
            self._arrived -= 1
            found = [one for one in self._subscribed.values() if one[0] == job.queue]
        if not found:
            self.end(tag_of(job), "release")
            return False
        _, no_ack, callback = found[0]
        message = self._message(job)
        if message is None:
            return False
        if no_ack:
            self.end(tag_of(job), "ack")
        elif self._claims is not None:
            self._claims.freed()
        callback(message)
        return True

    def _message(self, job: aio.Job) -> Any:
        """Return the message in a job; None if there is none, and then the job is rejected."""
        tag = tag_of(job)
        try:
            raw = loads(job.payload)
            props = raw["properties"]
            props["delivery_tag"] = tag
            props["delivery_info"]["redelivered"] = job.attempt > 1
            return self.Message(raw, channel=self)
        except (ValueError, KeyError, TypeError) as error:
            log.error("job %s of %s is no message of Kombu, it is rejected: %r", job.id, job.queue, error)
            self.end(tag, "reject")
            return None

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        """Return a message of a queue; None if there is none now."""
        link = self.link
        batch = link.pump.result(link.pump.file.claim(queues=[queue], lease=link.options.lease, wait=0))
        for job in batch:
            self.held[tag_of(job)] = job
            message = self._message(job)
            if message is not None and no_ack:
                self.end(tag_of(job), "ack")
            return message
        return None

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        """Set how many messages the channel holds at most; 0: any number."""
        less = bool(prefetch_count) and not 0 < self.qos.prefetch_count <= prefetch_count
        self.qos.prefetch_count = prefetch_count
        if self._claims is not None:
            self._claim(restart=less)

    def end(self, tag: str, how: End) -> None:
        """End a message that the channel holds. Any thread may call this."""
        connection = self.connection
        if connection is None or connection.link is not self._link:
            return  # Closing gave it back, or it is the parent's.
        job = self.held.pop(tag, None)
        if job is not None:
            self._link.pump.end(job, how)
            if self._claims is not None:
                self._claims.freed()

    def _give_back(self, jobs: Iterable[aio.Job]) -> None:
        for job in jobs:
            self.end(tag_of(job), "release")

    def basic_recover(self, requeue: bool = False) -> None:
        """Give back the messages that are not ended."""
        if not requeue:
            # As in Kombu's other transports: nothing could deliver the messages to this consumer again.
            raise NotImplementedError("recover without requeue is not supported")
        self._give_back(list(self.held.values()))

    def after_reply_message_received(self, queue: str) -> None:
        """Delete the queue of a reply to a remote control command."""
        self.queue_delete(queue)

    def close(self) -> None:
        """End the consumers and give back all messages."""
        if self.closed:
            return
        self.closed = True
        connection = self.connection
        if connection is not None and connection.is_open():
            for tag in list(self._subscribed):
                self.basic_cancel(tag)
            if self._claims is not None:
                self._claims.restart(over=True)
            self.qos.restore_unacked_once()
        if connection is not None:
            connection.close_channel(self)
        self.exchange_types = None


def tag_of(job: aio.Job) -> str:
    """Return the delivery tag of a message: another one each time it is delivered."""
    return f"{job.id}/{job.fence}"
