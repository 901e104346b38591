"""A real S3 server for tests, on 127.0.0.1. ``.ci/tools`` installs it; BUCKETQ_TEST_S3 names another one."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from patience import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
BUCKET = "bucketq-test"
START_TIMEOUT = PATIENCE


@dataclass(frozen=True)
class Server:
    endpoint: str
    settings: dict[str, Any]

    def client(self) -> Any:
        """Return a boto3 client: the bucket as seen from outside."""
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=self.settings["region"],
            aws_access_key_id=self.settings["access_key"],
            aws_secret_access_key=self.settings["secret_key"],
        )


def settings(endpoint: str, access_key: str, secret_key: str) -> dict[str, Any]:
    return {"endpoint": endpoint, "region": "us-east-1", "access_key": access_key, "secret_key": secret_key}


def require(program: str | None, reason: str) -> str:
    """Return the program, or skip with the reason that it is missing."""
    if program is None:
        reason = f"skipped: {reason}"
        if os.environ.get("BUCKETQ_REQUIRE_SERVERS") == "1":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    return program


def tool(name: str) -> str:
    """Return the program, or skip with advice how to get it."""
    tools = os.environ.get("BUCKETQ_TOOLS") or str(ROOT / ".tools" / "bin")
    return require(shutil.which(name, path=tools), f"{name} is not installed (.ci/tools {name})")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def answers(endpoint: str, server: subprocess.Popen[bytes]) -> bool:
    """Wait until the server speaks HTTP. Return False if it has ended."""
    until = monotonic() + START_TIMEOUT
    while server.poll() is None and monotonic() < until:
        try:
            urllib.request.urlopen(f"{endpoint}/{BUCKET}/none", timeout=1)
        except urllib.error.HTTPError:
            return True
        except OSError:
            continue
        return True
    return False


@contextmanager
def s3() -> Iterator[Server]:
    """gofakes3 in memory, or the server at BUCKETQ_TEST_S3."""
    if given := os.environ.get("BUCKETQ_TEST_S3"):
        keys = (os.environ.get("AWS_ACCESS_KEY_ID", ""), os.environ.get("AWS_SECRET_ACCESS_KEY", ""))
        yield Server(given, settings(given, *keys))
        return

    def arguments(port: int) -> list[str]:
        return ["-backend", "memory", "-autobucket", "-host", f"127.0.0.1:{port}"]

    with running("gofakes3", arguments) as server:
        yield server


@contextmanager
def running(name: str, arguments: Callable[[int], list[str]]) -> Iterator[Server]:
    """Run a server of this name on a free port."""
    program = tool(name)
    for _ in range(3):
        port = free_port()
        endpoint = f"http://127.0.0.1:{port}"
        server = subprocess.Popen(
            [program, *arguments(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            if answers(endpoint, server):
                yield Server(endpoint, settings(endpoint, "bucketq", "bucketq-secret"))
                return
        finally:
            server.kill()
            server.wait()
    pytest.fail(f"{name} does not start")


@contextmanager
def moto() -> Iterator[Server]:
    """moto, which many test suites already use. Its conditions hold for one writer at a time."""

    def arguments(port: int) -> list[str]:
        return ["-H", "127.0.0.1", "-p", str(port)]

    with running("moto_server", arguments) as server:
        server.client().create_bucket(Bucket=BUCKET)
        yield server
