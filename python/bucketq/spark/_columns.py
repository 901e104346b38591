"""The columns of each view, for Spark and for Arrow, and the functions that make batches of them."""

# pyright: basic
from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from bucketq import _convert as convert
from bucketq.errors import Invalid

__all__ = ["VIEWS", "arrow_schema", "batches", "schema_of"]

HISTORY = (
    "finish_seq bigint, id string, run bigint, queue string, `group` string, state string, priority bigint, "
    "attempts bigint, max_attempts bigint, worker string, enqueued_at timestamp, run_at timestamp, "
    "first_claimed_at timestamp, claimed_at timestamp, finished_at timestamp, wait_ms bigint, run_ms bigint, "
    "seq bigint, enqueue_commit_seq bigint, claim_commit_seq bigint, finish_commit_seq bigint, "
    "payload_len bigint, payload binary, payload_type string, result binary, result_type string, "
    "last_error string, commit_seq bigint"
)
"""The columns of docs/archive.md, and the commit that was read."""

JOBS = (
    "id string, run bigint, queue string, `group` string, state string, expired boolean, priority bigint, "
    "attempts bigint, max_attempts bigint, worker string, enqueued_at timestamp, run_at timestamp, "
    "claimed_at timestamp, expires_at timestamp, finished_at timestamp, dedup string, "
    "headers map<string,string>, seq bigint, enqueue_commit_seq bigint, claim_commit_seq bigint, "
    "payload_len bigint, payload binary, payload_type string, last_error string, commit_seq bigint"
)

QUEUES = (
    "name string, paused boolean, scheduled bigint, ready bigint, leased bigint, done bigint, dead bigint, "
    "cancelled bigint, expired bigint, due bigint, oldest_ready_ms bigint, commit_seq bigint"
)

COMMITS = (
    "commit bigint, commit_id string, committed_at timestamp, writer string, ops bigint, bytes bigint, "
    "pages_changed bigint, pages bigint, commit_seq bigint"
)

VIEWS = {"history": HISTORY, "jobs": JOBS, "queues": QUEUES, "commits": COMMITS}


def view_of(name: str) -> str:
    """Return the name if there is such a view."""
    if name not in VIEWS:
        raise Invalid(f"there is no view {name!r}: {convert.nearest(name, tuple(VIEWS))}", "option")
    return name


def schema_of(view: str, columns: str | None) -> StructType:
    """Return all columns of a view, or the named ones."""
    whole = parsed(VIEWS[view_of(view)])
    if not columns:
        return whole
    names = [name.strip() for name in columns.split(",") if name.strip()]
    for name in names:
        if name not in whole.names:
            near = convert.nearest(name, tuple(whole.names))
            raise Invalid(f"the view {view} has no column {name!r}: {near}", "option")
    return StructType([whole[name] for name in names])


def parsed(columns: str) -> StructType:
    """Parse columns like ``StructType.fromDDL``, which needs a session; sources are made without one."""
    pairs = (column.strip().replace("`", "").rsplit(" ", 1) for column in columns.split(", "))
    return StructType([types.StructField(name, TYPES[kind]) for name, kind in pairs])


TYPES = {
    "bigint": types.LongType(),
    "string": types.StringType(),
    "timestamp": types.TimestampType(),
    "binary": types.BinaryType(),
    "boolean": types.BooleanType(),
    "map<string,string>": types.MapType(types.StringType(), types.StringType()),
}


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects for this schema."""
    return to_arrow_schema(schema, timezone="UTC")


def batches(table: pa.Table, schema: pa.Schema, commit_seq: int, most: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows as Spark expects them: in these columns, with the commit in a column of its own."""
    columns: list[Any] = []
    for field in schema:
        if field.name == "commit_seq":
            columns.append(pa.repeat(pa.scalar(commit_seq, pa.int64()), table.num_rows))
        else:
            columns.append(table.column(field.name).cast(field.type))
    yield from pa.Table.from_arrays(columns, schema=schema).to_batches(max_chunksize=most)


def read_columns(schema: pa.Schema, also: Sequence[str] = ()) -> list[str]:
    """Return the columns to read from an object."""
    return list(dict.fromkeys([*(name for name in schema.names if name != "commit_seq"), *also]))
