"""Which rows are jobs, and the reasons given for those that are not."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

import bucketq
from bucketq.spark._rows import Rules

RULES = Rules("mail", None, 1000)
AT = pa.timestamp("us", tz="UTC")


def told(**columns: Any) -> list[str | None]:
    """Return the error of each row."""
    arrays = {name: c if isinstance(c, pa.Array) else pa.array(c) for name, c in columns.items()}
    n = len(next(iter(arrays.values())))
    batch = pa.RecordBatch.from_pydict({"payload": pa.array(["p"] * n)} | arrays)
    checked = RULES.check(batch)
    bad = dict(checked.bad)
    assert checked.jobs.num_rows == n - len(bad)
    return [bad.get(i) for i in range(n)]


def test_each_bad_row_is_told_with_its_reason():
    nothing, long = "it has no payload", "its payload has more than 1000 bytes"
    assert told(payload=["a", None, "", "x" * 1000, "x" * 1001]) == [None, nothing, None, None, long]
    assert told(payload=[b"\xff", b"x" * 1001, None]) == [None, long, nothing]
    struct = pa.array([{"n": 1}, None, {"n": None}])
    assert told(payload=struct) == [None, nothing, None]
    not_json = "its payload has a number that JSON cannot hold"
    floats = pa.array([{"n": 1.5}, {"n": float("nan")}, {"n": float("-inf")}, None])
    assert told(payload=floats) == [None, not_json, not_json, nothing]
    assert told(queue=["q", None, "", "x" * 201]) == [
        None, None, "its queue is empty: leave it null", "its queue has more than 200 bytes",
    ]  # fmt: skip
    for name in ("dedup", "group"):
        assert told(**{name: ["k", None, "", "ä" * 101]}) == [
            None, None, f"its {name} is empty: leave it null", f"its {name} has more than 200 bytes",
        ]  # fmt: skip
    below, above = "its delay is below zero", "its delay is not a number of seconds below a hundred years"
    delays = [0.0, 1.5, None, -0.001, float("nan"), float("inf"), 1e300, 3.2e9, 3.0e9]
    assert told(delay=delays) == [None, None, None, below, above, above, above, above, None]
    assert told(delay=[0, -1, 2**62]) == [None, below, above]
    outside = "its run_at is outside the years 1970 to 9999"
    times = [datetime(2030, 1, 1, tzinfo=UTC), datetime(1969, 12, 31, tzinfo=UTC), None]
    assert told(run_at=pa.array(times, AT)) == [None, outside, None]
    both = told(run_at=pa.array(times, AT), delay=[1, None, 1])
    assert both == ["it has both delay and run_at: give one", outside, None]
    assert told(priority=[0, -(2**31), 2**31]) == [None, None, "its priority is not a 32-bit number"]
    few = "its max_attempts is below 1"
    assert told(max_attempts=[1, 0, -5, 2**31 - 1, None]) == [None, few, few, None, None]
    headers = pa.array(
        [[("a", "b")], None, [("a", None)], [("a", "x" * 4096)]], pa.map_(pa.string(), pa.string())
    )
    assert told(headers=headers) == [
        None,
        None,
        "a header has no value",
        "its headers have more than 4096 bytes",
    ]


def test_rows_without_a_queue_are_bad_where_none_is_named():
    rules = Rules(None, None, 1000)
    batch = pa.RecordBatch.from_pydict({"payload": ["a", "b"], "queue": ["q", None]})
    assert rules.check(batch).bad == ((1, "it names no queue"),)


def test_structs_become_json_as_other_programs_read_it():
    value = {
        "text": "ä", "bytes": b"\xff\x00", "at": datetime(2030, 1, 1, tzinfo=UTC), "list": [1, None],
        "deep": {"x": 1.5, "yes": True},
    }  # fmt: skip
    (made,) = RULES.check(pa.RecordBatch.from_pylist([{"payload": value}])).jobs.column("payload").to_pylist()
    assert json.loads(made) == value | {"bytes": "/wA=", "at": "2030-01-01T00:00:00+00:00"}


@pytest.mark.parametrize("place", ["file", "s3"], indirect=True)
def test_every_column_reaches_its_job(place, spark):
    with place.open() as file:
        before = datetime.now(UTC)
        frame = spark.sql(
            """
            SELECT 'text' AS payload, 'a' AS queue, 7 AS priority, 3600D AS delay, cast(null AS timestamp) AS run_at,
              'k' AS dedup, 'g' AS `group`, map('h', '1', 'i', '2') AS headers, 5 AS max_attempts
            UNION ALL
            SELECT 'later', 'b', null, null, timestamp'2199-01-01 12:00:00', null, null, null, null
            UNION ALL
            SELECT 'plain', null, null, null, null, null, null, null, null
            """
        )
        options = place.options(queue="c", contentType="text/x-mine")
        frame.write.format("bucketq").mode("append").options(**options).save()
        (a,), (b,), (c,) = (file.list(queue=name).jobs for name in "abc")
        assert [file.get(job.id).payload for job in (a, b, c)] == [b"text", b"later", b"plain"]
        assert {file.get(job.id).content_type for job in (a, b, c)} == {"text/x-mine"}
        assert (a.priority, a.dedup, a.group, a.headers) == (7, "k", "g", {"h": "1", "i": "2"})
        assert (a.max_attempts, a.state) == (5, "scheduled")
        assert timedelta(minutes=59) < a.run_at - before < timedelta(minutes=61)
        assert b.run_at == datetime(2199, 1, 1, 12, tzinfo=UTC)
        assert (c.priority, c.dedup, c.group, c.headers, c.state) == (0, None, None, {}, "ready")
        with pytest.raises(bucketq.Invalid, match="contentType has more than 100 bytes"):
            Rules("q", "x" * 101, 1).check_columns(["payload"])
