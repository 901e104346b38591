"""The part of a channel that declares and publishes: queues, exchanges, bindings, messages."""

# Kombu has no types, and the arguments of its methods are given, used or not.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportIncompatibleMethodOverride=false
# ruff: noqa: ARG002

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from amqp.protocol import queue_declare_ok_t  # pyright: ignore[reportMissingTypeStubs]
from kombu.exceptions import ChannelError
from kombu.transport import base, virtual
from kombu.utils.json import dumps
from kombu.utils.uuid import uuid

from bucketq.contrib.celery.link import BOUND, Declared
from bucketq.contrib.celery.table import Entry
from bucketq.errors import OutcomeUnknown
from bucketq.types import Changes, Extras

if TYPE_CHECKING:
    from bucketq.contrib.celery.link import Link

TRANSIENT = 1
"""Kombu's delivery mode of events and other messages that may be lost."""
ROUTES = 1.0
"""For transient messages of a topic exchange, the bindings may be this old, in seconds."""


class Routing(virtual.Channel):
    """The queues and messages that ``Channel`` declares and publishes."""

    supports_fanout = True

    @property
    def link(self) -> Link:
        """The link of this process."""
        raise NotImplementedError  # Channel has it.

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
        lasts = given.get("x-message-ttl")
        if exclusive or given.get("x-expires"):
            leftover = self.link.options.leftover_after
            declared = Declared(max(given.get("x-expires", 0) / 1000, leftover), auto_delete)
            policy |= Changes(keep=0, max_pending=BOUND, overflow="drop_oldest")
            # A worker that is started anew must not find the commands of the time before.
            lasts = min(lasts or leftover * 1000, given.get("x-expires") or leftover * 1000)
        elif auto_delete:
            policy |= Changes(keep=0)
        if lasts:
            policy |= Changes(expires=lasts / 1000)
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
        # Events, of which there are many, and not the replies to remote control, whose queues are new.
        kind: Any = self.typeof(exchange)
        event = kind.type == "topic" and message["properties"].get("delivery_mode") == TRANSIENT
        self._send(self._lookup(exchange, routing_key, max_age=ROUTES if event else 0), message)

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
