"""Queue files that Spark reads, and the work that fills them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import bucketq
from patience import PATIENCE
from servers import BUCKET, Server

NUMBERS = itertools.count()
RARELY = 3600.0


class Place:
    """A queue file that other processes can open too."""

    def __init__(self, url: str, settings: dict[str, Any], spark: Any, server: Server | None = None) -> None:
        self.url = url
        self.settings = settings | {"archive_every": RARELY}
        self.spark = spark
        self.server = server

    def open(self, **settings: Any) -> bucketq.QueueFile:
        return bucketq.open(self.url, **(self.settings | settings))

    def options(self, **options: Any) -> dict[str, str]:
        return {"url": self.url} | {k: str(v) for k, v in (self.settings | options).items()}

    def frame(self, **options: Any) -> Any:
        return self.spark.read.format("bucketq").options(**self.options(**options)).load()

    def rows(self, **options: Any) -> list[dict[str, Any]]:
        return [row.asDict() for row in self.frame(**options).collect()]

    def objects(self) -> list[str]:
        """Return the keys of the objects in the store."""
        if self.server is not None:
            prefix = self.url.removeprefix(f"s3://{BUCKET}/")
            pages = (
                self.server.client()
                .get_paginator("list_objects_v2")
                .paginate(Bucket=BUCKET, Prefix=f"{prefix}.")
            )
            return sorted(one["Key"].rpartition("/")[2] for page in pages for one in page.get("Contents", ()))
        path = Path(self.url)
        return sorted(p.name for p in path.parent.iterdir() if p.name.startswith(f"{path.name}."))

    def staged(self) -> list[str]:
        return [key for key in self.objects() if ".stage-" in key]


def work(file: bucketq.QueueFile, queue: str, jobs: int, *, dead: int = 0, at: int = 0) -> None:
    """Enqueue this number of jobs and finish them; the first ``dead`` of them are rejected."""
    q = file.queue(queue)
    q.enqueue_many([bucketq.New({"n": at + n}, group=f"g{n % 3}" if n % 2 else None) for n in range(jobs)])
    left, rejected = jobs, 0
    while left > 0:
        with q.claim(50, worker=f"w{left % 2}") as batch, file.atomic() as tx:
            for job in batch:
                if rejected < dead:
                    rejected += 1
                    tx.reject(job, ValueError(f"bad {job.data['n']}"))
                else:
                    tx.ack(job, result={"was": job.data["n"]})
                left -= 1


def archive(file: bucketq.QueueFile, queue: str, *, keep: int = 0, **changes: Any) -> None:
    """Configure the queue to archive finished jobs."""
    file.queue(queue).configure(archive=True, keep=keep, **changes)


def stream(place: Any, **options: Any) -> Any:
    """Return the log of finished jobs."""
    return place.spark.readStream.format("bucketq").options(**place.options(**options)).load()


def drain(frame: Any, out: Path, each: Any) -> Any:
    """Pass everything in the stream, batch by batch, to ``each``."""
    query = (
        frame.writeStream.foreachBatch(each)
        .option("checkpointLocation", str(out / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(PATIENCE)
    return query
