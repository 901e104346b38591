"""The command ``fit``: judges whether the queue suits a workload that is typed, measured, or read from a file."""

from __future__ import annotations

import html
import inspect
import json as jsonlib
import math
import tempfile
import webbrowser
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any, cast
from urllib.parse import urlencode

import typer

import bucketq
from bucketq import Invalid, NotFound
from bucketq.cli import _verdict
from bucketq.cli._app import Json, SettingsFile, answer, command, out, say
from bucketq.fit import Inputs, Rule, evaluate
from bucketq.measured import Workload

PANELS = {
    "Your work": ("arrival", "work_ms", "budget_ms", "payload", "mutations", "batch", "retries", "lease_ms"),
    "Your processes": ("producers", "consumers", "prefetch", "writers", "broker", "broker_ms"),
    "The store": (
        *("latency_min_ms", "latency_ms", "latency_p99_ms", "per_mib_ms", "writes_per_s"),
        *("commit_interval_ms", "file_mib"),
    ),
    "Money": ("price_put", "price_get", "price_gb", "price_sqs", "sqs_batch"),
}
PAGE = Path(bucketq.__file__).with_name("fit.html")
"""Built by ``make fit-page``; wheels carry it."""

ProbeFile = Annotated[
    Path | None,
    typer.Option("--probe", help="The file that `bucketq probe -o FILE` wrote.", show_default=False),
]
From = Annotated[
    str | None,
    typer.Option("--from", metavar="URL", help="Read the workload of this queue file.", show_default=False),
]
Open = Annotated[bool, typer.Option("--open", help="Show the page, filled in with these inputs.")]


def fit(
    probe: Path | None,
    source: str | None,
    show: bool,
    settings: Path | None,
    json: bool,
    **given: float | None,
) -> None:
    """Judge whether the queue suits your work, and what would change that.

    Inputs that are not given come from the queue file, then from the probe, then from the published example.
    """
    measured = measurements(probe)
    told = None if source is None else workload(source, settings)
    typed = {name: value for name, value in given.items() if value is not None}
    inputs = Inputs(**{**measured, **({} if told is None else told.inputs), **typed})
    found = evaluate(inputs)
    if json:
        facts = {"inputs": asdict(inputs), **asdict(found)}
        if told is not None:
            facts["workload"] = asdict(told) | {
                "window": told.window.total_seconds(),
                "commits_span": told.commits_span.total_seconds(),
            }
        answer(finite(facts))
    else:
        known = measured.keys() | typed.keys()
        out.print(_verdict.picture(found, inputs, told, known), soft_wrap=False)
    if show:
        address = page(inputs)
        if not json:
            say(f"\n{address}")


def options() -> list[inspect.Parameter]:
    """Return the options of the command: one for each input, with its name."""
    panels = {name: panel for panel, names in PANELS.items() for name in names}
    kind = inspect.Parameter.KEYWORD_ONLY
    own = {"probe": ProbeFile, "source": From, "show": Open, "settings": SettingsFile, "json": Json}
    usual = {"show": False, "json": False}
    found = [
        inspect.Parameter(name, kind, default=usual.get(name), annotation=annotation)
        for name, annotation in own.items()
    ]
    for entry in fields(Inputs):
        rule = cast(Rule, entry.metadata["rule"])
        option = typer.Option(
            f"--{entry.name.replace('_', '-')}",
            help=f"{rule.what.replace('`', '')} [dim]\\[{entry.default:g}][/]",
            show_default=False,
            metavar="N",
            rich_help_panel=panels[entry.name],
        )
        annotation = Annotated[float | None, option]
        found.append(inspect.Parameter(entry.name, kind, default=None, annotation=annotation))
    return found


# Typer reads the signature, which would otherwise be thirty lines that repeat Inputs.
fit.__signature__ = inspect.Signature(options())  # type: ignore[attr-defined]
fit.__annotations__ = {one.name: one.annotation for one in options()}
command("bucketq fit --arrival 20 --work-ms 500 --probe store.json", "Does it fit?")(fit)


def measurements(path: Path | None) -> dict[str, float]:
    """Return the inputs in a file of ``bucketq probe``; other entries are ignored."""
    if path is None:
        return {}
    try:
        told: object = jsonlib.loads(path.read_text())["inputs"]
    except OSError as error:
        raise NotFound(f"{path} cannot be read: {error.strerror}", "no_such_file") from None
    except (ValueError, LookupError, TypeError):
        told = None
    if not isinstance(told, dict):
        raise Invalid(f"{path} is not a file of `bucketq probe -o {path}`: it has no object `inputs`")
    known = {entry.name for entry in fields(Inputs)}
    return {name: value for name, value in cast("dict[str, float]", told).items() if name in known}


def workload(url: str, settings: Path | None) -> Workload:
    """Return the workload of a queue file, which is opened read-only."""
    with bucketq.open(url, settings=settings, create=False, read_only=True) as file:
        return file.workload()


def state(inputs: Inputs) -> str:
    """Return the inputs that are not the default, in the format of the page's address."""
    return urlencode(
        {
            entry.name: repr(value).removesuffix(".0")
            for entry in fields(Inputs)
            if (value := getattr(inputs, entry.name)) != entry.default
        }
    )


def page(inputs: Inputs) -> str:
    """Show the page with these inputs. Returns its address."""
    if not PAGE.exists():
        raise NotFound("the page is not built here: make fit-page (needs Node 20 and npm)", "no_such_file")
    address = f"{PAGE.as_uri()}#{state(inputs)}"
    # The program that opens files may drop the part after the #, so a small page redirects to the address.
    with tempfile.NamedTemporaryFile("w", prefix="bucketq-fit-", suffix=".html", delete=False) as leads:
        leads.write(f'<meta http-equiv="refresh" content="0; url={html.escape(address)}">\n')
    webbrowser.open(Path(leads.name).as_uri())
    return address


def finite(value: Any) -> Any:
    """Return the value for JSON: an infinite number is null."""
    if isinstance(value, dict):
        return {name: finite(part) for name, part in cast("dict[str, Any]", value).items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
