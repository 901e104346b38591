"""The data source ``bucketq``: implements ``format("bucketq")`` and its options (docs/spark.md)."""

# pyright: basic
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import datasource as ds
from pyspark.sql.types import StructType

from bucketq import _convert as convert
from bucketq import _show
from bucketq.errors import Invalid
from bucketq.spark import _columns
from bucketq.spark._live_views import LiveReader
from bucketq.spark._lives import Archived, Live, Lives, LivesReader, grouped
from bucketq.spark._place import Place
from bucketq.spark._stream import StreamReader
from bucketq.spark._wanted import CHOOSING, Wanted, listed, one_of
from bucketq.spark._write import BatchWriter, StreamWriter, writing_of

__all__ = ["Source"]

READING = {"view", "columns", "partitionRows", "batchRows", "pushdown", *CHOOSING}
STREAMING = {"maxRows", "maxBytes", "start", "onLoss", "pollSeconds"}
WRITING = {"queue", "key", "chunk", "keepKeys", "rejects", "contentType", "checkpointLocation", "path"}
OPTIONS = {name.lower(): name for name in READING | STREAMING | WRITING | {"url"}}
"""Options that are not settings of the engine; Spark passes them in lower case."""


class Source(ds.DataSource):
    """A queue file as a source and a sink."""

    head: bytes | None = None
    """The HEAD whose commit all reads of one DataFrame use."""

    @classmethod
    def name(cls) -> str:
        return "bucketq"

    def option(self, name: str, default: str | None = None) -> str | None:
        return self.options.get(name, default)

    def count(self, name: str, default: int | None) -> Any:
        """Return an option that is a whole number of at least 1."""
        text = self.options.get(name)
        if text is None:
            return default
        if not text.isascii() or not text.isdigit() or int(text) < 1:
            raise Invalid(f"the option {name} must be a whole number from 1 on, not {text!r}", "option")
        return int(text)

    @property
    def view(self) -> str:
        return _columns.view_of(self.options.get("view", "history"))

    def check_words(self) -> None:
        """Raise if an option names a state, a queue or a word that does not exist."""
        one_of("pushdown", self.options.get("pushdown", "false").lower(), ("true", "false"))
        states = _show.STATES[3:] if self.view == "history" else _show.STATES
        for name in listed(self.options.get("states")):
            if name not in states:
                unfinished = "unfinished jobs are in the view jobs"
                near = unfinished if name in _show.STATES else convert.nearest(name, states)
                raise Invalid(f"there is no state {name!r} in the view {self.view}: {near}", "option")
        if queues := listed(self.options.get("queues")):
            self.place.check_queues(queues)

    @property
    def place(self) -> Place:
        return Place.of_options(dict(self.options.items()), OPTIONS)

    def schema(self) -> StructType:
        schema = _columns.schema_of(self.view, self.options.get("columns"))
        self.check_words()
        # Spark calls this once per DataFrame, and this object travels with the DataFrame.
        found = self.place.objects().head().wait()
        assert found is not None
        self.head = found[0]
        return schema

    def reader(self, schema: StructType) -> ds.DataSourceReader:
        if self.options.get("pushdown", "false").lower() == "true":
            return PushingReader(self, schema)
        return Reader(self, schema)

    def writer(self, schema: StructType, overwrite: bool) -> ds.DataSourceWriter:
        if overwrite:
            raise Invalid(
                'a queue cannot be overwritten: write with mode("append"), or purge it first', "option"
            )
        return BatchWriter(writing_of(self, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> ds.DataSourceStreamWriter:
        if overwrite:
            raise Invalid('a queue cannot be overwritten: write with outputMode("append")', "option")
        return StreamWriter(writing_of(self, schema))

    def streamReader(self, schema: StructType) -> ds.DataSourceStreamReader:
        if self.view != "history":
            raise Invalid(f"only the view history is a stream, not {self.view}", "option")
        return StreamReader(self, schema)


class Reader(ds.DataSourceReader):
    """Plans a batch read on the driver and runs it on executors."""

    def __init__(self, source: Source, schema: StructType) -> None:
        self.place = source.place
        self.view = source.view
        self.schema = schema
        self.head = source.head
        self.partition_rows = source.count("partitionRows", 100_000)
        self.batch_rows = source.count("batchRows", 10_000)
        self.wanted = Wanted.of_options(source.options)

    def partitions(self) -> list[ds.InputPartition]:
        objects = self.place.objects()
        if self.view != "history":
            head = self.head or objects.pin().wait().head
            return [Live(head)]
        pinned = objects.pin(self.head).wait()
        after, until = self.wanted.ranges.get("finish_seq", (None, None))
        after, until = max((after or 0) - 1, 0), 2**63 - 1 if until is None else max(until, 0)
        listed = [a for a in pinned.archives(after) if self.wanted.may_hold(a)]
        found: list[ds.InputPartition] = [
            Lives(pinned.commit_seq, group, after, until)
            for group in grouped(map(Archived.of, listed), self.partition_rows)
        ]
        if pinned.lives(after, until, 1) is not None:
            found.append(Live(pinned.head, after, until))
        # Given no partitions, Spark would read one that is None.
        return found or [Lives(pinned.commit_seq, ())]

    def read(self, partition: ds.InputPartition) -> Iterator[pa.RecordBatch]:
        if self.view == "history":
            reader: Any = LivesReader(self.place, self.schema, self.wanted, self.batch_rows)
        else:
            reader = LiveReader(self.view, self.place, self.schema, self.wanted, self.batch_rows)
        return reader.read(partition)


class PushingReader(Reader):
    """Takes filters from the plan. Not the default: Spark 4.3.0 plans a DataFrame's source once, so rows that one query
    filters out are silently missing from the next query on the same DataFrame.
    """

    def pushFilters(self, filters: list[ds.Filter]) -> Iterator[ds.Filter]:
        for one in filters:
            self.wanted = self.wanted.narrowed(one)
        # Return all of them: Spark applies them again to the rows that are left.
        yield from filters
