"""Celery on Redis, without a result backend."""

from __future__ import annotations

import os

import done
from celery import Celery

app = Celery("app_celery", broker=os.environ["BENCH_REDIS"])
app.conf.broker_connection_retry_on_startup = True
TASKS = {kind: app.task(getattr(done, kind), name=kind, ignore_result=True) for kind in ("nothing", "nap")}


def enqueue(kind: str, tag: str) -> None:
    TASKS[kind].delay(tag)


def bulk(kind: str, tags: list[str]) -> None:
    for tag in tags:
        TASKS[kind].delay(tag)
