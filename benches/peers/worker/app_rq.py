"""RQ, which keeps no results here."""

from __future__ import annotations

import os

from redis import Redis
from rq import Queue

queue = Queue("default", connection=Redis.from_url(os.environ["BENCH_REDIS"]))


def enqueue(kind: str, tag: str) -> None:
    queue.enqueue(f"done.{kind}", tag, result_ttl=0)


def bulk(kind: str, tags: list[str]) -> None:
    queue.enqueue_many([Queue.prepare_data(f"done.{kind}", [tag], result_ttl=0) for tag in tags])
