"""Converts rows of a DataFrame to jobs: the meaning of columns, and the checks that reject bad rows. No I/O."""

# pyright: basic
from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute

from bucketq import _convert as convert
from bucketq.errors import Invalid

# Arrow creates these functions at run time, so they have no types.
pc: Any = pyarrow.compute

__all__ = ["STAGED", "Checked", "Rules"]

COLUMNS = ("payload", "queue", "priority", "delay", "run_at", "dedup", "group", "headers", "max_attempts")
"""The columns of a job; others are rejected."""
STAGED = pa.schema(
    [
        ("queue", pa.string()),
        ("payload", pa.binary()),
        ("type", pa.string()),
        ("priority", pa.int64()),
        ("delay_ms", pa.int64()),
        ("run_at_ms", pa.int64()),
        ("dedup", pa.string()),
        ("group", pa.string()),
        ("headers", pa.string()),
        ("max_attempts", pa.int64()),
    ]
)
"""The schema of the rows that executors stage."""
MAX_NAME, MAX_HEADERS = 200, 4096
INT32 = (-(2**31), 2**31 - 1)
LONGEST, LATEST = 100 * 366 * 86_400_000, 253_402_300_799_999
"""Milliseconds: a hundred years, and the last millisecond of the year 9999."""
MAX_TYPE = 100


@dataclass(frozen=True)
class Checked:
    """The jobs from the good rows, and the position and reason of each bad row."""

    jobs: pa.Table
    bad: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class Rules:
    """The rules for rows."""

    queue: str | None
    content_type: str | None
    max_payload: int

    def check_columns(self, names: Sequence[str]) -> None:
        """Raise if the columns of a DataFrame cannot make jobs."""
        for name in names:
            if name not in COLUMNS:
                raise Invalid(f"a job has no column {name!r}: {convert.nearest(name, COLUMNS)}")
        if "payload" not in names:
            raise Invalid(
                "a job needs a column payload: text, bytes, or a struct, map or array that becomes JSON"
            )
        if self.content_type is not None and len(self.content_type.encode()) > MAX_TYPE:
            raise Invalid(f"the option contentType has more than {MAX_TYPE} bytes", "option")
        if self.queue is None and "queue" not in names:
            raise Invalid("no queue is named: give the option queue, or a column queue", "option")

    def check(self, batch: pa.RecordBatch) -> Checked:
        """Convert these rows to jobs."""
        bad: dict[int, str] = {}
        n = batch.num_rows
        columns = {name: batch.column(name) for name in batch.schema.names}
        payload, kind = self.payload(columns["payload"], bad)
        lengths = pc.binary_length(payload)
        note(bad, pc.is_null(payload), "it has no payload")
        note(
            bad, pc.greater(lengths, self.max_payload), f"its payload has more than {self.max_payload} bytes"
        )
        queue = text(columns.get("queue"), n, self.queue)
        note(bad, pc.is_null(queue), "it names no queue")
        delay = self.millis(columns.get("delay"), n, 1000)
        run_at = self.millis(columns.get("run_at"), n, 1)
        note(bad, pc.less(delay, 0), "its delay is below zero")
        note(bad, pc.greater(delay, LONGEST), "its delay is not a number of seconds below a hundred years")
        out = pc.or_(pc.less(run_at, 0), pc.greater(run_at, LATEST))
        note(bad, out, "its run_at is outside the years 1970 to 9999")
        note(bad, pc.and_(pc.is_valid(delay), pc.is_valid(run_at)), "it has both delay and run_at: give one")
        priority = whole("priority", columns.get("priority"), n)
        out = pc.or_(pc.less(priority, INT32[0]), pc.greater(priority, INT32[1]))
        note(bad, out, "its priority is not a 32-bit number")
        attempts = whole("max_attempts", columns.get("max_attempts"), n)
        note(bad, pc.or_(pc.less(attempts, 1), pc.greater(attempts, INT32[1])), "its max_attempts is below 1")
        dedup, group = text(columns.get("dedup"), n), text(columns.get("group"), n)
        for name, column in (("queue", queue), ("dedup", dedup), ("group", group)):
            sizes = pc.binary_length(column.cast(pa.binary()))
            note(bad, pc.greater(sizes, MAX_NAME), f"its {name} has more than {MAX_NAME} bytes")
            note(bad, pc.equal(sizes, 0), f"its {name} is empty: leave it null")
        headers = self.headers(columns.get("headers"), n, bad)
        kinds = pa.array([kind] * n, pa.string())
        parts = [queue, payload, kinds, priority, delay, run_at, dedup, group, headers, attempts]
        jobs = pa.Table.from_arrays(parts, schema=STAGED)
        if bad:
            good = pa.array([i not in bad for i in range(n)])
            jobs = jobs.filter(good)
        return Checked(jobs, tuple(sorted(bad.items())))

    def payload(self, column: pa.Array, bad: dict[int, str]) -> tuple[pa.Array, str]:
        kind = column.type
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            return column.cast(pa.binary()), self.content_type or "application/octet-stream"
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            return column.cast(pa.string()).cast(pa.binary()), self.content_type or "text/plain"
        if pa.types.is_nested(kind):
            made: list[bytes | None] = []
            for i, value in enumerate(rows_of(column)):
                try:
                    made.append(None if value is None else as_json(value).encode())
                except ValueError:
                    bad[i] = "its payload has a number that JSON cannot hold"
                    made.append(None)
            return pa.array(made, pa.binary()), self.content_type or "application/json"
        raise Invalid(
            f"the column payload has the type {kind}: it must be text, bytes, a struct, a map or an array"
        )

    def millis(self, column: pa.Array | None, n: int, factor: int) -> pa.Array:
        """Convert seconds, a duration or a time to milliseconds."""
        if column is None:
            return pa.nulls(n, pa.int64())
        kind = column.type
        if pa.types.is_timestamp(kind):
            if factor != 1 or kind.tz is None:
                raise Invalid("run_at is a timestamp with a time zone, and delay a number of seconds")
            return column.cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64())
        if factor == 1:
            raise Invalid(f"the column run_at has the type {kind}: it must be a timestamp")
        if pa.types.is_duration(kind):
            return column.cast(pa.duration("ms"), safe=False).cast(pa.int64())
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
            raise Invalid(f"the column delay has the type {kind}: it must be a number of seconds")
        scaled = pc.round(pc.multiply(column.cast(pa.float64(), safe=False), float(factor)))
        # NaN and very large numbers count as too long.
        known = pc.and_(pc.is_finite(scaled), pc.less(pc.abs(scaled), 2.0**62))
        return pc.if_else(known, scaled, 2.0**62).cast(pa.int64())

    def headers(self, column: pa.Array | None, n: int, bad: dict[int, str]) -> pa.Array:
        if column is None:
            return pa.nulls(n, pa.string())
        if not pa.types.is_map(column.type):
            raise Invalid(f"the column headers has the type {column.type}: it must be a map of text to text")
        made: list[str | None] = []
        for i, value in enumerate(column.to_pylist()):
            pairs = dict(value or ())
            if any(not isinstance(v, str) for v in pairs.values()):
                bad.setdefault(i, "a header has no value")
            elif sum(len(k.encode()) + len(v.encode()) for k, v in pairs.items()) > MAX_HEADERS:
                bad.setdefault(i, f"its headers have more than {MAX_HEADERS} bytes")
            made.append(json.dumps(pairs, ensure_ascii=False) if pairs else None)
        return pa.array(made, pa.string())


