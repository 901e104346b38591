"""The command ``worker``: runs a worker from one of the user's modules."""

from __future__ import annotations

import importlib
import logging
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from bucketq import Invalid, Worked, Worker
from bucketq._scrape import Scraped
from bucketq.cli._app import Json, answer, command, err
from bucketq.cli._show import plural, safe


@command("bucketq worker myapp.jobs:worker", "Work")
def worker(
    name: Annotated[str, typer.Argument(help="The worker, as module:worker.", show_default=False)],
    wait: Annotated[
        float | None,
        typer.Option(help="End when no job came for this many seconds; by default run until a signal."),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Serve /metrics of this worker there.", show_default=False),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show tracebacks of failed jobs.")] = False,
    json: Json = False,
) -> None:
    """Run a worker of a Python module.

    SIGTERM and Ctrl-C finish the running jobs; a second one gives them back.
    """
    found = load(name)
    log(verbose=verbose)
    with nullcontext() if metrics is None else Scraped(found._file, metrics):
        worked = found.run(wait=wait)
    if json:
        answer({part: getattr(worked, part) for part in Worked.__slots__})
    else:
        counts = {part: getattr(worked, part) for part in Worked.__slots__}
        rest = "".join(f", {count:,} {part}" for part, count in counts.items() if part != "done" and count)
        err.print(f"{plural(worked.done, 'job')} done{rest}")


def load(name: str) -> Worker:
    """Import the worker at ``module:name``; the current directory is searched too."""
    module_name, colon, attribute = name.partition(":")
    if not (module_name and colon and attribute):
        raise Invalid(f"{name!r} does not say where the worker is: use module:worker")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise
        raise Invalid(f"there is no module {module_name}: run this where it can be imported from") from None
    found: Any = module
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, Worker):
        raise Invalid(f"{name} is not a worker: make one with {attribute} = bucketq.Worker(file)")
    return found


def log(*, verbose: bool) -> None:
    """Print the package's log on standard error, one line per record."""
    from rich.logging import RichHandler

    class Short(RichHandler):
        def emit(self, record: logging.LogRecord) -> None:
            if not verbose and record.exc_info is not None and record.exc_info[0] is not None:
                failure = record.exc_info[1]
                record = logging.makeLogRecord(record.__dict__ | {"exc_info": None, "exc_text": None})
                record.msg, record.args = f"{record.getMessage()}: {type(failure).__name__}: {failure}", None
            super().emit(record)

        def format(self, record: logging.LogRecord) -> str:
            return safe(super().format(record))

    logger = logging.getLogger("bucketq")
    logger.setLevel(logging.INFO)
    logger.addHandler(
        Short(console=err, show_path=False, show_time=True, log_time_format="%H:%M:%S", rich_tracebacks=False)
    )
