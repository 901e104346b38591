"""Every table of the pipeline, compared with an independent computation in Python and pandas on the same history."""

from __future__ import annotations

import math
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from kit import archive
from test_pipeline import over_days

import bucketq
from bucketq.spark import pipeline

HOUR_MS = 3_600_000


def history(file: Any, seed: int, jobs: int, first: int) -> None:
    """Make jobs of two queues that end in every possible way: at once, after failures, dead, cancelled."""
    dice = random.Random(seed)
    for name in ("mail", "reports"):
        q = file.queue(name)
        q.enqueue_many(
            [
                bucketq.New({"n": n, "pad": "x" * dice.randrange(50)}, group=dice.choice([None, "a", "b"]))
                for n in range(first, first + jobs)
            ]
        )
        for info in file.list(queue=name, states=["ready"], limit=3).jobs:
            q.cancel(info.id)
        while q.counts(max_age=0).counts["ready"]:
            with q.claim(4, worker=f"{name}-{dice.randrange(3)}") as batch:
                for job in batch:
                    match dice.randrange(6):
                        case 0:
                            job.nack(ValueError(f"no answer from host {dice.randrange(3)}"), delay=0)
                        case 1:
                            job.reject(f"cannot read deadbeef{dice.randrange(10**6):08x}\nat line 3")
                        case _:
                            job.ack()


def lives(place: Any) -> pd.DataFrame:
    frame = pd.DataFrame([row for row in place.rows() if row["queue"] != "bucketq-writes"])
    for name in ("enqueued_at", "claimed_at", "finished_at"):
        frame[name] = pd.to_datetime(frame[name], utc=True)
    return frame.sort_values("finish_seq")