def note(bad: dict[int, str], mask: Any, why: str) -> None:
    """Mark the rows where ``mask`` is true as bad; the first reason stays."""
    for place in pc.indices_nonzero(pc.fill_null(mask, False)).to_pylist():
        bad.setdefault(place, why)


def text(column: pa.Array | None, n: int, default: str | None = None) -> pa.Array:
    if column is None:
        return pa.array([default] * n, pa.string())
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        raise Invalid(f"queue, dedup and group must be text, not {column.type}")
    column = column.cast(pa.string())
    return column if default is None else pc.fill_null(column, default)


def whole(name: str, column: pa.Array | None, n: int) -> pa.Array:
    if column is None:
        return pa.nulls(n, pa.int64())
    if not pa.types.is_integer(column.type):
        raise Invalid(f"the column {name} has the type {column.type}: it must be a whole number")
    return column.cast(pa.int64())


def rows_of(column: pa.Array) -> list[Any]:
    return [plain(value, column.type) for value in column.to_pylist()]


def plain(value: Any, kind: pa.DataType) -> Any:
    """Convert a value for JSON: maps to objects, times to text."""
    if value is None:
        return None
    if pa.types.is_map(kind):
        return {str(k): plain(v, kind.item_type) for k, v in value}
    if pa.types.is_struct(kind):
        return {
            kind.field(i).name: plain(value[kind.field(i).name], kind.field(i).type)
            for i in range(kind.num_fields)
        }
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [plain(v, kind.value_type) for v in value]
    return value


def as_json(value: Mapping[str, Any] | list[Any]) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=other)


def other(value: Any) -> Any:
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value)
