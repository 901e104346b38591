"""Settings come from arguments, then a dict, then BUCKETQ_* in the environment, then a file.

>>> from bucketq import settings
>>> settings.load({"deadline": 10}, environ={"BUCKETQ_DEADLINE": "60", "BUCKETQ_TAIL": "65536"}, create=False)
{'create': False, 'deadline': 10, 'tail': 65536}

``bucketq.open`` calls this itself. docs/settings.md has the table.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Unpack, cast

from bucketq import _convert as convert
from bucketq import _native
from bucketq._durations import is_duration, milliseconds
from bucketq._spelled import spelled
from bucketq.errors import Invalid
from bucketq.types import Settings

__all__ = ["Source", "load", "table"]

Source = Mapping[str, Any] | str | PathLike[str]
"""Settings as a dict, or the path of a TOML or YAML file."""

PREFIX = "BUCKETQ_"
FILE = "BUCKETQ_SETTINGS"
ALIKE = 0.8
"""A variable this similar to a setting counts as misspelt; others with the prefix may belong to other tools."""


@spelled(Settings)
def load(
    source: Source | None = None,
    /,
    *,
    environ: Mapping[str, str] | None = None,
    **arguments: Unpack[Settings],
) -> dict[str, Any]:
    """Return the settings from all places together, with ``url`` if one is given; an earlier place wins.

    ``source`` is a dict or the path of a file. If it is a dict or None, BUCKETQ_SETTINGS may name a file.
    """
    environ = os.environ if environ is None else environ
    path = environ.get(FILE) or None
    places: list[tuple[str, Mapping[str, Any]]] = [("the arguments", arguments)]
    if isinstance(source, Mapping):
        places.append(("the settings given", source))
    elif source is not None:
        path = os.fspath(source)
    places.append(("the environment", from_environment(environ)))
    if path is not None:
        places.append((path, read(Path(path))))
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
    """Return every setting: its name, the values it takes, its default, its meaning."""
    return _native.settings()


def resolve(
    url: str | PathLike[str] | None, source: Source | None, arguments: Settings
) -> tuple[str, dict[str, Any]]:
    """Return the URL to open, and the settings in the engine's form."""
    found = load(source, **arguments)
    named = found.pop("url", None)
    if url is None:
        url = named
    if not url:
        raise Invalid("no queue file is named: give a URL or a path, or set BUCKETQ_URL", "url")
    return os.fspath(url), convert.native_settings(found)


def from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of the variables that are settings."""
    found: dict[str, Any] = {}
    for variable, text in environ.items():
        if not variable.startswith(PREFIX) or variable == FILE or not text:
            continue
        name = variable.removeprefix(PREFIX).lower()
        if name == "url":
            found[name] = text
        elif name in convert.SETTINGS:
            try:
                lasting = convert.SETTINGS[name].startswith("seconds") and is_duration(text)
                found[name] = (
                    milliseconds(text, name) / 1000 if lasting else _native.parse_setting(name, text)
                )
            except Invalid as error:
                raise Invalid(f"{variable}: {error.message}", error.code) from None
        elif close := _alike(name):
            raise Invalid(
                f"there is no setting {variable}: did you mean {PREFIX}{close[0].upper()}?", "option"
            )
    return found


def _alike(name: str) -> list[str]:
    """Return the setting that is spelled almost like this name, if there is one."""
    # Imported here, because few programs have such a variable and all of them import this module.
    try:
        from difflib import get_close_matches
    except OSError:
        # No descriptor is left to read the module; opening the queue file says so.
        return []
    return get_close_matches(name, convert.SETTINGS, n=1, cutoff=ALIKE)


def read(path: Path) -> dict[str, Any]:
    """Return the settings in a TOML or YAML file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"the settings in {path} cannot be read: {error}", "option") from error
    try:
        found = parse(path, text)
    except ValueError as error:
        raise Invalid(f"the settings in {path} cannot be parsed: {error}", "option") from None
    if not isinstance(found, dict):
        raise Invalid(f"{path} holds no settings: write one name and value a line", "option")
    return cast(dict[str, Any], found)


def parse(path: Path, text: str) -> Any:
    """Parse the text by the file's extension."""
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
                # The error's own message quotes the line, which may contain a secret.
                mark = getattr(error, "problem_mark", None)
                raise ValueError(f"not YAML, line {mark.line + 1}" if mark else "not YAML") from None
        case other:
            raise Invalid(
                f"{path}: settings are .toml or .yaml, not {other or 'without an ending'}", "option"
            )
