"""Finished runs, in archive objects and still in the queue file, as executors read them."""

# pyright: basic
from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import InputPartition

from bucketq.errors import NotFound
from bucketq.spark._columns import arrow_schema, batches, read_columns
from bucketq.spark._place import Place
from bucketq.spark._wanted import Wanted

__all__ = ["Archived", "Live", "Lives", "grouped", "lives_of"]

LIVES_AT_ONCE = 50_000
"""Runs that are read from a queue file at once: some tens of megabytes with small payloads."""


@dataclass(frozen=True)
class Archived:
    """One archive object, as it is listed."""

    key: str
    queue: str
    hash: bytes
    jobs: int
    bytes: int
    first_seq: int
    last_seq: int
    listed_seq: int

    @classmethod
    def of(cls, listed: Mapping[str, Any]) -> Archived:
        return cls(
            hash=bytes(listed["hash"]),
            **{
                name: listed[name]
                for name in ("key", "queue", "jobs", "bytes", "first_seq", "last_seq", "listed_seq")
            },
        )


@dataclass
class Lives(InputPartition):
    """Rows of some objects, with a finish_seq above ``after`` and up to ``until``."""

    commit_seq: int
    objects: tuple[tuple[str, bytes | None], ...]
    after: int = 0
    until: int = 2**63 - 1


@dataclass
class Live(InputPartition):
    """Rows of the database of this HEAD."""

    head: bytes
    after: int = 0
    until: int = 2**63 - 1


@dataclass(frozen=True)
class LivesReader:
    """Reads a partition on an executor."""

    place: Place
    schema: Any
    wanted: Wanted = field(default_factory=Wanted)
    batch_rows: int = 10_000

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        schema = arrow_schema(self.schema)
        names = read_columns(schema, ("finish_seq", *self.wanted.columns()))
        commit_seq, tables = lives_of(self.place, partition, names)
        for table in tables:
            table = self.wanted.chosen(table)
            if table.num_rows:
                yield from batches(table, schema, commit_seq, self.batch_rows)


def lives_of(place: Place, partition: InputPartition, names: Sequence[str]) -> tuple[int, Iterator[pa.Table]]:
    """Return the commit and the tables of a partition."""
    if isinstance(partition, Live):
        pinned = place.objects().pin(partition.head).wait()
        return pinned.commit_seq, live(pinned, partition.after, partition.until, names)
    assert isinstance(partition, Lives), partition
    return partition.commit_seq, archived(place, partition, names)


def live(pinned: Any, after: int, until: int, names: Sequence[str] | None) -> Iterator[pa.Table]:
    """Yield runs that are not archived, in the order of finishes."""
    while (body := pinned.lives(after, until, LIVES_AT_ONCE)) is not None:
        table = pq.read_table(pa.BufferReader(body))
        after = table.column("finish_seq")[-1].as_py()
        yield table if names is None else table.select(names)


def archived(place: Place, partition: Lives, names: Sequence[str]) -> Iterator[pa.Table]:
    for key, hash in partition.objects:
        body = place.read(key, hash)
        if body is None:
            raise NotFound(
                f"{key} was deleted: it expired, and the grace period is over; read again, and raise archive_for of "
                "the queue or grace if reads take so long",
                "collected",
            )
        wanted = Wanted().between("finish_seq", partition.after + 1, partition.until)
        # Without Arrow's own threads: executors run one task per core.
        yield wanted.chosen(pq.read_table(pa.BufferReader(body), columns=list(names), use_threads=False))


def grouped(objects: Iterable[Archived], rows: int) -> Iterator[tuple[tuple[str, bytes | None], ...]]:
    """Yield groups of objects with up to ``rows`` rows each; a larger object is a group of its own."""
    group: list[tuple[str, bytes | None]] = []
    held = 0
    for one in sorted(objects, key=lambda one: one.first_seq):
        if group and held + one.jobs > rows:
            yield tuple(group)
            group, held = [], 0
        group.append((one.key, one.hash))
        held += one.jobs
    if group:
        yield tuple(group)
