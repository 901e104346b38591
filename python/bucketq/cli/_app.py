"""The command's entry point: common options, exit codes of errors, and loading of the other command files."""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from rich.markup import escape
from typer import completion

import bucketq
from bucketq import Error, QueueFile, errors
from bucketq.cli._ask import typed
from bucketq.cli._show import plainly, safe
from bucketq.types import Settings

HELP = """Job queues in object storage: one queue file, any number of queues.

Name the queue file with [bold]--url[/] or BUCKETQ_URL: s3://bucket/path/name, a path, or memory://name."""

app = typer.Typer(
    name="bucketq",
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)

Url = Annotated[
    str | None,
    typer.Option("--url", "-u", help="The queue file; by default BUCKETQ_URL.", show_default=False),
]
SettingsFile = Annotated[
    Path | None,
    typer.Option("--settings", help="A TOML or YAML file with settings.", show_default=False),
]
Mode = Annotated[
    Literal["durable", "local"] | None,
    typer.Option("--mode", help="local: change only the state on this machine.", show_default=False),
]
Cache = Annotated[
    Path | None,
    typer.Option("--cache", help="The directory for the state on this machine.", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, one value per line.")]
QueueName = Annotated[str, typer.Argument(help="The name of the queue.", show_default=False)]
JobId = Annotated[str, typer.Argument(help="The id of the job.", show_default=False)]

EXITS: dict[str, int] = {name: code for name, _, code in errors.table()}
COMMANDS = (
    "files",
    "metrics",
    "jobs",
    "leases",
    "work",
    "moves",
    "policies",
    "local",
    "operate",
    "archive",
    "doctor",
    "probe",
    "fit",
    "analyze",
)
"""Modules whose import registers commands, in the order of the help."""
DECLINED = 1
"""Exit code if the user said no to a question, or jobs did not finish within a timeout."""
INTERRUPTED = 130
"""The exit code that shells use for SIGINT."""


def tell_version(wanted: bool) -> None:
    """Print the version and end, if the option is given."""
    if wanted:
        say(f"bucketq {bucketq.__version__}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", help="Print the version.", callback=tell_version, is_eager=True)
]


@dataclass(frozen=True, slots=True)
class Place:
    """Location and settings of the queue file. A command with a parameter ``place`` gets these fields as options."""

    url: Url = None
    settings: SettingsFile = None
    mode: Mode = None
    cache: Cache = None

    def at(self, url: str | None) -> Place:
        """Return the same place, with the URL from the argument if it is given."""
        if url is not None and self.url is not None and self.url != url:
            raise errors.Invalid("give the URL once: as the argument or with --url")
        return self if url is None else replace(self, url=url)

    def open(self, *, create: bool = False) -> QueueFile:
        """Open the queue file. Only ``init`` and ``enqueue`` create one: a misspelt URL must not become a file."""
        given: Settings = {"create": create}
        if self.mode is not None:
            given["mode"] = self.mode
        if self.cache is not None:
            given["cache"] = self.cache
        return bucketq.open(self.url, settings=self.settings, **given)


def command(example: str, panel: str, **options: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a command whose help ends with an example."""
    epilog = "Example:  " + example.replace("[", r"\[")
    register = app.command(epilog=epilog, rich_help_panel=panel, **options)
    return lambda function: register(placed(function))


def placed(function: Callable[..., None]) -> Callable[..., None]:
    """Return the function with the fields of ``Place`` as parameters, if it takes a ``place``."""
    signature = inspect.signature(function, eval_str=True)
    if "place" not in signature.parameters:
        return function
    parts = list(inspect.signature(Place, eval_str=True).parameters.values())
    all = [
        part for one in signature.parameters.values() for part in (parts if one.name == "place" else [one])
    ]

    @wraps(function)
    def taking_parts(**given: Any) -> None:
        function(place=Place(*(given.pop(part.name) for part in parts)), **given)

    # Typer reads both.
    taking_parts.__annotations__ = {one.name: one.annotation for one in all}
    taking_parts.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in all]
    )
    return taking_parts


FIRST = """\
bucketq: job queues in a bucket, a directory or memory

  bucketq doctor s3://acme/jobs        check settings, rights, store and clock
  bucketq init --url jobs              create a queue file, here in a directory
  bucketq enqueue emails '"to ada"'    enqueue a job
  bucketq worker tasks:app             run the tasks of a module
  bucketq stats --watch                see the jobs of each queue

Set BUCKETQ_URL, or give --url. To see it all at work: python -m bucketq.demo
Every command: bucketq --help, and of one: bucketq enqueue --help"""


@app.callback(help=HELP, invoke_without_command=True)
def whole(
    context: typer.Context,
    url: Url = None,
    settings: SettingsFile = None,
    mode: Mode = None,
    cache: Cache = None,
    version: Version = False,
) -> None:
    """Let the options before the name of a command count as if they stood behind it."""
    del version  # Its callback has printed it.
    if context.invoked_subcommand is None:
        say(FIRST)
        return
    values = {"url": url, "settings": settings, "mode": mode, "cache": cache}
    given = {name: str(value) for name, value in values.items() if value is not None}
    name = context.invoked_subcommand or ""
    group: Any = context.command
    found = group.get_command(context, name)
    taken = set[str | None]() if found is None else {one.name for one in found.params}
    for option in given:
        if found is not None and option not in taken:
            raise errors.Invalid(f"bucketq {name} takes no --{option}")
    context.default_map = {name: given}


def answer(value: Any) -> None:
    """Print one value as JSON on its own line."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    # JSON escapes most characters that control a terminal, but not these.
    sys.stdout.write(re.sub("[\x7f-\x9f]", lambda one: f"\\u{ord(one[0]):04x}", text) + "\n")
    sys.stdout.flush()


def say(text: str) -> None:
    """Print a line for a person; names in it may contain any characters."""
    out.print(plainly(text))


def remark(text: str, style: str = "dim") -> None:
    """Print a line for a person on standard error."""
    err.print(plainly(text, style))


def complain(text: str, *, code: str | None = None, then: str | None = None) -> None:
    """Print the error on one line, and advice on a second one."""
    told = "" if code is None else f" [dim]({code})[/]"
    err.print(f"[bold red]error[/]  {escape(safe(text))}{told}")
    if then is not None:
        err.print(f"       {then}", style="dim")


def ask(question: str) -> None:
    """Continue only if the user says yes."""
    while True:
        try:
            sys.stderr.write(f"{safe(question)} [y/N]: ")
            sys.stderr.flush()
            said = typed().strip().lower()
        except (KeyboardInterrupt, EOFError):
            sys.stderr.write("\n")
            raise typer.Abort from None
        if said in ("y", "yes"):
            return
        if said in ("", "n", "no"):
            remark("nothing was changed")
            raise typer.Exit(DECLINED)
        complain("type y or n")


def fail(error: Error, *, as_json: bool) -> int:
    """Print an error. Returns its exit code."""
    kind = type(error).__name__
    if as_json:
        told: dict[str, Any] = {"error": kind, "code": error.code, "message": error.message}
        told["advice"] = error.advice
        named = {"queue": error.queue, "id": error.id, "limit": error.limit}
        told |= {name: value for name, value in named.items() if value is not None}
        sys.stderr.write(json.dumps(told) + "\n")
    else:
        notes: list[str] = getattr(error, "__notes__", [])
        complain(error.message, code=error.code, then=error.advice or None)
        for note in notes:
            if note != f"advice: {error.advice}":
                remark(f"       {note}")
    return EXITS.get(kind, 1)


def run(arguments: Sequence[str] | None) -> int:
    """Parse the arguments, run the command, and return its exit code."""
    for name in COMMANDS:
        import_module(f"bucketq.cli.{name}")
    # Typer does this itself only when it may add its own options to every command.
    completion.completion_init()  # pyright: ignore[reportPrivateImportUsage]
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = app(args=words, prog_name="bucketq", standalone_mode=False)
        if code == INTERRUPTED:  # Typer returns this after Ctrl-C.
            raise KeyboardInterrupt
    except Error as error:
        return fail(error, as_json="--json" in words)
    except typer.Exit as exit:
        return exit.exit_code
    except (KeyboardInterrupt, typer.Abort):
        err.print("stopped", style="dim")
        return INTERRUPTED
    except BrokenPipeError:
        # The reader closed the pipe; flushing the buffer at exit must not raise again.
        sys.stdout = None
        return 0
    except Exception as error:
        # Typer's own errors have a method that explains them; anything else is a bug, and its traceback helps.
        explain = getattr(error, "format_message", None)
        if explain is None:
            raise
        if "--json" in words:
            return fail(errors.Invalid(explain()), as_json=True)
        from typer import rich_utils

        rich_utils.rich_format_error(error)  # type: ignore[arg-type]
        return int(getattr(error, "exit_code", EXITS["Invalid"]))
    return code if isinstance(code, int) else 0
