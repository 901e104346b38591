"""Commands about a queue as a whole: policy, configure, drain, schedule, unschedule, schedules."""

from __future__ import annotations

from dataclasses import fields
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import typer
from rich.table import Table
from rich.text import Text

from bucketq import Backoff, Invalid, Policy, ScheduleInfo
from bucketq.cli import _show as show
from bucketq.cli import _words as words
from bucketq.cli._app import DECLINED, Json, Place, QueueName, answer, command, err, out, remark, say
from bucketq.cli.jobs import meant, remark_new

PANEL = "Policies"
NOT_THERE = 3
"""The exit code of an unschedule that found nothing: that of NotFound."""

YesNo = Literal["yes", "no"]
DEFAULTS: dict[str, Any] = {
    "max_attempts": 10,
    "backoff": show.plain(Backoff()),
    "lease": 60.0,
    "max_run": None,
    "dead_letter": None,
    "expires": None,
    "on_expiry": "dead",
    "expire_claimed": False,
    "dedup_content": False,
    "dedup_window": 3600.0,
    "max_pending": None,
    "overflow": "raise",
    "group_concurrency": 1,
    "group_batch": 1,
    "concurrency": None,
    "rate": None,
    "keep": 1000,
    "keep_for": None,
    "keep_done": None,
    "keep_done_for": None,
    "keep_dead": None,
    "keep_dead_for": None,
    "keep_cancelled": None,
    "keep_cancelled_for": None,
    "archive": False,
    "archive_for": None,
    "archive_payloads": True,
}
"""The default policy, as JSON values."""


def option(help: str, *names: str) -> Any:
    return typer.Option(*names, help=help, show_default=False)


@command("bucketq policy emails", PANEL)
def policy(queue: QueueName, *, place: Place, json: Json = False) -> None:
    """Show the policy of a queue. Values that are not the default are bold."""
    with place.open() as file:
        remark_new(file, queue)
        found = file.queue(queue).policy()
    tell(found, as_json=json)


