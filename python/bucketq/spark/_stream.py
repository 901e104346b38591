"""Finished jobs as a stream, with offsets that always mean the same rows (docs/decisions/0019-spark.md).

An offset holds the last position in the order of finishes, the commit that was read, and the staged object with the
rows that were not archived at that commit. So it refers only to objects that never change, whatever happens to the
queues.
"""

# pyright: basic
from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from time import monotonic
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming import datasource as limits

from bucketq._durations import milliseconds
from bucketq.errors import Corrupt, Invalid, NotFound
from bucketq.spark._columns import schema_of
from bucketq.spark._lives import Archived, Lives, LivesReader, archived, grouped, live
from bucketq.spark._place import Place
from bucketq.spark._tables import MARKED
from bucketq.spark._wanted import CHOOSING, Wanted, one_of

__all__ = ["Offset", "StreamReader"]

END = (1 << 24) - 1
"""Finishes of one commit are numbered below this."""
MOST = 2**63 - 1
LOG = 1_000_000
"""More commits than a log has."""


@dataclass(frozen=True)
class Offset:
    """The end of a batch."""

    seq: int
    """The last position in the order of finishes."""
    commit: int
    """The commit whose list of archive objects is used."""
    ms: int
    """No later run finished before this time."""
    lineage: str
    """The lineage of the queue file; a restore starts another one."""
    objects: int = 0
    """Number of archive objects with rows of the batch."""
    staged: int = 0
    """Rows that were not archived ..."""
    stage: str = ""
    """... and the key of the staged object that holds them."""


@dataclass(frozen=True)
class Newest:
    """The rows of a commit after a position."""

    pinned: Any
    objects: tuple[Archived, ...]
    live: Any
    """Positions of the runs that are not archived, in order."""

    @classmethod
    def of(cls, pinned: Any, after: int) -> Newest:
        objects = tuple(map(Archived.of, pinned.archives(after)))
        parts = [table.column("finish_seq").to_numpy() for table in live(pinned, after, MOST, ["finish_seq"])]
        return cls(pinned, objects, np.concatenate(parts) if parts else np.empty(0, np.int64))

    @property
    def watermark(self) -> int:
        """The last position of this commit; runs that finish later come after it."""
        return self.pinned.commit_seq << 24 | END

    def empty(self) -> bool:
        return not self.objects and not len(self.live)

    def ends(self) -> Any:
        """Return positions where a batch may end without reading an object, in order."""
        return np.unique(np.concatenate([ints([one.last_seq for one in self.objects]), self.live]))

    def until(self, places: Any) -> tuple[Any, Any]:
        """Return an upper bound of the rows, and about the bytes, up to each of these positions."""
        ordered = sorted(self.objects, key=lambda one: one.first_seq)
        inside = np.searchsorted(ints([one.first_seq for one in ordered]), places, side="right")
        live = np.searchsorted(self.live, places, side="right")
        rows = ints([0, *(one.jobs for one in ordered)]).cumsum()[inside]
        size = ints([0, *(one.bytes for one in ordered)]).cumsum()[inside]
        return rows + live, size + ROW_BYTES * live


def ints(numbers: list[int]) -> Any:
    """Return a numpy array, to add up quickly: a list of objects may be long."""
    return np.array(numbers, np.int64)


ROW_BYTES = 256
"""Assumed size of a row that is not archived; rows in objects count by the size of the objects."""


