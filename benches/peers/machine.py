"""The machine of a run, and the versions of what was measured."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from servers import tool

# For each configuration, the package it needs, whose version is reported.
NEEDS = {
    "jqueue-direct": "jqueue",
    "jqueue-broker": "jqueue",
    "jqueue-reused": "jqueue",
    "pawn-queue": "pawn_queue",
    "pgqrs-durable": "pgqrs",
    "pgqrs-local": "pgqrs",
    "redis-message-queue": "redis_message_queue",
    "huey": "huey",
    "persist-queue": "persistqueue",
    "litequeue": "litequeue",
}


PACKAGES = [
    "bucketq",
    "jqueue",
    "pawn-queue",
    "pgqrs",
    "redis-message-queue",
    "huey",
    "persist-queue",
    "litequeue",
]


def machine(packages: list[str] = PACKAGES, redis: str | None = None) -> dict[str, str]:
    """Describe the machine and the versions. The load is the one before anything was started."""
    found = {}
    for package in packages:
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    for server in ("minio", "versitygw", "toxiproxy"):
        # `.ci/tools` writes the versions that it installed there.
        program = Path(tool(server) or "")
        with suppress(OSError, IndexError):
            found[server] = (program.parents[1] / "stamp" / server).read_text().strip()
    if program := redis or shutil.which("redis-server"):
        said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
        found["Redis"] = said.partition("v=")[2].partition(" ")[0]
    release = ".".join(platform.release().split(".")[:2])
    cores = f"{os.cpu_count()} cores of {platform.machine()}, {platform.system()} {release}"
    load = " ".join(f"{one:.1f}" for one in os.getloadavg())
    return {"cores": cores, "load before": load, "Python": platform.python_version(), **found}
