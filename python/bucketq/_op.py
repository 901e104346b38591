"""Builds the engine's ops and queries from Python arguments."""

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
    from bucketq._listening import OnLost
    from bucketq._show import Receipt
    from bucketq.types import Changes, Enqueued, Extras, FromPolicy, Missed, Rate, Seconds, State


def new(file: _native.File, data: Any, extras: Extras) -> _native.New:
    """Return a job to enqueue, with its id. If the handle is instrumented, the job carries the trace context."""
    telemetry = file.hooks.telemetry
    return _new(file, data, extras if telemetry is None else telemetry.carried(extras))


def following(held: _native.Held | None, position: int, extras: Extras) -> Extras:
    """Return the extras of a job enqueued by the commit that ends another: repeating that call repeats the id."""
    if held is None or extras.get("id") is not None:
        return extras
    return {**extras, "id": held._next_id(position)}


def _new(file: _native.File, data: Any, extras: Extras) -> _native.New:
    return file.new(*convert.job(data, extras))


def send(file: _native.File, queue: str, jobs: list[tuple[Any, Extras]]) -> _native.Call[list[Receipt]]:
    """Enqueue these jobs, all or none."""
    telemetry = file.hooks.telemetry
    if telemetry is not None:
        return telemetry.send(file, queue, jobs)
    return file.enqueue(queue, [convert.job(data, extras) for data, extras in jobs])


def given(queue: str, jobs: Iterable[Any], begin: int) -> list[tuple[Any, Extras]]:
    """Return jobs for this queue, from ``New`` or data alone; error messages number them from ``begin``."""
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


def enqueue(queue: str, jobs: list[_native.New]) -> Op[list[Receipt]]:
    """Return the op that enqueues these jobs, all or none."""
    return Op.enqueue(queue, jobs)


def ack_late(id: str, run: int, result: Any) -> Op[None]:
    """Return the op that ends this run of a job as done, without its token."""
    run = convert.whole(run, "run", 0, 2**32 - 1)
    return Op.ack_late(id, run, None if result is None else convert.encode(result))


def words(error: object) -> str | None:
    """Return the text stored for a failure: text unchanged, an exception as Python's one-line form."""
    match error:
        case None:
            return None
        case BaseException():
            return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        case _:
            return str(error)


def swallowed(job: JobBase, error: BaseException | None, swallow: bool) -> bool:
    """Return True if the loop continues although the work on a job failed. Logs the failure."""
    if not swallow or not isinstance(error, Exception):
        return False
    from logging import getLogger

    getLogger("bucketq").error("job %s of %s failed", job.id, job.queue, exc_info=error)
    return True


def chunks(
    file: _native.File, queue: str, jobs: Iterable[Any], size: int
) -> Iterator[_native.Call[list[Receipt]]]:
    """Yield enqueues of up to ``size`` jobs each."""
    convert.whole(size, "chunk", 1, 1_000_000)
    rest, begin = iter(jobs), 0
    while part := given(queue, islice(rest, size), begin):
        begin += len(part)
        yield send(file, queue, part)


class telling:
    """Adds the jobs enqueued so far to an error that leaves the block."""

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
    """Return the lease of a claim in milliseconds, None for the queue's policy; and whether the lease never ends."""
    if lease is POLICY:
        return None, False
    return convert.maybe_millis(lease, "lease"), lease is None


def configure(queue: str, changes: Changes) -> Op[convert.Dict]:
    """Return the op that changes the policy of a queue."""
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
) -> Op[int]:
    """Return the op that enqueues a job periodically."""
    for key in ("delay", "at", "id"):
        if extras.get(key) is not None:
            raise Invalid(f"{key} is not allowed in a schedule, which sets the times and ids of its jobs")
    timing = policies.timing(cron, every, start, timezone)
    # Its jobs carry no trace context: they are enqueued long after the call that made the schedule.
    return Op.schedule(queue, name, timing, policies.catches_up(missed), _new(file, data, extras))


