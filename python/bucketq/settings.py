"""Where settings come from: arguments, then a dict, then a file, then BUCKETQ_* in the environment.

>>> from bucketq import settings
>>> settings.load({"deadline": 10}, environ={"BUCKETQ_DEADLINE": "60", "BUCKETQ_TAIL": "65536"}, create=False)
{'create': False, 'deadline': 10, 'tail': 65536}

``bucketq.open`` does this by itself. docs/settings.md has the table.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Unpack, cast

from bucketq import _convert as convert
from bucketq import _native
from bucketq.errors import Invalid
from bucketq.types import Settings

__all__ = ["Source", "load", "table"]

Source = Mapping[str, Any] | str | PathLike[str]
"""Settings as a dict, or the path of a TOML or YAML file."""

PREFIX = "BUCKETQ_"
FILE = "BUCKETQ_SETTINGS"
ALIKE = 0.8
"""Variables this like a setting are taken for a misspelt one; the prefix is shared with other tools."""


def load(
    source: Source | None = None,
    /,
    *,
    environ: Mapping[str, str] | None = None,
    **arguments: Unpack[Settings],
) -> dict[str, Any]:
    """The settings from all places together, and ``url`` where one is given; an earlier place wins.

    ``source`` is a dict or the path of a file. With a dict or nothing, BUCKETQ_SETTINGS may name a file.
    """
    environ = os.environ if environ is None else environ
    path = environ.get(FILE) or None
    places: list[tuple[str, Mapping[str, Any]]] = [("the arguments", arguments)]
    if isinstance(source, Mapping):
        places.append(("the settings given", source))
    elif source is not None:
        path = os.fspath(source)
    if path is not None:
        places.append((path, read(Path(path))))
    places.append(("the environment", from_environment(environ)))
    known = ("url", *convert.SETTINGS)
    found: dict[str, Any] = {}
    for where, values in reversed(places):
        for key, value in values.items():
            if key not in known:
                raise Invalid(
                    f"{where}: there is no setting {key!r}: {convert.nearest(key, known)}", "option"
                )
            if value is not None:
                found[key] = value
    return {key: found[key] for key in known if key in found}


def table() -> list[tuple[str, str, Any, str]]:
    """Every setting: its name, what it takes, its default, what it means."""
    return _native.settings()


def resolve(
    url: str | PathLike[str] | None, source: Source | None, arguments: Settings
) -> tuple[str, dict[str, Any]]:
    """What to open, and the settings as the engine wants them."""
    found = load(source, **arguments)
    named = found.pop("url", None)
    if url is None:
        url = named
    if not url:
        raise Invalid("no queue file is named: give a URL or a path, or set BUCKETQ_URL", "url")
    return os.fspath(url), convert.native_settings(found)


def from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """The variables that are settings, as values."""
    from difflib import get_close_matches

    found: dict[str, Any] = {}
    for variable, text in environ.items():
        if not variable.startswith(PREFIX) or variable == FILE or not text:
            continue
        name = variable.removeprefix(PREFIX).lower()
        if name == "url":
            found[name] = text
        elif name in convert.SETTINGS:
            try:
                found[name] = _native.parse_setting(name, text)
            except Invalid as error:
                raise Invalid(f"{variable}: {error.message}", error.code) from None
        elif close := get_close_matches(name, convert.SETTINGS, n=1, cutoff=ALIKE):
            raise Invalid(
                f"there is no setting {variable}: did you mean {PREFIX}{close[0].upper()}?", "option"
            )
    return found


def read(path: Path) -> dict[str, Any]:
    """The settings in a TOML or YAML file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"the settings in {path} cannot be read: {error}", "option") from error
    try:
        found = parse(path, text)
    except ValueError as error:
        raise Invalid(f"the settings in {path} cannot be understood: {error}", "option") from None
    if not isinstance(found, dict):
        raise Invalid(f"{path} holds no settings: write one name and value a line", "option")
    return cast(dict[str, Any], found)


def parse(path: Path, text: str) -> Any:
    """The content, by the end of the file's name."""
    match path.suffix.lower():
        case ".toml":
            import tomllib

            return tomllib.loads(text)
        case ".yaml" | ".yml":
            try:
                import yaml
            except ImportError:
                raise Invalid(f'{path}: YAML needs an extra: pip install "bucketq[yaml]"', "option") from None
            try:
                return yaml.safe_load(text) or {}
            except yaml.YAMLError as error:
                # Its message quotes the line, which may hold a secret.
                mark = getattr(error, "problem_mark", None)
                raise ValueError(f"not YAML, line {mark.line + 1}" if mark else "not YAML") from None
        case other:
            raise Invalid(
                f"{path}: settings are .toml or .yaml, not {other or 'without an ending'}", "option"
            )
