"""A user's code, as pyright in strict mode sees it (`make lint`). test_names.py and test_package.py run it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import assert_type

import bucketq
from bucketq import aio


def blocking(url: str) -> list[str]:
    seen: list[str] = []
    with bucketq.open(url, deadline=10, poll_max=timedelta(seconds=1)) as file:
        emails = file.queue("emails")
        receipt = emails.enqueue({"to": "ada@example.org"}, dedup="welcome-42", headers={"trace": "1"})
        assert_type(receipt, bucketq.Enqueued)
        emails.enqueue("tomorrow", at=datetime.now(UTC) + timedelta(days=1))
        emails.enqueue_many([bucketq.New({"to": "bob@example.org"}, priority=1), {"to": "eve@example.org"}])
        for job in emails.jobs(wait=0, prefetch=10):
            assert_type(job, bucketq.Job)
            with job:
                seen.append(job.data["to"])
                job.ack(result={"sent": True}, then=[bucketq.New("log", "sent")])
        detail = emails.wait(receipt.id, timeout=10)
        assert_type(detail, bucketq.JobDetail | None)
        assert detail is not None
        assert detail.result == {"sent": True}
        with file.claim(10, queues=["log"], wait=timedelta(0)) as batch:
            for entry in batch:
                with entry, file.atomic() as tx:
                    tx.ack(entry)
                    tx.enqueue("archive", entry.text)
        policy = emails.configure(
            max_attempts=3, backoff=bucketq.Backoff.fixed(5), rate="100/min", lease=None
        )
        assert_type(policy, bucketq.Policy)
        assert_type(emails.policy().rate, bucketq.Rate | None)
        emails.configure(max_pending=100, overflow=bucketq.Block(timeout=1), dedup_window="unfinished")
        assert_type(emails.schedule("daily", {"n": 1}, cron="@daily", priority=2), datetime)
        assert_type(file.schedules()[0].every, timedelta | None)
        assert_type(emails.claim_one(lease=bucketq.POLICY), bucketq.Job | None)
        assert_type(file.stats(max_age=5).queues[0].counts["ready"], int)
        try:
            emails.cancel(receipt.id)
        except bucketq.Invalid as error:
            seen.append(error.code)
    return seen


async def awaitable(url: str) -> list[str]:
    seen: list[str] = []
    async with await aio.open(url) as file:
        emails = file.queue("emails")
        assert_type(await emails.enqueue(b"ada"), bucketq.Enqueued)
        async for job in emails.jobs(wait=0):
            assert_type(job, bucketq.aio.Job)
            async with job:
                seen.append(job.text)
        assert_type(await emails.claim_one(), aio.Job | None)
    assert_type(bucketq.__version__, str)
    return seen


if __name__ == "__main__":
    print(blocking("memory://typed"), asyncio.run(awaitable("memory://typed-aio")))
