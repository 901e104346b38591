"""Which queues are bound to which exchanges: jobs that nobody claims, so that every process sees the same table.

The entry of a queue that nobody uses any more expires, and then the queue is deleted: see ``sweep``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from bucketq import QueueFile
    from bucketq.types import State

NAME = "celery.bindings"
"""The queue of the table."""
NEVER = datetime(9999, 12, 31, tzinfo=UTC)
"""The time of jobs that nobody claims."""


class Entry(NamedTuple):
    """A binding. With an empty exchange: a queue that expires when nobody uses it."""

    exchange: str
    type: str
    key: str
    queue: str

    @property
    def dedup(self) -> str:
        """The dedup key, which keeps a binding from being entered twice."""
        return hashlib.sha256(json.dumps(self).encode()).hexdigest()


class Table:
    """The bindings in a queue file."""

    def __init__(self, file: QueueFile) -> None:
        self._file = file
        self._read: tuple[float, list[Entry]] | None = None

    def entries(self, max_age: float = 0) -> list[Entry]:
        """Return the bindings that have not expired, as they are now or were up to ``max_age`` seconds ago."""
        if self._read is None or not max_age or monotonic() - self._read[0] > max_age:
            begun = monotonic()
            self._read = begun, [entry for _, entry in self._rows("scheduled")]
        return self._read[1]

    def put(self, entries: Iterable[Entry], life: float | None = None) -> None:
        """Enter bindings that are not there yet; with ``life``, they expire after that many seconds from now."""
        known = {entry: id for id, entry in self._rows("scheduled")}
        self._read = None
        if life is None and all(entry in known for entry in entries):
            return
        self._file.create_queue(NAME)
        with self._file.atomic() as tx:
            for entry in entries:
                if entry in known:
                    tx.delete(known[entry])
                tx.enqueue(NAME, list(entry), dedup=entry.dedup, dedup_window=None, expires=life, at=NEVER)

    def drop(self, which: Callable[[Entry], bool]) -> None:
        """Delete the bindings for which ``which`` returns True."""
        self._read = None
        self._delete([id for id, entry in self._rows("scheduled", "dead") if which(entry)])

    def sweep(self) -> list[str]:
        """Delete the queues whose entries have expired, with their bindings. Returns their names."""
        expired = list(self._rows("dead"))
        if not expired:
            return []
        used = {entry.queue for entry in self.entries() if not entry.exchange}
        gone = {entry.queue for _, entry in expired if not entry.exchange} - used
        for queue in gone:
            self._file.delete_queue(queue)
        self._delete([id for id, _ in expired])
        self.drop(lambda entry: entry.queue in gone)
        return sorted(gone)

    def _delete(self, ids: list[str]) -> None:
        for begin in range(0, len(ids), 1000):
            with self._file.atomic() as tx:
                for id in ids[begin : begin + 1000]:
                    tx.delete(id)

    def _rows(self, *states: State) -> Iterator[tuple[str, Entry]]:
        after = None
        while True:
            page = self._file.list(states, queue=NAME, after=after, limit=1000, payloads=True)
            for job in page.jobs:
                yield job.id, Entry(*job.data)
            if page.next is None:
                return
            after = page.next
