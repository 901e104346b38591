"""The engine's answers as the nouns of ``bucketq.types``."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast

from bucketq import _convert as convert
from bucketq._convert import Blob, Dict
from bucketq._policy import backoff_of, maybe_time, policy
from bucketq.types import (
    Attempt,
    CheckReport,
    Commit,
    Enqueued,
    Exported,
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
    fields["run_at"] = convert.time(fields.pop("run_at_ms"))
    for what in TIMES:
        fields[f"{what}_at"] = convert.maybe_time(fields.pop(f"{what}_ms"))
    return fields


def info(native: Dict) -> JobInfo:
    """A job without its bytes."""
    return JobInfo(**_fields(native))


def attempt(native: Dict) -> Attempt:
    """How an attempt ended."""
    fields = dict(native)
    claimed, ended = fields.pop("claimed_ms"), fields.pop("ended_ms")
    return Attempt(claimed_at=convert.maybe_time(claimed), ended_at=convert.time(ended), **fields)


def detail(native: tuple[Dict, Blob, Blob | None, list[Dict]] | None) -> JobDetail | None:
    """A job with its bytes."""
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


def page(native: tuple[list[Dict], int | None]) -> Page:
    """A page of jobs."""
    jobs, after = native
    return Page(tuple(map(info, jobs)), after)


Receipt = tuple[str, bool, int, list[str]]


def enqueued(native: list[Receipt]) -> list[Enqueued]:
    """One answer a job."""
    return [Enqueued(id, twice, seq, tuple(dropped)) for id, twice, seq, dropped in native]


def result(native: Any) -> Any:
    """What one change of an atomic answered. Its enqueues hold one job each, so there is one answer in the list."""
    match native:
        case list():
            return enqueued(cast("list[Receipt]", native))[0]
        case {"next_ms": next_ms}:
            return maybe_time(next_ms)
        case dict():
            return policy(cast("Dict", native))
        case _:
            return native


def queue(native: Dict) -> QueueInfo:
    """One queue."""
    waited = native["oldest_ready_ms"]
    oldest = None if waited is None else timedelta(milliseconds=waited)
    fields = {key: value for key, value in native.items() if key != "oldest_ready_ms"}
    return QueueInfo(oldest_ready=oldest, **fields)


def counts(name: str, native: list[Dict]) -> QueueInfo:
    """The queue of this name; an empty one when no job has made it yet."""
    found = [queue(one) for one in native if one["name"] == name]
    return found[0] if found else QueueInfo(name, False, False, 0, dict.fromkeys(STATES, 0), 0, 0, None)


def report(native: Dict) -> ProbeReport:
    """What a probe found."""
    fields = dict(native)
    return ProbeReport(took=timedelta(microseconds=fields.pop("took_us")), **fields)


def stats(native: Dict) -> Stats:
    """The queue file as a whole."""
    time = convert.time(native["commit_ms"])
    queues = tuple(map(queue, native["queues"]))
    return Stats(queues, native["commit_seq"], time, native["pages"], native["free_pages"])


def timed(native: Dict) -> dict[str, Any]:
    """The fields, with the time of a commit as such."""
    fields = dict(native)
    fields["commit_time"] = convert.maybe_time(fields.pop("commit_ms"))
    return fields


def exported(native: Dict) -> Exported:
    """An image written to a file."""
    return Exported(**timed(native))


def history(native: list[Dict]) -> list[Commit]:
    """Commits of the log."""
    return [Commit(**timed(one)) for one in native]


def checked(native: Dict) -> CheckReport:
    """What a check found."""
    fields = timed(native)
    for name in ("read", "referenced", "unreferenced", "collectable", "foreign"):
        fields[name] = None if fields[name] is None else Tally(**fields[name])
    fields["sound_objects"] = tuple(fields["sound_objects"])
    fields["problems"] = tuple(Problem(**one) for one in fields["problems"])
    return CheckReport(**fields)


def restored(native: Dict) -> Restored:
    """What a restore did."""
    fields = dict(native)
    fields["foreign"] = Tally(**native["foreign"])
    return Restored(**fields)


def closed(url: str, native: Dict) -> None:
    """Say so when something is left unpublished."""
    left = Unsynced(**native)
    if left:
        from logging import getLogger

        getLogger("bucketq").warning(
            "%s is closed without a sync: %d local commit%s not published; open it again and sync",
            url,
            left.commits,
            " is" if left.commits == 1 else "s are",
        )
