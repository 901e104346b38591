"""A network that can be cut: a proxy on 127.0.0.1 before a server, in its own threads."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit


class Network:
    """Connections go through until a cut, which ends the open ones and refuses new ones."""

    def __init__(self, endpoint: str) -> None:
        there = urlsplit(endpoint)
        self._there = (there.hostname, there.port)
        self._whole = True
        self._mute = False
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

    def mute(self) -> None:
        """Let requests through, and drop their replies."""
        self._mute = True

    def mend(self) -> None:
        """Let new connections through. End those that lost a reply."""
        if self._mute:
            self.cut()
            self._mute = False
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
                for ends in ((near, far, False), (far, near, True)):
                    threading.Thread(target=self._carry, args=ends, daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        with suppress(OSError):
            while part := source.recv(65536):
                if not (answers and self._mute):
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
