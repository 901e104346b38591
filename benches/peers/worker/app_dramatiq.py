"""dramatiq on Redis."""

from __future__ import annotations

import os

import done
import dramatiq
from dramatiq.brokers.redis import RedisBroker

dramatiq.set_broker(RedisBroker(url=os.environ["BENCH_REDIS"]))
ACTORS = {kind: dramatiq.actor(getattr(done, kind), actor_name=kind) for kind in ("nothing", "nap")}


def enqueue(kind: str, tag: str) -> None:
    ACTORS[kind].send(tag)


def bulk(kind: str, tags: list[str]) -> None:
    for tag in tags:
        ACTORS[kind].send(tag)
