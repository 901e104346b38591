"""Writing: executors stage their rows, the driver enqueues them, each chunk in one commit and exactly once.

The key of a write is the query and the batch, or the option ``key``. The commit that enqueues a chunk also leaves a
mark, a dedup key in the queue ``bucketq-writes`` (docs/decisions/0019-spark.md).
"""

# pyright: basic
from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import datasource as ds

from bucketq.errors import Invalid
from bucketq.spark._columns import arrow_schema
from bucketq.spark._enqueue import Write
from bucketq.spark._place import Place
from bucketq.spark._rows import STAGED, Rules

__all__ = ["BatchWriter", "StreamWriter"]

PIECE_ROWS = 50_000
PIECE_BYTES = 32 << 20
"""The most rows and bytes that a task stages in one object."""


@dataclass
class Aside(ds.WriterCommitMessage):
    """The rows that one task staged."""

    key: str
    group: bytes
    partition: int
    pieces: tuple[str, ...]
    rows: int
    rejected: int = 0
    run: str = ""
    """The run of the streaming query that this write belongs to, if Spark named the write."""


@dataclass
class Writing:
    """The shared part of both writers; it is sent to executors."""

    place: Place
    rules: Rules
    columns: tuple[str, ...]
    file_id: bytes
    chunk: int
    keep_s: int
    rejects: str | None
    key: str = ""
    group: bytes = field(default_factory=lambda: os.urandom(8))

    def put_aside(self, batches: Iterator[pa.RecordBatch], key: str, group: bytes) -> Aside:
        """On an executor: stage the rows as objects of this group."""
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        pieces: list[str] = []
        waiting: list[pa.Table] = []
        rejected: list[pa.Table] = []
        rows = begin = held = 0

        def flush() -> None:
            nonlocal held
            if waiting:
                pieces.append(self.stage(pa.concat_tables(waiting), group))
                waiting.clear()
                held = 0

        for batch in batches:
            checked = self.rules.check(batch)
            if checked.bad and self.rejects is None:
                at, why = checked.bad[0]
                more = f", and so are {len(checked.bad) - 1} near it" if len(checked.bad) > 1 else ""
                raise Invalid(
                    f"row {begin + at} of partition {partition} is a bad job: {why}{more}; nothing is enqueued. "
                    "Correct it, or give the option rejects a path where bad rows go"
                )
            if checked.bad:
                rejected.append(reject(batch, checked.bad, begin, partition))
            begin += batch.num_rows
            rows += checked.jobs.num_rows
            waiting.append(checked.jobs)
            held += checked.jobs.nbytes
            if held >= PIECE_BYTES or sum(t.num_rows for t in waiting) >= PIECE_ROWS:
                flush()
        flush()
        if rejected:
            assert self.rejects is not None
            write_rejects(self.rejects, group, partition, pa.concat_tables(rejected))
        return Aside(key, group, partition, tuple(pieces), rows, sum(t.num_rows for t in rejected))

    def stage(self, table: pa.Table, group: bytes) -> str:
        sink = pa.BufferOutputStream()
        pq.write_table(table.cast(STAGED), sink, compression="zstd")
        return self.place.objects().stage(self.file_id, group, sink.getvalue().to_pybytes()).wait()

    def enqueue(self, messages: Sequence[Aside | None]) -> None:
        """On the driver: enqueue all rows that the tasks staged."""
        asides = sorted((m for m in messages if m is not None), key=lambda m: m.partition)
        if not asides:
            return
        key, group = asides[0].key, asides[0].group
        pieces = tuple(piece for aside in asides for piece in aside.pieces)
        write = self.write(key, group)
        write.query_run, write.target = asides[0].run, self.target
        write.run(pieces, sum(aside.rows for aside in asides))

    def write(self, key: str, group: bytes) -> Write:
        return Write(self.place, self.file_id, key, group, self.chunk, self.keep_s)

    @property
    def target(self) -> str:
        """Where the rows go, in words."""
        return f"the queue {self.rules.queue}" if self.rules.queue else "the queues of its rows"


