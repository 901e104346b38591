"""Signatures for people: ``help`` lists the options of a call one by one, where the code passes them on in one dict.

Type checkers read the same names from ``Unpack``. Changes no call: a wrong name fails with the function's own error.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from functools import cache
from typing import Any, Final, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


class Elsewhere:
    """The default of an option that is decided elsewhere if it is not given, such as by the policy of the queue."""

    def __repr__(self) -> str:
        return "..."


ELSEWHERE: Final = Elsewhere()


def spelled(options: type, *, without: Collection[str] = ()) -> Callable[[F], F]:
    """Give the function a signature with the fields of this TypedDict in place of its ``**`` parameter.

    Fields that the function refuses are left out.
    """

    def spell(function: F) -> F:
        signature = inspect.signature(function)
        own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
        every = own + [one for one in parameters(options) if one.name not in without]
        function.__signature__ = signature.replace(parameters=every)  # type: ignore[attr-defined]
        return function

    return spell


@cache
def parameters(options: type) -> list[inspect.Parameter]:
    """Return a parameter for each field."""
    return [
        # The annotations are text, as those of all other parameters.
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=ELSEWHERE,
            annotation=getattr(kind, "__forward_arg__", kind),
        )
        for name, kind in options.__annotations__.items()
    ]
