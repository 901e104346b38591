"""The command ``doctor``: goes from the URL to a commit, step by step, and says where it stops and what to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from time import perf_counter
from typing import Annotated, Any

import typer

import bucketq
from bucketq import Contended, Error, QueueFile, Unavailable, settings
from bucketq.cli import _show as show
from bucketq.cli._app import NEXT, Json, SettingsFile, Url, answer, command, out

PROBE_QUEUE = "bucketq-doctor"
ROUNDS = 5

ADVICE = {
    "denied": "the credentials need GetObject, PutObject, DeleteObject and ListBucket on this prefix",
    "no_such_bucket": "make the bucket or the directory, or correct the URL",
    "unreachable": "check the endpoint, the network and the region",
    "clock_skew": "set this machine's clock, with NTP",
    "no_compare_and_swap": "this store cannot keep a queue file; docs/stores.md lists those that can",
    "no_such_file": "run: bucketq init",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """What one step found."""

    what: str
    good: bool
    says: str
    advice: str | None = None


@command("bucketq doctor --url s3://acme/jobs")
def doctor(
    write: Annotated[
        bool, typer.Option("--write/--read-only", help="Also enqueue and remove a job in a queue of its own.")
    ] = True,
    url: Url = None,
    settings: SettingsFile = None,
    json: Json = False,
) -> None:
    """Check the settings, the store, the clock and compare-and-swap, and measure a round trip."""
    findings: list[Finding] = []
    error = examine(findings, url, settings, write=write)
    for one in findings:
        if json:
            answer({"check": one.what, "good": one.good, "says": one.says, "advice": one.advice})
    if not json:
        out.print(picture(findings), soft_wrap=False)
    if error is not None:
        from bucketq.cli._app import EXITS

        raise typer.Exit(EXITS.get(type(error).__name__, 1))


def picture(findings: list[Finding]) -> Any:
    """A line a finding, and one more where there is something to do."""
    from rich.markup import escape
    from rich.table import Table

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for one in findings:
        table.add_row("[green]ok[/]" if one.good else "[bold red]no[/]", one.what, escape(one.says))
        if one.advice:
            table.add_row("", "", f"[dim]{escape(one.advice)}[/]")
    return table


def examine(findings: list[Finding], url: str | None, source: Any, *, write: bool) -> Error | None:
    """The steps, until one fails; the error it failed with."""

    def step(what: str, look: Callable[[], str]) -> Error | None:
        try:
            findings.append(Finding(what, True, look()))
        except Error as error:
            advice = ADVICE.get(error.code) or NEXT.get(type(error).__name__)
            findings.append(Finding(what, False, str(error), advice))
            return error
        return None

    opened: list[QueueFile] = []

    def open_it() -> str:
        begun = perf_counter()
        file = bucketq.open(url, settings=source, create=False)
        opened.append(file)
        return f"{file.url} opened in {round((perf_counter() - begun) * 1000)} ms"

    error = step("settings", lambda: told(url, source)) or step("queue file", open_it)
    if error is not None:
        return error
    with opened[0] as file:
        error = step("state", lambda: state(file))
        if write and error is None:
            error = step("writing", lambda: writing(file))
            error = error or step("clock", lambda: clock(file))
            error = error or step("compare-and-swap", lambda: compare_and_swap(file))
        return error


def told(url: str | None, source: Any) -> str:
    """Which settings are not the defaults; values are nobody's business."""
    found = settings.load(source)
    found.pop("url", None)
    return ", ".join(found) if found else "all at their defaults"


def state(file: QueueFile) -> str:
    """How much there is."""
    now = file.stats()
    count = sum(sum(one.counts.values()) for one in now.queues)
    return f"commit {now.commit_seq:,}, {show.plural(len(now.queues), 'queue')}, {show.plural(count, 'job')}"


def writing(file: QueueFile) -> str:
    """Commit a few times and measure; leaves nothing but the name of a queue."""
    queue = file.queue(PROBE_QUEUE)
    times: list[float] = []
    for _ in range(ROUNDS):
        begun = perf_counter()
        queue.enqueue(None, priority=2**31 - 1, delay=3600)
        times.append(perf_counter() - begun)
    queue.purge(["scheduled", "ready"])
    return f"{ROUNDS} commits, {min(times) * 1000:.0f} to {max(times) * 1000:.0f} ms each"


def clock(file: QueueFile) -> str:
    """The time of the last commit against this machine's: it was made just now."""
    off = abs((datetime.now(UTC) - file.stats().commit_time).total_seconds())
    allowed = file._file.max_skew()
    return f"{off:.1f} s from the newest commit's time; {allowed:g} s between two machines are allowed"


def compare_and_swap(file: QueueFile) -> str:
    """What the writer has seen: a store that lost one would have ended it."""
    did = file.metrics()
    if did.get("puts", 0) < ROUNDS:
        raise Unavailable("the commits did not reach the store", "unreachable")
    if did.get("unknown", 0):
        raise Contended("the store left commits without an answer", "contended")
    return f"{show.plural(did['puts'], 'conditional PUT')} as they should be, {show.plural(did['conflicts'], 'lost race')}"
