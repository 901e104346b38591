"""Commands about jobs: enqueue, ls, show, requeue, cancel, purge."""

from __future__ import annotations

import json as jsonlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO, cast

import typer

from bucketq import Invalid, New, NotFound, QueueFile, State
from bucketq._convert import nearest
from bucketq._show import STATES
from bucketq.cli import _show as show
from bucketq.cli import _words as words
from bucketq.cli._app import (
    JobId,
    Json,
    Place,
    QueueName,
    answer,
    ask,
    command,
    err,
    out,
    remark,
    say,
)

StateNames = Annotated[
    list[str] | None,
    typer.Option(
        "--state",
        "-s",
        help="Only jobs in this state; may be repeated.",
        show_default=False,
        autocompletion=lambda: STATES,
    ),
]


@command("""bucketq enqueue emails '{"to": "ada@example.org"}' --delay 60""", "Jobs")
def enqueue(
    queue: QueueName,
    data: Annotated[
        str | None,
        typer.Argument(help="The data: JSON, otherwise text; - reads standard input.", show_default=False),
    ] = None,
    lines: Annotated[
        Path | None,
        typer.Option("--lines", help="Many jobs: a file with one JSON value per line; - for standard input."),
    ] = None,
    delay: Annotated[
        str | None, typer.Option(help="How long from now before it runs: 5min.", show_default=False)
    ] = None,
    priority: Annotated[int, typer.Option(help="Lower runs first.")] = 0,
    attempts: Annotated[
        int | None, typer.Option(help="Attempts before it is dead.", show_default=False)
    ] = None,
    dedup: Annotated[
        str | None, typer.Option(help="A dedup key: a second job with it is not added.", show_default=False)
    ] = None,
    dedup_window: Annotated[
        str | None,
        typer.Option(help="How long the key counts: 1h; or unfinished.", show_default=False),
    ] = None,
    backoff: Annotated[
        str | None,
        typer.Option(help="Waiting time between attempts, as in configure.", show_default=False),
    ] = None,
    group: Annotated[
        str | None, typer.Option(help="Jobs of a group run one at a time.", show_default=False)
    ] = None,
    at: Annotated[
        str | None, typer.Option(help="Not before this time: 2026-12-31T18:00.", show_default=False)
    ] = None,
    expires: Annotated[
        str | None, typer.Option(help="Expires this long from now unless claimed: 1h.", show_default=False)
    ] = None,
    max_run: Annotated[
        str | None, typer.Option(help="How long an attempt may take: 5min.", show_default=False)
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(help="A header, name=text; may be repeated.", show_default=False),
    ] = None,
    id: Annotated[
        str | None, typer.Option(help="Your own UUID: enqueueing it again adds nothing.", show_default=False)
    ] = None,
    content_type: Annotated[
        str | None, typer.Option(help="The content type of the data.", show_default=False)
    ] = None,
    *,
    place: Place,
    json: Json = False,
) -> None:
    """Enqueue one job, or many."""
    given = {
        "delay": None if delay is None else words.seconds(delay, "--delay"),
        "priority": priority,
        "max_attempts": attempts,
        "dedup": dedup,
        "group": group,
        "content_type": content_type,
        "backoff": None if backoff is None else words.backoff(backoff, "--backoff"),
        "at": None if at is None else words.moment(at, "--at"),
        "expires": None if expires is None else words.seconds(expires, "--expires"),
        "max_run": None if max_run is None else words.seconds(max_run, "--max-run"),
        "headers": None if header is None else headers(header),
        "id": id,
    }
    extras: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if dedup_window is not None:
        extras["dedup_window"] = words.window(dedup_window, "--dedup-window")
    if (data is None) == (lines is None):
        raise Invalid("give the data, - for standard input, or --lines FILE")
    with place.open(create=True) as file:
        if lines is not None:
            if dedup is not None or id is not None:
                raise Invalid("--dedup or --id with --lines would enqueue only one of the jobs")
            many(file, queue, lines, extras, as_json=json)
            return
        payload = sys.stdin.buffer.read() if data == "-" else data or ""
        receipt = file.queue(queue).enqueue(meant(payload, content_type), **extras)
    if json:
        answer(show.plain(receipt) | {"created": receipt.created})
    else:
        out.print(
            receipt.id + ("  [dim]already enqueued[/]" if receipt.deduplicated or receipt.existing else "")
        )
        if receipt.dropped:
            err.print(f"to make room, dropped {', '.join(receipt.dropped)}", style="dim")


