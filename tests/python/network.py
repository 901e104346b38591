"""A network that can be cut: a door on 127.0.0.1 to a server, in threads of its own."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit


class Network:
    """Connections go through while it is whole; a cut ends those there are and refuses new ones."""

    def __init__(self, endpoint: str) -> None:
        there = urlsplit(endpoint)
        self._there = (there.hostname, there.port)
        self._whole = True
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._door = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._door.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        with self._lock:
            self._whole = False
            for end in self._open:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        with self._lock:
            self._whole = True

    def close(self) -> None:
        self.cut()
        with suppress(OSError):
            self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._door.accept()
                with self._lock:
                    if not self._whole:
                        near.close()
                        continue
                    far = socket.create_connection(self._there)
                    self._open |= {near, far}
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=ends, daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while part := source.recv(65536):
                target.sendall(part)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._open -= {source}
        source.close()


@contextmanager
def network(endpoint: str) -> Iterator[Network]:
    through = Network(endpoint)
    try:
        yield through
    finally:
        through.close()
