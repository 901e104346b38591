"""Every queue behind the same three calls: `enqueue` answers an id, `claim` a handle with that id or None, `ack` ends
it.

One class a configuration. `tasks` says whether callers are tasks of one loop or threads. `fill` brings in a backlog as
fast as it can, before anything is measured; `left` tells the ids that are still in the queue afterwards; `wait` waits
at most so long for a job, in the way its documentation has it.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import uuid
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

LEASE = 300


class Peer:
    """What every adapter has. `place` is the queue's own name or directory, `store` how to reach the server."""

    tasks: ClassVar[bool] = True
    # Whether it works on the server at all, or on this machine.
    remote: ClassVar[bool] = True
    # What it answered is in the store. Those that publish later are no match for those that do not.
    durable: ClassVar[bool] = True
    # Several processes may use it at once.
    shared: ClassVar[bool] = True
    # Seconds between two claims on an empty queue.
    poll: ClassVar[float] = 1.0

    def __init__(self, store: dict[str, str], place: str) -> None:
        self.store, self.place = store, place

    # Pyright would have these abstract; half of them are async, half are not.
    open: Callable[..., Any]
    enqueue: Callable[[bytes], Any]
    claim: Callable[[], Any]
    ack: Callable[[Any], Any]
    fill: Callable[[int], Any]
    left: Callable[[], Any]
    wait: Callable[[float], Any]
    close: Callable[[], Any]


class Polled(Peer):
    """Asked again and again while the queue is empty."""

    async def wait(self, seconds: float) -> Any:
        await asyncio.sleep(min(self.poll, seconds))
        return await self.claim()


def settings(store: dict[str, str]) -> dict[str, Any]:
    """bucketq's; every other one has its defaults."""
    return {
        "endpoint": store["endpoint"],
        "region": "us-east-1",
        "access_key": store["access_key"],
        "secret_key": store["secret_key"],
    }


class BucketqAio(Peer):
    """bucketq, awaited."""

    async def open(self) -> None:
        from bucketq import aio

        self.file = await aio.open(f"s3://{self.store['bucket']}/{self.place}/jobs", **settings(self.store))
        self.queue = self.file.queue("bench")

    async def enqueue(self, payload: bytes) -> str:
        return (await self.queue.enqueue(payload)).id

    async def claim(self) -> Any:
        return await self.queue.claim_one(lease=LEASE)

    async def ack(self, job: Any) -> None:
        await job.ack()

    async def wait(self, seconds: float) -> Any:
        return await self.queue.claim_one(lease=LEASE, wait=seconds)

    async def fill(self, jobs: int) -> None:
        await self.queue.enqueue_many([os.urandom(200) for _ in range(jobs)])

    async def left(self) -> list[str]:
        ids, after = [], None
        while True:
            page = await self.queue.list(["ready", "scheduled", "leased"], after=after, limit=1000)
            ids += [job.id for job in page.jobs]
            if (after := page.next) is None:
                return ids

    async def close(self) -> None:
        await self.file.close()


class Bucketq(Peer):
    """bucketq, blocking."""

    tasks = False
    options: ClassVar[dict[str, Any]] = {}

    def open(self) -> None:
        import bucketq

        url = f"s3://{self.store['bucket']}/{self.place}/jobs"
        self.file = bucketq.open(url, **settings(self.store), **self.options)
        self.queue = self.file.queue("bench")

    def enqueue(self, payload: bytes) -> str:
        return self.queue.enqueue(payload).id

    def claim(self) -> Any:
        return self.queue.claim_one(lease=LEASE)

    def ack(self, job: Any) -> None:
        job.ack()

    def wait(self, seconds: float) -> Any:
        return self.queue.claim_one(lease=LEASE, wait=seconds)

    def fill(self, jobs: int) -> None:
        self.queue.enqueue_many([os.urandom(200) for _ in range(jobs)])

    def left(self) -> list[str]:
        ids, after = [], None
        while True:
            page = self.queue.list(["ready", "scheduled", "leased"], after=after, limit=1000)
            ids += [job.id for job in page.jobs]
            if (after := page.next) is None:
                return ids

    def close(self) -> None:
        self.file.close()


