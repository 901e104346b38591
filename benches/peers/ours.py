"""bucketq from Python, with its defaults."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar

from peer import LEASE, Peer


def settings(store: dict[str, str]) -> dict[str, Any]:
    """Return bucketq's settings for this store; all others have their defaults."""
    return {
        "endpoint": store["endpoint"],
        "region": "us-east-1",
        "access_key": store["access_key"],
        "secret_key": store["secret_key"],
    }


class BucketqAio(Peer):
    """bucketq, async."""

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
    """bucketq in Local mode, with a sync every sixteen jobs. One process at a time owns the directory."""

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
