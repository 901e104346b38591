"""The queue file of a broker or storage: opened at its first use, and again in a forked process.

These frameworks make their broker while a module is imported and fork afterwards, and a child cannot use a handle of
its parent (decision 26).
"""

from __future__ import annotations

import os
from threading import Lock
from typing import TYPE_CHECKING, Any

import bucketq

if TYPE_CHECKING:
    from collections.abc import Mapping
    from os import PathLike

    from bucketq.file import QueueFile


class Opening:
    """Opens a queue file once in each process that uses it."""

    def __init__(self, url: str | PathLike[str] | None, options: Mapping[str, Any]) -> None:
        self._url = url
        self._options = options
        # A lock that another thread holds while the process forks would stay locked in the child.
        self._locks: dict[int, Lock] = {}
        self._opened: tuple[int, QueueFile] | None = None

    @property
    def file(self) -> QueueFile:
        """The open queue file of this process."""
        process = os.getpid()
        if self._opened is not None and self._opened[0] == process:
            return self._opened[1]
        with self._locks.setdefault(process, Lock()):
            if self._opened is None or self._opened[0] != process:
                self._opened = process, bucketq.open(self._url, **self._options)
            return self._opened[1]

    def close(self) -> None:
        """Close it, if this process has opened it. A later use opens it again."""
        opened, self._opened = self._opened, None
        if opened is not None and opened[0] == os.getpid():
            opened[1].close()
