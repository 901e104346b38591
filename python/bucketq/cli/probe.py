"""The command ``probe``: tests the compare-and-swap of a store and measures it."""

from __future__ import annotations

import json as jsonlib
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

import bucketq
from bucketq import Error, Invalid, NotFound
from bucketq.cli import _show as show
from bucketq.cli._app import Json, SettingsFile, Url, answer, command, err, out, say
from bucketq.measured import Measured, Spread

FORMAT = 1
"""The format version of the output file; readers use only ``inputs``."""


@command("bucketq probe s3://acme/jobs -o store.json", "Does it fit?")
def probe(
    there: Annotated[
        str | None,
        typer.Argument(metavar="URL", help="Where a queue file would be; same as --url.", show_default=False),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Write the results to this file, for fit.", show_default=False),
    ] = None,
    samples: Annotated[int, typer.Option(help="PUTs of the size of a commit.", min=1, max=10_000)] = 100,
    thorough: Annotated[
        bool, typer.Option("--thorough", help="Race many more writers: a few thousand requests.")
    ] = False,
    url: Url = None,
    settings: SettingsFile = None,
    json: Json = False,
) -> None:
    """Measure a store: latency, throughput, commits, clock, compare-and-swap.

    Sends a few hundred requests, and deletes all objects it writes.
    """
    if there is not None and url is not None and there != url:
        raise Invalid("give the URL once: as the argument or with --url")
    if output is not None and not output.parent.is_dir():
        raise NotFound(f"{output} cannot be written: there is no directory {output.parent}", "no_such_file")
    where = there or url
    with stoppable() as check:
        swap, refused = swaps(where, settings, thorough=thorough)
        check()
        with bar() as tell:

            def progress(what: str, done: int, of: int) -> None:
                check()
                tell(what, done, of)

            try:
                found = bucketq.measure(where, samples=samples, progress=progress, settings=settings)
            except Error as error:
                # The measurement may fail on a store without compare-and-swap.
                raise refused or error from None
    report = facts(found, swap)
    if output is not None:
        output.write_text(jsonlib.dumps(report, indent=2) + "\n")
    answer(report) if json else out.print(picture(found, swap), soft_wrap=False)
    if output is not None and not json:
        say(f"\nwritten to {output}: bucketq fit --probe {output}")
    if refused is not None:
        raise refused


def swaps(where: str | None, settings: Path | None, *, thorough: bool) -> tuple[dict[str, Any], Error | None]:
    """Return whether compare-and-swap holds, and the error if it does not; any other error ends the command."""
    try:
        report = bucketq.probe(where, thorough=thorough, settings=settings)
    except Error as error:
        if error.code != "no_compare_and_swap":
            raise
        return {"holds": False, "why": error.message}, error
    races = {"rounds": report.rounds, "writers": report.writers, "conflicts": report.conflicts}
    return {"holds": True, **races, "unanswered": report.unanswered}, None


@contextmanager
def stoppable() -> Generator[Callable[[], None]]:
    """Make the first Ctrl-C end the probe after its objects are deleted, and a second one at once."""
    stop = threading.Event()

    def note(*_: object) -> None:
        signal.signal(signal.SIGINT, before)
        stop.set()

    def check() -> None:
        if stop.is_set():
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield check
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def bar() -> Generator[Callable[[str, int, int], None]]:
    """Show a progress bar on a terminal."""
    if not err.is_terminal:
        yield lambda _what, _done, _of: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<28}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True) as shown:
        task = shown.add_task("measuring")
        yield lambda what, done, of: shown.update(task, description=what, completed=done, total=of)


def facts(found: Measured, swap: dict[str, Any]) -> dict[str, Any]:
    """Return the results in the format of the output file."""
    told = asdict(found)
    told["took"] = found.took.total_seconds()
    return {
        "bucketq_probe": FORMAT,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "compare_and_swap": swap,
        **told,
    }


def picture(found: Measured, swap: dict[str, Any]) -> Any:
    """Return the results for a person."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    times = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold", padding=(0, 1, 0, 0)
    )
    times.add_column("ms", no_wrap=True)
    for name in ("PUT p50", "p99", "GET p50", "p99", "unchanged", "p99"):
        times.add_column(name, justify="right", no_wrap=True)
    for one in found.sizes:
        cells = [cell for spread in (one.put, one.get, one.unchanged) for cell in pair(spread)]
        times.add_row(show.size(one.bytes), *cells)
    lines = Table.grid(padding=(0, 2, 0, 0))
    lines.add_column(no_wrap=True)
    lines.add_column(overflow="fold")
    if swap["holds"]:
        races = f"{show.plural(swap['rounds'], 'round')} of {swap['writers']} writers, one winner each"
        lines.add_row("compare-and-swap", f"[green]holds[/]: {races}")
    else:
        lines.add_row("compare-and-swap", "[bold red]does not hold[/]: no queue file can be kept there")
    limit = found.inputs["writes_per_s"]
    turned = f", {show.plural(found.throttled, 'write')} turned away: it limits them" if limit else ""
    lines.add_row("commits", f"{found.commits_per_s:.1f} per second to one key{turned}")
    lines.add_row("throughput", f"{found.upload_mib_s:.1f} MiB/s up, {found.download_mib_s:.1f} MiB/s down")
    lines.add_row("clock", clock(found))
    head = show.plainly(f"{found.store}\n", "bold")
    return Group(head, times, Text(), lines)


def pair(spread: Spread) -> tuple[str, str]:
    """Return the median and the slow time."""
    return (f"{spread.p50_ms:.1f}", f"{spread.p99_ms:.1f}")


def clock(found: Measured) -> str:
    """Return how far the clocks are apart."""
    if found.clock is None:
        return "the store does not send its time"
    off, within = found.clock.offset_ms, found.clock.within_ms
    if abs(off) <= within:
        return f"agrees with the store's, within {within:.0f} ms"
    return f"the store's is {abs(off):.0f} ms {'ahead' if off > 0 else 'behind'}, within {within:.0f} ms"
