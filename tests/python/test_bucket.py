"""The bucket as seen by boto3 and sqlite3 is as promised."""

from __future__ import annotations

import itertools
import json
import os
import re
import sqlite3
import subprocess
import sys

import pytest
import zstandard

import bucketq
from patience import PATIENCE
from servers import BUCKET, Server

NUMBERS = itertools.count()


@pytest.fixture
def place(server: Server):
    """A fresh URL, and its keys as seen from outside."""
    prefix = f"outside{next(NUMBERS)}"
    client = server.client()

    def keys() -> dict[str, str]:
        listed = client.list_objects_v2(Bucket=BUCKET, Prefix=f"{prefix}/").get("Contents", [])
        return {entry["Key"].removeprefix(f"{prefix}/"): entry["ETag"] for entry in listed}

    def body(key: str) -> bytes:
        return client.get_object(Bucket=BUCKET, Key=f"{prefix}/{key}")["Body"].read()

    return f"s3://{BUCKET}/{prefix}/jobs", keys, body


def test_a_commit_replaces_one_object_and_a_read_none(server, place):
    url, keys, _ = place
    with bucketq.open(url, **server.settings) as file:
        before = keys()
        assert "jobs.head" in before
        file.queue("q").enqueue({"to": "ada"})
        after = keys()
        assert {k for k in after if after[k] != before.get(k)} == {"jobs.head"}
        file.queue("q").counts()
        assert file.queue("q").claim_one() is not None
        file.stats()
        assert keys().keys() == after.keys()


def test_an_acknowledged_job_is_in_the_bucket_whatever_becomes_of_the_process(server, place):
    url, _, _ = place
    code = """
import bucketq, json, os, sys
file = bucketq.open(sys.argv[1], **json.loads(sys.argv[2]))
print(file.queue("q").enqueue("kept").id, flush=True)
os.kill(os.getpid(), 9)
"""
    command = [sys.executable, "-c", code, url, json.dumps(server.settings)]
    child = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert child.returncode == -9
    with bucketq.open(url, **server.settings) as file:
        detail = file.queue("q").get(child.stdout.strip())
        assert (detail.data, detail.state) == ("kept", "ready")


def test_a_base_unpacks_to_a_database_with_the_jobs(server, place, tmp_path):
    url, keys, body = place
    with bucketq.open(url, **server.settings) as file:
        q = file.queue("q")
        # Enough commits to make the engine write a base.
        for _ in range(40):
            q.enqueue_many([b"needle" + os.urandom(500) for _ in range(100)])
            if any(key.startswith("jobs.base-") for key in keys()):
                break
    bases = sorted(key for key in keys() if key.startswith("jobs.base-"))
    assert bases
    assert all(re.fullmatch(r"jobs\.base-[0-9a-f]{8}-[0-9a-f]{16}-[0-9a-f]{16}", key) for key in bases)
    image = zstandard.ZstdDecompressor().decompressobj().decompress(body(bases[-1]))
    path = tmp_path / "jobs.sqlite"
    path.write_bytes(image)
    with sqlite3.connect(path) as database:
        assert database.execute("pragma integrity_check").fetchone() == ("ok",)
        tables = {name for (name,) in database.execute("select name from sqlite_schema where type = 'table'")}
    assert "jobs" in tables
    assert b"needle" in image


def test_a_store_without_credentials_says_what_to_do(place):
    url, _, _ = place
    with pytest.raises(bucketq.Unavailable):
        bucketq.open(
            url,
            endpoint="http://127.0.0.1:9",
            region="us-east-1",
            access_key="a",
            secret_key="b",
            deadline=2,
            connect_timeout=0.5,
        )