class BucketqLocal(Bucketq):
    """bucketq in Local mode, published every sixteen jobs. One process at a time owns the directory."""

    durable, shared = False, False

    def open(self) -> None:
        self.options = {"mode": "local", "cache": str(Path(self.store["disk"]) / self.place)}
        super().open()
        self.acked = 0

    def ack(self, job: Any) -> None:
        job.ack()
        self.acked += 1
        if self.acked % 16 == 0:
            self.file.sync()

    def fill(self, jobs: int) -> None:
        super().fill(jobs)
        self.file.sync()


class JqueueBroker(Polled):
    """jqueue's BrokerQueue as its README has it."""

    def storage(self) -> Any:
        from jqueue.adapters.storage.s3 import S3Storage

        return S3Storage(
            bucket=self.store["bucket"],
            key=f"{self.place}/queue.json",
            region_name="us-east-1",
            endpoint_url=self.store["endpoint"],
        )

    async def open(self) -> None:
        from jqueue import BrokerQueue

        self.s3 = self.storage()
        self.broker = BrokerQueue(self.s3)
        self.queue = await self.broker.__aenter__()

    async def enqueue(self, payload: bytes) -> str:
        return (await self.queue.enqueue("bench", payload)).id

    async def claim(self) -> Any:
        jobs = await self.queue.dequeue("bench")
        return jobs[0] if jobs else None

    async def ack(self, job: Any) -> None:
        await self.queue.ack(job.id)

    async def fill(self, jobs: int) -> None:
        from jqueue import Job, QueueState
        from jqueue.core.codec import encode

        made = tuple(Job(entrypoint="bench", payload=os.urandom(200)) for _ in range(jobs))
        _, etag = await self.s3.read()
        await self.s3.write(encode(QueueState(jobs=made, version=1)), if_match=etag)

    async def left(self) -> list[str]:
        return [job.id for job in (await self.queue.read_state()).jobs]

    async def close(self) -> None:
        await self.broker.__aexit__(None, None, None)


class JqueueDirect(JqueueBroker):
    """jqueue's DirectQueue."""

    async def open(self) -> None:
        from jqueue import DirectQueue

        self.s3 = self.storage()
        self.queue = DirectQueue(self.s3)

    async def close(self) -> None:
        pass


class JqueueReused(JqueueBroker):
    """BrokerQueue with one S3 client kept open: not how it ships, but what it could be."""

    def storage(self) -> Any:
        import aioboto3

        class Kept:
            """Hands out the one client to whoever opens one."""

            def __init__(self, client: Any) -> None:
                self.kept = client

            def client(self, *_: Any, **__: Any) -> Any:
                return self

            async def __aenter__(self) -> Any:
                return self.kept

            async def __aexit__(self, *_: object) -> None:
                pass

        s3 = super().storage()
        self.context = aioboto3.Session().client("s3", **s3._client_kwargs())
        self.keep = Kept
        return s3

    async def open(self) -> None:
        await super().open()
        self.s3.session = self.keep(await self.context.__aenter__())

    async def close(self) -> None:
        await super().close()
        await self.context.__aexit__(None, None, None)


class Pawn(Polled):
    """pawn-queue."""

    poll = 5.0

    async def open(self) -> None:
        from pawn_queue import PawnQueueBuilder

        builder = PawnQueueBuilder().s3(
            endpoint_url=self.store["endpoint"],
            bucket_name=self.store["bucket"],
            access_key=self.store["access_key"],
            secret_key=self.store["secret_key"],
            use_ssl=False,
        )
        self.pawn = await builder.polling(max_messages_per_poll=1, visibility_timeout_seconds=LEASE).build()
        await self.pawn.setup()
        self.topic = self.place.replace("/", "-")
        await self.pawn.create_topic(self.topic)
        me = uuid.uuid4().hex
        self.producer = await self.pawn.register_producer(me)
        self.consumer = await self.pawn.register_consumer(me, topics=[self.topic])

    async def enqueue(self, payload: bytes) -> str:
        return await self.producer.publish(self.topic, {"data": payload.hex()[:200]})

    async def claim(self) -> Any:
        found = await self.consumer.poll()
        return found[0] if found else None

    async def ack(self, message: Any) -> None:
        await message.ack()

    async def fill(self, jobs: int) -> None:
        await at_once(jobs, lambda: self.enqueue(os.urandom(200)))

    async def left(self) -> list[str]:
        keys = await self.pawn._client.list_objects(f"{self.topic}/messages/")
        return ["-".join(key.removesuffix(".json").rsplit("-", 5)[1:]) for key in keys]

    async def close(self) -> None:
        await self.pawn.teardown()


