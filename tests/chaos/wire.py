"""A real S3 server behind a network that loses, delays, repeats and refuses. Everything is on 127.0.0.1.

Each process has a way of its own: toxiproxy, which cuts and slows connections, then a `Door`, which understands
requests and can lose a reply or deliver a PUT late, then the server.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections import Counter
from contextlib import suppress
from pathlib import Path
from socket import socket
from time import monotonic
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BUCKET = "bucketq-test"
USER, SECRET = "bucketq", "bucketq-secret"
START_TIMEOUT = 40.0
LIMIT = 64 * 1024 * 1024
# The error of a server that refuses, as S3 words it.
REFUSALS = {
    500: "InternalError",
    503: "SlowDown",
    429: "TooManyRequests",
    409: "ConditionalRequestConflict",
}


def tool(name: str) -> str | None:
    """Return the path of a program that `make tools` installs."""
    return shutil.which(name, path=os.environ.get("BUCKETQ_TOOLS") or str(ROOT / ".tools" / "bin"))


def free_port() -> int:
    with socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Server:
    """MinIO, or else gofakes3; killed and started again on the same port and directory."""

    def __init__(self) -> None:
        self.name = "minio" if tool("minio") else "gofakes3"
        self.port = free_port()
        self.data = Path(tempfile.mkdtemp(prefix="bucketq-store-"))
        (self.data / BUCKET).mkdir()
        self.process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        program, here = tool(self.name), f"127.0.0.1:{self.port}"
        if program is None:
            raise SystemExit("missing: minio or gofakes3 in .tools/bin: run `make tools`")
        if self.name == "minio":
            console = f"127.0.0.1:{free_port()}"
            arguments = ["server", str(self.data), "--address", here, "--console-address", console]
        else:
            arguments = ["-backend", "fs", "-fs.path", str(self.data), "-autobucket", "-host", here]
        env = os.environ | {
            "MINIO_ROOT_USER": USER,
            "MINIO_ROOT_PASSWORD": SECRET,
            "MINIO_BROWSER": "off",
            "MINIO_UPDATE": "off",
        }
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen([program, *arguments], env=env, stdout=quiet, stderr=quiet)  # noqa: ASYNC220 starting takes no time
        until = monotonic() + START_TIMEOUT
        while not await asyncio.to_thread(self._answers):
            if monotonic() > until:
                raise SystemExit(f"{self.name} does not start")
            await asyncio.sleep(0.05)

    def _answers(self) -> bool:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{BUCKET}/none", timeout=2)
        except urllib.error.HTTPError as error:
            return error.code < 500
        except OSError:
            return False
        return True

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def close(self) -> None:
        self.kill()
        shutil.rmtree(self.data, ignore_errors=True)


class Toxiproxy:
    """Cuts and slows the ways of the processes to the server, with a proxy for each."""

    def __init__(self) -> None:
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        program = tool("toxiproxy")
        if program is None:
            raise SystemExit("missing: toxiproxy in .tools/bin: run `make tools`")
        quiet = subprocess.DEVNULL
        arguments = [program, "-host", "127.0.0.1", "-port", str(self.port)]
        self.process = subprocess.Popen(arguments, stdout=quiet, stderr=quiet)  # noqa: ASYNC220 starting takes no time
        until = monotonic() + START_TIMEOUT
        while True:
            with suppress(OSError):
                await self.call("GET", "/version")
                return
            if monotonic() > until:
                raise SystemExit("toxiproxy does not start")
            await asyncio.sleep(0.02)

    async def call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        return await asyncio.to_thread(self._call, method, path, body)

    def _call(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, method=method)
        # The proxy replies when the connections it ends have gone, and some end at a process that is stopped.
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read()
        return json.loads(text) if text.startswith((b"{", b"[")) else text

    async def way(self, name: str, upstream: int) -> int:
        made = await self.call(
            "POST",
            "/proxies",
            {"name": name, "listen": "127.0.0.1:0", "upstream": f"127.0.0.1:{upstream}", "enabled": True},
        )
        return int(made["listen"].rpartition(":")[2])

    async def enable(self, name: str, enabled: bool) -> None:
        await self.call("POST", f"/proxies/{name}", {"enabled": enabled})

    async def add(self, name: str, kind: str, **attributes: Any) -> None:
        for stream in ("upstream", "downstream"):
            toxic = {"name": stream, "type": kind, "stream": stream, "attributes": attributes}
            await self.call("POST", f"/proxies/{name}/toxics", toxic)

    async def clear(self, name: str) -> None:
        for stream in ("upstream", "downstream"):
            try:
                await self.call("DELETE", f"/proxies/{name}/toxics/{stream}")
            except OSError:
                # It waits for a stopped process that reads nothing from its connections: end those.
                await self.enable(name, False)
                with suppress(OSError):
                    await self.call("DELETE", f"/proxies/{name}/toxics/{stream}")
                await self.enable(name, True)

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()


async def message(reader: asyncio.StreamReader, method: str = "") -> tuple[bytes, bytes]:
    """Read one request, or the reply to one with this method: its head and its body, unchanged."""
    head = await reader.readuntil(b"\r\n\r\n")
    fields = {
        name.strip().lower(): value.strip()
        for name, _, value in (line.partition(b":") for line in head.split(b"\r\n")[1:])
    }
    if method:
        status = int(head.split(b" ", 2)[1])
        if method == "HEAD" or status < 200 or status in (204, 304):
            return head, b""
    if fields.get(b"transfer-encoding", b"").lower() == b"chunked":
        body = b""
        while True:
            size = await reader.readuntil(b"\r\n")
            body += size + await reader.readexactly(int(size.split(b";")[0], 16) + 2)
            if int(size.split(b";")[0], 16) == 0:
                return head, body
    return head, await reader.readexactly(int(fields.get(b"content-length", b"0")))


class Door:
    """Forwards the requests of one process, and does to some of them what `mode` says."""

    def __init__(self, name: str, server: int, dice: random.Random) -> None:
        self.name, self.server, self.dice = name, server, dice
        self.mode = ""
        self.share = 0.5
        self.seen: Counter[str] = Counter()
        self.port = 0
        self._open: set[asyncio.Task[None] | None] = set()
        self._door: asyncio.Server | None = None

    async def start(self) -> None:
        self._door = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=LIMIT)
        self.port = self._door.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        me = asyncio.current_task()
        self._open.add(me)
        with suppress(OSError, EOFError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while await self._one(reader, writer):
                pass
        self._open.discard(me)
        writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head, body = await message(reader)
        method, target = head.split(b" ", 2)[:2]
        kind = method.decode()
        self.seen["LIST" if kind == "GET" and b"list-type=" in target else kind] += 1
        mode = self.mode if self.mode and self.dice.random() < self.share else ""
        if mode in ("late_put", "double_put", "refuse_409") and kind != "PUT":
            mode = ""
        if mode.startswith("refuse_"):
            writer.write(refusal(int(mode.removeprefix("refuse_"))))
            await writer.drain()
            return True
        if mode == "late_put":
            # The process has long given up when this arrives.
            await asyncio.sleep(self.dice.uniform(2.2, 5.0))
        answer = await self._pass(kind, head + body)
        if mode == "double_put":
            second = await self._pass(kind, head + body)
            answer = answer if self.dice.random() < 0.5 else second
        if mode == "lost_answer":
            return False
        if mode == "failed_after":
            answer = refusal(500)
        if mode == "cut_answer":
            writer.write(answer[: len(answer) // 2])
            await writer.drain()
            return False
        writer.write(answer)
        await writer.drain()
        return True

    async def _pass(self, kind: str, request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server, limit=LIMIT)
        try:
            writer.write(request)
            head, body = await message(reader, kind)
            while head.split(b" ", 2)[1] == b"100":
                head, body = await message(reader, kind)
            return head + body
        finally:
            writer.close()

    async def close(self) -> None:
        if self._door is not None:
            self._door.close()
        for task in self._open - {None}:
            assert task is not None
            task.cancel()
        await asyncio.sleep(0)


def refusal(status: int) -> bytes:
    """Return the error reply of a server which says that nothing was done, true or not."""
    code = REFUSALS[status]
    body = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>as told</Message></Error>'
    head = f"HTTP/1.1 {status} {code}\r\ncontent-type: application/xml\r\ncontent-length: {len(body)}\r\n\r\n"
    return (head + body).encode()


class Liar:
    """A store that ignores every condition: the last write wins, and every writer gets a success."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.port = 0
        self._door: asyncio.Server | None = None

    async def start(self) -> None:
        self._door = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=LIMIT)
        self.port = self._door.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, EOFError, asyncio.IncompleteReadError):
            while True:
                head, body = await message(reader)
                method, target = (part.decode() for part in head.split(b" ", 2)[:2])
                writer.write(self._answer(method, target.partition("?")[0], "list-type" in target, body))
                await writer.drain()
        writer.close()

    def _answer(self, method: str, key: str, listing: bool, body: bytes) -> bytes:
        status, told, etag = 200, b"", ""
        if listing:
            told = b"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"
        elif method == "PUT":
            self.objects[key] = body
            etag = f'"{hash(body) & (2**64 - 1):016x}"'
        elif method == "DELETE":
            self.objects.pop(key, None)
            status = 204
        elif key in self.objects:
            told = self.objects[key]
            etag = f'"{hash(told) & (2**64 - 1):016x}"'
        else:
            status, told = 404, b"<Error><Code>NoSuchKey</Code></Error>"
        tag = f"ETag: {etag}\r\n" if etag else ""
        length = "" if status == 204 else f"Content-Length: {len(told)}\r\n"
        return f"HTTP/1.1 {status} Told\r\n{tag}{length}\r\n".encode() + (b"" if method == "HEAD" else told)

    async def close(self) -> None:
        if self._door is not None:
            self._door.close()
