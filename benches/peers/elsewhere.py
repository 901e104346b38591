"""Queues without a bucket: on a Redis, or on a disk of this machine."""

from __future__ import annotations

import os
import sqlite3
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

from peer import Peer


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
    """A claimed job of a peer whose jobs are not objects with an id."""

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
        # The claim already removed it: there is nothing left to acknowledge.
        self.huey.execute(task)

    def fill(self, jobs: int) -> None:
        for _ in range(jobs):
            self.enqueue(os.urandom(200))

    def left(self) -> list[str]:
        return [task.id for task in self.huey.pending()]

    def close(self) -> None:
        self.huey.storage.close()


def nothing(_: bytes) -> None:
    """The work of a huey task."""


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
        # With status ready, inited or in progress.
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