def newest(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.groupby(["id", "queue"]).tail(1)


def hours(jobs: pd.DataFrame) -> pd.DataFrame:
    came = jobs.assign(hour=jobs["enqueued_at"].dt.floor("h"))
    jobs = jobs.assign(hour=jobs["finished_at"].dt.floor("h"))
    table: dict[tuple[str, Any], dict[str, Any]] = {}
    nothing = dict.fromkeys(
        ["arrivals", "completed", "dead", "cancelled", "failures", "retries", "busy_ms", "payload_bytes"], 0
    )
    for key, part in came.groupby(["queue", "hour"]):
        table.setdefault(key, dict(nothing))["arrivals"] = len(part)
    for key, part in jobs.groupby(["queue", "hour"]):
        row = table.setdefault(key, dict(nothing))
        row["completed"] = int((part["state"] == "done").sum())
        row["dead"] = int((part["state"] == "dead").sum())
        row["cancelled"] = int((part["state"] == "cancelled").sum())
        row["failures"] = int(((part["state"] == "dead") | (part["attempts"] > 1)).sum())
        row["retries"] = int((part["attempts"] - 1).clip(lower=0).sum())
        row["busy_ms"] = int(part["run_ms"].fillna(0).sum())
        row["payload_bytes"] = int(part["payload_len"].sum())
        for what in ("wait", "run"):
            values = part[f"{what}_ms"].dropna().astype(float)
            for percent in (50, 95, 99):
                row[f"{what}_p{percent}_ms"] = values.quantile(percent / 100)
    for row in table.values():
        row["throughput"] = row["completed"] / 3600
    return indexed(
        pd.DataFrame([{"queue": q, "hour": h} | row for (q, h), row in table.items()]), "queue", "hour"
    )


def backlog(hourly: pd.DataFrame) -> pd.DataFrame:
    rows: list[dict[str, Any]] = []
    for queue, part in hourly.reset_index().groupby("queue"):
        left = 0
        for row in part.sort_values("hour").to_dict("records"):
            ended = row["completed"] + row["dead"] + row["cancelled"]
            left += row["arrivals"] - ended
            rows.append(
                {
                    "queue": queue,
                    "hour": row["hour"],
                    "arrivals": row["arrivals"],
                    "ended": ended,
                    "backlog": left,
                }
            )
    return indexed(pd.DataFrame(rows), "queue", "hour")


def workers(jobs: pd.DataFrame) -> pd.DataFrame:
    busy: dict[tuple[str, int], list[int]] = {}
    for job in jobs[jobs["worker"].notna()].to_dict("records"):
        begin, end = (int(job[name].timestamp() * 1000) for name in ("claimed_at", "finished_at"))
        for hour in range(begin // HOUR_MS, end // HOUR_MS + 1):
            spent = min((hour + 1) * HOUR_MS, end) - max(hour * HOUR_MS, begin)
            busy.setdefault((job["worker"], hour), []).append(spent)
    rows = [
        {
            "worker": worker,
            "hour": pd.Timestamp(hour * HOUR_MS, unit="ms", tz="UTC"),
            "busy_ms": sum(spent),
            "utilisation": min(sum(spent) / HOUR_MS, 1.0),
            "jobs": len(spent),
        }
        for (worker, hour), spent in busy.items()
    ]
    return indexed(pd.DataFrame(rows), "worker", "hour")


def groups(jobs: pd.DataFrame) -> pd.DataFrame:
    rows: list[dict[str, Any]] = []
    for (queue, group), part in jobs.groupby(["queue", "group"], dropna=False):
        runs = np.sort(part["run_ms"].dropna())
        rows.append(
            {
                "queue": queue,
                "group": group if isinstance(group, str) else "",
                "jobs": len(part),
                "dead": int((part["state"] == "dead").sum()),
                "retries": int((part["attempts"] - 1).clip(lower=0).sum()),
                "run_p95_ms": runs[math.ceil(0.95 * len(runs)) - 1],
                "busy_ms": int(part["run_ms"].fillna(0).sum()),
            }
        )
    return indexed(pd.DataFrame(rows), "queue", "group")


def errors(jobs: pd.DataFrame) -> pd.DataFrame:
    failed = jobs[jobs["last_error"].notna()]
    told = failed["last_error"].map(
        lambda text: re.sub(r"[0-9a-f]{8,}|[0-9]+", "#", text.split("\n")[0])[:200]
    )
    rows = [
        {
            "queue": queue,
            "error": error,
            "jobs": len(part),
            "dead": int((part["state"] == "dead").sum()),
            "newest": part["finished_at"].max(),
        }
        for (queue, error), part in failed.assign(error=told).groupby(["queue", "error"])
    ]
    return indexed(pd.DataFrame(rows), "queue", "error")


def commits(everything: pd.DataFrame, price_put: float) -> pd.DataFrame:
    table: dict[Any, list[int]] = {}

    def count(hour: Any, commit: int, ops: int, jobs: int) -> None:
        row = table.setdefault(hour, [0, 0, 0])
        row[0], row[1], row[2] = max(row[0], commit), row[1] + ops, row[2] + jobs

    for life in everything.to_dict("records"):
        count(life["enqueued_at"].floor("h"), life["enqueue_commit_seq"], 1, 0)
        count(life["finished_at"].floor("h"), life["finish_commit_seq"], 1, 1)
        if not pd.isna(life["claimed_at"]):
            count(life["claimed_at"].floor("h"), life["claim_commit_seq"], life["attempts"], 0)
    rows: list[dict[str, Any]] = []
    before = 0
    for hour in sorted(table):
        last, ops, jobs = table[hour]
        made = max(last - before, 1)
        before = max(before, last)
        rows.append(
            {
                "hour": hour,
                "commits": made,
                "ops": ops,
                "ops_per_commit": ops / made,
                "puts_per_job": made / jobs if jobs else None,
                "usd": made * price_put / 1e6,
            }
        )
    return indexed(pd.DataFrame(rows), "hour")


def indexed(frame: pd.DataFrame, *names: str) -> pd.DataFrame:
    for column in ("hour", "newest"):
        if column in frame:
            frame[column] = pd.to_datetime(frame[column], utc=True, format="ISO8601").dt.as_unit("ns")
    return frame.set_index(list(names)).sort_index()


def written(out: Path, name: str, like: pd.DataFrame) -> pd.DataFrame:
    """Return a table as the pipeline wrote it, in the shape of the expected one."""
    frame = pd.read_csv(out / "csv" / f"{name}.csv")
    if "group" in frame:
        frame["group"] = frame["group"].fillna("")
    return indexed(frame, *like.index.names)


def same(out: Path, place: Any, price_put: float) -> dict[str, pd.DataFrame]:
    everything = lives(place)
    jobs = newest(everything)
    hourly = hours(jobs)
    expected = {
        "hours": hourly,
        "backlog": backlog(hourly),
        "workers": workers(jobs),
        "groups": groups(jobs),
        "errors": errors(jobs),
        "commits": commits(everything, price_put),
    }
    for name, right in expected.items():
        left = written(out, name, right)
        assert set(left.columns) == set(right.columns), name
        pd.testing.assert_frame_equal(
            left[sorted(left.columns)],
            right[sorted(right.columns)],
            check_dtype=False,
            check_index_type=False,
            obj=name,
        )
    return expected


@pytest.mark.parametrize("place", ["s3"], indirect=True)
def test_every_table_is_what_another_computation_makes_of_the_same_history(place, spark, tmp_path):
    out = tmp_path / "out"
    with place.open() as file:
        for queue in ("mail", "reports"):
            archive(file, queue, keep=200)
        history(file, 1, 60, 0)
    over_days(place, tmp_path, 2)
    with place.open() as file:
        archive(file, "mail", keep=20)
        file.archive()
        first = pipeline(spark, place.url, out, settings=place.settings, price_put=7.0, max_rows=50)
        before = same(out, place, 7.0)
        assert first.jobs == 120
        assert before["hours"]["dead"].sum() > 5
        assert before["hours"]["cancelled"].sum() == 6
        assert before["hours"]["retries"].sum() > 5
        # Late jobs, and dead ones that are requeued and end differently: the figures of past hours change.
        for job in file.list(states=["dead"], limit=7).jobs:
            file.queue(job.queue).requeue(job.id)
        history(file, 3, 10, 1000)
        file.archive()
        second = pipeline(spark, place.url, out, settings=place.settings, price_put=7.0)
        after = same(out, place, 7.0)
        assert second.new == 27
        assert second.jobs == 140
        old = before["hours"].index
        changed = before["hours"]["dead"] - after["hours"].reindex(old)["dead"].fillna(0)
        assert changed.sum() >= 7, "hours lose the dead that live again"
        third = pipeline(spark, place.url, out, settings=place.settings, price_put=7.0)
        assert (third.new, third.days) == (0, 0)
        same(out, place, 7.0)
        pipeline(spark, place.url, out, settings=place.settings, price_put=9.0)
        same(out, place, 9.0)


def test_a_job_that_died_into_another_queue_counts_in_both(place, spark, tmp_path):
    out = tmp_path / "out"
    with place.open() as file:
        for queue, to in (("mail", "failed"), ("reports", None), ("failed", None)):
            archive(file, queue, keep=20, dead_letter=to)
        history(file, 1, 40, 0)
        failed = file.queue("failed")
        died = failed.counts(max_age=0).counts["ready"]
        assert died > 4
        with failed.claim(3, worker="nurse") as batch:
            tried = len(batch)
            batch[0].reject("nor here")
            for job in batch[1:]:
                job.ack()
        file.archive()
        first = pipeline(spark, place.url, out, settings=place.settings)
        hourly = same(out, place, 5.0)["hours"].groupby("queue")[["dead", "arrivals", "completed"]].sum()
        assert list(hourly.loc["mail"][["dead", "arrivals"]]) == [died, 40]
        assert list(hourly.loc["failed"]) == [1, tried, tried - 1]
        assert first.jobs == 80 + tried
        # Jobs that end in the failure queue later change nothing in the queue they came from.
        for job in file.list(queue="failed", states=["dead"]).jobs:
            failed.requeue(job.id)
        while failed.counts(max_age=0).counts["ready"]:
            with failed.claim(died, worker="nurse") as batch:
                for job in batch:
                    job.ack()
        file.archive()
        second = pipeline(spark, place.url, out, settings=place.settings)
        hourly = same(out, place, 5.0)["hours"].groupby("queue")[["dead", "arrivals", "completed"]].sum()
        assert list(hourly.loc["mail"][["dead", "arrivals"]]) == [died, 40]
        assert list(hourly.loc["failed"]) == [0, died, died]
        assert second.jobs == 80 + died
