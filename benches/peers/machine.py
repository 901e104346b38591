"""Where it was measured, and of what."""

from __future__ import annotations

import importlib.util
import os
import platform
from importlib import metadata

# What each configuration needs installed, and what its version is that of.
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


def machine() -> dict[str, str]:
    """Where it was measured, and of what."""
    packages = [
        "bucketq",
        "jqueue",
        "pawn-queue",
        "pgqrs",
        "redis-message-queue",
        "huey",
        "persist-queue",
        "litequeue",
    ]
    found = {}
    for package in packages:
        if importlib.util.find_spec(NEEDS.get(package, package.replace("-", "_"))) or package == "bucketq":
            try:
                found[package] = metadata.version(package)
            except metadata.PackageNotFoundError:
                continue
    cores = f"{os.cpu_count()} cores of {platform.machine()}, {platform.system()} {platform.release()}"
    load = " ".join(f"{one:.1f}" for one in os.getloadavg())
    return {"cores": cores, "load before": load, "python": platform.python_version(), **found}