def headers(pairs: list[str]) -> dict[str, str]:
    """Split each pair at its first =."""
    for pair in pairs:
        if "=" not in pair:
            raise Invalid(f"--header is {pair!r}: write name=text")
    return dict(pair.split("=", 1) for pair in pairs)


MARKS = ("{", "[", '"')
"""Text that begins like this was likely meant as JSON."""


def meant(payload: str | bytes, content_type: str | None) -> Any:
    """Return JSON as its value, text as text, other bytes unchanged. With a content type, return the bytes."""
    if isinstance(payload, bytes):
        try:
            payload = payload.decode()
        except UnicodeDecodeError:
            return payload
    if content_type is not None:
        return payload.encode()
    try:
        return jsonlib.loads(payload)
    except ValueError as error:
        if payload.lstrip()[:1] in MARKS:
            remark(f"warning: taken as text, because it is not JSON: {error}", "yellow")
        return payload


def many(file: QueueFile, queue: str, path: Path, extras: dict[str, Any], *, as_json: bool) -> None:
    """Enqueue each line, with a progress bar on a terminal."""
    from rich.markup import escape
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
        task = bar.add_task(escape(show.safe(queue)), total=total)
        receipts = file.queue(queue).enqueue_many(
            news(stream, path, extras), progress=lambda done: bar.update(task, completed=done)
        )
    answer({"enqueued": len(receipts)}) if as_json else say(f"{show.plural(len(receipts), 'job')} in {queue}")


def news(stream: BinaryIO, path: Path, extras: dict[str, Any]) -> Iterator[New]:
    """Yield one job per line; skip empty lines."""
    for number, line in enumerate(stream, 1):
        if line.strip():
            try:
                value = jsonlib.loads(line)
            except ValueError as error:
                # Do not show the line itself: its data may be confidential.
                raise Invalid(f"line {number} of {path} is not JSON") from error
            yield New(value, **extras)


