"""A broker for dramatiq 2: its messages are jobs of a queue file. docs/moving/dramatiq.md shows how to use it.

A message is acked together with the messages that its middleware enqueued after the actor: the retry, or the next
step of a pipeline.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import contextmanager
from threading import Condition, local
from typing import TYPE_CHECKING, Any, Unpack, cast

from dramatiq.broker import Broker, Consumer, MessageProxy
from dramatiq.common import q_name
from dramatiq.encoder import JSONEncoder
from dramatiq.errors import ConnectionClosed, DecodeError, QueueJoinTimeout, QueueNotFound
from dramatiq.message import Message, get_encoder
from dramatiq.results.backend import Missing, ResultBackend

from bucketq._spelled import spelled
from bucketq.contrib._opening import Opening
from bucketq.contrib._until import LATER, Expiring, is_over, until
from bucketq.errors import (
    Closed,
    Error,
    Invalid,
    LeaseLost,
    NotFound,
    QueueFull,
)
from bucketq.types import POLICY, Extras, FromPolicy, New, Seconds, Settings, State

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable
    from os import PathLike

    from dramatiq.actor import Actor
    from dramatiq.encoder import Encoder
    from dramatiq.middleware import Middleware

    from bucketq.file import QueueFile
    from bucketq.queue import Job

__all__ = ["BucketqBackend", "BucketqBroker"]

UNFINISHED: tuple[State, ...] = ("scheduled", "ready", "leased")
KEPT: tuple[State, ...] = ("ready",)
FLUSHED: tuple[State, ...] = ("scheduled", "ready", "dead")
LOOK = 1.0
"""Seconds after which ``join`` looks whether the job it waits for still is in its queue."""


@contextmanager
def _connected() -> Generator[None]:
    """Raise dramatiq's error for what may succeed later: its worker then repeats the call."""
    try:
        yield
    except (*LATER, Closed) as error:
        raise ConnectionClosed(error) from error


