"""Kombu's transport: a connection to a queue file, its channels, and what they hold.

Kombu and Celery call it. It claims nothing itself: ``pump`` does that, in a thread.
"""

# Kombu has no types, and the arguments of its methods are given, used or not.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportIncompatibleMethodOverride=false
# ruff: noqa: ARG002

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from time import monotonic
from typing import TYPE_CHECKING, Any

from amqp.protocol import queue_declare_ok_t  # pyright: ignore[reportMissingTypeStubs]
from kombu.exceptions import ChannelError
from kombu.transport import base, virtual
from kombu.utils.json import dumps, loads
from kombu.utils.uuid import uuid

import bucketq
from bucketq.contrib.celery.link import BOUND, Declared, Link, Options
from bucketq.contrib.celery.place import shown
from bucketq.contrib.celery.pump import Claims, End, log
from bucketq.contrib.celery.table import Entry
from bucketq.errors import Closed, Contended, Error, OutcomeUnknown, Unavailable
from bucketq.types import Changes, Extras

if TYPE_CHECKING:
    from bucketq import aio

LOOKAHEAD = 10
"""Messages that a channel without a prefetch count claims before they are consumed."""
TRANSIENT = 1
"""Kombu's delivery mode of events and other messages that may be lost."""
ROUTES = 1.0
"""For transient messages, the bindings may be this old, in seconds."""
BURST = 20
"""Messages delivered in one turn of a worker's event loop."""


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


