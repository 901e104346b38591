"""The command as a whole: its options, how errors become exit codes, and the commands of the other files."""

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
from bucketq.cli._show import plainly, safe
from bucketq.types import Settings

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
Mode = Annotated[
    Literal["durable", "local"] | None,
    typer.Option("--mode", help="local: change only what is on this machine.", show_default=False),
]
Cache = Annotated[
    Path | None,
    typer.Option("--cache", help="The directory for what is on this machine.", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="Answer in JSON, one value a line.")]
QueueName = Annotated[str, typer.Argument(help="The name of the queue.", show_default=False)]
JobId = Annotated[str, typer.Argument(help="The id of the job.", show_default=False)]

EXITS: dict[str, int] = {name: code for name, _, code in errors.table()}
NEXT: dict[str, str] = {name: step for name, step, _ in errors.table()}
ADVICE = {
    "blocked": "make room, or give the policy of the queue a longer block",
    "clock_skew": "set this machine's clock, with NTP",
    "denied": "check the credentials: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or BUCKETQ_ACCESS_KEY "
    "and BUCKETQ_SECRET_KEY, which need GetObject, PutObject, DeleteObject and ListBucket here; "
    "of a directory, its permissions",
    "draining": "bucketq resume lets jobs in again",
    "local_file": "check the path and its permissions",
    "no_compare_and_swap": "this store cannot keep a queue file; docs/stores.md lists those that can",
    "no_such_bucket": "make the bucket or the directory, or correct the URL",
    "no_such_file": "run: bucketq init",
    "unreachable": "check the endpoint, the network and the region",
}
"""What to do next, where the code of an error tells more than its kind."""
COMMANDS = (
    "files",
    "metrics",
    "jobs",
    "leases",
    "work",
    "policies",
    "local",
    "operate",
    "archive",
    "doctor",
    "probe",
    "fit",
    "analyze",
)
"""Files whose import registers commands, in the order of the help."""
DECLINED = 1
"""Somebody was asked and said no; or jobs that were waited for are not over."""
INTERRUPTED = 130
"""As shells have it for SIGINT."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the queue file is, and how it is opened. A command that takes a ``place`` has these as options."""

    url: Url = None
    settings: SettingsFile = None
    mode: Mode = None
    cache: Cache = None

    def at(self, url: str | None) -> Place:
        """The same with the URL that stands as an argument, if there is one."""
        if url is not None and self.url is not None and self.url != url:
            raise errors.Invalid("give the URL once: as the argument or with --url")
        return self if url is None else replace(self, url=url)

    def open(self, *, create: bool = False) -> QueueFile:
        """The queue file. Only ``init`` and ``enqueue`` make one: a misspelt URL is not to become a file."""
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
    """The function with the parts of ``place`` for parameters, where it takes one."""
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

    # Typer looks at both.
    taking_parts.__annotations__ = {one.name: one.annotation for one in all}
    taking_parts.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in all]
    )
    return taking_parts


def answer(value: Any) -> None:
    """One value in JSON on a line of its own."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    # JSON escapes most of what steers a terminal, but not these.
    sys.stdout.write(re.sub("[\x7f-\x9f]", lambda one: f"\\u{ord(one[0]):04x}", text) + "\n")
    sys.stdout.flush()


def say(text: str) -> None:
    """A line for a person; a name in it may hold anything."""
    out.print(plainly(text))


def remark(text: str, style: str = "dim") -> None:
    """The same beside the answer."""
    err.print(plainly(text, style))


def complain(text: str, *, code: str | None = None, then: str | None = None) -> None:
    """A line about what went wrong, and one about what to do."""
    told = "" if code is None else f" [dim]({code})[/]"
    err.print(f"[bold red]error[/]  {escape(safe(text))}{told}")
    if then is not None:
        err.print(f"       {then}", style="dim")


def ask(question: str) -> None:
    """Go on only if a person says yes."""
    if not typer.confirm(safe(question), err=True):
        remark("nothing is changed")
        raise typer.Exit(DECLINED)


def advice(error: Error) -> str | None:
    """What to do next."""
    return ADVICE.get(error.code) or NEXT.get(type(error).__name__)


def fail(error: Error, *, as_json: bool) -> int:
    """Tell an error and answer its exit code."""
    kind = type(error).__name__
    if as_json:
        sys.stderr.write(json.dumps({"error": kind, "code": error.code, "message": error.message}) + "\n")
    else:
        notes: list[str] = getattr(error, "__notes__", [])
        complain(error.message, code=error.code, then=advice(error))
        for note in notes:
            remark(f"       {note}")
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