class BucketqBroker(Broker):
    """Keeps messages as jobs of a queue file, one bucketq queue for each dramatiq queue.

    Opens the queue file when it is first used, with the settings of ``bucketq.open``. ``lease`` is for the messages
    that this process claims; without it, the policy of each queue says how long a lease lasts.
    """

    actors: dict[str, Actor[..., Any]]
    queues: dict[str, None]

    @spelled(Settings)
    def __init__(
        self,
        url: str | PathLike[str] | None = None,
        *,
        middleware: list[Middleware] | None = None,
        lease: Seconds | FromPolicy = POLICY,
        **options: Unpack[Settings],
    ) -> None:
        super().__init__(middleware)
        self.queues = {}
        self._lease = lease
        self._opening = Opening(url, options)
        # The message whose middleware runs in this thread after its actor.
        self._after = local()

    @property
    def file(self) -> QueueFile:
        """The queue file of this process."""
        return self._opening.file

    def close(self) -> None:
        """Close the queue file. A later use opens it again."""
        self._opening.close()

    def declare_queue(self, queue_name: str) -> None:
        """Declare a queue. Its first message creates it. There are no delay queues: the queue file keeps delays."""
        if queue_name not in self.queues:
            self.emit_before("declare_queue", queue_name)
            self.queues[queue_name] = None
            self.emit_after("declare_queue", queue_name)

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 30000) -> Consumer:
        """Return a consumer that holds up to ``prefetch`` messages and waits ``timeout`` milliseconds for one."""
        if queue_name not in self.queues:
            raise QueueNotFound(queue_name)
        return _Consumer(self, queue_name, prefetch, timeout / 1000, self._lease)

    def enqueue(self, message: Message[Any], *, delay: int | None = None) -> Message[Any]:
        """Enqueue a message, to be delivered after ``delay`` milliseconds."""
        self.emit_before("enqueue", message, delay)
        queue = q_name(message.queue_name)
        self.send(queue, message.encode(), self._extras(message, delay))
        self.emit_after("enqueue", message, delay)
        return message

    def send(self, queue: str, data: bytes, extras: Extras) -> None:
        """Enqueue a job; one that middleware enqueues after an actor, in the commit that ends the message."""
        ending: _Claimed | None = getattr(self._after, "message", None)
        if ending is None:
            self.file.queue(queue).enqueue(data, **extras)
        else:
            ending.following.append(New(queue, data, **extras))

    def _extras(self, message: Message[Any], delay: int | None) -> Extras:
        actor = self.actors.get(message.actor_name)
        priority = message.options.get("priority", 0 if actor is None else actor.priority)
        extras = Extras(priority=priority)
        if delay:
            extras["delay"] = delay / 1000
        if isinstance(get_encoder(), JSONEncoder):
            extras["content_type"] = "application/json"
        return extras

    def emit_after(self, signal: str, *args: Any, **kwargs: Any) -> None:
        """Run the middleware. Messages that it enqueues after an actor are in the commit that ends the message."""
        message = args[0] if args else None
        if signal not in ("process_message", "skip_message") or not isinstance(message, _Claimed):
            super().emit_after(signal, *args, **kwargs)
            return
        self._after.message = message
        try:
            super().emit_after(signal, *args, **kwargs)
        finally:
            self._after.message = None

    def flush(self, queue_name: str) -> None:
        """Delete the messages of a queue that wait, and its dead letters. A running message keeps running."""
        self.file.queue(q_name(queue_name)).purge(FLUSHED)

    def flush_all(self) -> None:
        """Delete the waiting messages and the dead letters of all declared queues."""
        for queue_name in self.queues:
            self.flush(queue_name)

    def join(self, queue_name: str, *, timeout: int | None = None) -> None:
        """Wait until the queue has no unfinished message, delayed ones included; ``timeout`` is in milliseconds."""
        if q_name(queue_name) not in self.queues:
            raise QueueNotFound(queue_name)
        queue = self.file.queue(q_name(queue_name))
        end = time.monotonic() + timeout / 1000 if timeout else None
        while page := queue.list(UNFINISHED, limit=1):
            left = LOOK if end is None else end - time.monotonic()
            if left <= 0:
                raise QueueJoinTimeout(queue_name)
            queue.wait(page.jobs[0].id, timeout=min(left, LOOK))


class _Claimed(MessageProxy):
    """A message whose job this process holds."""

    def __init__(self, message: Message[Any], job: Job) -> None:
        super().__init__(message)  # pyright: ignore[reportUnknownMemberType]
        self.job = job
        self.following: list[New] = []


