"""The command ``worker``: runs a worker or an app from one of the user's modules."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from bucketq import App, AppWorker, Invalid, Worked, Worker
from bucketq.cli import _logs
from bucketq.cli import _words as words
from bucketq.cli._app import DECLINED, Json, answer, command
from bucketq.cli._logs import LogFormat
from bucketq.cli._reload import again_and_again
from bucketq.cli._serve import serve


@command("bucketq worker myapp.jobs:app --concurrency 8", "Work")
def worker(
    name: Annotated[
        str,
        typer.Argument(
            help="The app or worker, as module:app; or a function that returns it.", show_default=False
        ),
    ],
    concurrency: Annotated[
        int | None,
        typer.Option(help="Jobs at a time: by default 8, or the number of processes.", show_default=False),
    ] = None,
    prefetch: Annotated[
        int, typer.Option(help="Jobs claimed ahead, so that the next one is there when one ends.")
    ] = 0,
    processes: Annotated[int, typer.Option(help="Child processes that run the tasks; 0: threads.")] = 0,
    queues: Annotated[
        str | None, typer.Option(metavar="A,B", help="Only these queues of the app.", show_default=False)
    ] = None,
    max_jobs: Annotated[
        int | None,
        typer.Option(help="End after this many jobs, and those that run then.", show_default=False),
    ] = None,
    jobs_per_child: Annotated[
        int | None, typer.Option(help="Replace a child process after this many jobs.", show_default=False)
    ] = None,
    memory_per_child: Annotated[
        int | None,
        typer.Option(metavar="BYTES", help="Replace a child that uses more after a job.", show_default=False),
    ] = None,
    kill_after: Annotated[
        str | None,
        typer.Option(help="Kill a child whose task runs longer: 10min.", show_default=False),
    ] = None,
    wait: Annotated[
        str | None,
        typer.Option(help="End when no job came for this long, 30s; by default run until a signal."),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Serve /metrics and /health of this worker there.", show_default=False
        ),
    ] = None,
    autoreload: Annotated[
        bool,
        typer.Option("--autoreload", help="Start again when a Python file below this directory changes."),
    ] = False,
    log_format: Annotated[
        LogFormat,
        typer.Option(help="How the log is written on standard error; own: as the module sets up logging."),
    ] = "text",
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")] = False,
    json: Json = False,
) -> None:
    """Run a worker of a Python module.

    SIGTERM and Ctrl-C finish the running jobs; a second one gives them back, and the exit code is then 1.
    """
    idle = None if wait is None else words.seconds(wait, "--wait")
    if autoreload:
        raise typer.Exit(again_and_again([word for word in sys.argv[1:] if word != "--autoreload"]))
    found = load(name)
    _logs.set_up(log_format, verbose=verbose)
    given: dict[str, Any] = {
        "concurrency": concurrency,
        "prefetch": prefetch or None,
        "processes": processes or None,
        "queues": None if queues is None else [one.strip() for one in queues.split(",") if one.strip()],
        "max_jobs": max_jobs,
        "jobs_per_child": jobs_per_child,
        "memory_per_child": memory_per_child,
        "kill_after": None if kill_after is None else words.seconds(kill_after, "--kill-after"),
    }
    given = {key: value for key, value in given.items() if value is not None}
    if isinstance(found, App):
        found = found.worker(**given)
    elif given:
        option = next(iter(given)).replace("_", "-")
        raise Invalid(f"--{option} is for an app; {name} is a worker with settings of its own", "option")
    if isinstance(found, AppWorker):
        found.child_setup = (_logs.child, (log_format, verbose))
    worked = serve(name, found, wait=idle, metrics=metrics)
    if json:
        answer({part: getattr(worked, part) for part in Worked.__slots__})
    if worked.released:
        raise typer.Exit(DECLINED)


def load(name: str) -> Worker | AppWorker | App:
    """Import the app or worker at ``module:name``; the current directory is searched too."""
    module_name, colon, attribute = name.partition(":")
    if not (module_name and colon and attribute):
        raise Invalid(f"{name!r} does not say where the worker is: use module:worker or module:app")
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
    kinds = (Worker, AppWorker, App)
    if not isinstance(found, kinds) and callable(found) and not isinstance(found, type):
        found = found()
    if not isinstance(found, kinds):
        raise Invalid(
            f"{name} is not a worker or an app: make one with {attribute} = bucketq.App(url) or bucketq.Worker(file)"
        )
    return found