@command("bucketq ls emails --state dead", "Jobs")
def ls(
    queue: Annotated[str | None, typer.Argument(help="Only this queue.", show_default=False)] = None,
    state: StateNames = None,
    group: Annotated[str | None, typer.Option(help="Only this group.", show_default=False)] = None,
    expired: Annotated[bool, typer.Option("--expired", help="Only those whose lease has run out.")] = False,
    error: Annotated[
        str | None, typer.Option(help="Only those whose last error has this text.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", help="At most this many.", min=1)] = 50,
    after: Annotated[
        int | None,
        typer.Option(help="Start after this position, the end of the last page.", show_default=False),
    ] = None,
    *,
    place: Place,
    json: Json = False,
) -> None:
    """List jobs, oldest first."""
    with place.open() as file:
        found: list[Any] = []
        while True:
            page = file.list(
                states(state),
                queue=queue,
                group=group,
                expired=expired,
                error=error,
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
        out.print(show.jobs(found, with_queue=queue is None, width=out.width), soft_wrap=False)
        if after is not None:
            err.print(f"more jobs: --after {after}", style="dim")
    else:
        err.print("no such jobs", style="dim")


@command("bucketq show 0192f0c1-...", "Jobs", name="show")
def show_job(
    id: JobId,
    payload: Annotated[bool, typer.Option("--payload", help="Print only the payload, unchanged.")] = False,
    result: Annotated[bool, typer.Option("--result", help="Print only the result, unchanged.")] = False,
    *,
    place: Place,
    json: Json = False,
) -> None:
    """Show everything about one job."""
    with place.open() as file:
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


@command('bucketq requeue --queue emails --error "no answer"', "Jobs")
def requeue(
    id: Annotated[str | None, typer.Argument(help="The id of one job.", show_default=False)] = None,
    queue: Annotated[str | None, typer.Option(help="Jobs of this queue.", show_default=False)] = None,
    state: StateNames = None,
    group: Annotated[str | None, typer.Option(help="Only this group.", show_default=False)] = None,
    error: Annotated[
        str | None, typer.Option(help="Only those whose last error has this text.", show_default=False)
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Jobs of every queue.")] = False,
    *,
    place: Place,
    json: Json = False,
) -> None:
    """Requeue finished jobs: one by its id, or many.

    Without an id, requeues the dead ones; --state selects others.
    """
    if id is not None:
        if every or any(one is not None for one in (queue, state, group, error)):
            raise Invalid("an id names one job: leave the other options out, or the id")
        with place.open() as file:
            run = found(file, id).requeue(id)
        answer({"id": id, "run": run}) if json else say(f"{id} is ready again, run {run}")
        return
    if not every and queue is None and group is None and error is None:
        raise Invalid("name the jobs: an id, --queue, --group, --error, or --all for every dead job")
    if every and queue is not None:
        raise Invalid("--all is every queue, --queue is one: give one of them")
    with place.open() as file:
        if queue is not None:
            remark_new(file, queue)
        count = file.requeue_all(states(state), queue=queue, group=group, error=error)
        sources = dead_letters_of(file, queue) if count == 0 and queue is not None else []
    answer({"requeued": count}) if json else say(f"{show.plural(count, 'job')} ready again")
    if sources:
        remark(
            f"dead jobs of {', '.join(sources)} are ready in {queue}: bucketq redrive {queue} sends them back"
        )


@command("bucketq cancel 0192f0c1-...", "Jobs")
def cancel(
    id: JobId,
    leased: Annotated[bool, typer.Option("--leased", help="Even if a worker holds it.")] = False,
    *,
    place: Place,
    json: Json = False,
) -> None:
    """Cancel an unfinished job."""
    with place.open() as file:
        was = found(file, id).cancel(id, leased=leased)
    answer({"id": id, "was": was}) if json else say(f"{id} is cancelled, it was {was}")


def dead_letters_of(file: QueueFile, queue: str) -> list[str]:
    """Return the queues whose dead jobs move to this one."""
    return [one.name for one in file.queues() if file.queue(one.name).policy().dead_letter == queue]


def remark_new(file: QueueFile, queue: str) -> None:
    """Print a remark if the queue does not exist yet: its name may be misspelt."""
    names = [one.name for one in file.queues()]
    if names and queue not in names:
        remark(f"there is no queue {queue} yet: {nearest(queue, names)}")


def states(names: list[str] | None) -> list[State]:
    """Return the states if they exist."""
    for name in names or ():
        if name not in STATES:
            raise Invalid(f"there is no state {name!r}: {nearest(name, STATES)}")
    return cast(list[State], names or [])


def found(file: QueueFile, id: str) -> Any:
    """Return the queue of the job."""
    job = file.get(id)
    if job is None:
        raise NotFound(f"there is no job {id}", "no_such_job")
    return file.queue(job.queue)


@command("bucketq purge emails --state done --yes", "Jobs")
def purge(
    queue: QueueName,
    state: StateNames = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    *,
    place: Place,
    json: Json = False,
) -> None:
    """Delete jobs of a queue by their state, permanently; asks first.

    Purged jobs are not archived, whatever the policy says.
    """
    chosen = states(state)
    if not chosen:
        raise Invalid(f"name the states to delete: --state done; there are {', '.join(STATES)}")
    with place.open() as file:
        counts = file.queue(queue).counts().counts
        count = sum(counts[one] for one in set(chosen))
        what = f"{show.plural(count, 'job')} of {queue}"
        if not yes and not sys.stdin.isatty():
            raise Invalid(f"{what} would be deleted: confirm with --yes, as there is no terminal")
        if not yes:
            ask(f"Delete {what}: {', '.join(chosen)}?")
        deleted = file.queue(queue).purge(chosen)
    answer({"queue": queue, "deleted": deleted}) if json else say(f"{show.plural(deleted, 'job')} deleted")
