"""Converts the engine's return values to the classes of ``bucketq.types``."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from bucketq import _convert as convert
from bucketq._convert import Blob, Dict
from bucketq._policy import backoff_of
from bucketq.types import (
    Attempt,
    ChangedSkew,
    CheckReport,
    Commit,
    Died,
    Enqueued,
    Exported,
    FixedTime,
    HostRole,
    JobDetail,
    JobInfo,
    Page,
    ProbeReport,
    Problem,
    QueueInfo,
    Restored,
    State,
    Stats,
    Tally,
    Unsynced,
)

TIMES = ("enqueued", "claimed", "finished", "expires")
STATES: tuple[State, ...] = ("scheduled", "ready", "leased", "done", "dead", "cancelled")


def _fields(native: Dict) -> dict[str, Any]:
    fields = dict(native)
    fields["backoff"] = backoff_of(fields["backoff"])
    max_run_ms = fields.pop("max_run_ms")
    fields["max_run"] = None if max_run_ms is None else timedelta(milliseconds=max_run_ms)
    fields["run_at"] = convert.time(fields.pop("run_at_ms"))
    for what in TIMES:
        fields[f"{what}_at"] = convert.maybe_time(fields.pop(f"{what}_ms"))
    if fields["died"] is not None:
        died = dict(fields["died"])
        fields["died"] = Died(at=convert.time(died.pop("at_ms")), **died)
    return fields


def info(native: Dict) -> JobInfo:
    """Return a job without its payload and result."""
    return JobInfo(**_fields(native))


def attempt(native: Dict) -> Attempt:
    """Return how an attempt ended."""
    fields = dict(native)
    claimed, ended = fields.pop("claimed_ms"), fields.pop("ended_ms")
    return Attempt(claimed_at=convert.maybe_time(claimed), ended_at=convert.time(ended), **fields)


Detail = tuple[Dict, Blob, Blob | None, list[Dict]]


def detail(native: Detail | None) -> JobDetail | None:
    """Return a job with its payload and result."""
    if native is None:
        return None
    job, (payload, content_type), result, attempts = native
    result_payload, result_content_type = result or (None, None)
    return JobDetail(
        payload=payload,
        content_type=content_type,
        result_payload=result_payload,
        result_content_type=result_content_type,
        attempts=tuple(map(attempt, attempts)),
        **_fields(job),
    )


def details(native: list[Detail | None]) -> list[JobDetail | None]:
    """Return jobs with their payloads and results."""
    return [detail(one) for one in native]


def page(native: tuple[list[Any], int | None, int | None], payloads: bool) -> Page[Any]:
    """Return a page of jobs, with or without their payloads and results."""
    jobs, following, last = native
    return Page(tuple(map(detail if payloads else info, jobs)), following, last)


Receipt = tuple[str, bool, bool, int, int, list[str]]


def enqueued(native: list[Receipt]) -> list[Enqueued]:
    """Return one receipt per job."""
    return [
        Enqueued(
            id,
            twice,
            seq,
            tuple(dropped),
            existing=existing,
            commit_time=convert.time(commit_ms) if commit_ms else None,
        )
        for id, twice, existing, seq, commit_ms, dropped in native
    ]


def same(native: Any) -> Any:
    """Return the value: it needs no conversion."""
    return native


def receipt(native: list[Receipt]) -> Enqueued:
    """Return the receipt of an enqueue of one job."""
    (one,) = enqueued(native)
    return one


def queue(native: Dict) -> QueueInfo:
    """Return one queue."""
    waited = native["oldest_ready_ms"]
    oldest = None if waited is None else timedelta(milliseconds=waited)
    fields = {key: value for key, value in native.items() if key != "oldest_ready_ms"}
    return QueueInfo(oldest_ready=oldest, **fields)


def counts(name: str, native: list[Dict]) -> QueueInfo:
    """Return the queue of this name; an empty one, which does not exist, if nobody has created it yet."""
    found = [queue(one) for one in native if one["name"] == name]
    return (
        found[0]
        if found
        else QueueInfo(name, False, False, 0, dict.fromkeys(STATES, 0), 0, 0, None, exists=False)
    )


def report(native: Dict) -> ProbeReport:
    """Return the result of a probe."""
    fields = dict(native)
    return ProbeReport(took=timedelta(microseconds=fields.pop("took_us")), **fields)


def stats(native: Dict) -> Stats:
    """Return the state of the queue file as a whole."""
    time = convert.time(native["commit_ms"])
    queues = tuple(map(queue, native["queues"]))
    return Stats(
        queues, native["commit_seq"], time, native["pages"], native["free_pages"], native["strict_queues"]
    )


def host_role(native: Dict, host_dir: Path | None) -> HostRole:
    """Return which process of this host writes."""
    fields = dict(native)
    since = fields.pop("since_ms", None)
    return HostRole(
        since=None if since is None else timedelta(milliseconds=since), host_dir=host_dir, **fields
    )


def timed(native: Dict) -> dict[str, Any]:
    """Return the fields, with the commit time as a datetime."""
    fields = dict(native)
    fields["commit_time"] = convert.maybe_time(fields.pop("commit_ms"))
    return fields


def exported(native: Dict) -> Exported:
    """Return the result of an export."""
    return Exported(**timed(native))


def history(native: list[Dict]) -> list[Commit]:
    """Return commits of the log."""
    return [Commit(**timed(one)) for one in native]


def checked(native: Dict) -> CheckReport:
    """Return the result of a check."""
    fields = timed(native)
    for name in ("read", "referenced", "unreferenced", "collectable", "foreign"):
        fields[name] = None if fields[name] is None else Tally(**fields[name])
    fields["sound_objects"] = tuple(fields["sound_objects"])
    fields["problems"] = tuple(Problem(**one) for one in fields["problems"])
    return CheckReport(**fields)


def fixed_time(native: Dict) -> FixedTime:
    """Return the result of ``fix_time``."""
    fields = dict(native)
    fields["was"], fields["now"] = convert.time(fields.pop("was_ms")), convert.time(fields.pop("now_ms"))
    return FixedTime(**fields)


def changed_skew(native: Dict) -> ChangedSkew:
    """Return the result of ``set_max_skew``."""
    was, now = (timedelta(milliseconds=native[name]) for name in ("was_ms", "max_skew_ms"))
    return ChangedSkew(was, now, native["commit_seq"])


def restored(native: Dict) -> Restored:
    """Return the result of a restore."""
    fields = dict(native)
    fields["foreign"] = Tally(**native["foreign"])
    return Restored(**fields)


def closed(url: str, native: Dict) -> None:
    """Log a warning if changes are not published."""
    left = Unsynced(**native)
    if left:
        from logging import getLogger

        getLogger("bucketq").warning(
            "%s is closed without a sync: %d local commit%s not published; open it again and sync",
            url,
            left.commits,
            " is" if left.commits == 1 else "s are",
        )
