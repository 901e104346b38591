"""Queues that keep their jobs in a bucket."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

from peer import LEASE, Polled, at_once


class JqueueBroker(Polled):
    """jqueue's BrokerQueue, used as in its README."""

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
    """BrokerQueue with one S3 client kept open: it does not ship like this, but could."""

    def storage(self) -> Any:
        import aioboto3

        class Kept:
            """A context manager that always yields the one client."""

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
    """pgqrs in its Local mode, synced every sixteen jobs. Ids of several processes collide there."""

    durable, shared = False, False

    async def open(self) -> None:
        self.acked, self.syncing = 0, asyncio.Lock()
        await super().open()

    async def ack(self, message: Any) -> None:
        import pgqrs

        await super().ack(message)
        self.acked += 1
        if self.acked % 16 == 0:
            # Two concurrent calls break the handle.
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
