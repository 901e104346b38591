"""The driver's part of a write: rows kept aside become jobs, chunk by chunk, each chunk in one commit and once.

Each chunk's commit also enqueues and cancels a mark, whose dedup key says which chunk it was. When the key is taken the
mark is not there to be cancelled, so nothing of the commit happens: the chunk was enqueued before. What a write of
several chunks consists of is written down with its first one, in a job that is cancelled with its last.
"""

# pyright: basic
from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from time import sleep
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq

from bucketq._native import Op, enqueues
from bucketq.errors import Contended, Error, NotFound, OutcomeUnknown, Unavailable
from bucketq.spark._place import Place

__all__ = ["MARKS", "Write"]

MARKS = "bucketq-writes"
"""The queue of marks. Nobody claims from it."""
FOR_EVER = 100 * 365 * 86_400
TRIES = 8
CHUNK_BYTES = 48 << 20
log = logging.getLogger("bucketq.spark")


@dataclass
class Write:
    """One write, by whichever attempt."""

    place: Place
    file_id: bytes
    key: str
    group: bytes
    chunk: int
    keep_s: int

    @property
    def plan_id(self) -> str:
        """The id of the job that holds the plan: the same for every attempt."""
        digest = bytearray(hashlib.sha256(f"{self.key} of {self.file_id.hex()}".encode()).digest()[:16])
        digest[6] = digest[6] & 0x0F | 0x70
        digest[8] = digest[8] & 0x3F | 0x80
        return str(UUID(bytes=bytes(digest)))

    def run(self, pieces: tuple[str, ...], rows: int) -> None:
        """Enqueue what is in these pieces, unless an earlier attempt has; go on where one ended."""
        with self.place.open() as file:
            plan = self.plan(file) or {"pieces": pieces, "rows": rows, "chunk": self.chunk}
            while plan is not None:
                plan = self.enqueue(file, tuple(plan["pieces"]), plan["rows"], plan["chunk"])
        self.sweep()

    def plan(self, file: Any) -> dict[str, Any] | None:
        """What an attempt that was not finished had put aside."""
        try:
            found = file.get(self.plan_id)
        except NotFound:
            return None
        if found is None or found.state != "scheduled":
            return None
        return json.loads(found.payload)

    def unfinished(self) -> bool:
        """Whether some chunks are enqueued, and others not."""
        with self.place.open() as file:
            return self.plan(file) is not None

    def enqueue(self, file: Any, pieces: tuple[str, ...], rows: int, size: int) -> dict[str, Any] | None:
        """All chunks of these pieces; or the plan of another attempt, if that began with other ones."""
        done, number = 0, 0
        chunks = self.chunks(pieces, size)
        table = next(chunks, None)
        while table is not None:
            following = next(chunks, None)
            first, last = number == 0, following is None
            try:
                new = self.commit(file, number, table, first, last, pieces, rows, size)
            except Error as error:
                if done:
                    error.add_note(
                        f"{done} of {rows} jobs are enqueued, in {number} chunks; the same write again, by its key "
                        f"{self.key!r}, goes on with the others"
                    )
                raise
            if first and not new:
                # Whoever enqueued the first chunk decides where the others begin: else rows would come twice.
                begun = self.plan(file)
                if begun is None:
                    log.info("%s is complete: its jobs are there", self.key)
                    return None
                if (tuple(begun["pieces"]), begun["chunk"]) != (pieces, size):
                    return begun
            done += table.num_rows
            log.info(
                "chunk %d of %s: %d jobs %s", number, self.key, table.num_rows, "enqueued" if new else "there"
            )
            table, number = following, number + 1
        if number > 1:
            log.warning("%s: %d jobs in %d commits, each whole and once", self.key, done, number)
        return None

    def chunks(self, pieces: tuple[str, ...], size: int) -> Iterator[pa.Table]:
        """The rows of the pieces in their order, so many at a time, and not too many bytes."""
        rest: pa.Table | None = None
        for key in pieces:
            body = self.place.read(key)
            if body is None:
                raise NotFound(
                    f"{key}, which was put aside for this write, is gone: write again", "collected"
                )
            table = pq.read_table(pa.BufferReader(body))
            rest = table if rest is None else pa.concat_tables([rest, table])
            while (
                rest is not None and (rest.num_rows > size or rest.nbytes > CHUNK_BYTES) and rest.num_rows > 1
            ):
                n = min(size, max(1, rest.num_rows * CHUNK_BYTES // max(rest.nbytes, 1)))
                if n >= rest.num_rows:
                    break
                yield rest.slice(0, n)
                rest = rest.slice(n)
        if rest is not None and rest.num_rows:
            yield rest

    def commit(
        self,
        file: Any,
        number: int,
        table: pa.Table,
        first: bool,
        last: bool,
        pieces: tuple[str, ...],
        rows: int,
        size: int,
    ) -> bool:
        """One chunk. False if it was enqueued before."""
        ops = ops_of(file._file, table)
        for attempt in range(TRIES):
            try:
                with file.atomic() as tx:
                    mark = tx.enqueue(
                        MARKS,
                        {"write": self.key, "chunk": number, "rows": table.num_rows},
                        dedup=f"{hashed(self.key)}-{number}",
                        dedup_window=self.keep_s,
                    )
                    tx.cancel(mark)
                    if first and not last:
                        plan = {"pieces": pieces, "rows": rows, "chunk": size, "write": self.key}
                        tx.enqueue(MARKS, plan, id=self.plan_id, delay=FOR_EVER)
                    if last and not first:
                        tx.cancel(self.plan_id)
                    for op in ops:
                        tx._add(op)
                return True
            except NotFound as error:
                if error.code != "no_such_job":
                    raise
                return False
            except (Unavailable, Contended, OutcomeUnknown):
                # The mark makes it harmless to try again, whatever became of this attempt.
                if attempt == TRIES - 1:
                    raise
                sleep(min(0.2 * 2**attempt, 5.0))
        raise AssertionError

    def sweep(self) -> None:
        """Delete all that any attempt at this write has put aside."""
        objects = self.place.objects()
        for key in objects.staged(self.file_id, self.group).wait():
            objects.unstage(key).wait()


def hashed(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:32]


def ops_of(native: Any, table: pa.Table) -> list[Op]:
    """Rows as enqueues, in their order: one for each run of rows of the same queue."""
    # A slice has the memory of what it is cut from: only its own goes to the engine.
    columns = [buffers(pa.concat_arrays(column.chunks)) for column in table.columns]
    return enqueues(native, columns, table.num_rows)


def buffers(column: pa.Array) -> tuple[bytes | None, bytes | None, bytes | None, int]:
    """Which rows have a value, offsets where values differ in length, the values; and the row it begins with."""
    found = [None if buffer is None else buffer.to_pybytes() for buffer in column.buffers()]
    valid, *offsets, values = found
    return valid, offsets[0] if offsets else None, values, column.offset