class _Consumer(Consumer):
    """Claims the messages of a queue. The worker's threads end them while its own thread waits for more."""

    def __init__(
        self, broker: BucketqBroker, queue: str, prefetch: int, timeout: float, lease: Seconds | FromPolicy
    ) -> None:
        self._broker = broker
        self._name = queue
        self._prefetch = prefetch
        self._timeout = timeout
        self._lease = lease
        self._held = 0
        self._ended = Condition()
        self._claimed: deque[Job] = deque()

    def __next__(self) -> MessageProxy | None:
        if not self._claimed and not self._claim():
            return None
        job = self._claimed.popleft()
        try:
            message = cast("Message[Any]", Message.decode(job.payload))  # pyright: ignore[reportUnknownMemberType]
            return _Claimed(message, job)
        except DecodeError as error:
            self._broker.logger.error("Job %s of queue %r is no message.", job.id, self._name, exc_info=True)
            with _connected():
                job.reject(error)
            self._freed()
            return None

    def _claim(self) -> bool:
        """Claim as many messages as there is room for. Returns False if none comes in time."""
        with self._ended:
            if not self._ended.wait_for(lambda: self._held < self._prefetch, self._timeout):
                return False
            room = self._prefetch - self._held
        with _connected():
            jobs = self._broker.file.queue(self._name).claim(room, lease=self._lease, wait=self._timeout)
        with self._ended:
            self._held += len(jobs)
        self._claimed.extend(jobs)
        return bool(jobs)

    def _freed(self) -> None:
        with self._ended:
            self._held -= 1
            self._ended.notify_all()

    def ack(self, message: MessageProxy) -> None:
        """Mark the job done."""
        claimed = cast("_Claimed", message)
        self._end(claimed, lambda job: job.ack(then=claimed.following))

    def nack(self, message: MessageProxy) -> None:
        """Mark the job dead at once: dramatiq has retried it as often as it may."""
        claimed = cast("_Claimed", message)
        self._end(claimed, lambda job: self._reject(job, claimed))

    def _reject(self, job: Job, message: _Claimed) -> None:
        if not message.following:
            job.reject(message._exception)
            return
        with self._broker.file.atomic() as tx:
            tx.reject(job, message._exception)
            for one in message.following:
                tx.enqueue(cast("str", one.queue), one.data, **one.extras)

    def _end(self, message: _Claimed, how: Callable[[Job], None]) -> None:
        """End the job and enqueue what follows it, in one commit."""
        with _connected():
            try:
                how(message.job)
            except (LeaseLost, NotFound) as error:
                self._broker.logger.warning("Message %s runs again or was deleted: %s", message, error)
            except Invalid as error:
                self._broker.logger.error(
                    "Message %s is dead, its result or retry is invalid: %s", message, error
                )
                message.job.reject(error)
            except QueueFull as error:
                self._broker.logger.error(
                    "Message %s runs again, its result or retry has no room: %s", message, error
                )
                message.job.nack(error)
        self._freed()

    def requeue(self, messages: Iterable[MessageProxy]) -> None:
        """Give the messages back: others can claim them at once, and the attempt does not count."""
        self._release([cast("_Claimed", message).job for message in messages])

    def _release(self, jobs: list[Job]) -> None:
        try:
            with _connected(), self._broker.file.atomic() as tx:
                for job in jobs:
                    tx.release(job)
        except (LeaseLost, NotFound):
            # One commit releases all of them or none.
            for job in jobs:
                try:
                    with _connected():
                        job.release()
                except (LeaseLost, NotFound) as error:
                    self._broker.logger.warning("Job %s was not given back: %s", job.id, error)
        for _ in jobs:
            self._freed()

    def close(self) -> None:
        """Give back the messages that the worker has not got yet."""
        jobs = list(self._claimed)
        self._claimed.clear()
        try:
            self._release(jobs)
        except (ConnectionClosed, Error) as error:
            self._broker.logger.warning("Messages were not given back and run after their leases: %s", error)


class BucketqBackend(ResultBackend):
    """Keeps results as jobs of a queue that no worker claims, each for as long as ``result_ttl`` says.

    The result of an actor is stored by the commit that acks its message.
    """

    def __init__(
        self,
        broker: BucketqBroker,
        *,
        namespace: str = "dramatiq-results",
        encoder: Encoder | None = None,
        use_namespace_prefix_keys: bool = False,
    ) -> None:
        super().__init__(
            namespace=namespace, encoder=encoder, use_namespace_prefix_keys=use_namespace_prefix_keys
        )
        self._broker = broker
        self._expiring = Expiring(broker._opening, namespace)

    def _store(self, message_key: str, result: Any, ttl: int) -> None:
        self._expiring()
        data = self.encoder.encode(result)
        extras = Extras(group=message_key, expires=ttl / 1000, headers=until(ttl / 1000))
        self._broker.send(self.namespace, data, extras)

    def _get(self, message_key: str) -> Any:
        page = self._broker.file.queue(self.namespace).list(KEPT, group=message_key, payloads=True)
        if not page or is_over(page.jobs[-1]):
            return Missing
        return self.encoder.decode(page.jobs[-1].payload)
