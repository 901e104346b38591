"""The queue file's objects in the bucket, read by docs/format.md alone: the chain of HEADs while it grows, and the
whole database from its objects in the end."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

import boto3
import botocore.client
import botocore.exceptions
import zstandard

from wire import BUCKET, SECRET, USER

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "format"))
import read_head

PAGE = read_head.PAGE
# Allowed error of a clock beside the skew: the store's Date has whole seconds.
RESOLUTION_MS = 1000


class Bucket:
    """The objects of one queue file, read without any fault between."""

    def __init__(self, port: int, prefix: str) -> None:
        config = botocore.client.Config(retries={"max_attempts": 1}, connect_timeout=2, read_timeout=5)
        self._client: Any = boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{port}",
            region_name="us-east-1",
            aws_access_key_id=USER,
            aws_secret_access_key=SECRET,
            config=config,
        )
        self.prefix = prefix

    def get(self, end: str) -> bytes:
        body: bytes = self._client.get_object(Bucket=BUCKET, Key=self.prefix + end)["Body"].read()
        return body

    def head(self) -> dict[str, Any]:
        head: dict[str, Any] = read_head.read(self.get(".head"))
        return head


class Chain:
    """Every HEAD that was seen: a commit never changes its id, and time neither stands still nor runs ahead."""

    def __init__(self, bucket: Bucket, max_skew_ms: int) -> None:
        self.bucket, self.max_skew_ms = bucket, max_skew_ms
        self.ids: dict[int, str] = {}
        self.newest, self.newest_ms, self.seen = 0, 0, 0
        self.wrong: list[str] = []
        self.bases: set[int] = set()

    async def watch(self) -> None:
        while True:
            try:
                head = await asyncio.to_thread(self.bucket.head)
            # The server is being killed, or has no file yet.
            except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError):
                await asyncio.sleep(0.05)
                continue
            self.look(head, time.time_ns() // 1_000_000)
            await asyncio.sleep(0.03)

    def look(self, head: dict[str, Any], now_ms: int) -> None:
        self.seen += 1
        seq, at_ms = head["commit_seq"], head["commit_ms"]
        self.bases.add(head["base"]["seq"])
        if seq < self.newest or at_ms < self.newest_ms:
            self.wrong.append(f"G7 commit {seq} of {at_ms} came after {self.newest} of {self.newest_ms}")
        self.newest, self.newest_ms = max(seq, self.newest), max(at_ms, self.newest_ms)
        if at_ms > now_ms + self.max_skew_ms + RESOLUTION_MS:
            self.wrong.append(f"G8 commit {seq} is {at_ms - now_ms} ms ahead of the time")
        told = [(record["seq"], record["commit_id"]) for record in head["tail"]]
        told += [
            (record["seq"] - 1, record["prev_commit_id"]) for record in head["tail"] if record["seq"] > 1
        ]
        for number, ident in [*told, (seq, head["commit_id"])]:
            if self.ids.setdefault(number, ident) != ident:
                self.wrong.append(f"G7 commit {number} was {self.ids[number]} and is {ident}")


def rebuild(bucket: Bucket) -> tuple[int, bytes]:
    """Rebuild the database from the objects alone. Return its commit and its bytes."""
    head = bucket.head()
    file8, base = head["file_id"][:8], head["base"]
    pages: list[bytes] = []
    if base["len"]:
        image = plain(base["codec"], bucket.get(f".base-{file8}-{base['seq']:016x}-{base['rand']}"))
        pages = [image[at : at + PAGE] for at in range(0, len(image), PAGE)]
    records = []
    for one in head["segments"]:
        key = f".seg-{file8}-{one['from']:016x}-{one['to']:016x}-{one['rand']}"
        records += read_head.read(bucket.get(key))["records"]
    seq = base["seq"]
    for record in records + head["tail"]:
        if record["seq"] != seq + 1:
            # A base covers the segments before it.
            if record["seq"] <= seq:
                continue
            raise ValueError(f"commit {record['seq']} follows {seq}")
        pages = read_head.apply(pages, plain(record["codec"], bytes.fromhex(record["frame"])))
        seq = record["seq"]
    return seq, b"".join(pages)


def plain(codec: int, frame: bytes) -> bytes:
    return frame if codec == 0 else zstandard.ZstdDecompressor().decompressobj().decompress(frame)


def rows(image: bytes | Path) -> list[str]:
    """Return the contents of a database, as SQL."""
    db = sqlite3.connect(":memory:" if isinstance(image, bytes) else image)
    if isinstance(image, bytes):
        db.deserialize(image)
    try:
        return list(db.iterdump())
    finally:
        db.close()
