"""Commands about finished jobs: lives, archive, archives."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.text import Text

from bucketq.cli import _show as show
from bucketq.cli._app import Json, Place, answer, command, err, out, say

PANEL = "Maintenance"
Queue = Annotated[str | None, typer.Argument(help="Only this queue.", show_default=False)]
After = Annotated[int, typer.Option(help="Only jobs that finished after this finish_seq.", min=0)]


@command("bucketq lives emails --after 0 --json", PANEL)
def lives(
    queue: Queue = None,
    after: After = 0,
    limit: Annotated[int, typer.Option("--limit", "-n", help="At most this many.", min=1, max=1000)] = 100,
    *,
    place: Place,
    json: Json = False,
) -> None:
    """List finished jobs that are still in the file, in the order in which they finished."""
    with place.open() as file:
        found = file.lives(queue=queue, after=after, limit=limit).lives
    if json:
        for one in found:
            own = show.plain(one)
            for name, payload, kind in (
                ("payload", one.payload, one.payload_type),
                ("result", one.result_payload, one.result_type),
            ):
                own.pop(f"{name}_payload", None)
                own.pop(name, None)
                own |= {f"{name}_type": kind} if payload is None else show.body(name, payload, kind or "")
            answer(own)
        return
    if not found:
        err.print("no finished jobs", style="dim")
        return
    now = datetime.now(UTC)
    head = ["id", "state", "ended", "finish_seq", "queue"]
    rows = [
        [
            Text(one.id),
            Text(one.state, style=show.COLOURS[one.state]),
            Text(show.when(one.finished_at, now, short=True)),
            Text(str(one.finish_seq)),
            show.plainly(one.queue),
        ]
        for one in found
    ]
    out.print(show.table(head, rows, width=out.width, right=("finish_seq",), give="queue"), soft_wrap=False)


@command("bucketq archive", PANEL)
def archive(*, place: Place, json: Json = False) -> None:
    """Archive jobs now that their queues no longer retain, and expire archive objects that are too old.

    Maintenance does it by itself, later.
    """
    with place.open() as file:
        count = file.archive()
    answer({"archived": count}) if json else say(f"{show.plural(count, 'job')} archived")


@command("bucketq archives emails --json | jq -r .key", PANEL)
def archives(queue: Queue = None, after: After = 0, *, place: Place, json: Json = False) -> None:
    """List the Parquet objects of the archive."""
    with place.open() as file:
        found = file.archives(queue=queue, after=after).objects
    if json:
        for one in found:
            answer(show.plain(one))
        return
    if not found:
        err.print("no archive objects", style="dim")
        return

    head = ["queue", "jobs", "bytes", "until", "key"]
    rows = [
        [
            show.plainly(one.queue),
            Text(f"{one.jobs:,}"),
            Text(show.size(one.bytes)),
            Text(f"{one.last_at.astimezone():%Y-%m-%d %H:%M}"),
            show.plainly(one.key),
        ]
        for one in found
    ]
    out.print(show.table(head, rows, width=out.width, right=("jobs", "bytes"), give="queue"), soft_wrap=False)
