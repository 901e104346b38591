"""The command ``doctor``: checks all steps from the URL to a commit, and reports what fails and what to do."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer

import bucketq
from bucketq import Error, HostRole, Invalid, QueueFile
from bucketq.cli import _show as show
from bucketq.cli._app import EXITS, Json, SettingsFile, Url, answer, command, out
from bucketq.settings import load as settings_of

PROBE_QUEUE = "bucketq-doctor"
ROUNDS = 5
ALONE = (
    "Everything works, but processes of one host that do not share a writer slow each other down. Give them the same "
    "user, settings, credentials and version, and a `host_dir` that they can all use; `share=false` if you want this."
)


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one step."""

    what: str
    good: bool
    says: str
    advice: str | None = None


@command("bucketq doctor s3://acme/jobs --thorough", "Queue file")
def doctor(
    there: Annotated[
        str | None,
        typer.Argument(metavar="URL", help="The queue file; same as --url.", show_default=False),
    ] = None,
    thorough: Annotated[
        bool,
        typer.Option(
            "--thorough", help="Race many more writers against each other: a few thousand requests."
        ),
    ] = False,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Write nothing; skip the tests that write.")
    ] = False,
    url: Url = None,
    settings: SettingsFile = None,
    json: Json = False,
) -> None:
    """Check settings, store, queue file, host and clock.

    Races writers against each other and measures the time of a commit.
    """
    if there is not None and url is not None and there != url:
        raise Invalid("give the URL once: as the argument or with --url")
    findings = [Finding("version", True, version())]
    error = examine(findings, there or url, settings, thorough=thorough, read_only=read_only)
    if json:
        for one in findings:
            answer({"check": one.what, "good": one.good, "says": one.says, "advice": one.advice})
    else:
        out.print(picture(findings), soft_wrap=False)
        out.print(verdict(findings, read_only=read_only))
    if error is not None:
        raise typer.Exit(EXITS.get(type(error).__name__, 1))


def verdict(findings: list[Finding], *, read_only: bool) -> str:
    """Return the result in one sentence."""
    last = findings[-1]
    if not last.good and last.what != "host":
        return f"The check ended at {last.what}: mend that, then run it again."
    bad = [one.what for one in findings if not one.good]
    if bad:
        return f"It works; look at {', '.join(bad)} above."
    return "It can be read." if read_only else "Everything works."


def picture(findings: list[Finding]) -> Any:
    """Return a table with a line per finding, and one more for its advice."""
    from rich.markup import escape
    from rich.table import Table

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for one in findings:
        table.add_row(
            "[green]ok[/]" if one.good else "[bold red]no[/]", one.what, escape(show.safe(one.says))
        )
        if one.advice:
            table.add_row("", "", f"[dim]{escape(show.safe(one.advice))}[/]")
    return table


def examine(
    findings: list[Finding], url: str | None, source: Path | None, *, thorough: bool, read_only: bool
) -> Error | None:
    """Run the steps until one fails. Returns its error."""

    def step(what: str, look: Callable[[], str]) -> Error | None:
        try:
            findings.append(Finding(what, True, look()))
        except Error as error:
            findings.append(Finding(what, False, str(error), error.advice or None))
            return error
        return None

    error = step("settings", lambda: told(source))
    if error is None and not read_only:
        error = step("store", lambda: probed(url, source, thorough=thorough))
    if error is not None:
        return error
    opened: list[QueueFile] = []
    error = step("queue file", lambda: opening(opened, url, source, read_only=read_only))
    if error is not None:
        return error
    with opened[0] as file:
        findings.extend(hosting(file.host_role, read_only=read_only))
        error = step("state", lambda: state(file))
        if read_only:
            return error
        return error or step("commits", lambda: writing(file)) or step("clock", lambda: clock(file))


def version() -> str:
    """Return the installed versions of the package and of Python."""
    return f"bucketq {metadata.version('bucketq')}, Python {platform.python_version()}"


def hosting(role: HostRole, *, read_only: bool) -> list[Finding]:
    """Return which process of this host writes, and where its processes meet."""
    if read_only:
        return [Finding("host", True, "a handle that only reads takes no part")]
    if role.role == "alone" and role.reason is not None:
        return [Finding("host", False, show.host(role), ALONE)]
    found = [Finding("host", True, show.host(role))]
    if role.host_dir is not None:
        found.append(Finding("host_dir", True, str(role.host_dir)))
    return found


def told(source: Path | None) -> str:
    """Return which settings are not the defaults. Values may be secret and are not shown."""
    found = settings_of(source)
    found.pop("url", None)
    return ", ".join(found) if found else "all at their defaults"


def probed(url: str | None, source: Path | None, *, thorough: bool) -> str:
    """Race writers against each other."""
    report = bucketq.probe(url, settings=source, thorough=thorough)
    races = f"{show.plural(report.rounds, 'round')} of {report.writers} writers in {show.span(report.took)}"
    return (
        f"compare-and-swap holds: {races}, {show.plural(report.conflicts, 'write')} refused as they should be"
    )


def opening(opened: list[QueueFile], url: str | None, source: Path | None, *, read_only: bool) -> str:
    """Open the queue file, and store it in ``opened`` for the next steps."""
    begun = perf_counter()
    file = bucketq.open(url, settings=source, create=False, read_only=read_only)
    opened.append(file)
    return f"{file.url} opened in {round((perf_counter() - begun) * 1000)} ms"


def state(file: QueueFile) -> str:
    """Return the numbers of commits, queues and jobs."""
    now = file.stats()
    count = sum(sum(one.counts.values()) for one in now.queues)
    return f"commit {now.commit_seq:,}, {show.plural(len(now.queues), 'queue')}, {show.plural(count, 'job')}"


def writing(file: QueueFile) -> str:
    """Commit a few times in a queue of its own and measure. Deletes the queue afterwards."""
    file.create_queue(PROBE_QUEUE)
    try:
        queue = file.queue(PROBE_QUEUE)
        times: list[float] = []
        for _ in range(ROUNDS):
            begun = perf_counter()
            queue.enqueue(None, delay=3600)
            times.append(perf_counter() - begun)
    finally:
        file.delete_queue(PROBE_QUEUE)
    return f"{ROUNDS} of them, {min(times) * 1000:.0f} to {max(times) * 1000:.0f} ms each"


def clock(file: QueueFile) -> str:
    """Compare the time of the newest commit, just made by the store's clock, with this machine's clock."""
    off = abs((datetime.now(UTC) - file.stats().commit_time).total_seconds())
    return f"this machine's is {off:.1f} s from the newest commit's"
