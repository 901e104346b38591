"""bucketq, in a directory or a bucket; a group of calls is one commit."""

from __future__ import annotations

import json
import os

import done

import bucketq

app = bucketq.App(os.environ["BENCH_URL"], **json.loads(os.environ["BENCH_OPTIONS"]))


# Child processes import the module of a task and find it at the top.
@app.task
def nothing(tag: str) -> None:
    done.nothing(tag)


@app.task
def nap(tag: str) -> None:
    done.nap(tag)


TASKS = {"nothing": nothing, "nap": nap}


def enqueue(kind: str, tag: str) -> None:
    TASKS[kind].enqueue(tag)


def bulk(kind: str, tags: list[str]) -> None:
    app.group([TASKS[kind].job(tag) for tag in tags])