class Channel(virtual.Channel):
    """A channel: its consumers, and the messages that it holds."""

    QoS = QoS
    supports_fanout = True
    connection: Any

    def __init__(self, connection: Transport, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self.held: dict[str, aio.Job] = {}
        """The messages that are claimed and not ended, by delivery tag; the undelivered ones too."""
        self._subscribed: dict[str, tuple[str, bool, Callable[[Any], object]]] = {}
        self._claims: Claims | None = None
        self._arrived = 0
        self._link: Link | None = None

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

    # Queues, exchanges and bindings.

    def prepare_queue_arguments(self, arguments: Mapping[str, Any] | None, **options: Any) -> dict[str, Any]:
        """Return the arguments of a queue as RabbitMQ spells them."""
        return base.to_rabbitmq_queue_arguments(arguments or {}, **options)

    def queue_declare(
        self,
        queue: str | None = None,
        passive: bool = False,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> queue_declare_ok_t:
        """Create a queue if it does not exist. Returns its name and size."""
        queue = queue or f"amq.gen-{uuid()}"
        if passive:
            if not self._has_queue(queue):
                raise ChannelError(
                    f"NOT_FOUND - no queue {queue!r}", (50, 10), "Channel.queue_declare", "404"
                )
        else:
            self._new_queue(queue, exclusive=exclusive, auto_delete=auto_delete, arguments=arguments)
        return queue_declare_ok_t(queue, self._size(queue), 0)

    def _new_queue(
        self,
        queue: str,
        exclusive: bool = False,
        auto_delete: bool = False,
        arguments: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        given = arguments or {}
        policy = Changes(max_attempts=None, on_expiry="delete")
        declared = None
        if exclusive or given.get("x-expires"):
            life = max(given.get("x-expires", 0) / 1000, self.link.options.leftover_after)
            declared = Declared(life, auto_delete)
            policy |= Changes(keep=0, expires=life, max_pending=BOUND, overflow="drop_oldest")
        elif auto_delete:
            policy |= Changes(keep=0)
        if given.get("x-message-ttl"):
            policy |= Changes(expires=given["x-message-ttl"] / 1000)
        if given.get("x-max-length"):
            policy |= Changes(max_pending=given["x-max-length"], overflow="drop_oldest")
        self.link.declare(queue, declared, policy)

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        return self.link.file.queue(queue).counts().exists

    def _size(self, queue: str) -> int:
        info = self.link.file.queue(queue).counts()
        return info.counts["ready"] + info.due + info.expired

    def _purge(self, queue: str) -> int:
        return self.link.file.queue(queue).purge(["scheduled", "ready"])

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any) -> int:
        """Delete a queue with its messages and bindings. Returns how many messages it had."""
        if if_empty and self._size(queue):
            return 0
        for binding in list(self.state.queue_index.pop(queue, ())):
            self.state.bindings.pop(binding, None)
        return self.link.delete(queue)

    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False) -> None:
        """Delete an exchange: its bindings. The queues stay."""
        self.state.exchanges.pop(exchange, None)
        for binding in [one for one in self.state.bindings if one.exchange == exchange]:
            self.state.binding_delete(*binding)
        self.link.table.drop(lambda entry: entry.exchange == exchange)

    def queue_bind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Bind a queue to an exchange, for all processes."""
        exchange = exchange or "amq.direct"
        declared = self.link.expiring.get(queue)
        if declared is None and self.state.has_binding(queue, exchange, routing_key):
            return
        entry = Entry(exchange, self.typeof(exchange).type, routing_key or "", queue)
        self.link.table.put([entry], None if declared is None else declared.life)
        self.state.binding_declare(queue, exchange, routing_key, arguments)

    def queue_unbind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Delete a binding."""
        exchange = exchange or "amq.direct"
        self.state.binding_delete(queue, exchange, routing_key)
        gone = (exchange, routing_key or "", queue)
        self.link.table.drop(lambda entry: (entry.exchange, entry.key, entry.queue) == gone)

    def get_table(self, exchange: str) -> list[tuple[str, Any, str]]:
        """Return the bindings of an exchange, of all processes."""
        return self._routes(exchange, 0)

    def list_bindings(self) -> Iterable[tuple[str, str, str]]:
        """Return all bindings."""
        return [
            (entry.queue, entry.exchange, entry.key) for entry in self.link.table.entries() if entry.exchange
        ]

    def _routes(self, exchange: str, max_age: float) -> list[tuple[str, Any, str]]:
        found = [entry for entry in self.link.table.entries(max_age) if entry.exchange == exchange]
        if found and exchange not in self.state.exchanges:
            # Another process declared it.
            self.exchange_declare(exchange, found[0].type)
        kind: Any = self.typeof(exchange)
        return [kind.prepare_bind(entry.queue, exchange, entry.key, None) for entry in found]

    def _lookup(
        self, exchange: str, routing_key: str, default: str | None = None, max_age: float = 0
    ) -> list[str]:
        default = self.deadletter_queue if default is None else default
        if not exchange:
            return [routing_key or default or ""]
        routes = self._routes(exchange, max_age)
        kind: Any = self.typeof(exchange)
        found = sorted(kind.lookup(routes, exchange, routing_key, default))
        if not found and default:
            self._new_queue(default)
            found = [default]
        return found

    # Publishing.

    def basic_publish(self, message: dict[str, Any], exchange: str, routing_key: str, **kwargs: Any) -> None:
        """Publish a message. It is in the bucket, in every queue that gets it, when this returns."""
        self._inplace_augment_message(message, exchange, routing_key)
        props = message["properties"]
        max_age = ROUTES if props.get("delivery_mode") == TRANSIENT else 0
        self._send(self._lookup(exchange, routing_key, max_age=max_age), message)

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        self._send([queue], message)

    def _put_fanout(self, exchange: str, message: dict[str, Any], routing_key: str, **kwargs: Any) -> None:
        self._send(self._lookup(exchange, routing_key), message)

    def _send(self, queues: Sequence[str], message: dict[str, Any]) -> None:
        body = dumps(message).encode()
        extras = self._extras(message)
        tx = self.link.file.atomic()
        try:
            with tx:
                for queue in queues:
                    tx.enqueue(queue, body, **extras)
        except OutcomeUnknown:
            tx.repeat()  # The same ids: no message is there twice.

    def _extras(self, message: dict[str, Any]) -> Extras:
        props = message["properties"]
        extras = Extras(content_type="application/json", priority=-self._get_message_priority(message))
        if props.get("expiration"):
            extras["expires"] = int(props["expiration"]) / 1000
        eta = None if self.link.options.hold_eta else (message.get("headers") or {}).get("eta")
        if eta:
            at = datetime.fromisoformat(eta)
            extras["at"] = at if at.tzinfo else at.replace(tzinfo=UTC)
        return extras

    def encode_body(self, body: Any, encoding: str | None = None) -> tuple[Any, str | None]:
        """Return the body as JSON can hold it: text as it is, bytes in Base64."""
        return super().encode_body(body, encoding) if isinstance(body, bytes) else (body, "utf-8")

    # Consuming.

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
                link.delete(queue)

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
        with self.link.lock:
            limit = self.qos.prefetch_count
            room = limit - len(self.held) if limit else LOOKAHEAD - self._arrived
            return sorted(set(self._active_queues)), room

    def _deliver(self, job: aio.Job) -> None:
        """Take a message that was claimed. The pump calls this."""
        link = self.link
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
        if self.connection is None:
            return  # Closing gave it back.
        link = self.link
        job = self.held.pop(tag, None)
        if job is not None:
            link.pump.end(job, how)
            if self._claims is not None:
                self._claims.freed()

    def _give_back(self, jobs: Iterable[aio.Job]) -> None:
        for job in jobs:
            self.end(tag_of(job), "release")

    def basic_recover(self, requeue: bool = False) -> None:
        """Give back the messages that are not ended."""
        if not requeue:
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


class Transport(virtual.Transport):
    """The transport ``bucketq``."""

    Channel = Channel
    can_parse_url = True
    default_port = None
    driver_type = "bucketq"
    driver_name = "bucketq"
    connection_errors = (Unavailable, Contended, OutcomeUnknown, Closed, OSError)
    channel_errors = (ChannelError, Error)
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
        super().close_connection(connection)
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
