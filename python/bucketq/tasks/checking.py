"""Checks the arguments of a task against its signature; with pydantic also against its annotations."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from functools import cached_property
from importlib.util import find_spec
from typing import Any

from bucketq.tasks.message import Previous

__all__ = ["Signature"]

ARGS, KWARGS = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
Given = tuple[tuple[Any, ...], dict[str, Any]]
RETURN = "return"


class Signature:
    """The parameters of a task."""

    def __init__(self, function: Callable[..., Any], *, as_json: bool) -> None:
        self._function = function
        self._as_json = as_json
        self._signature = inspect.signature(function)

    def check(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Given:
        """Return the arguments as they are stored. Raises TypeError or ValueError if they do not fit."""
        self._signature.bind(*args, **kwargs)
        return self._each(args, kwargs, self._dumped) if self._kinds else (args, dict(kwargs))

    def read(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Given:
        """Return stored arguments as the function gets them. Raises TypeError or ValueError if they do not fit."""
        self._signature.bind(*args, **kwargs)
        return self._each(args, kwargs, self._loaded) if self._kinds else (args, dict(kwargs))

    def dumped_result(self, value: Any) -> Any:
        """Return what the function returned as it is stored."""
        kind = self._kinds.get(RETURN)
        return value if kind is None or value is None else self._dumped(kind, value)

    def loaded_result(self, value: Any) -> Any:
        """Return a stored result as the function returned it."""
        kind = self._kinds.get(RETURN)
        return value if kind is None or value is None else self._loaded(kind, value)

    def _each(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], change: Callable[[Any, Any], Any]
    ) -> Given:
        positional = [one for one in self._signature.parameters.values() if one.kind != KWARGS]
        names = [one.name for one in positional]
        rest = next((one.name for one in positional if one.kind == ARGS), None)
        keyword = next((one.name for one in self._signature.parameters.values() if one.kind == KWARGS), None)

        def changed(name: str | None, value: Any) -> Any:
            kind = None if name is None else self._kinds.get(name)
            return value if kind is None or isinstance(value, Previous) else change(kind, value)

        before = names.index(rest) if rest is not None else len(names)
        return (
            tuple(changed(names[i] if i < before else rest, value) for i, value in enumerate(args)),
            {name: changed(name if name in names else keyword, value) for name, value in kwargs.items()},
        )

    def _dumped(self, kind: Any, value: Any) -> Any:
        checked = kind.validate_python(value)
        return kind.dump_python(checked, mode="json") if self._as_json else checked

    def _loaded(self, kind: Any, value: Any) -> Any:
        return kind.validate_python(value)

    @cached_property
    def _kinds(self) -> dict[str, Any]:
        """The annotations that pydantic understands, by parameter. Empty without pydantic."""
        if not getattr(self._function, "__annotations__", None) or find_spec("pydantic") is None:
            return {}
        try:
            from pydantic import (  # pyright: ignore[reportMissingImports]
                TypeAdapter,  # pyright: ignore[reportUnknownVariableType]
            )

            hints = typing.get_type_hints(self._function, include_extras=True)
        except (ImportError, NameError):  # An old pydantic, or names that only a type checker sees.
            return {}
        found: dict[str, Any] = {}
        for name, hint in hints.items():
            try:
                found[name] = TypeAdapter(hint)
            except Exception:  # noqa: S112
                continue  # A class that pydantic does not know is not checked.
        return found