class Pgqrs(Polled):
    """pgqrs on its S3 store, durable."""

    poll = 2.0

    async def connect(self, durable: bool) -> Any:
        import pgqrs

        config = pgqrs.Config(f"s3://{self.store['bucket']}/{self.place}.sqlite")
        config.s3_mode = pgqrs.DurabilityMode.Durable if durable else pgqrs.DurabilityMode.Local
        # A directory for each handle: they are not meant to be shared.
        folder = Path(self.store["disk"]) / f"{self.place}-{uuid.uuid4().hex}"
        folder.mkdir(parents=True)
        config.s3_cache_dir = str(folder)
        return await pgqrs.connect_with(config)

    async def open(self) -> None:
        self.pgqrs = await self.connect(self.durable)
        await self.prepare()

    async def prepare(self) -> None:
        import pgqrs

        await self.pgqrs.bootstrap()
        if not any(queue.queue_name == "bench" for queue in await (await self.pgqrs.get_queues()).list()):
            await self.pgqrs.queue("bench")
        self.producer = await self.pgqrs.producer("bench")
        self.consumer = await self.pgqrs.consumer("bench")
        self.enqueue_many = pgqrs.enqueue_batch

    async def enqueue(self, payload: bytes) -> str:
        return str(await self.producer.enqueue({"data": payload.hex()[:200]}))

    async def claim(self) -> Any:
        found = await self.consumer.dequeue()
        return found[0] if found else None

    async def ack(self, message: Any) -> None:
        await self.consumer.archive(message.id)

    async def fill(self, jobs: int) -> None:
        for _ in range(0, jobs, 100):
            await self.enqueue_many(self.producer, [{"data": os.urandom(100).hex()} for _ in range(100)])

    async def left(self) -> list[str]:
        # It has no call that lists messages, but its object is a SQLite file.
        return await asyncio.to_thread(self.read)

    def read(self) -> list[str]:
        import boto3

        s3 = boto3.client("s3", endpoint_url=self.store["endpoint"])
        image = s3.get_object(Bucket=self.store["bucket"], Key=f"{self.place}.sqlite")["Body"].read()
        with closing(sqlite3.connect(":memory:")) as db:
            db.deserialize(image)
            return [
                str(row[0]) for row in db.execute("SELECT id FROM pgqrs_messages WHERE archived_at IS NULL")
            ]

    async def close(self) -> None:
        pass


class PgqrsLocal(Pgqrs):
    """The same in its Local mode, synced every sixteen jobs. Ids of several processes collide there."""

    durable, shared = False, False

    async def open(self) -> None:
        self.acked, self.syncing = 0, asyncio.Lock()
        await super().open()

    async def ack(self, message: Any) -> None:
        import pgqrs

        await super().ack(message)
        self.acked += 1
        if self.acked % 16 == 0:
            # Two at once break the handle.
            async with self.syncing:
                await pgqrs.as_s3(self.pgqrs).sync()

    async def fill(self, jobs: int) -> None:
        import pgqrs

        await super().fill(jobs)
        await pgqrs.as_s3(self.pgqrs).sync()

    async def left(self) -> list[str]:
        import pgqrs

        async with self.syncing:
            await pgqrs.as_s3(self.pgqrs).sync()
        return await super().left()


class RedisQueue(Peer):
    """redis-message-queue on a Redis that syncs each write to its disk."""

    tasks, remote = False, False

    def open(self) -> None:
        import redis
        from redis_message_queue import RedisMessageQueue

        self.redis = redis.Redis(port=int(self.store["redis"]))
        self.queue = RedisMessageQueue(self.place, client=self.redis)

    def enqueue(self, payload: bytes) -> str:
        name = uuid.uuid4().hex
        self.queue.publish(name + payload.hex()[:168])
        return name

    def claim(self) -> Any:
        context = self.queue.process_message()
        message = context.__enter__()
        return None if message is None else Handle(bytes(message)[:32].decode(), context)

    def ack(self, job: Handle) -> None:
        job.what.__exit__(None, None, None)

    def fill(self, jobs: int) -> None:
        for _ in range(jobs):
            self.enqueue(os.urandom(200))

    def left(self) -> list[str]:
        return [bytes(m)[:32].decode() for m in self.queue.peek(1_000_000)]

    def close(self) -> None:
        self.redis.close()


