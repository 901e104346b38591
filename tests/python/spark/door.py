"""A proxy to an S3 server: it records requests, and can hold one request while a program is killed."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from patience import PATIENCE

LIMIT = PATIENCE
Asks = Callable[[str, str], bool]


def asks(method: str, part: str, nth: int = 1) -> Asks:
    """Return a condition that the nth request like this meets."""
    seen = 0

    def wanted(asked: str, path: str) -> bool:
        nonlocal seen
        like = asked == method and part in path
        seen += like
        return like and seen >= nth

    return wanted


@dataclass
class Trap:
    """Closes on the first request that is ``wanted``, before the server has it or after it has replied."""

    wanted: Asks
    answered: bool
    full: bool = False
    port: int = 0
    """The port of the requesting program's end of the connection."""
    caught: threading.Event = field(default_factory=threading.Event)
    opened: threading.Event = field(default_factory=threading.Event)

    def hold(self, port: int) -> None:
        self.port = port
        self.caught.set()
        self.opened.wait(LIMIT)


class Door(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, endpoint: str) -> None:
        there = urlsplit(endpoint)
        self.there = (there.hostname, there.port)
        self.asked: list[tuple[str, str]] = []
        self.trap: Trap | None = None
        self.lock = threading.Lock()
        super().__init__(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore the error: connections of killed programs break on purpose."""

    def catches(self, method: str, path: str) -> Trap | None:
        """Return the trap, if this request is the one it waits for."""
        with self.lock:
            self.asked.append((method, path))
            trap = self.trap
            if trap is None or trap.full or not trap.wanted(method, path):
                return None
            trap.full = True
            return trap

    def count(self, method: str, part: str) -> int:
        with self.lock:
            return sum(m == method and part in path for m, path in self.asked)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Door

    def handle_one_request(self) -> None:
        self.close_connection = True
        self.raw_requestline = self.rfile.readline(65537)
        if self.raw_requestline and self.parse_request():
            self.carry()

    def carry(self) -> None:
        trap = self.server.catches(self.command, self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if trap is not None and not trap.answered:
            trap.hold(self.client_address[1])
            return
        with closing(http.client.HTTPConnection(*self.server.there, timeout=LIMIT)) as near:
            near.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                near.putheader(name, value)
            near.endheaders(body)
            answer = near.getresponse()
            found = answer.read()
        if trap is not None:
            trap.hold(self.client_address[1])
            return
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                self.send_header(name, value)
        length = answer.getheader("Content-Length") if self.command == "HEAD" else None
        if answer.status not in (204, 304):
            self.send_header("Content-Length", length or str(len(found)))
        self.end_headers()
        self.wfile.write(found)
        self.close_connection = False


@contextmanager
def door(endpoint: str) -> Iterator[Door]:
    """Run a proxy in its own threads, until the block is left."""
    made = Door(endpoint)
    threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield made
    finally:
        if made.trap is not None:
            made.trap.opened.set()
        made.shutdown()
        with suppress(OSError):
            made.server_close()