@command("bucketq configure emails --max-attempts 5 --rate 100/min --lease 5min", PANEL)
def configure(
    queue: QueueName,
    max_attempts: Annotated[
        str | None, option("Claims a job gets before it is dead; none: without end.")
    ] = None,
    backoff: Annotated[
        str | None,
        option("none, 'fixed 30s', 'linear 5s 10min', 'exponential 1s 1h 50%', or delays: 5s,30s."),
    ] = None,
    lease: Annotated[str | None, option("How long a lease lasts; none: forever, at most once.")] = None,
    max_run: Annotated[
        str | None, option("How long the work on a job may take before the attempt has failed, or none.")
    ] = None,
    dead_letter: Annotated[str | None, option("The queue that dead jobs move to, or none.")] = None,
    expires: Annotated[str | None, option("A job expires unless it is claimed within this time.")] = None,
    on_expiry: Annotated[
        Literal["dead", "delete"] | None, option("An expired job is dead, or deleted.")
    ] = None,
    expire_claimed: Annotated[
        YesNo | None, option("A job that was claimed in time and came back expires too.")
    ] = None,
    dedup_content: Annotated[
        YesNo | None, option("A job without a dedup key gets one from its content.")
    ] = None,
    dedup_window: Annotated[
        str | None, option("How long a dedup key counts; unfinished: until the first job is finished.")
    ] = None,
    max_pending: Annotated[str | None, option("Most scheduled and ready jobs together, or none.")] = None,
    overflow: Annotated[
        str | None, option("If an enqueue exceeds that: raise, 'block 30s', drop_oldest.")
    ] = None,
    group_concurrency: Annotated[
        int | None, option("Jobs of one group that may be leased at the same time.")
    ] = None,
    group_batch: Annotated[int | None, option("Jobs of one group that one claim may get, in order.")] = None,
    concurrency: Annotated[
        str | None, option("Jobs of the queue that may be leased at the same time, or none.")
    ] = None,
    rate: Annotated[
        str | None, option("How fast jobs may be claimed: 100/min, '10/30s burst 1', none.")
    ] = None,
    keep: Annotated[int | None, option("Done jobs to retain, and as many dead and cancelled ones.")] = None,
    keep_for: Annotated[str | None, option("How long finished jobs are retained at most, or none.")] = None,
    keep_done: Annotated[str | None, option("Done jobs to retain, or none: as --keep says.")] = None,
    keep_done_for: Annotated[str | None, option("How long done jobs are retained.")] = None,
    keep_dead: Annotated[str | None, option("Dead jobs to retain, or none: as --keep says.")] = None,
    keep_dead_for: Annotated[str | None, option("How long dead jobs are retained.")] = None,
    keep_cancelled: Annotated[
        str | None, option("Cancelled jobs to retain, or none: as --keep says.")
    ] = None,
    keep_cancelled_for: Annotated[str | None, option("How long cancelled jobs are retained.")] = None,
    archive: Annotated[YesNo | None, option("Archive jobs before they leave the queue.")] = None,
    archive_for: Annotated[str | None, option("How old archive objects may become, or none.")] = None,
    archive_payloads: Annotated[YesNo | None, option("Archive payloads too.")] = None,
    *,
    place: Place,
    json: Json = False,
) -> None:
    """Change the named fields of a queue's policy, for all processes."""
    given: dict[str, tuple[Any, Any]] = {
        "max_attempts": (max_attempts, words.number_or_none),
        "backoff": (backoff, words.backoff),
        "lease": (lease, words.seconds_or_none),
        "max_run": (max_run, words.seconds_or_none),
        "dead_letter": (dead_letter, words.text_or_none),
        "expires": (expires, words.seconds_or_none),
        "on_expiry": (on_expiry, None),
        "expire_claimed": (expire_claimed, words.yes),
        "dedup_content": (dedup_content, words.yes),
        "dedup_window": (dedup_window, words.window),
        "max_pending": (max_pending, words.number_or_none),
        "overflow": (overflow, words.overflow),
        "group_concurrency": (group_concurrency, None),
        "group_batch": (group_batch, None),
        "concurrency": (concurrency, words.number_or_none),
        "rate": (rate, words.text_or_none),
        "keep": (keep, None),
        "keep_for": (keep_for, words.seconds_or_none),
        "keep_done": (keep_done, words.number_or_none),
        "keep_done_for": (keep_done_for, words.seconds_or_none),
        "keep_dead": (keep_dead, words.number_or_none),
        "keep_dead_for": (keep_dead_for, words.seconds_or_none),
        "keep_cancelled": (keep_cancelled, words.number_or_none),
        "keep_cancelled_for": (keep_cancelled_for, words.seconds_or_none),
        "archive": (archive, words.yes),
        "archive_for": (archive_for, words.seconds_or_none),
        "archive_payloads": (archive_payloads, words.yes),
    }
    changes: dict[str, Any] = {
        name: value if read is None else read(value, f"--{name.replace('_', '-')}")
        for name, (value, read) in given.items()
        if value is not None
    }
    if not changes:
        raise Invalid(
            f"name the fields to change, such as --max-attempts 5; bucketq policy {queue} shows all of them"
        )
    with place.open() as file:
        remark_new(file, queue)
        found = file.queue(queue).configure(**changes)
    tell(found, as_json=json)


def tell(policy: Policy, *, as_json: bool) -> None:
    """Print the policy, one field per line."""
    if as_json:
        answer(show.plain(policy))
        return
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for part in fields(policy):
        value = getattr(policy, part.name)
        style = "" if show.plain(value) == DEFAULTS[part.name] else "bold"
        table.add_row(part.name.replace("_", "-"), show.plainly(words.policy_words(part.name, value), style))
    out.print(table, soft_wrap=False)


@command("bucketq drain emails --timeout 5min", PANEL)
def drain(
    queue: QueueName,
    timeout: Annotated[str | None, option("Wait at most this long for the jobs that workers hold.")] = None,
    *,
    place: Place,
    json: Json = False,
) -> None:
    """Stop accepting and handing out jobs, and wait until no worker holds one.

    Lasts until bucketq resume. Exit code 1: workers still hold jobs after the timeout.
    """
    limit = None if timeout is None else words.seconds(timeout, "--timeout")
    with place.open() as file:
        remark_new(file, queue)
        left = file.queue(queue).drain(timeout=limit)
    if json:
        answer({"queue": queue, "leased": left})
    elif left:
        remark(f"{queue} is draining; workers still hold {show.plural(left, 'job')}", "")
    else:
        say(f"{queue} is drained, until bucketq resume {queue}")
    if left:
        raise typer.Exit(DECLINED)


ScheduleName = Annotated[str, typer.Argument(help="The name of the schedule.", show_default=False)]


