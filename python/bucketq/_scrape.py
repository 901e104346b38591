"""A small HTTP server: ``/metrics`` returns the metrics of one queue file, ``/health`` whether a worker reacts."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from bucketq.errors import Error, Invalid

if TYPE_CHECKING:
    from bucketq.file import QueueFile

TEXT = "text/plain; version=0.0.4; charset=utf-8"
HERE = "127.0.0.1"


def parse(address: str) -> tuple[str, int]:
    """Parse ``HOST:PORT``; without a host, only this machine can connect."""
    host, colon, port = address.rpartition(":")
    if not port.isdecimal() or int(port) > 65535 or (":" in host and not host.startswith("[")):
        raise Invalid(
            f"{address!r} is not an address to listen on: use HOST:PORT, such as {HERE}:9187", "option"
        )
    return (host.strip("[]") if colon and host else HERE), int(port)


class Scraped:
    """Serves on its own threads until the block ends."""

    def __init__(self, file: QueueFile, address: str, healthy: Callable[[], bool] | None = None) -> None:
        host, port = parse(address)

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            # A silent connection does not keep a thread forever.
            timeout = 30

            def do_GET(self) -> None:
                only = "/metrics" if healthy is None else "/metrics and /health"
                status, text = HTTPStatus.NOT_FOUND, f"there is only {only}\n"
                path = self.path.partition("?")[0]
                if path == "/health" and healthy is not None:
                    status, text = HTTPStatus.OK, "ok\n"
                    if not healthy():
                        status, text = HTTPStatus.SERVICE_UNAVAILABLE, "the worker does not react\n"
                if path == "/metrics":
                    try:
                        status, text = HTTPStatus.OK, file.metrics().prometheus()
                    except Error as error:
                        status, text = HTTPStatus.SERVICE_UNAVAILABLE, f"{error}\n"
                self.reply(status, text)

            def reply(self, status: HTTPStatus, text: str) -> None:
                body = text.encode()
                self.send_response(status)
                self.send_header("Content-Type", TEXT)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Do not log scrapes."""

        try:
            self._server = Server((host, port), Handler)
        except OSError as error:
            why = error.strerror or str(error)
            raise Invalid(f"cannot listen on {address}: {why}; choose another address", "option") from None
        at = f"[{host}]" if ":" in host else host
        self.url = f"http://{at}:{self._server.server_address[1]}/metrics"
        """The URL it serves."""

    def __enter__(self) -> Self:
        thread = threading.Thread(target=self._server.serve_forever, name="bucketq-metrics", daemon=True)
        thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
