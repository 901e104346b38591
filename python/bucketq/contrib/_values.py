"""Values by key in a queue file, for the storage of huey: each is a job that no worker claims.

The dedup key of a job makes its key unique, and its group finds it.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from bucketq.contrib._until import Expiring, is_over, until
from bucketq.errors import Invalid, NotFound
from bucketq.types import Enqueued, Extras, State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bucketq.contrib._opening import Opening
    from bucketq.queue import Queue
    from bucketq.types import JobDetail

KEPT: tuple[State, ...] = ("ready",)
EVERY: tuple[State, ...] = ("ready", "dead", "cancelled")
LONG = 150
"""Bytes of a key above which its hash takes its place in the group, which has a limit."""
KEY = "bucketq-key"


class Values:
    """The values of one queue. Every change is one commit, so that processes cannot overwrite each other's."""

    def __init__(self, opening: Opening, queue: str) -> None:
        self._opening = opening
        self._name = queue
        self._expiring = Expiring(opening, queue)

    @property
    def _queue(self) -> Queue:
        return self._opening.file.queue(self._name)

    def get(self, key: str) -> bytes | None:
        """Return the value of a key, or None."""
        job = self._find(key)
        return None if job is None else job.payload

    def put(self, key: str, value: bytes, ttl: float | None = None) -> None:
        """Set the value of a key, to be kept for ``ttl`` seconds."""
        extras = self._extras(key, ttl)
        receipt = self._queue.enqueue(value, **extras)
        while receipt.deduplicated:
            receipt = self._replace(receipt.id, value, extras)

    def put_if_empty(self, key: str, value: bytes, ttl: float | None = None) -> bool:
        """Set the value of a key that has none. Returns False if it has one."""
        return not self._queue.enqueue(value, **self._extras(key, ttl)).deduplicated

    def add(self, key: str, amount: int) -> int:
        """Add to the number of a key, which is 0 at first, and return the sum."""
        while True:
            job = self._find(key)
            total = amount if job is None else int(job.payload) + amount
            value = str(total).encode()
            if job is None:
                if self.put_if_empty(key, value):
                    return total
                continue
            try:
                with self._opening.file.atomic() as tx:
                    # Fails if another process has replaced or deleted it since.
                    tx.cancel(job.id)
                    tx.delete(job.id)
                    tx.enqueue(self._name, value, **self._extras(key))
            except (Invalid, NotFound):
                continue
            return total

    def pop(self, key: str) -> bytes | None:
        """Return the value of a key and delete it; one of several callers gets it, the others None."""
        while (job := self._find(key)) is not None:
            if self._queue.delete(job.id) is not None:
                return job.payload
        return None

    def items(self) -> Iterator[tuple[str, bytes]]:
        """Yield every key with its value."""
        after = None
        while True:
            page = self._queue.list(KEPT, after=after, payloads=True)
            for job in page:
                if not is_over(job):
                    yield job.headers.get(KEY, job.group or ""), job.payload
            if page.next is None:
                return
            after = page.next

    def __len__(self) -> int:
        return self._queue.counts().counts["ready"]

    def clear(self) -> None:
        """Delete all of them."""
        self._queue.purge(EVERY)

    def _find(self, key: str) -> JobDetail | None:
        page = self._queue.list(KEPT, group=_short(key), limit=1, payloads=True)
        return page.jobs[0] if page and not is_over(page.jobs[0]) else None

    def _replace(self, id: str, value: bytes, extras: Extras) -> Enqueued:
        with self._opening.file.atomic() as tx:
            tx.delete(id)
            tx.enqueue(self._name, value, **extras)
        return tx.results[1]

    def _extras(self, key: str, ttl: float | None = None) -> Extras:
        short = _short(key)
        headers = {} if short == key else {KEY: key}
        extras = Extras(dedup=short, dedup_window=None, group=short, headers=headers)
        if ttl is not None:
            self._expiring()
            extras["headers"] = headers | until(ttl)
            extras["expires"] = ttl
        return extras


def _short(key: str) -> str:
    return key if len(key.encode()) <= LONG else hashlib.sha256(key.encode()).hexdigest()
