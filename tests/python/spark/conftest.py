"""One Spark session for all tests here, and queue files with an archive."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import bucketq
from servers import BUCKET, Server, require

NUMBERS = itertools.count()
RARELY = 3600.0


def java() -> str:
    """Java 17 or newer, or a skip that says what is missing."""
    home = os.environ.get("JAVA_HOME")
    program = shutil.which("java", path=f"{home}/bin" if home else None)
    reason = "Java 17 is not installed (Debian: apt install openjdk-17-jre-headless)"
    program = require(program, reason)
    told = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=60).stderr
    version = re.search(r'version "(\d+)', told)
    return require(program if version and int(version[1]) >= 17 else None, reason)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    java()
    from bucketq.spark import session

    scratch = tmp_path_factory.mktemp("spark")
    made = session(
        **{
            "spark.master": "local[2,3]",
            "spark.sql.shuffle.partitions": "2",
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": f"-Dderby.system.home={scratch}",
            "spark.sql.warehouse.dir": str(scratch / "warehouse"),
            "spark.local.dir": str(scratch),
            "spark.sql.streaming.pollingDelay": "50ms",
        }
    )
    yield made
    made.stop()


class Place:
    """A queue file that other processes reach too."""

    def __init__(self, url: str, settings: dict[str, Any], spark: Any) -> None:
        self.url = url
        self.settings = settings
        self.spark = spark

    def open(self, **settings: Any) -> bucketq.QueueFile:
        return bucketq.open(self.url, **(self.settings | {"archive_every": RARELY} | settings))

    def options(self, **options: Any) -> dict[str, str]:
        return {"url": self.url} | {k: str(v) for k, v in (self.settings | options).items()}

    def frame(self, **options: Any) -> Any:
        return self.spark.read.format("bucketq").options(**self.options(**options)).load()

    def rows(self, **options: Any) -> list[dict[str, Any]]:
        return [row.asDict() for row in self.frame(**options).collect()]

    def objects(self) -> list[str]:
        """The keys of what lies in the store."""
        if self.url.startswith("s3://"):
            raise NotImplementedError
        path = Path(self.url)
        return sorted(p.name for p in path.parent.iterdir() if p.name.startswith(f"{path.name}."))

    def staged(self) -> list[str]:
        return [key for key in self.objects() if ".stage-" in key]


@pytest.fixture(params=["file"])
def place(request: pytest.FixtureRequest, spark: Any, tmp_path: Path) -> Place:
    """A queue file in a directory; with ``s3`` as the parameter, on a real S3 server."""
    if request.param == "file":
        return Place(str(tmp_path / "jobs"), {}, spark)
    server: Server = request.getfixturevalue("server")
    return Place(f"s3://{BUCKET}/spark{next(NUMBERS)}", server.settings, spark)


def work(file: bucketq.QueueFile, queue: str, jobs: int, *, dead: int = 0, at: int = 0) -> None:
    """Enqueue so many jobs and finish them; the first ``dead`` of them are rejected."""
    q = file.queue(queue)
    q.enqueue_many([bucketq.New({"n": at + n}, group=f"g{n % 3}" if n % 2 else None) for n in range(jobs)])
    left, rejected = jobs, 0
    while left:
        with q.claim(50, worker=f"w{left % 2}") as batch, file.atomic() as tx:
            for job in batch:
                if rejected < dead:
                    rejected += 1
                    tx.reject(job, ValueError(f"bad {job.data['n']}"))
                else:
                    tx.ack(job, result={"was": job.data["n"]})
                left -= 1


def archive(file: bucketq.QueueFile, queue: str, *, keep: int = 0, **changes: Any) -> None:
    """Have finished jobs archived."""
    file.queue(queue).configure(archive=True, keep=keep, **changes)
