"""The command as a whole: its options, how errors become exit codes, and the commands of the other files."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer import completion

import bucketq
from bucketq import Error, QueueFile, _native

app = typer.Typer(
    name="bucketq",
    help="Job queues in object storage: one queue file, any number of queues.\n\n"
    "Name the queue file with [bold]--url[/] or BUCKETQ_URL: s3://bucket/path/name, a path, or memory://name.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)

Url = Annotated[
    str | None,
    typer.Option("--url", "-u", help="The queue file; BUCKETQ_URL when not given.", show_default=False),
]
SettingsFile = Annotated[
    Path | None,
    typer.Option("--settings", help="A TOML or YAML file with settings.", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="Answer in JSON, one value a line.")]
QueueName = Annotated[str, typer.Argument(help="The name of the queue.", show_default=False)]
JobId = Annotated[str, typer.Argument(help="The id of the job.", show_default=False)]

EXITS: dict[str, int] = {python: code for _, _, python, code, _ in _native.kinds()}
NEXT: dict[str, str] = {python: step for _, step, python, _, _ in _native.kinds()}
COMMANDS = ("files", "jobs", "leases", "work", "doctor")
"""Files whose import registers commands, in the order of the help."""
INTERRUPTED = 130
"""As shells have it for SIGINT."""


@contextmanager
def opened(url: str | None, settings: Path | None, *, create: bool = False) -> Generator[QueueFile]:
    """The queue file. Only ``init`` and ``enqueue`` make one: a misspelt URL is not to become a file."""
    with bucketq.open(url, settings=settings, create=create) as file:
        yield file


def command(example: str, panel: str, **options: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a command whose help ends with an example."""
    epilog = "Example:  " + example.replace("[", r"\[")
    return app.command(epilog=epilog, rich_help_panel=panel, **options)


def answer(value: Any) -> None:
    """One value in JSON on a line of its own."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")
    sys.stdout.flush()


def say(text: str) -> None:
    """A line for a person."""
    out.print(text)


def complain(text: str, *, then: str | None = None) -> None:
    """A line about what went wrong, and one about what to do."""
    err.print(f"[bold red]error[/]  {text}")
    if then is not None:
        err.print(f"       {then}", style="dim")


def fail(error: Error, *, as_json: bool) -> int:
    """Tell an error and answer its exit code."""
    kind = type(error).__name__
    if as_json:
        sys.stderr.write(json.dumps({"error": kind, "code": error.code, "message": error.message}) + "\n")
    else:
        from rich.markup import escape

        notes: list[str] = getattr(error, "__notes__", [])
        complain(f"{escape(error.message)} [dim]({error.code})[/]", then=NEXT.get(kind))
        for note in notes:
            err.print(f"       {escape(note)}", style="dim")
    return EXITS.get(kind, 1)


def run(arguments: Sequence[str] | None) -> int:
    """Parse, run, and turn what happens into an exit code."""
    for name in COMMANDS:
        import_module(f"bucketq.cli.{name}")
    # Typer does this itself only when it may add options of its own to every command.
    completion.completion_init()  # pyright: ignore[reportPrivateImportUsage]
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = app(args=words, prog_name="bucketq", standalone_mode=False)
    except Error as error:
        return fail(error, as_json="--json" in words)
    except typer.Exit as exit:
        return exit.exit_code
    except (KeyboardInterrupt, typer.Abort):
        err.print("stopped", style="dim")
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read this has seen enough; what is left in the buffer must not complain at the end.
        sys.stdout = None
        return 0
    except Exception as error:
        # Typer's own errors know how to be shown; everything else is a bug, and its traceback helps.
        show = getattr(error, "show", None)
        if show is None:
            raise
        from typer import rich_utils

        rich_utils.rich_format_error(error)  # type: ignore[arg-type]
        return int(getattr(error, "exit_code", EXITS["Invalid"]))
    return code if isinstance(code, int) else 0