class BatchWriter(ds.DataSourceArrowWriter):
    """One object on the driver, with copies on the executors."""

    def __init__(self, writing: Writing) -> None:
        self.writing = writing
        self.key = writing.key or uuid.uuid4().hex
        writing.group = group_of(f"batch {self.key}")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Aside:
        context = TaskContext.get()
        query = context and context.getLocalProperty("sql.streaming.queryId")
        if self.writing.key or not context or not query:
            return self.writing.put_aside(iterator, f"batch {self.key}", self.writing.group)
        # A batch of a stream may be repeated, and its write must then be known by the same name.
        batch, run = (context.getLocalProperty(n) for n in ("streaming.sql.batchId", "spark.jobGroup.id"))
        if batch is None or not run:
            raise Invalid(
                "Spark does not name this batch, and may repeat it: give the write a name, "
                '.option("key", f"a name of your own {batch_id}")',
                "option",
            )
        name = f"query {query} batch {batch} to {self.writing.target}"
        aside = self.writing.put_aside(iterator, name, group_of(name))
        aside.run = run
        return aside

    def commit(self, messages: list[Any]) -> None:
        self.writing.enqueue(messages)

    def abort(self, messages: list[Any]) -> None:
        told = next((m for m in messages if m is not None), None)
        key, group = (told.key, told.group) if told else (f"batch {self.key}", self.writing.group)
        write = self.writing.write(key, group)
        # Keep the rows of chunks that are not enqueued yet: repeating the write continues with them.
        if not write.unfinished():
            write.sweep()


class StreamWriter(ds.DataSourceStreamArrowWriter):
    """Spark makes a new one for each commit: facts about a batch come with the messages."""

    def __init__(self, writing: Writing) -> None:
        self.writing = writing

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Aside:
        context = TaskContext.get()
        assert context is not None
        query = self.writing.key or context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        if not query or batch is None:
            raise Invalid("Spark does not name this query: give the option key a name of its own", "option")
        # All attempts at this batch share the group, so that one sweep deletes the objects of all.
        name = f"query {query} batch {batch}"
        return self.writing.put_aside(iterator, name, group_of(name))

    def commit(self, messages: list[Any], batchId: int) -> None:
        self.writing.enqueue(messages)

    def abort(self, messages: list[Any], batchId: int) -> None:
        # Without a message the query is unknown; the sweep after the batch succeeds deletes its tasks' objects.
        told = next((m for m in messages if m is not None), None)
        if told is not None:
            write = self.writing.write(told.key, told.group)
            if not write.unfinished():
                write.sweep()


def writing_of(source: Any, schema: Any) -> Writing:
    """Return the options of a write; raise if they or the columns are wrong for every row."""
    place: Place = source.place
    found = place.objects().pin().wait()
    rules = Rules(
        source.option("queue"), source.option("contentType"), int(place.setting("max_payload", 1024 * 1024))
    )
    rules.check_columns(schema.names)
    # Without rows, this checks only the types of the columns.
    rules.check(pa.RecordBatch.from_pylist([], schema=arrow_schema(schema)))
    if rules.queue is not None:
        with place.open() as file:
            file.queue(rules.queue)
    return Writing(
        place,
        rules,
        tuple(schema.names),
        found.file_id,
        source.count("chunk", 50_000),
        source.count("keepKeys", 30) * 86_400,
        source.option("rejects"),
        source.option("key") or "",
    )


def group_of(name: str) -> bytes:
    """Return the group that all attempts at a write share, so that one sweep deletes the objects of all."""
    return hashlib.sha256(name.encode()).digest()[:8]


def reject(batch: pa.RecordBatch, bad: Sequence[tuple[int, str]], begin: int, partition: int) -> pa.Table:
    """Return bad rows unchanged, with their partition, position and reason."""
    rows = batch.take(pa.array([at for at, _ in bad]))
    table = pa.Table.from_batches([rows])
    table = table.append_column("bad_partition", pa.array([partition] * len(bad), pa.int64()))
    table = table.append_column("bad_row", pa.array([begin + at for at, _ in bad], pa.int64()))
    return table.append_column("bad_reason", pa.array([why for _, why in bad], pa.string()))


def write_rejects(path: str, group: bytes, partition: int, table: pa.Table) -> None:
    """Write one Parquet file per write and partition; another attempt overwrites it."""
    from pyarrow import fs

    if "://" not in path:
        path = os.path.abspath(path)
    system, base = fs.FileSystem.from_uri(path if "://" in path else f"file://{path}")
    system.create_dir(base, recursive=True)
    pq.write_table(table, f"{base}/bad-{group.hex()}-{partition:05}.parquet", filesystem=system)
