"""procrastinate on Postgres."""

from __future__ import annotations

import os
from functools import cache

import done
from procrastinate import App, PsycopgConnector

app = App(connector=PsycopgConnector(conninfo=os.environ["BENCH_POSTGRES"]))
TASKS = {kind: app.task(getattr(done, kind), name=kind) for kind in ("nothing", "nap")}


@cache
def opened() -> App:
    # Only the caller uses it: a worker opens the app by itself.
    return app.open()


def enqueue(kind: str, tag: str) -> None:
    opened()
    TASKS[kind].defer(tag=tag)


def bulk(kind: str, tags: list[str]) -> None:
    opened()
    TASKS[kind].batch_defer(*[{"tag": tag} for tag in tags])
