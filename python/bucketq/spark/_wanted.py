"""Filters from options or pushed down by Spark; they save reading objects and rows."""

# pyright: basic
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute
from pyspark.sql import datasource as ds

from bucketq import _convert as convert
from bucketq.errors import Invalid
from bucketq.spark._tables import MARKED

# Arrow creates these functions at run time, so they have no types.
pc: Any = pyarrow.compute

__all__ = ["CHOOSING", "Wanted", "listed", "one_of"]

CHOOSING = ("queues", "states", "after", "until", "since", "before")
"""Options that select rows."""

TEXTS = ("queue", "state", "id", "worker")
NUMBERS = ("finish_seq", "run", "seq", "attempts", "priority")
TIMES = ("finished_at", "enqueued_at", "run_at", "first_claimed_at", "claimed_at")

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Range = tuple[int | None, int | None]


@dataclass(frozen=True)
class Wanted:
    """A filter: sets of texts, and ranges of numbers and of times in milliseconds, both ends included."""

    texts: Mapping[str, frozenset[str]] = field(default_factory=dict)
    ranges: Mapping[str, Range] = field(default_factory=dict)
    marks: bool = True
    """Whether the marks of writes are rows too."""

    @classmethod
    def of(cls, filters: Iterable[Any]) -> Wanted:
        """Return Spark's filters as far as this class supports them."""
        wanted = cls()
        for one in filters:
            wanted = wanted.narrowed(one)
        return wanted

    @classmethod
    def of_options(cls, options: Mapping[str, str]) -> Wanted:
        """Return the filter from options: lists of queues and states, positions in the order of finishes, end times.

        It excludes the marks of writes, unless their queue is named.
        """
        wanted = cls(marks="queues" in options)
        for option, column in (("queues", "queue"), ("states", "state")):
            if (text := options.get(option)) is not None:
                names = frozenset(listed(text))
                wanted = replace(wanted, texts={**wanted.texts, column: names})
        if (text := options.get("after")) is not None:
            wanted = wanted.between("finish_seq", place("after", text) + 1, None)
        if (text := options.get("until")) is not None:
            wanted = wanted.between("finish_seq", None, place("until", text))
        if (text := options.get("since")) is not None:
            wanted = wanted.between("finished_at", moment("since", text), None)
        if (text := options.get("before")) is not None:
            wanted = wanted.between("finished_at", None, moment("before", text) - timedelta(milliseconds=1))
        return wanted

    def narrowed(self, one: Any) -> Wanted:
        path = getattr(one, "attribute", ())
        if len(path) != 1:
            return self
        name = path[0]
        match one:
            case ds.EqualTo() | ds.EqualNullSafe():
                values: tuple[Any, ...] = (one.value,)
            case ds.In():
                values = tuple(one.value)
            case ds.GreaterThan() | ds.GreaterThanOrEqual():
                return self.between(name, one.value, None)
            case ds.LessThan() | ds.LessThanOrEqual():
                return self.between(name, None, one.value)
            case _:
                return self
        if name in TEXTS and all(isinstance(value, str) for value in values):
            texts = frozenset(values) & self.texts.get(name, frozenset(values))
            return replace(self, texts={**self.texts, name: texts})
        if values and all(number(name, value) is not None for value in values):
            return self.between(name, min(values), max(values))
        return self

    def between(self, name: str, low: Any, high: Any) -> Wanted:
        """Add a range, both ends included; Spark applies an exclusive filter again."""
        least, most = self.ranges.get(name, (None, None))
        new_least, new_most = number(name, low), number(name, high)
        if new_least is None and new_most is None:
            return self
        if new_least is not None:
            least = new_least if least is None else max(least, new_least)
        if new_most is not None:
            # A time may have microseconds; the rows have none.
            most = new_most if most is None else min(most, new_most)
        return replace(self, ranges={**self.ranges, name: (least, most)})

    def may_hold(self, listed: Mapping[str, Any]) -> bool:
        """Return True if an archive object may hold matching rows."""
        if not self.has_queue(listed["queue"]):
            return False
        return all(
            meets(self.ranges.get(name, (None, None)), listed[first], listed[last])
            for name, first, last in (
                ("finish_seq", "first_seq", "last_seq"),
                ("finished_at", "first_ms", "last_ms"),
            )
        )

    def has_queue(self, name: str) -> bool:
        """Return True if rows of this queue may match."""
        return name in self.texts.get("queue", (name,)) and (self.marks or name != MARKED)

    def columns(self) -> tuple[str, ...]:
        """Return the columns that the filter needs."""
        return (*self.texts, *self.ranges, *(() if self.marks else ("queue",)))

    def chosen(self, table: pa.Table) -> pa.Table:
        """Return the matching rows."""
        mask = None
        for name, texts in self.texts.items():
            if name in table.column_names:
                mask = both(mask, pc.is_in(table.column(name), pa.array(sorted(texts), pa.string())))
        if not self.marks and "queue" in table.column_names:
            mask = both(mask, pc.not_equal(table.column("queue"), MARKED))
        for name, (least, most) in self.ranges.items():
            if name not in table.column_names:
                continue
            column = table.column(name)
            if pa.types.is_timestamp(column.type):
                column = column.cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64())
            if least is not None:
                mask = both(mask, pc.greater_equal(column, least))
            if most is not None:
                mask = both(mask, pc.less_equal(column, most))
        return table if mask is None else table.filter(mask)


def both(mask: Any, other: Any) -> Any:
    return other if mask is None else pc.and_kleene(mask, other)


def number(name: str, value: Any) -> int | None:
    """Return the value as a number if filters on this column are supported."""
    if name in NUMBERS and isinstance(value, int) and not isinstance(value, bool):
        return value
    if name in TIMES and isinstance(value, datetime) and value.tzinfo is not None:
        return (value - EPOCH) // timedelta(milliseconds=1)
    return None


def meets(wanted: Range, first: int, last: int) -> bool:
    least, most = wanted
    return (least is None or last >= least) and (most is None or first <= most)


def listed(text: str | None) -> list[str]:
    """Return the names in an option."""
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def one_of(name: str, text: str, words: Sequence[str]) -> str:
    """Return an option that is one of these words."""
    if text not in words:
        near = convert.nearest(text, words)
        raise Invalid(f"the option {name} must be {' or '.join(words)}, not {text!r}: {near}", "option")
    return text


def place(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise Invalid(f"the option {name} must be a finish_seq, a whole number, not {text!r}", "option")
    return int(text)


def moment(name: str, text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        told = (
            f"the option {name} must be a time with its zone, such as 2026-01-31T12:00:00+00:00, not {text!r}"
        )
        raise Invalid(told, "option")
    return found