class StreamReader(DataSourceStreamReader, limits.SupportsTriggerAvailableNow):
    """Exists on the driver as long as the query; only :meth:`read` runs on executors."""

    def __init__(self, source: Any, schema: Any) -> None:
        self.place: Place = source.place
        self.schema = schema
        self.partition_rows: int = source.count("partitionRows", 100_000)
        self.batch_rows: int = source.count("batchRows", 10_000)
        self.max_rows: int | None = source.count("maxRows", None)
        self.max_bytes: int | None = source.count("maxBytes", None)
        self.start = one_of("start", source.option("start", "earliest"), ("earliest", "latest"))
        self.on_loss = one_of("onLoss", source.option("onLoss", "fail"), ("fail", "ignore"))
        self.poll = seconds(source.option("pollSeconds", "1"))
        for name in CHOOSING:
            if name not in ("queues", "states") and source.option(name) is not None:
                raise Invalid(
                    f"a stream begins at the option start and never ends: {name} is an option of batch reads",
                    "option",
                )
        self.wanted = Wanted.of_options(source.options)
        self.group = os.urandom(8)
        self.target: Any = None
        self.version: str | None = None
        self.looked = -1e9
        self.known: Any = None
        self.idle: tuple[int, Offset] | None = None

    def initialOffset(self) -> dict[str, Any]:
        pinned = self.place.objects().pin().wait()
        seq = 0 if self.start == "earliest" else pinned.commit_seq << 24 | END
        ms = 0 if self.start == "earliest" else pinned.commit_ms
        return asdict(Offset(seq, pinned.commit_seq, ms, pinned.lineage_id.hex()))

    def prepareForTriggerAvailableNow(self) -> None:
        self.target = self.place.objects().pin().wait()

    def getDefaultReadLimit(self) -> limits.ReadLimit:
        if self.max_rows is not None:
            return limits.ReadMaxRows(self.max_rows)
        if self.max_bytes is not None:
            return limits.ReadMaxBytes(self.max_bytes)
        return limits.ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: limits.ReadLimit) -> dict[str, Any]:
        pinned = self.newest()
        if pinned is None:
            return start
        begin = Offset(**start)
        same_file(begin, pinned)
        if pinned.commit_seq << 24 | END <= begin.seq:
            return start
        if self.on_loss == "fail":
            idle = self.idle is not None and self.idle[0] == begin.seq
            fell_behind(pinned, self.idle[1] if self.idle and idle else begin, self.wanted)
        newest = Newest.of(pinned, begin.seq)
        if newest.empty():
            return asdict(self.up_to_date(pinned, begin, newest.watermark))
        end = self.end_of(newest, begin, limit)
        objects = [one for one in newest.objects if one.first_seq <= end]
        stage, staged = self.put_aside(newest, begin.seq, end)
        ms = pinned.commit_ms if end == newest.watermark else begin.ms
        offset = Offset(
            end, pinned.commit_seq, ms, begin.lineage, objects=len(objects), staged=staged, stage=stage
        )
        return asdict(offset)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the end of the newest commit that was seen, for the progress of the query."""
        pinned = self.target or self.known
        if pinned is None:
            return None
        end = pinned.commit_seq << 24 | END
        return asdict(Offset(end, pinned.commit_seq, pinned.commit_ms, pinned.lineage_id.hex()))

    def up_to_date(self, pinned: Any, begin: Offset, watermark: int) -> Offset:
        """Remember that there was nothing to read: runs in objects that expire later finished after this commit.

        Writes it to the checkpoint, as a batch without rows, if it may matter later: before an archive object is old
        enough to expire, and when this reader is about to stop.
        """
        if begin.seq == 0:
            # A stream that has read nothing misses nothing.
            return begin
        here = Offset(watermark, pinned.commit_seq, pinned.commit_ms, begin.lineage)
        self.idle = begin.seq, here
        ages = [pinned.policy(queue["name"])["archive_ms"] for queue in pinned.queues()]
        age = min((age for age in ages if age is not None), default=None)
        if age is None:
            return begin
        return here if self.target is not None or begin.ms + age // 2 < pinned.commit_ms else begin

    def newest(self) -> Any:
        """Return the commit to read rows from. Polls the store at most every ``poll`` seconds."""
        if self.target is not None:
            return self.target
        now = monotonic()
        if now - self.looked < self.poll:
            return self.known
        self.looked = now
        objects = self.place.objects()
        found = objects.head(self.version).wait()
        if found is not None:
            self.known = objects.pin().wait()
            # The version of the HEAD polled, not of the pinned one: at worst it is fetched once more.
            self.version = found[1]
        return self.known

    def end_of(self, newest: Newest, begin: Offset, limit: limits.ReadLimit) -> int:
        """Return the end of the next batch within the limits; it has at least one row."""
        if isinstance(limit, limits.ReadAllAvailable):
            return newest.watermark
        rows, size = self.max_rows or MOST, self.max_bytes or MOST
        if isinstance(limit, limits.ReadMaxRows):
            rows = min(rows, limit.max_rows)

        ends = newest.ends()
        counted, measured = newest.until(ends)
        too_far = np.flatnonzero((counted > rows) | (measured > size))
        if not len(too_far):
            return newest.watermark
        if too_far[0]:
            return int(ends[too_far[0] - 1])
        first = int(ends[0])
        # Not even one object fits: count its rows, and rows of other objects before its end.
        near = [one for one in newest.objects if one.first_seq <= first]
        partition = Lives(0, tuple((one.key, one.hash) for one in near), begin.seq, first)
        found = [
            table.column("finish_seq").to_numpy() for table in archived(self.place, partition, ["finish_seq"])
        ]
        upto = newest.live[: int(np.searchsorted(newest.live, first, side="right"))]
        places = np.sort(np.concatenate([*found, upto]))
        whole = max(int(measured[0]), 1)
        room = min(rows, max(len(places) * size // whole, 1))
        if room >= len(places):
            return first
        return int(places[room - 1])

    def put_aside(self, newest: Newest, after: int, until: int) -> tuple[str, int]:
        """Stage rows that are not archived: they may leave, or be requeued, before this batch is read again."""
        tables = list(live(newest.pinned, after, until, None))
        if not tables:
            return "", 0
        table = pa.concat_tables(tables)
        return self.stage(table, newest.pinned.file_id), table.num_rows

    def stage(self, table: pa.Table, file_id: bytes) -> str:
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd")
        return self.place.objects().stage(file_id, self.group, sink.getvalue().to_pybytes()).wait()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, to = Offset(**start), Offset(**end)
        if to.seq <= begin.seq:
            return []
        # Filters apply last: offsets and limits count all rows.
        objects = [one for one in self.objects_of(begin, to) if self.wanted.has_queue(one.queue)]
        found: list[InputPartition] = [
            Lives(to.commit, group, begin.seq, to.seq) for group in grouped(objects, self.partition_rows)
        ]
        if to.staged:
            found.append(Lives(to.commit, ((self.kept_aside(begin, to), None),), begin.seq, to.seq))
        return found

    def objects_of(self, begin: Offset, to: Offset) -> list[Archived]:
        """Return the objects of a batch: those listed at its commit."""
        known = self.target or self.known
        if known is None or known.commit_seq != to.commit:
            # After a restart: objects may have been added to the list since, and old ones have expired.
            known = self.place.objects().pin().wait()
            same_file(to, known)
        listed = [Archived.of(a) for a in known.archives(begin.seq)]
        objects = [one for one in listed if one.listed_seq <= to.commit and one.first_seq <= to.seq]
        if len(objects) != to.objects:
            raise NotFound(
                f"{to.objects - len(objects)} archive objects of the batch up to {to.seq} expired before it was read: "
                "this stream fell behind; raise archive_for of the queue, and begin with a new checkpoint",
                "collected",
            )
        return objects

    def kept_aside(self, begin: Offset, to: Offset) -> str:
        """Return the key of the staged rows of a batch; stage them again if they were collected."""
        objects = self.place.objects()
        if objects.get(to.stage).wait() is not None:
            return to.stage
        pinned = objects.pin().wait()
        same_file(to, pinned)
        tables = list(live(pinned, begin.seq, to.seq, None))
        later = [one for one in map(Archived.of, pinned.archives(begin.seq)) if one.listed_seq > to.commit]

        partition = Lives(0, tuple((one.key, one.hash) for one in later), begin.seq, to.seq)
        if tables or later:
            # All columns, not only those of this reader: another one may read the staged object.
            whole = [name for name in schema_of("history", None).names if name != "commit_seq"]
            names = tables[0].column_names if tables else whole
            tables += list(archived(self.place, partition, names))
        table = pa.concat_tables(tables) if tables else None
        if table is None or table.num_rows != to.staged:
            raise NotFound(
                f"rows of the batch up to {to.seq} were deleted: they were staged more than seven days ago, and have "
                "left the queue since; begin with a new checkpoint",
                "collected",
            )
        return self.stage(table, pinned.file_id)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return LivesReader(self.place, self.schema, self.wanted, self.batch_rows).read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        # Spark calls this when it plans the next batch. It is no acknowledgement, but this batch is not read again.
        stage = Offset(**end).stage
        if stage:
            self.place.objects().unstage(stage).wait()


def same_file(offset: Offset, pinned: Any) -> None:
    """Raise if the checkpoint belongs to another queue file."""
    if pinned.lineage_id.hex() != offset.lineage or pinned.commit_seq < offset.commit:
        raise Corrupt(
            "the checkpoint belongs to another queue file, or this one was restored since: its positions in the "
            "order of finishes may mean other jobs now; begin with a new checkpoint",
            "rolled_back",
        )


FINAL = ("done", "dead", "cancelled")
"""The states of finished jobs; each leaves a queue by limits of its own."""


def fell_behind(pinned: Any, begin: Offset, wanted: Wanted) -> None:
    """Raise if finished jobs that pass the filters may have left unread."""
    if begin.seq == 0:
        return
    advice = "read more often, or continue with the option onLoss=ignore"
    # The marks of writes are no jobs: losing them does not matter.
    names = (queue for queue in pinned.queues() if queue["name"] != MARKED)
    queues = {queue["name"]: queue for queue in names if wanted.has_queue(queue["name"])}
    policies = {name: pinned.policy(name) for name in queues}
    if any(too_old(policy, begin, pinned) for policy in policies.values()):
        begin = replace(begin, ms=next_ms(pinned, begin))
    risky = [
        name for name, policy in policies.items() if not policy["archive"] or too_old(policy, begin, pinned)
    ]
    seen = ends_until(pinned, begin.seq) if risky else set()
    for name in risky:
        policy, counts = policies[name], queues[name]["counts"]
        held = [state for state in FINAL if counts[state]]
        # The oldest of each state leave first: while one of the runs that were read is there, no later one of that
        # state has left.
        vouched = [(name, state) in seen for state in held]
        if not policy["archive"]:
            may_go = [may_leave(policy, state, counts[state]) for state in held]
            if any(go and not ok for go, ok in zip(may_go, vouched, strict=True)):
                raise NotFound(
                    f"the stream fell behind: the queue {name} has no archive, and may have deleted finished jobs "
                    f"that were not read; turn its archive on, {advice}",
                    "collected",
                )
        else:
            firsts = [a["first_seq"] for a in pinned.archives(0) if a["queue"] == name]
            if min(firsts, default=MOST) > begin.seq and not (vouched and all(vouched)):
                raise NotFound(
                    f"the stream fell behind: archive objects of the queue {name} may have expired unread; "
                    f"raise its archive_for, {advice}",
                    "collected",
                )


def may_leave(policy: Any, state: str, count: int) -> bool:
    """Return True if jobs of this state may have left a queue that has this many of them."""
    keep, ms = policy[f"keep_{state}"], policy[f"keep_{state}_ms"]
    most = policy["keep"] if keep is None else keep
    return count >= most or ms is not None or policy["keep_ms"] is not None


def too_old(policy: Any, begin: Offset, pinned: Any) -> bool:
    """Return True if archive objects with runs after this position may have expired."""
    age = policy["archive_ms"]
    return policy["archive"] and age is not None and begin.ms + age < pinned.commit_ms


def next_ms(pinned: Any, begin: Offset) -> int:
    """Return a time before which no run after this position finished. If the whole commit was read, this is the time of
    the next commit, if the log still has it. An idle queue file has no commits.
    """
    if begin.seq & END != END:
        return begin.ms
    after = (begin.seq >> 24) + 1
    found = [one["commit_ms"] for one in pinned.history(LOG).wait() if one["commit_seq"] == after]
    return max([begin.ms, *found])


def ends_until(pinned: Any, seq: int) -> set[tuple[str, str]]:
    """Return the queues that still hold a run from before a position, with its state."""
    seen: set[tuple[str, str]] = set()
    for table in live(pinned, 0, seq, ["queue", "state"]):
        seen |= set(zip(table.column("queue").to_pylist(), table.column("state").to_pylist(), strict=True))
    return seen


def seconds(text: str) -> float:
    try:
        value = milliseconds(text, "pollSeconds") / 1000
    except Invalid:
        value = -1.0
    if not 0 <= value < 3600:
        raise Invalid(f"the option pollSeconds must be a duration below an hour, not {text!r}", "option")
    return value
