"""The views of the live state: jobs, queues, commits. One partition, read from one commit."""

# pyright: basic
from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pyarrow as pa

from bucketq.spark._columns import arrow_schema, batches
from bucketq.spark._lives import Live
from bucketq.spark._place import Place
from bucketq.spark._wanted import Wanted

__all__ = ["LiveReader"]

STATES = {2: "scheduled", 3: "ready", 4: "leased", 5: "done", 6: "dead", 7: "cancelled"}
WITHOUT_END = 140_737_488_355_327
COMMITS = 1_000_000

# docs/format.md has the tables.
JOBS = """
SELECT j.id, j.run, q.name, j.group_name, j.state, j.priority, j.tries - 2, j.max_attempts, w.name,
  j.enqueued_ms, j.run_at_ms, j.token <> zeroblob(16), j.claimed_ms, j.ends_ms, j.dedup, j.headers, j.seq,
  j.fence, j.payload_len, coalesce(j.payload, b.bytes), t.name,
  (SELECT a.error FROM attempts a WHERE a.seq = j.seq AND a.run = j.run AND a.error IS NOT NULL
   ORDER BY a.attempt DESC LIMIT 1)
FROM jobs j JOIN queues q ON q.id = j.queue JOIN names t ON t.id = j.content_type
  LEFT JOIN names w ON w.id = j.worker LEFT JOIN bodies b ON j.payload_kind = 1 AND b.id = j.body
{where} ORDER BY j.seq
"""


@dataclass(frozen=True)
class LiveReader:
    """Reads one of the views of the live state."""

    view: str
    place: Place
    schema: Any
    wanted: Wanted = field(default_factory=Wanted)
    batch_rows: int = 10_000

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Live), partition
        pinned = self.place.objects().pin(partition.head).wait()
        match self.view:
            case "jobs":
                rows = jobs(pinned, self.wanted, self.batch_rows)
            case "queues":
                rows = iter([queues(pinned)])
            case _:
                rows = iter([commits(pinned)])
        schema = arrow_schema(self.schema)
        for part in rows:
            if part:
                named = {name: [row.get(name) for row in part] for name in schema.names}
                types = {f.name: f.type for f in schema}
                table = pa.table({name: pa.array(named[name], types[name]) for name in schema.names})
                yield from batches(self.wanted.chosen(table), schema, pinned.commit_seq, self.batch_rows)


def jobs(pinned: Any, wanted: Wanted, at_once: int) -> Iterator[list[dict[str, Any]]]:
    """Every job that the file holds."""
    where, values = "", []
    for column, name in (("q.name", "queue"), ("j.state", "state")):
        texts = wanted.texts.get(name)
        if texts is not None:
            found = sorted(texts) if name == "queue" else [k for k, v in STATES.items() if v in texts]
            where += f"{' AND' if where else 'WHERE'} {column} IN ({', '.join('?' * len(found))}) "
            values += found
    connection = sqlite3.connect(":memory:")
    try:
        connection.deserialize(pinned.image())
        connection.execute("PRAGMA query_only = ON")
        cursor = connection.execute(JOBS.format(where=where), values)
        while rows := cursor.fetchmany(at_once):
            yield [job(row, pinned.commit_ms) for row in rows]
    finally:
        connection.close()


def job(row: tuple[Any, ...], now_ms: int) -> dict[str, Any]:
    (
        id,
        run,
        queue,
        group,
        code,
        priority,
        attempts,
        most,
        worker,
        enqueued,
        run_at,
        claimed,
        claimed_ms,
        ends,
    ) = row[:14]
    dedup, headers, seq, fence, payload_len, payload, payload_type, error = row[14:]
    state = STATES.get(code, str(code))
    leased = state == "leased"
    return {
        "id": str(UUID(bytes=id)),
        "run": run,
        "queue": queue,
        "group": group,
        "state": state,
        "expired": leased and ends <= now_ms,
        "priority": priority,
        "attempts": attempts,
        "max_attempts": most,
        "worker": (worker or None) if claimed else None,
        "enqueued_at": time(enqueued),
        "run_at": time(run_at),
        "claimed_at": time(claimed_ms) if claimed else None,
        "expires_at": time(ends) if leased and ends < WITHOUT_END else None,
        "finished_at": time(ends) if code >= 5 else None,
        "dedup": dedup,
        "headers": list(json.loads(headers).items()) if headers else [],
        "seq": seq,
        "enqueue_commit_seq": seq >> 24,
        "claim_commit_seq": fence if claimed else None,
        "payload_len": payload_len,
        "payload": payload,
        "payload_type": payload_type,
        "last_error": error,
    }


def queues(pinned: Any) -> list[dict[str, Any]]:
    return [{**queue, **queue["counts"]} for queue in pinned.queues()]


def commits(pinned: Any) -> list[dict[str, Any]]:
    """Those that the log still has, oldest first."""
    found = pinned.history(COMMITS).wait()
    return [
        {**one, "commit": one["commit_seq"], "committed_at": time(one["commit_ms"])}
        for one in reversed(found)
    ]


def time(ms: int) -> int:
    """As Spark has it: microseconds."""
    return ms * 1000
