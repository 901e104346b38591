"""Commands about jobs: enqueue, claim, ack, nack, extend, ls, show, requeue, cancel, purge."""

from __future__ import annotations

import json as jsonlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, cast

import typer

from bucketq import Invalid, New, NotFound, QueueFile, State
from bucketq._lease import Lease, keep
from bucketq._show import STATES
from bucketq.cli import _show as show
from bucketq.cli._app import (
    JobId,
    Json,
    QueueName,
    SettingsFile,
    Url,
    answer,
    command,
    complain,
    err,
    opened,
    out,
    say,
)

Token = Annotated[str, typer.Argument(help="The token that claim answered with.", show_default=False)]
StateNames = Annotated[
    list[Literal["scheduled", "ready", "leased", "done", "dead", "cancelled"]] | None,
    typer.Option("--state", "-s", help="Only jobs in this state; may be repeated.", show_default=False),
]
NO_JOB = 3
"""The exit code of a claim that found nothing: that of NotFound."""


@command("""bucketq enqueue emails '{"to": "ada@example.org"}' --delay 60""")
def enqueue(
    queue: QueueName,
    data: Annotated[
        str | None,
        typer.Argument(help="The data: JSON, or else text. - reads standard input.", show_default=False),
    ] = None,
    lines: Annotated[
        Path | None,
        typer.Option("--lines", help="Many jobs: a file with one JSON value a line; - for standard input."),
    ] = None,
    delay: Annotated[
        float | None, typer.Option(help="Seconds from now before it runs.", show_default=False)
    ] = None,
    priority: Annotated[int, typer.Option(help="Lower runs first.")] = 0,
    attempts: Annotated[
        int | None, typer.Option(help="Attempts before it is dead.", show_default=False)
    ] = None,
    dedup: Annotated[
        str | None, typer.Option(help="A key that keeps a second such job out.", show_default=False)
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="Jobs of a group run one at a time.", show_default=False)
    ] = None,
    content_type: Annotated[str | None, typer.Option(help="What the data are.", show_default=False)] = None,
    url: Url = None,
    settings: SettingsFile = None,
    json: Json = False,
) -> None:
    """Put a job into a queue, or many."""
    given = {
        "delay": delay,
        "priority": priority,
        "max_attempts": attempts,
        "dedup": dedup,
        "group": group,
        "content_type": content_type,
    }
    extras: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if (data is None) == (lines is None):
        raise Invalid("give the data, - for standard input, or --lines FILE")
    with opened(url, settings, create=True) as file:
        if lines is not None:
            if dedup is not None:
                raise Invalid("--dedup with --lines would keep all but one of them out")
            many(file, queue, lines, extras, as_json=json)
            return
        payload = sys.stdin.buffer.read() if data == "-" else data or ""
        receipt = file.queue(queue).enqueue(meant(payload, content_type), **extras)
    if json:
        answer({"id": receipt.id, "deduplicated": receipt.deduplicated, "commit_seq": receipt.commit_seq})
    else:
        say(receipt.id + ("  [dim]was there already[/]" if receipt.deduplicated else ""))


def meant(payload: str | bytes, content_type: str | None) -> Any:
    """JSON as its value, text as text, other bytes as they are. A content type is taken by its word."""
    if isinstance(payload, bytes):
        try:
            payload = payload.decode()
        except UnicodeDecodeError:
            return payload
    if content_type is not None:
        return payload.encode()
    try:
        return jsonlib.loads(payload)
    except ValueError:
        return payload


