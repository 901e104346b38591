"""The command ``metrics``: prints all metrics as text for Prometheus, or serves them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated, Any

import typer

from bucketq import Metrics
from bucketq._scrape import Scraped
from bucketq.cli import _show as show
from bucketq.cli._app import Json, Place, answer, command, err, out
from bucketq.cli._signals import until


@command("bucketq metrics --listen 127.0.0.1:9187", "Queue file")
def metrics(
    there: Annotated[
        str | None,
        typer.Argument(metavar="URL", help="The queue file; same as --url.", show_default=False),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Serve /metrics there until Ctrl-C.", show_default=False),
    ] = None,
    *,
    place: Place,
    json: Json = False,
) -> None:
    """Print metrics as text for Prometheus, or serve them.

    Jobs by queue and state are those of the queue file; requests and times are those of this process.
    Workers serve their own: bucketq worker --metrics.
    """
    with place.at(there).open() as file:
        if listen is None:
            found = file.metrics()
            text = found.prometheus()
            # A scraper gets names unchanged; a terminal gets them without control characters.
            text = show.safe(text) if out.is_terminal else text
            answer(facts(found)) if json else out.out(text, end="")
            return
        with until_told() as told, Scraped(file, listen) as scraped:
            answer({"url": scraped.url}) if json else err.print(f"serving {scraped.url}; Ctrl-C ends it")
            until(told)


def facts(found: Metrics) -> dict[str, Any]:
    """Return the metrics as JSON values."""
    facts = {name: value for name, value in asdict(found).items() if name not in {"stats", "text"}}
    return {"stats": show.plain(found.stats), **facts}


@contextmanager
def until_told() -> Generator[threading.Event]:
    """Return an event that Ctrl-C or SIGTERM sets; both end the server and are no failure."""
    told = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def tell(_number: int, _frame: object) -> None:
        told.set()

    for number in before:
        signal.signal(number, tell)
    try:
        yield told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
