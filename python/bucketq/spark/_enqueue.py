"""The driver's part of a write: enqueues the staged rows in chunks, each chunk in one commit and exactly once.

Each chunk's commit also enqueues and cancels a mark, whose dedup key names the chunk. If the key is taken, there is no
mark to cancel, so the commit changes nothing: the chunk was enqueued before. The first of several chunks also enqueues
the plan of the write, as a job that the last chunk cancels. The last chunk also leaves an end mark: a write with
neither the end mark nor the plan does not count as complete.
"""

# pyright: basic
from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import sleep
from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from bucketq._native import Op, enqueues
from bucketq.errors import Contended, Error, Invalid, NotFound, OutcomeUnknown, Unavailable
from bucketq.spark._place import Place

__all__ = ["MARKS", "Write"]

MARKS = "bucketq-writes"
"""The queue of marks. No worker claims from it."""
FOR_EVER = 100 * 365 * 86_400
SHORTEST = 0.001
TRIES = 8
CHUNK_BYTES = 48 << 20
log = logging.getLogger("bucketq.spark")


@dataclass
class Write:
    """One write, shared by all attempts at it."""

    place: Place
    file_id: bytes
    key: str
    group: bytes
    chunk: int
    keep_s: int

    query_run: str = field(default="", init=False)
    """The run of the streaming query, if the key is that of its batch."""
    target: str = field(default="", init=False)
    """Where the rows go, in words."""
    token: str = field(default_factory=lambda: uuid4().hex, init=False)
    """Tells this attempt from others."""
    begun: str = field(default="", init=False)
    """The id of the first chunk's mark, from any attempt; the ids of plan and end derive from it."""

    def run(self, pieces: tuple[str, ...], rows: int) -> None:
        """Enqueue the rows of these pieces that no earlier attempt enqueued."""
        with self.place.open() as file:
            plan: dict[str, Any] | None = {"pieces": pieces, "rows": rows, "chunk": self.chunk}
            while plan is not None:
                plan = self.enqueue(file, tuple(plan["pieces"]), plan["rows"], plan["chunk"])
        self.sweep()

    def plan(self, file: Any) -> dict[str, Any] | None:
        """Return the plan of the attempt that enqueued the first chunk; None if the write is complete."""
        self.begun = self.first(file)
        try:
            found = file.get(named("plan", self.begun))
        except NotFound:
            found = None
        if found is not None and found.state == "scheduled":
            return json.loads(found.payload)
        if self.is_complete(file):
            return None
        raise NotFound(
            f"the write {self.key!r} ended between two chunks, and its plan was deleted: the queue {MARKS} was purged. "
            "Some of its rows were enqueued, but it is unknown which: compare the queue with the rows, and write "
            "the missing ones under another key",
            "no_such_job",
        )

    def first(self, file: Any) -> str:
        """Return the id of the first chunk's mark. It may have left long ago, but its dedup key still refers to it."""
        # If the window of the key has just ended, this enqueue takes the key only for a moment.
        told = {"write": self.key, "chunk": 0}
        receipt = file.queue(MARKS).enqueue(told, dedup=self.mark(0), dedup_window=SHORTEST, delay=FOR_EVER)
        if receipt.deduplicated:
            return receipt.id
        file.queue(MARKS).cancel(receipt.id)
        raise Contended(
            f"the time for which the key {self.key!r} is kept has just ended: write again", "contended"
        )

    def is_complete(self, file: Any) -> bool:
        """Return whether the last chunk was enqueued. If not, it never will be: this takes the dedup key of the end."""
        told = {"write": self.key, "lost": True}
        receipt = file.queue(MARKS).enqueue(
            told, dedup=self.end_key, dedup_window=self.keep_s, delay=FOR_EVER
        )
        return receipt.id == named("end", self.begun)

    def check_repeated(self, file: Any) -> None:
        """Raise if this complete write is another one of the same batch, for Spark does not distinguish them.

        A repeated batch belongs to another run of the query.
        """
        end = file.get(named("end", self.begun)) if self.query_run else None
        told = {} if end is None else json.loads(end.payload)
        if told.get("run") == self.query_run and told.get("token") != self.token:
            raise Invalid(
                f"this batch writes twice to {self.target}: give each write of a batch its own name, "
                '.option("key", f"a name of your own {batch_id}")',
                "option",
            )

    def mark(self, number: int) -> str:
        """Return the dedup key of a chunk's mark."""
        return f"{hashed(self.key)}-{number}"

    @property
    def end_key(self) -> str:
        """The dedup key of the mark that the last chunk leaves."""
        return f"{hashed(self.begun)}-end"

    def unfinished(self) -> bool:
        """Return whether some chunks are enqueued and others are not."""
        with self.place.open() as file:
            after = None
            while True:
                page = file.list(["scheduled"], queue=MARKS, after=after, payloads=True)
                if any(json.loads(job.payload).get("write") == self.key for job in page):
                    return True
                after = page.next
                if after is None:
                    return False

    def enqueue(self, file: Any, pieces: tuple[str, ...], rows: int, size: int) -> dict[str, Any] | None:
        """Enqueue all chunks of these pieces; or return the plan of another attempt that began with other pieces."""
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
                        f"{self.key!r}, continues with the others"
                    )
                raise
            if first and not new:
                # The attempt that enqueued the first chunk determines the others; otherwise rows would come twice.
                begun = self.plan(file)
                if begun is None:
                    self.check_repeated(file)
                    log.info("%s is complete: its jobs are enqueued", self.key)
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
        """Yield the rows of the pieces in order, at most ``size`` rows and about CHUNK_BYTES at a time."""
        rest: pa.Table | None = None
        for key in pieces:
            body = self.place.read(key)
            if body is None:
                raise NotFound(f"{key}, staged for this write, was deleted: write again", "collected")
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
        """Enqueue one chunk. Returns False if it was enqueued before."""
        ops = ops_of(file._file, table)
        planned = last and not first
        attempt = 0
        while True:
            try:
                with file.atomic() as tx:
                    mark = tx.enqueue(
                        MARKS,
                        {"write": self.key, "chunk": number, "rows": table.num_rows},
                        dedup=self.mark(number),
                        dedup_window=self.keep_s,
                    )
                    tx.cancel(mark)
                    if first:
                        self.begun = mark
                    if first and not last:
                        plan = {"pieces": pieces, "rows": rows, "chunk": size, "write": self.key}
                        tx.enqueue(MARKS, plan, id=named("plan", mark), delay=FOR_EVER)
                    if last:
                        end = {"write": self.key, "chunks": number + 1}
                        if self.query_run:
                            end |= {"run": self.query_run, "token": self.token}
                        window = {"dedup": self.end_key, "dedup_window": self.keep_s}
                        tx.cancel(tx.enqueue(MARKS, end, id=named("end", self.begun), **window))
                    if planned:
                        tx.cancel(named("plan", self.begun))
                    for op in ops:
                        tx._add(op)
                return True
            except NotFound as error:
                if error.code != "no_such_job":
                    raise
                if planned:
                    # The mark is missing, or the plan, by a purge. Retry without the plan: then it is the mark.
                    planned = False
                    continue
                if last and not first and not self.is_complete(file):
                    # Another attempt has found neither plan nor end, and has declared the write lost.
                    raise
                return False
            except (Unavailable, Contended, OutcomeUnknown):
                # The mark makes a retry harmless, whatever the outcome of this attempt.
                attempt += 1
                if attempt == TRIES:
                    raise
                sleep(min(0.1 * 2**attempt, 5.0))

    def sweep(self) -> None:
        """Delete all objects that any attempt at this write has staged."""
        objects = self.place.objects()
        for key in objects.staged(self.file_id, self.group).wait():
            objects.unstage(key).wait()


def named(what: str, begun: str) -> str:
    """Return the id of the plan or of the end of a write, derived from its first mark."""
    digest = bytearray(hashlib.sha256(f"{what} of {begun}".encode()).digest()[:16])
    digest[6] = digest[6] & 0x0F | 0x70
    digest[8] = digest[8] & 0x3F | 0x80
    return str(UUID(bytes=bytes(digest)))


def hashed(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:32]


def ops_of(native: Any, table: pa.Table) -> list[Op]:
    """Return the rows as enqueue ops, in order: one op for consecutive rows of the same queue."""
    # A slice shares the memory of its whole array: copy, so that only its own rows go to the engine.
    columns = [buffers(pa.concat_arrays(column.chunks)) for column in table.columns]
    return enqueues(native, columns, table.num_rows)


def buffers(column: pa.Array) -> tuple[bytes | None, bytes | None, bytes | None, int]:
    """Return the validity bitmap, the offsets if values differ in length, the values, and the first row."""
    found = [None if buffer is None else buffer.to_pybytes() for buffer in column.buffers()]
    valid, *offsets, values = found
    return valid, offsets[0] if offsets else None, values, column.offset
