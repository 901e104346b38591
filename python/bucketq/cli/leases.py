"""Commands about leased jobs: claim, ack, nack, extend. The token that claim prints proves the lease."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from bucketq import POLICY, Invalid, Job, State
from bucketq.cli import _show as show
from bucketq.cli import _words as words
from bucketq.cli._app import (
    JobId,
    Json,
    Place,
    QueueName,
    answer,
    command,
    complain,
    err,
    out,
    say,
)
from bucketq.cli.jobs import meant

Token = Annotated[str, typer.Argument(help="The token that claim printed.", show_default=False)]
NO_JOB = 3
"""The exit code of a claim that found nothing: that of NotFound."""


@command("bucketq claim emails --lease 300 --json", "Work")
def claim(
    queue: QueueName,
    lease: Annotated[
        str | None,
        typer.Option(
            help="How long the lease lasts: 90s, 5min, none; by default as the policy says.",
            show_default=False,
        ),
    ] = None,
    wait: Annotated[str, typer.Option(help="How long to wait for a job: 20s.")] = "0",
    worker: Annotated[str | None, typer.Option(help="The name of the worker.", show_default=False)] = None,
    job_id: Annotated[
        str | None, typer.Option("--id", help="Claim this job, if it can be claimed.", show_default=False)
    ] = None,
    ack: Annotated[
        bool, typer.Option("--ack", help="End it in the same commit: delivered at most once.")
    ] = False,
    payload: Annotated[bool, typer.Option("--payload", help="Print only the payload, unchanged.")] = False,
    *,
    place: Place,
    json: Json = False,
) -> None:
    """Claim a job.

    End it with ack or nack, by its id and token. Exit code 3: there is no job.
    """
    with place.open() as file:
        held = POLICY if lease is None else words.seconds_or_none(lease, "--lease")
        job = file.queue(queue).claim_one(
            id=job_id, lease=held, wait=words.seconds(wait, "--wait"), worker=worker, ack=ack
        )
        if job is None:
            if not json:
                complain(f"no job in {queue}")
            raise typer.Exit(NO_JOB)
        tell(job, payload=payload, as_json=json)


def tell(job: Job, *, payload: bool = False, as_json: bool = False) -> None:
    """Print a claimed job with its token."""
    token = job.token
    if as_json:
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
        table.add_row("[bold]payload[/]", show.preview(job.payload))
        out.print(table, soft_wrap=False)


@command("bucketq ack 0192f0c1-... 6f1c... --result '{\"sent\": true}'", "Work")
def ack(
    id: JobId,
    token: Annotated[str | None, typer.Argument(help="The token of its claim.", show_default=False)] = None,
    result: Annotated[
        str | None, typer.Option(help="The result: JSON, otherwise text.", show_default=False)
    ] = None,
    next: Annotated[
        bool, typer.Option("--next", help="In the same commit, claim the next job of its queue.")
    ] = False,
    late: Annotated[
        int | None,
        typer.Option(
            metavar="RUN",
            help="Without a token: also if its lease was lost, if this is its run.",
            show_default=False,
        ),
    ] = None,
    *,
    place: Place,
    json: Json = False,
) -> None:
    """Mark a job done.

    With --next, print the next job as claim does. Exit code 3: this one is done, and there is no other. With --late,
    mark a job done whose lease was lost; a worker that holds it by now loses it.
    """
    if (late is None) == (token is None) or (late is not None and next):
        raise Invalid(
            "give the token of the claim, or --late 0 for a job whose lease was lost; --next needs the token"
        )
    with place.open() as file:
        if token is None:
            file.ack_late(id, run=late or 0, result=None if result is None else meant(result, None))
            answer({"id": id, "state": "done"}) if json else say(f"{id} is done")
            return
        job = file.ack(id, token, result=None if result is None else meant(result, None), next=next)
        if job is not None:
            tell(job, as_json=json)
            return
    if not next:
        answer({"id": id, "state": "done"}) if json else say(f"{id} is done")
        return
    if not json:
        complain("no other job")
    raise typer.Exit(NO_JOB)


@command('bucketq nack 0192f0c1-... 6f1c... --error "no answer" --delay 30', "Work")
def nack(
    id: JobId,
    token: Token,
    error: Annotated[str | None, typer.Option(help="Why it failed.", show_default=False)] = None,
    delay: Annotated[
        str | None, typer.Option(help="How long before it runs again: 5min.", show_default=False)
    ] = None,
    reject: Annotated[bool, typer.Option("--reject", help="It can never succeed: dead at once.")] = False,
    release: Annotated[
        bool, typer.Option("--release", help="Give it back: the attempt does not count.")
    ] = False,
    *,
    place: Place,
    json: Json = False,
) -> None:
    """End a failed attempt: the job runs again later, or is dead."""
    pause = None if delay is None else words.seconds(delay, "--delay")
    if reject and release:
        raise Invalid("--reject and --release exclude each other: give one of them")
    with place.open() as file:
        if reject:
            file.reject(id, token, error)
            state: State = "dead"
        elif release:
            file.release(id, token)
            state = "ready"
        else:
            state = file.nack(id, token, error, delay=pause)
    answer({"id": id, "state": state}) if json else say(f"{id} is {state}")


@command("bucketq extend 0192f0c1-... 6f1c... 300", "Work")
def extend(
    id: JobId,
    token: Token,
    lease: Annotated[str, typer.Argument(help="How long from now: 90s, 5min.", show_default=False)],
    *,
    place: Place,
    json: Json = False,
) -> None:
    """Extend the lease of a claimed job."""
    with place.open() as file:
        seconds = words.seconds(lease, "the lease")
        file.extend(id, token, seconds)
    answer({"id": id, "lease": seconds}) if json else say(f"the lease of {id} ends {seconds:g} s from now")