def requeue_all(
    file: _native.File, queue: str | None, states: Iterable[State], group: str | None, error: str | None
) -> _native.Call[int]:
    """Requeue the finished jobs that match."""
    names = convert.names(states, "states")
    return file.requeue_all(queue, names, convert.name(group, "group"), convert.name(error, "error"))


def move_all(
    file: _native.File, queue: str, to: str, states: Iterable[State], group: str | None, error: str | None
) -> _native.Call[int]:
    """Move the jobs that match to another queue."""
    names = convert.names(states, "states")
    return file.move_all(queue, names, convert.name(group, "group"), convert.name(error, "error"), to)


def redrive(
    file: _native.File, queue: str, to: str | None, limit: int | None, rate: Rate | str | None
) -> _native.Call[int]:
    """Send dead letters back."""
    most = None if limit is None else convert.whole(limit, "limit", 0, 2**63 - 1)
    return file.redrive(queue, convert.name(to, "to"), most, None if rate is None else str(rate))


def lives(
    file: _native.File, queue: str | None, after: int, until: int | None, limit: int
) -> _native.Call[Any]:
    """Read finished runs."""
    until = 2**63 - 1 if until is None else convert.whole(until, "until", 0, 2**63 - 1)
    after = convert.whole(after, "after", 0, 2**63 - 1)
    return file.lives(convert.name(queue, "queue"), after, until, convert.whole(limit, "limit", 1, 1000))


def archives(file: _native.File, queue: str | None, after: int) -> _native.Call[convert.Dict]:
    """Read the list of archive objects."""
    return file.archives(convert.name(queue, "queue"), convert.whole(after, "after", 0, 2**63 - 1))


class Request:
    """The jobs that a claim asks for, and how; ``ack(next=True)`` asks for one more of them."""

    __slots__ = ("extend", "names", "on_lost", "term", "worker")

    def __init__(
        self,
        queues: Iterable[str] | None,
        lease: Seconds | FromPolicy | None,
        worker: str | None,
        *,
        extend: bool = True,
        on_lost: OnLost | None = None,
    ) -> None:
        self.names = None if queues is None else convert.names(queues, "queues")
        self.term = term(lease)
        self.worker = convert.name(worker, "worker")
        self.extend = extend
        self.on_lost = on_lost


def claim(
    file: _native.File,
    request: Request,
    most: int,
    wait: Seconds | None,
    *,
    id: str | None = None,
    ack: bool = False,
    leave: _native.Leave | None = None,
) -> _native.Call[list[_native.Held]]:
    """Claim jobs."""
    call = file.claim(
        request.names,
        convert.whole(most, "max", 1, 10_000),
        *request.term,
        convert.maybe_millis(wait, "wait"),
        request.worker,
        extend=request.extend,
        id=convert.name(id, "id"),
        done=ack,
        leave=leave,
    )
    telemetry = file.hooks.telemetry
    return call if telemetry is None else telemetry.receive(request.names, call)


def claim_after(file: _native.File, job: JobBase, how: str, end: Op[Any]) -> _native.Call[list[_native.Held]]:
    """End the job and claim one more of those that its claim asked for, in one commit."""
    request = job._request
    call = claim_ending(file, request, end)
    telemetry = file.hooks.telemetry
    return call if telemetry is None else telemetry.receive(request.names, telemetry.settle(job, how, call))


def claim_ending(file: _native.File, request: Request, end: Op[Any]) -> _native.Call[list[_native.Held]]:
    """Claim one job in the commit that ends another."""
    return file.claim(request.names, 1, *request.term, 0, request.worker, extend=request.extend, ends=end)


def page(
    file: _native.File,
    queue: str | None,
    states: Iterable[State],
    group: str | None,
    expired: bool,
    error: str | None,
    after: int | None,
    limit: int,
    payloads: bool,
) -> _native.Call[tuple[list[Any], int | None, int | None]]:
    """Read a page of jobs."""
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
        payloads,
    )
