"""Commands that move or delete: redrive, move, delete, create-queue, delete-queue, strict-queues."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

import typer

from bucketq import Invalid, QueueFile
from bucketq.cli import _show as show
from bucketq.cli._app import JobId, Json, Place, QueueName, answer, ask, command, remark, say
from bucketq.cli.jobs import StateNames, found, remark_new, states

ONE = "an id names one job: leave the other options out, or the id"


@command("bucketq redrive emails-dead --rate 10/s", "Jobs")
def redrive(
    queue: QueueName,
    to: Annotated[
        str | None, typer.Option("--to", help="To this queue, not to where they died.", show_default=False)
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", help="At most this many.", min=1, show_default=False)
    ] = None,
    rate: Annotated[str | None, typer.Option(help="No faster than this: 10/s.", show_default=False)] = None,
    *,
    place: Place,
    json: Json = False,
) -> None:
    """Send the dead letters in a queue back to the queues they died in.

    Each begins a new run with all its attempts.
    """
    with place.open() as file:
        remark_new(file, queue)
        count = file.queue(queue).redrive(to, limit=limit, rate=rate)
    if json:
        answer({"queue": queue, "redriven": count})
    else:
        say(f"{show.plural(count, 'dead letter')} sent {'back' if to is None else f'to {to}'}")


@command("bucketq move --from emails --group ada --to slow", "Jobs")
def move(
    id: Annotated[str | None, typer.Argument(help="The id of one job.", show_default=False)] = None,
    to: Annotated[str, typer.Option("--to", help="The queue to move to.", show_default=False)] = "",
    source: Annotated[
        str | None, typer.Option("--from", help="Jobs of this queue.", show_default=False)
    ] = None,
    state: StateNames = None,
    group: Annotated[str | None, typer.Option(help="Only this group.", show_default=False)] = None,
    error: Annotated[
        str | None, typer.Option(help="Only those whose last error has this text.", show_default=False)
    ] = None,
    *,
    place: Place,
    json: Json = False,
) -> None:
    """Move jobs to another queue: one by its id, or many.

    Without an id, moves scheduled and ready ones; --state selects others.
    """
    if not to:
        raise Invalid("name the queue to move to: --to QUEUE")
    if id is not None:
        if any(one is not None for one in (source, state, group, error)):
            raise Invalid(ONE)
        with place.open() as file:
            run = found(file, id).move(id, to)
        answer({"id": id, "queue": to, "run": run}) if json else say(f"{id} is in {to}, run {run}")
        return
    if source is None:
        raise Invalid("name the jobs: an id, or --from QUEUE")
    with place.open() as file:
        remark_new(file, source)
        count = file.queue(source).move_all(to, states(state), group=group, error=error)
    answer({"queue": to, "moved": count}) if json else say(f"{show.plural(count, 'job')} moved to {to}")


@command("bucketq delete 0192f0c1-...", "Jobs")
def delete(
    id: JobId,
    leased: Annotated[bool, typer.Option("--leased", help="Even if a worker holds it.")] = False,
    *,
    place: Place,
    json: Json = False,
) -> None:
    """Delete one job, permanently and without archiving it."""
    with place.open() as file:
        job = file.get(id)
        was = None if job is None else file.queue(job.queue).delete(id, leased=leased)
    if json:
        answer({"id": id, "was": was})
    else:
        say(f"{id} was not there" if was is None else f"{id} is deleted, it was {was}")


@command("bucketq create-queue emails", "Queue file", name="create-queue")
def create_queue(queue: QueueName, *, place: Place, json: Json = False) -> None:
    """Create a queue, if it does not exist."""
    with place.open() as file:
        created = file.create_queue(queue)
    if json:
        answer({"queue": queue, "created": created})
    else:
        say(f"{queue} is created" if created else f"{queue} exists already")


@command("bucketq delete-queue emails --yes", "Queue file", name="delete-queue")
def delete_queue(
    queue: QueueName,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    *,
    place: Place,
    json: Json = False,
) -> None:
    """Delete a queue with its jobs, its policy and its schedules; asks first.

    Its archive stays.
    """
    with place.open() as file:
        deleted = None
        if there(file, queue):
            count = sum(file.queue(queue).counts().counts.values())
            what = f"{queue} with {show.plural(count, 'job')}"
            if not yes and not sys.stdin.isatty():
                raise Invalid(f"{what} would be deleted: confirm with --yes, as there is no terminal")
            if not yes:
                ask(f"Delete {what}, its policy and its schedules?")
            deleted = file.delete_queue(queue)
    if json:
        answer({"queue": queue, "deleted": deleted})
    elif deleted is None:
        remark(f"there is no queue {queue}")
    else:
        say(f"{queue} is deleted with {show.plural(deleted, 'job')}")


@command("bucketq strict-queues on", "Queue file", name="strict-queues")
def strict_queues(
    strict: Annotated[Literal["on", "off"], typer.Argument(help="on: only create-queue creates queues.")],
    *,
    place: Place,
    json: Json = False,
) -> None:
    """Refuse queue names that nobody created, in every process; or allow them again."""
    with place.open() as file:
        file.strict_queues(strict == "on")
    answer({"strict_queues": strict == "on"}) if json else say(f"strict queues are {strict}")


def there(file: QueueFile, queue: str) -> bool:
    """Return True if the queue exists."""
    return any(one.name == queue for one in file.queues())
