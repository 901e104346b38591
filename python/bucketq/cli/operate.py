"""Commands about a queue file as a whole: export, check, restore, fix-time, set-max-skew, collect, history."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

import bucketq
from bucketq import CheckReport, Commit, FixedTime, Invalid, Tally, Unavailable
from bucketq.cli import _show as show
from bucketq.cli import _words as words
from bucketq.cli._app import EXITS, Json, Place, SettingsFile, Url, answer, ask, command, out, say
from bucketq.cli._words import seconds

PANEL = "Maintenance"
DAY = "1d"
STAMP = "%Y-%m-%d %H:%M:%S UTC"


@command("bucketq export jobs.sqlite", PANEL)
def export(
    path: Annotated[Path, typer.Argument(help="The file to write.", show_default=False)],
    replace: Annotated[bool, typer.Option("--replace", help="Replace an existing file.")] = False,
    pending: Annotated[
        bool,
        typer.Option("--pending", help="Local mode: include unpublished changes, which PATH.jsonl lists."),
    ] = False,
    *,
    place: Place,
    json: Json = False,
) -> None:
    """Write the newest state to a file that sqlite3 opens."""
    if pending and replace:
        raise Invalid("--pending never replaces a file: name a new one")
    with place.open() as file:
        if pending:
            left = file.dirty
            file.export_pending(path)
            answer({"path": str(path)} | show.plain(left)) if json else say(
                f"{path} contains {show.plural(left.commits, 'local commit')} not published"
            )
            return
        done = file.export(path, replace=replace)
    if json:
        answer({"path": str(path)} | show.plain(done))
    else:
        say(f"{path} contains commit {done.commit_seq:,}, {show.size(done.bytes)}")


@command("bucketq check --url s3://acme/jobs", PANEL)
def check(url: Url = None, settings: SettingsFile = None, json: Json = False) -> None:
    """Read every object of the queue file and report what is wrong.

    Writes nothing. Exit code 10: something is wrong.
    """
    report = bucketq.check(url, settings=settings)
    answer(show.plain(report)) if json else out.print(picture(report), soft_wrap=False)
    if not report.clean:
        raise typer.Exit(EXITS["Corrupt"])


def picture(report: CheckReport) -> Any:
    """Return the report for a person: the problems, or that there are none, and the totals."""
    from rich.markup import escape
    from rich.table import Table

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for one in report.problems:
        table.add_row("[bold red]no[/]", f"{escape(show.safe(one.object))}: {escape(show.safe(one.check))}")
        table.add_row("", f"[dim]{escape(show.safe(one.found))}[/]")
    if report.clean:
        table.add_row("[green]ok[/]", "the queue file is sound")
    if report.commit_seq is not None:
        table.add_row("commit", f"{report.commit_seq:,}, {show.plural(report.jobs, 'job')}")
    if report.read_only is not None:
        table.add_row("read only", escape(show.safe(report.read_only)))
    table.add_row("read", tally(report.read))
    for name, there in (
        ("in use", report.referenced),
        ("not in use", report.unreferenced),
        ("of others", report.foreign),
    ):
        if there is not None and there.count:
            table.add_row(name, tally(there))
    for key in report.sound_objects:
        table.add_row("sound", escape(show.safe(key)))
    if report.sound_objects:
        table.add_row("", "[dim]restore from an export, or unpack the newest base with zstd -d[/]")
    return table


def tally(there: Tally) -> str:
    """Return the number of objects and their bytes as text."""
    return f"{show.plural(there.count, 'object')}, {show.size(there.bytes)}"


@command("bucketq restore jobs.sqlite --url s3://acme/jobs", PANEL)
def restore(
    image: Annotated[Path, typer.Argument(help="The file to restore.", show_default=False)],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    url: Url = None,
    settings: SettingsFile = None,
    json: Json = False,
) -> None:
    """Make an exported file the newest state, even if the queue file is damaged; asks first.

    Stop the workers first: commits after the export are undone.
    """
    if not image.is_file():
        raise Unavailable(f"there is no file {image}: name one that bucketq export has written", "local_file")
    if not yes and not sys.stdin.isatty():
        raise Invalid("commits after the export would be undone: confirm with --yes, as there is no terminal")
    if not yes:
        ask(f"Undo everything committed after {image} was exported?")
    done = bucketq.restore(url, image, settings=settings)
    if json:
        answer(show.plain(done))
        return
    was = "" if done.replaced is None else f", {done.replaced:,} before"
    say(f"{show.plural(done.jobs, 'job')} restored in commit {done.commit_seq:,}{was}")
    if done.foreign.count:
        say(f"{tally(done.foreign)} of another file of this name are left: delete them by hand")


@command("bucketq fix-time --url /var/lib/jobs/main", PANEL)
def fix_time(
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    url: Url = None,
    settings: SettingsFile = None,
    json: Json = False,
) -> None:
    """Bring the queue file back to the present after a writer's clock was ahead; asks first.

    Repairs clock_skew. Set that writer's clock first. No job is lost; restart all running processes.
    """
    if not yes:
        seen = bucketq.fix_time(url, only_look=True, settings=settings)
        if not seen.ahead:
            done_with(seen, json)
            return
        if not sys.stdin.isatty():
            raise Invalid(
                "every process must restart after this: confirm with --yes, as there is no terminal"
            )
        say(f"the newest commit is of {seen.was:{STAMP}}, and it is {seen.now:{STAMP}}")
        ask("Bring the queue file back to the present? Every process must restart after this.")
    done_with(bucketq.fix_time(url, settings=settings), json)


def done_with(told: FixedTime, json: bool) -> None:
    """Print the time and what was done."""
    if json:
        answer(show.plain(told))
    elif not told.ahead:
        say(f"nothing to do: the newest commit is of {told.was:{STAMP}}, which is not ahead of the present")
    else:
        say(f"commit {told.commit_seq:,} brings {show.plural(told.jobs, 'job')} back to {told.now:{STAMP}}")


@command("bucketq set-max-skew 10s", PANEL)
def set_max_skew(
    max_skew: Annotated[
        str,
        typer.Argument(metavar="DURATION", help="How far clocks may differ: 5s, 250ms.", show_default=False),
    ],
    url: Url = None,
    settings: SettingsFile = None,
    json: Json = False,
) -> None:
    """Change how far the clocks of the queue file's processes may differ, while no worker holds a job.

    Restart all running processes afterwards.
    """
    done = bucketq.set_max_skew(url, seconds(max_skew, "DURATION"), settings=settings)
    if json:
        answer(show.plain(done))
    elif done.commit_seq is None:
        say(f"nothing to do: max_skew is {done.max_skew.total_seconds():g} s already")
    else:
        say(f"max_skew is {done.max_skew.total_seconds():g} s, {done.was.total_seconds():g} s before")


@command("bucketq collect --grace 3600", PANEL)
def collect(
    grace: Annotated[str, typer.Option(help="Objects in use within this time stay: 1h.")] = DAY,
    *,
    place: Place,
    json: Json = False,
) -> None:
    """Delete unused objects of the queue file now; maintenance does it by itself, later."""
    with place.open() as file:
        done = file.collect(grace=words.seconds(grace, "--grace"))
    if json:
        answer(show.plain(done))
        return
    gone, left = Tally(done.objects, done.bytes), Tally(done.left, done.left_bytes)
    say(f"{tally(gone)} deleted" + (f"; {tally(left)} not in use stay" if left.count else ""))


@command("bucketq history -n 10", PANEL)
def history(
    limit: Annotated[int, typer.Option("--limit", "-n", help="At most this many.", min=1)] = 20,
    *,
    place: Place,
    json: Json = False,
) -> None:
    """List the newest commits that the log still has."""
    with place.open() as file:
        found = file.history(limit=limit)
    if json:
        for one in found:
            answer(show.plain(one))
    else:
        out.print(commits(found), soft_wrap=False)


def commits(found: list[Commit]) -> Any:
    """Return a table with one line per commit."""
    from rich.text import Text

    head = ["commit", "time", "writer", "changes", "bytes", "pages"]
    rows = [
        [
            Text(f"{one.commit_seq:,}"),
            Text(f"{one.commit_time.astimezone():%Y-%m-%d %H:%M:%S}"),
            Text(one.writer[:8], style="dim"),
            Text(f"{one.ops:,}"),
            Text(f"{one.bytes:,}"),
            Text(f"{one.pages_changed:,} of {one.pages:,}"),
        ]
        for one in found
    ]
    return show.table(head, rows, width=out.width, right=("commit", "changes", "bytes", "pages"), give="time")
