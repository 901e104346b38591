"""Commands about the queue file and its queues: init, stats, pause, resume, completion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from bucketq import QueueFile, Stats
from bucketq.cli import _show as show
from bucketq.cli import _words as words
from bucketq.cli._app import Json, Place, QueueName, answer, command, out, say
from bucketq.cli._watch import watch as watched
from bucketq.cli.jobs import remark_new

Facts = Callable[[Stats], dict[str, Any]]
Picture = Callable[[Stats], Any]
EVERY = "2s"
"""How long between two updates of ``stats --watch``, by default."""
SOONEST = 0.1
"""The shortest time in seconds between them."""


@command("bucketq init --url s3://acme/jobs", "Queue file")
def init(*, place: Place, json: Json = False) -> None:
    """Create the queue file if it does not exist."""
    with place.open(create=True) as file:
        stats = file.stats()
        if json:
            answer({"url": file.url, "commit_seq": stats.commit_seq})
        else:
            say(f"{file.url} is ready, at commit {stats.commit_seq:,}")


@command("bucketq stats --watch", "Queue file")
def stats(
    queue: Annotated[
        str | None,
        typer.Argument(help="Only this queue; or the queue file, as a URL or a path.", show_default=False),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Update until Ctrl-C.")] = False,
    every: Annotated[str, typer.Option(help="How long between two updates.")] = EVERY,
    *,
    place: Place,
    json: Json = False,
) -> None:
    """Show the number of jobs of each queue by state."""
    if queue is not None and place.url is None and is_url(queue):
        place, queue = place.at(queue), None
    with place.open() as file:
        if not watch:
            now = file.stats()
            answer(facts(file, now, queue)) if json else out.print(picture(file, now, queue), soft_wrap=False)
        else:
            watched(
                file,
                max(SOONEST, words.seconds(every, "--every")),
                as_json=json,
                facts=lambda now: facts(file, now, queue),
                picture=lambda now: picture(file, now, queue),
            )


def is_url(text: str) -> bool:
    """Return True for a URL or a path with a directory, which few queues have as a name."""
    return "://" in text or text.startswith(("/", "./", "../"))


def chosen(now: Stats, queue: str | None) -> list[Any]:
    """Return the selected queues."""
    return [one for one in now.queues if queue in {None, one.name}]


def facts(file: QueueFile, now: Stats, queue: str | None) -> dict[str, Any]:
    """Return the statistics as JSON values."""
    return {
        "commit_seq": now.commit_seq,
        "commit_time": show.plain(now.commit_time),
        "pages": now.pages,
        "free_pages": now.free_pages,
        "host": show.plain(file.host_role),
        "queues": show.plain(chosen(now, queue)),
    }


def picture(file: QueueFile, now: Stats, queue: str | None) -> Any:
    """Return the statistics for a person."""
    from rich.console import Group
    from rich.text import Text

    found = chosen(now, queue)
    head = show.plainly(f"{file.url}  ", "bold")
    facts = (
        f"commit {now.commit_seq:,} · {show.size(now.pages * 4096)} · {now.commit_time.astimezone():%H:%M:%S}"
    )
    head.append(facts, style="not bold dim")
    host = show.plainly(show.host(file.host_role), "dim")
    queues = show.queues(found, width=out.width) if found else Text("no queues yet", style="dim")
    return Group(head, host, Text(), queues)


@command("bucketq pause emails", "Queue file")
def pause(queue: QueueName, *, place: Place, json: Json = False) -> None:
    """Stop handing out jobs of a queue until bucketq resume."""
    with place.open() as file:
        remark_new(file, queue)
        file.queue(queue).pause()
    answer({"queue": queue, "paused": True}) if json else say(f"{queue} is paused")


@command("bucketq resume emails", "Queue file")
def resume(queue: QueueName, *, place: Place, json: Json = False) -> None:
    """Hand out jobs of a queue again; after bucketq drain, accept them again too."""
    with place.open() as file:
        file.queue(queue).resume()
    answer({"queue": queue, "paused": False}) if json else say(f"{queue} is resumed")


@command('eval "$(bucketq completion bash)"', "Queue file")
def completion(
    shell: Annotated[str, typer.Argument(help="bash, zsh, fish or powershell.", show_default=False)],
    json: Json = False,
) -> None:
    """Print the script that completes commands in a shell."""
    from typer.completion import get_completion_script  # pyright: ignore[reportPrivateImportUsage]

    from bucketq import Invalid

    if shell not in {"bash", "zsh", "fish", "powershell"}:
        raise Invalid(f"there is no completion for {shell!r}: use bash, zsh, fish or powershell")
    script = get_completion_script(prog_name="bucketq", complete_var="_BUCKETQ_COMPLETE", shell=shell)
    answer({"shell": shell, "script": script}) if json else print(script)  # noqa: T201