class Handle:
    """A claimed job of a peer that has no object with an id."""

    __slots__ = ("id", "what")

    def __init__(self, name: str, what: Any) -> None:
        self.id, self.what = name, what


class Huey(Peer):
    """huey on SQLite, each write synced."""

    tasks, remote = False, False

    def open(self) -> None:
        from huey import SqliteHuey

        folder = Path(self.store["disk"]) / self.place
        folder.mkdir(parents=True, exist_ok=True)
        self.huey = SqliteHuey(filename=str(folder / "huey.db"), fsync=True, timeout=60)
        self.work = self.huey.task()(nothing)

    def enqueue(self, payload: bytes) -> str:
        return self.work(payload).id

    def claim(self) -> Any:
        return self.huey.dequeue()

    def ack(self, task: Any) -> None:
        # Taken out by the claim: there is nothing left to acknowledge.
        self.huey.execute(task)

    def fill(self, jobs: int) -> None:
        for _ in range(jobs):
            self.enqueue(os.urandom(200))

    def left(self) -> list[str]:
        return [task.id for task in self.huey.pending()]

    def close(self) -> None:
        self.huey.storage.close()


def nothing(_: bytes) -> None:
    """What a task of huey does."""


class PersistQueue(Peer):
    """persist-queue's queue with acks, for the threads of one process."""

    tasks, remote, shared = False, False, False

    def open(self) -> None:
        from persistqueue import SQLiteAckQueue

        folder = Path(self.store["disk"]) / self.place
        self.queue = SQLiteAckQueue(str(folder), multithreading=True, auto_resume=False)

    def enqueue(self, payload: bytes) -> str:
        return str(self.queue.put(payload))

    def claim(self) -> Any:
        from persistqueue import Empty

        try:
            found = self.queue.get(block=False, raw=True)
        except Empty:
            return None
        return Handle(str(found["pqid"]), found["pqid"])

    def ack(self, job: Handle) -> None:
        self.queue.ack(id=job.what)

    def fill(self, jobs: int) -> None:
        for _ in range(jobs):
            self.enqueue(os.urandom(200))

    def left(self) -> list[str]:
        # Of status ready, inited or being worked on.
        return [str(row["id"]) for row in self.queue.queue() if int(row["status"]) < 5]

    def close(self) -> None:
        self.queue.close()


class Litequeue(Peer):
    """litequeue."""

    tasks, remote = False, False

    def open(self) -> None:
        from litequeue import LiteQueue

        folder = Path(self.store["disk"]) / self.place
        folder.mkdir(parents=True, exist_ok=True)
        self.queue = LiteQueue(folder / "lite.db", timeout=60)

    def enqueue(self, payload: bytes) -> str:
        return self.queue.put(payload.hex()[:200]).message_id

    def claim(self) -> Any:
        message = self.queue.pop()
        return None if message is None else Handle(message.message_id, message)

    def ack(self, job: Handle) -> None:
        self.queue.done(job.id, claim_id=job.what.claim_id)

    def fill(self, jobs: int) -> None:
        for _ in range(jobs):
            self.enqueue(os.urandom(200))

    def left(self) -> list[str]:
        path = Path(self.store["disk"]) / self.place / "lite.db"
        with closing(sqlite3.connect(path)) as db:
            return [row[0] for row in db.execute("SELECT message_id FROM Queue WHERE done_time IS NULL")]

    def close(self) -> None:
        self.queue.close()


async def at_once(count: int, one: Callable[[], Awaitable[Any]]) -> None:
    """So many calls, 64 of them at a time."""
    limit = asyncio.Semaphore(64)

    async def limited() -> None:
        async with limit:
            await one()

    await asyncio.gather(*(limited() for _ in range(count)))


ALL: dict[str, type[Peer]] = {
    "bucketq": Bucketq,
    "bucketq-aio": BucketqAio,
    "bucketq-local": BucketqLocal,
    "jqueue-direct": JqueueDirect,
    "jqueue-broker": JqueueBroker,
    "jqueue-reused": JqueueReused,
    "pawn-queue": Pawn,
    "pgqrs-durable": Pgqrs,
    "pgqrs-local": PgqrsLocal,
    "redis-message-queue": RedisQueue,
    "huey": Huey,
    "persist-queue": PersistQueue,
    "litequeue": Litequeue,
}
