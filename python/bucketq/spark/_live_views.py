"""The views of the current state: jobs, queues, commits. One partition, read from one commit."""

# pyright: basic
from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bucketq.spark._columns import arrow_schema, batches
from bucketq.spark._lives import Live
from bucketq.spark._place import Place
from bucketq.spark._wanted import Wanted

__all__ = ["LiveReader"]

COMMITS = 1_000_000


@dataclass(frozen=True)
class LiveReader:
    """Reads one of the views of the current state."""

    view: str
    place: Place
    schema: Any
    wanted: Wanted = field(default_factory=Wanted)
    batch_rows: int = 10_000

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Live), partition
        pinned = self.place.objects().pin(partition.head).wait()
        schema = arrow_schema(self.schema)
        match self.view:
            case "jobs":
                tables = jobs(pinned, self.wanted, self.batch_rows)
            case "queues":
                tables = iter([table_of(queues(pinned), schema)])
            case _:
                tables = iter([table_of(commits(pinned), schema)])
        for table in tables:
            table = self.wanted.chosen(table)
            if table.num_rows:
                yield from batches(table, schema, pinned.commit_seq, self.batch_rows)


def jobs(pinned: Any, wanted: Wanted, at_once: int) -> Iterator[pa.Table]:
    """Yield every job in the file, in the order of their enqueues."""
    texts = {name: sorted(names) for name, names in wanted.texts.items()}
    after = -1
    while (body := pinned.jobs(after + 1, at_once, texts.get("queue"), texts.get("state"))) is not None:
        table = pq.read_table(pa.BufferReader(body), use_threads=False)
        after = table.column("seq")[-1].as_py()
        place = table.column_names.index("headers")
        yield table.set_column(place, "headers", pairs_of(table.column("headers")))


def pairs_of(headers: pa.ChunkedArray) -> pa.Array:
    """Convert JSON objects to maps; most jobs have the same headers, or none."""
    pairs = {text: list(json.loads(text).items()) for text in headers.unique().to_pylist()}
    return pa.array([pairs[text] for text in headers.to_pylist()], pa.map_(pa.string(), pa.string()))


def table_of(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    """Return the columns of a schema; ``commit_seq`` is filled in later."""
    return pa.table(
        {field.name: pa.array([row.get(field.name) for row in rows], field.type) for field in schema}
    )


def queues(pinned: Any) -> list[dict[str, Any]]:
    return [{**queue, **queue["counts"]} for queue in pinned.queues()]


def commits(pinned: Any) -> list[dict[str, Any]]:
    """Return the commits that the log still has, oldest first."""
    found = pinned.history(COMMITS).wait()
    return [
        {**one, "commit": one["commit_seq"], "committed_at": time(one["commit_ms"])}
        for one in reversed(found)
    ]


def time(ms: int) -> int:
    """Convert to microseconds, as Spark expects."""
    return ms * 1000