@command(
    """bucketq schedule reports nightly '{"kind": "day"}' --cron "30 2 * * *" --timezone Europe/Berlin""",
    PANEL,
)
def schedule(
    queue: QueueName,
    name: ScheduleName,
    data: Annotated[
        str, typer.Argument(help="The data of each job: JSON, otherwise text.", show_default=False)
    ],
    cron: Annotated[
        str | None, option("Minute, hour, day, month, day of the week; or @hourly and the like.")
    ] = None,
    timezone: Annotated[str | None, option("The time zone of --cron: Europe/Berlin; by default UTC.")] = None,
    every: Annotated[str | None, option("At an interval instead: 90s, 15min, 1d.")] = None,
    start: Annotated[str | None, option("The first time of --every: 2026-12-31T18:00.")] = None,
    missed: Annotated[
        Literal["skip", "catch_up"],
        typer.Option(help="For times missed while no process claimed: the newest only, or each."),
    ] = "skip",
    priority: Annotated[int | None, option("Lower runs first.")] = None,
    attempts: Annotated[int | None, option("Attempts before a job is dead.")] = None,
    backoff: Annotated[str | None, option("Waiting time between attempts, as in configure.")] = None,
    group: Annotated[str | None, option("The group of its jobs.")] = None,
    *,
    place: Place,
    json: Json = False,
) -> None:
    """Enqueue a job periodically. Replaces the schedule of this name."""
    extras: dict[str, Any] = {"priority": priority, "max_attempts": attempts, "group": group}
    if backoff is not None:
        extras["backoff"] = words.backoff(backoff, "--backoff")
    if (cron is None) == (every is None):
        raise Invalid("give --cron '30 2 * * *', or --every 1h; one of them")
    if timezone is not None and every is not None:
        raise Invalid("--timezone goes with --cron; --start says when --every begins")
    with place.open() as file:
        at = file.queue(queue).schedule(
            name,
            meant(data, None),
            cron=cron,
            every=None if every is None else words.seconds(every, "--every"),
            start=None if start is None else words.moment(start, "--start"),
            timezone=timezone,
            missed=missed,
            **{key: value for key, value in extras.items() if value is not None},
        )
    if json:
        answer({"queue": queue, "name": name, "next_at": show.plain(at)})
    else:
        say(f"{name} is next due {show.moment(at, datetime.now(UTC))}")


@command("bucketq unschedule reports nightly", PANEL)
def unschedule(queue: QueueName, name: ScheduleName, *, place: Place, json: Json = False) -> None:
    """Delete a schedule; the jobs it has enqueued stay. Exit code 3: there is no such schedule."""
    with place.open() as file:
        was_there = file.queue(queue).unschedule(name)
    if json:
        answer({"queue": queue, "name": name, "was_there": was_there})
    elif was_there:
        say(f"{name} is deleted")
    else:
        remark(f"{queue} has no schedule {name}; bucketq schedules {queue} lists them", "")
    if not was_there:
        raise typer.Exit(NOT_THERE)


@command("bucketq schedules reports", PANEL)
def schedules(
    queue: Annotated[str | None, typer.Argument(help="Only this queue.", show_default=False)] = None,
    *,
    place: Place,
    json: Json = False,
) -> None:
    """List schedules and when each enqueues next."""
    with place.open() as file:
        found = file.schedules() if queue is None else file.queue(queue).schedules()
    if json:
        for one in found:
            own = show.plain(one)
            for part in ("payload", "content_type"):
                del own[part]
            answer(own | show.body("payload", one.payload, one.content_type))
    elif found:
        out.print(picture(found), soft_wrap=False)
        for one in found:
            if one.paused:
                err.print(
                    f"{one.queue}/{one.name} is paused here: {one.paused}", style="yellow", markup=False
                )
    else:
        err.print("no schedules", style="dim")


def picture(found: list[ScheduleInfo]) -> Table:
    """Return a table with one line per schedule."""
    now = datetime.now(UTC)
    head = ["queue", "name", "when", "next", "fired"]
    rows = [
        [
            show.plainly(one.queue),
            show.plainly(one.name),
            show.plainly(
                f"{one.cron} {one.timezone}" if one.every is None else f"every {words.span(one.every)}"
            ),
            Text("paused" if one.paused else show.when(one.next_at, now, short=True) or "never"),
            Text(f"{one.fired:,}"),
        ]
        for one in found
    ]
    return show.table(head, rows, width=out.width, right=("fired",), give="when")
