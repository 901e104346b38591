"""Changes put together for the engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from bucketq import _convert as convert
from bucketq import _policy as policies
from bucketq._native import Op
from bucketq.errors import Error, Invalid, OutcomeUnknown
from bucketq.types import POLICY, New

if TYPE_CHECKING:
    from datetime import datetime, tzinfo

    from bucketq import _native
    from bucketq._job import JobBase
    from bucketq.types import Changes, Enqueued, Extras, FromPolicy, Missed, Seconds, State


def new(file: _native.File, data: Any, extras: Extras) -> _native.New:
    """A job to be enqueued, its id drawn. If the handle is traced, the job carries the trace context."""
    telemetry = file.beside.get("telemetry")
    return _new(file, data, extras if telemetry is None else telemetry.carried(extras))


def _new(file: _native.File, data: Any, extras: Extras) -> _native.New:
    return file.new(convert.encode(data, extras.get("content_type")), **convert.native_extras(extras))


def send(file: _native.File, queue: str, jobs: list[tuple[Any, Extras]]) -> _native.Call[Any]:
    """Put these jobs into the queue, all or none."""
    telemetry = file.beside.get("telemetry")
    if telemetry is not None:
        return telemetry.send(file, queue, jobs)
    return file.call(enqueue(queue, [_new(file, data, extras) for data, extras in jobs]))


def given(queue: str, jobs: Iterable[Any], begin: int) -> list[tuple[Any, Extras]]:
    """Jobs for this queue, from ``New`` or from data alone; ``begin`` is the number of the first in messages."""
    made: list[tuple[Any, Extras]] = []
    for index, job in enumerate(jobs, begin):
        if not isinstance(job, New):
            made.append((job, {}))
        elif job.queue is None or job.queue == queue:
            made.append((job.data, job.extras))
        else:
            raise Invalid(
                f"job {index} is for {job.queue!r}, not for {queue!r}: leave the queue out, or use file.atomic()"
            )
    return made


def enqueue(queue: str, jobs: list[_native.New]) -> Op:
    """Put these jobs into the queue, all or none."""
    return Op.enqueue(queue, jobs)


def words(error: object) -> str | None:
    """What is kept of a failure: text as it is, an exception as Python shows it in one line."""
    match error:
        case None:
            return None
        case BaseException():
            return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        case _:
            return str(error)


def swallowed(job: JobBase, error: BaseException | None, swallow: bool) -> bool:
    """True if the loop goes on although the work on a job failed; the log has it."""
    if not swallow or not isinstance(error, Exception):
        return False
    from logging import getLogger

    getLogger("bucketq").error("job %s of %s failed", job.id, job.queue, exc_info=error)
    return True


def chunks(file: _native.File, queue: str, jobs: Iterable[Any], size: int) -> Iterator[_native.Call[Any]]:
    """The enqueues of so many jobs each."""
    convert.whole(size, "chunk", 1, 1_000_000)
    rest, begin = iter(jobs), 0
    while part := given(queue, islice(rest, size), begin):
        begin += len(part)
        yield send(file, queue, part)


class telling:
    """Makes an error tell which jobs were enqueued before it."""

    def __init__(self, done: list[Enqueued]) -> None:
        self.done = done

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Error):
            error.enqueued = tuple(self.done)
            others = "may be" if isinstance(error, OutcomeUnknown) else "are not"
            error.add_note(f"{len(self.done)} jobs are enqueued, those of the next chunk {others}")


def term(lease: Seconds | FromPolicy | None) -> tuple[int | None, bool]:
    """How long a claim holds its jobs in milliseconds, none for what their queues say; and whether without end."""
    if lease is POLICY:
        return None, False
    return convert.maybe_millis(lease, "lease"), lease is None


def configure(queue: str, changes: Changes) -> Op:
    """Change the policy of a queue."""
    return Op.configure(queue, policies.changes(changes))


def schedule(
    file: _native.File,
    queue: str,
    name: str,
    data: Any,
    cron: str | None,
    every: Seconds | None,
    start: datetime | None,
    timezone: str | tzinfo | None,
    missed: Missed,
    extras: Extras,
) -> Op:
    """Enqueue a job again and again."""
    for key in ("delay", "at", "id"):
        if extras.get(key) is not None:
            raise Invalid(f"{key} is nothing for a schedule: it says itself when its jobs are enqueued")
    timing = policies.timing(cron, every, start, timezone)
    # Its jobs belong to no trace: they come long after whoever made the schedule.
    return Op.schedule(queue, name, timing, policies.catches_up(missed), _new(file, data, extras))


def requeue_all(
    file: _native.File, queue: str | None, states: Iterable[State], group: str | None, error: str | None
) -> _native.Call[int]:
    """Give the jobs that match fresh lives."""
    names = convert.names(states, "states")
    return file.requeue_all(queue, names, convert.name(group, "group"), convert.name(error, "error"))


def lives(
    file: _native.File, queue: str | None, after: int, until: int | None, limit: int
) -> _native.Call[Any]:
    """Ask for finished lives."""
    until = 2**63 - 1 if until is None else convert.whole(until, "until", 0, 2**63 - 1)
    after = convert.whole(after, "after", 0, 2**63 - 1)
    return file.lives(convert.name(queue, "queue"), after, until, convert.whole(limit, "limit", 1, 1000))


def archives(file: _native.File, queue: str | None, after: int) -> _native.Call[convert.Dict]:
    """Ask for the objects of the archive."""
    return file.archives(convert.name(queue, "queue"), convert.whole(after, "after", 0, 2**63 - 1))


def claim(
    file: _native.File,
    queues: Iterable[str] | None,
    most: int,
    lease: Seconds | FromPolicy | None,
    wait: Seconds | None,
    worker: str | None,
) -> _native.Call[list[_native.Held]]:
    """Ask for jobs."""
    names = None if queues is None else convert.names(queues, "queues")
    call = file.claim(
        names,
        convert.whole(most, "max", 1, 10_000),
        *term(lease),
        convert.maybe_millis(wait, "wait"),
        convert.name(worker, "worker"),
    )
    telemetry = file.beside.get("telemetry")
    return call if telemetry is None else telemetry.receive(names, call)


def page(
    file: _native.File,
    queue: str | None,
    states: Iterable[State],
    group: str | None,
    expired: bool,
    error: str | None,
    after: int | None,
    limit: int,
) -> _native.Call[tuple[list[convert.Dict], int | None]]:
    """Ask for a page of jobs."""
    after = None if after is None else convert.whole(after, "after", 0, 2**63 - 1)
    names = convert.names(states, "states")
    return file.list(
        queue,
        names,
        convert.name(group, "group"),
        expired,
        convert.name(error, "error"),
        after,
        convert.whole(limit, "limit", 1, 1000),
    )