def many(file: QueueFile, queue: str, path: Path, extras: dict[str, Any], *, as_json: bool) -> None:
    """Enqueue each line, with a progress bar where somebody looks."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    if str(path) == "-":
        total, stream = None, sys.stdin.buffer
    else:
        try:
            stream = path.open("rb")
        except OSError as error:
            raise Invalid(f"{path} cannot be read: {error.strerror}") from error
        total = sum(1 for line in stream if line.strip())
        stream.seek(0)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=err,
        disable=as_json or not err.is_terminal,
    )
    with stream, bar:
        task = bar.add_task(queue, total=total)
        receipts = file.queue(queue).enqueue_many(
            news(stream, path, extras), progress=lambda done: bar.update(task, completed=done)
        )
    answer({"enqueued": len(receipts)}) if as_json else say(f"{show.plural(len(receipts), 'job')} in {queue}")


def news(stream: BinaryIO, path: Path, extras: dict[str, Any]) -> Iterator[New]:
    """A job a line; empty lines do not count."""
    for number, line in enumerate(stream, 1):
        if line.strip():
            try:
                value = jsonlib.loads(line)
            except ValueError as error:
                # Not with the line itself: what is enqueued is nobody else's business.
                raise Invalid(f"line {number} of {path} is not JSON") from error
            yield New(value, **extras)


@command("bucketq claim emails --lease 300 --json")
def claim(
    queue: QueueName,
    lease: Annotated[float, typer.Option(help="Seconds for which nobody else gets it.")] = 60,
    wait: Annotated[float, typer.Option(help="Seconds to wait for a job.")] = 0,
    worker: Annotated[str | None, typer.Option(help="Who works on it.", show_default=False)] = None,
    payload: Annotated[bool, typer.Option("--payload", help="Write only the payload, as it is.")] = False,
    url: Url = None,
    settings: SettingsFile = None,
    json: Json = False,
) -> None:
    """Take a job out for work. End it with ack or nack and its token; exit code 3 when there is none."""
    with opened(url, settings) as file:
        job = file.queue(queue).claim_one(lease=lease, wait=wait, worker=worker)
        if job is None:
            if not json:
                complain(f"no job in {queue}")
            raise typer.Exit(NO_JOB)
        token = keep(job)
        if json:
            body = show.body("payload", job.payload, job.content_type)
            facts = {
                "id": job.id,
                "token": token,
                "queue": job.queue,
                "attempt": job.attempt,
                "fence": job.fence,
            }
            answer(facts | {"headers": dict(job.headers)} | body)
        elif payload:
            err.print(f"{job.id} {token}")
            sys.stdout.buffer.write(job.payload)
            sys.stdout.buffer.flush()
        else:
            from rich.table import Table

            table = Table.grid(padding=(0, 2, 0, 0))
            for name, value in (
                ("id", job.id),
                ("token", token),
                ("attempt", f"{job.attempt} of {job.max_attempts}"),
            ):
                table.add_row(f"[bold]{name}[/]", value)
            table.add_row("[bold]payload[/]", show.preview(job.payload, job.content_type))
            out.print(table, soft_wrap=False)


@command("bucketq ack 0192f0c1-... 6f1c... --result '{\"sent\": true}'")
def ack(
    id: JobId,
    token: Token,
    result: Annotated[
        str | None, typer.Option(help="What came of it: JSON, or else text.", show_default=False)
    ] = None,
    url: Url = None,
    settings: SettingsFile = None,
    json: Json = False,
) -> None:
    """The job is done."""
    with opened(url, settings) as file:
        Lease(file, id, token).ack(result=None if result is None else meant(result, None))
    answer({"id": id, "state": "done"}) if json else say(f"{id} is done")


@command('bucketq nack 0192f0c1-... 6f1c... --error "no answer" --delay 30')
def nack(
    id: JobId,
    token: Token,
    error: Annotated[str | None, typer.Option(help="Why it failed.", show_default=False)] = None,
    delay: Annotated[
        float | None, typer.Option(help="Seconds before it runs again.", show_default=False)
    ] = None,
    reject: Annotated[bool, typer.Option("--reject", help="It can never succeed: dead at once.")] = False,
    release: Annotated[
        bool, typer.Option("--release", help="Give it back: the attempt does not count.")
    ] = False,
    url: Url = None,
    settings: SettingsFile = None,
    json: Json = False,
) -> None:
    """The attempt failed: the job runs again later, or is dead."""
    if reject and release:
        raise Invalid("--reject and --release exclude each other: give one of them")
    with opened(url, settings) as file:
        lease = Lease(file, id, token)
        if reject:
            lease.reject(error)
            state: State = "dead"
        elif release:
            lease.release()
            state = "ready"
        else:
            state = lease.nack(error, delay=delay)
    answer({"id": id, "state": state}) if json else say(f"{id} is {state}")


@command("bucketq extend 0192f0c1-... 6f1c... 300")
def extend(
    id: JobId,
    token: Token,
    lease: Annotated[float, typer.Argument(help="Seconds from now.", show_default=False)],
    url: Url = None,
    settings: SettingsFile = None,
    json: Json = False,
) -> None:
    """Hold a claimed job for longer."""
    with opened(url, settings) as file:
        Lease(file, id, token).extend(lease)
    answer({"id": id, "lease": lease}) if json else say(f"{id} is held for {lease:g} s from now")


@command("bucketq ls emails --state dead")
def ls(
    queue: Annotated[str | None, typer.Argument(help="Only this queue.", show_default=False)] = None,
    state: StateNames = None,
    group: Annotated[str | None, typer.Option(help="Only this group.", show_default=False)] = None,
    expired: Annotated[bool, typer.Option("--expired", help="Only those whose lease has run out.")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", help="At most so many.", min=1)] = 50,
    after: Annotated[int | None, typer.Option(help="Where the last page ended.", show_default=False)] = None,
    url: Url = None,
    settings: SettingsFile = None,
    json: Json = False,
) -> None:
    """List jobs, oldest first."""
    with opened(url, settings) as file:
        found: list[Any] = []
        while True:
            page = file.list(
                state or (),
                queue=queue,
                group=group,
                expired=expired,
                after=after,
                limit=min(limit - len(found), 1000),
            )
            found += page.jobs
            after = page.next
            if after is None or len(found) >= limit:
                break
    if json:
        for job in found:
            answer(show.plain(job))
    elif found:
        out.print(show.jobs(found, with_queue=queue is None), soft_wrap=False)
        if after is not None:
            err.print(f"there are more: --after {after}", style="dim")
    else:
        err.print("no such jobs", style="dim")


@command("bucketq show 0192f0c1-...", name="show")
def show_job(
    id: JobId,
    payload: Annotated[bool, typer.Option("--payload", help="Write only the payload, as it is.")] = False,
    result: Annotated[bool, typer.Option("--result", help="Write only the result, as it is.")] = False,
    url: Url = None,
    settings: SettingsFile = None,
    json: Json = False,
) -> None:
    """Everything about one job."""
    with opened(url, settings) as file:
        job = file.get(id)
    if job is None:
        raise NotFound(f"there is no job {id}", "no_such_job")
    if payload or result:
        sys.stdout.buffer.write(job.payload if payload else job.result_payload or b"")
        sys.stdout.buffer.flush()
    elif json:
        answer(show.plain(job))
    else:
        out.print(show.detail(job), soft_wrap=False)


@command("bucketq requeue 0192f0c1-...")
def requeue(id: JobId, url: Url = None, settings: SettingsFile = None, json: Json = False) -> None:
    """Give a finished job a fresh life at the end of the line."""
    with opened(url, settings) as file:
        run = found(file, id).requeue(id)
    answer({"id": id, "run": run}) if json else say(f"{id} is ready again, run {run}")


@command("bucketq cancel 0192f0c1-...")
def cancel(
    id: JobId,
    leased: Annotated[bool, typer.Option("--leased", help="Even if somebody works on it.")] = False,
    url: Url = None,
    settings: SettingsFile = None,
    json: Json = False,
) -> None:
    """Take a job back before it is finished."""
    with opened(url, settings) as file:
        was = found(file, id).cancel(id, leased=leased)
    answer({"id": id, "was": was}) if json else say(f"{id} is cancelled, it was {was}")


def found(file: QueueFile, id: str) -> Any:
    """The queue of the job."""
    job = file.get(id)
    if job is None:
        raise NotFound(f"there is no job {id}", "no_such_job")
    return file.queue(job.queue)


@command("bucketq purge emails --state done --yes")
def purge(
    queue: QueueName,
    state: StateNames = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    url: Url = None,
    settings: SettingsFile = None,
    json: Json = False,
) -> None:
    """Delete the jobs of a queue that are in these states. Asks first."""
    states = cast(list[State], state or [])
    if not states:
        raise Invalid(f"name the states to delete: --state done; there are {', '.join(STATES)}")
    with opened(url, settings) as file:
        counts = file.queue(queue).counts().counts
        count = sum(counts[one] for one in set(states))
        if not yes:
            if not sys.stdin.isatty():
                raise Invalid(
                    f"{show.plural(count, 'job')} of {queue} would be deleted: say --yes where nobody can be asked"
                )
            typer.confirm(
                f"Delete {show.plural(count, 'job')} of {queue}: {', '.join(states)}?", abort=True, err=True
            )
        deleted = file.queue(queue).purge(states)
    answer({"queue": queue, "deleted": deleted}) if json else say(f"{show.plural(deleted, 'job')} deleted")
