"""Parses and prints durations, times, back-offs and limits as people type them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from bucketq import Backoff, Block, Invalid, Overflow
from bucketq import _convert as convert
from bucketq._durations import MILLISECONDS, milliseconds

NONE = "none"
"""The word that lifts a limit."""


def seconds(text: str, what: str) -> float:
    """Parse a duration: ``90``, ``90s``, ``5min``, ``1h30min``."""
    return milliseconds(text, what) / 1000


def seconds_or_none(text: str, what: str) -> float | None:
    """Parse a duration, or none for no limit."""
    return None if text.strip().lower() == NONE else seconds(text, what)


def number_or_none(text: str, what: str) -> int | None:
    """Parse a whole number, or none for no limit."""
    if text.strip().lower() == NONE:
        return None
    try:
        return int(text.replace(",", ""))
    except ValueError:
        raise Invalid(f"{what} is {text!r}: write a whole number, or none for no limit") from None


def text_or_none(text: str, _: str) -> str | None:
    """Parse text, or none."""
    return None if text.strip().lower() == NONE else text


def yes(text: str, _: str) -> bool:
    """Parse yes or no."""
    return text == "yes"


def window(text: str, what: str) -> float | None:
    """Parse how long a dedup key counts."""
    return None if text.strip().lower() == "unfinished" else seconds_or_none(text, what)


def moment(text: str, what: str) -> datetime:
    """Parse a time in ISO 8601, by default in this machine's time zone."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise Invalid(
            f"{what} is {text!r}: write a time such as 2026-12-31T18:00 or ...T18:00+01:00"
        ) from None
    return time.astimezone() if time.tzinfo is None else time


def overflow(text: str, what: str) -> Overflow:
    """Parse ``raise``, ``block``, ``block 30s`` or ``drop_oldest``."""
    kind, _, rest = text.strip().replace("-", "_").partition(" ")
    match kind:
        case "block" if rest:
            return Block(seconds(rest, what))
        case "raise" | "block" | "drop_oldest" if not rest:
            return kind
        case _:
            raise Invalid(f"{what} is {text!r}: write raise, block, 'block 30s' or drop_oldest")


def backoff(text: str, what: str) -> Backoff:
    """Parse ``none``, ``fixed 30s``, ``linear 5s 10min``, ``exponential 1s 1h 50%``, or delays: ``5s,30s,10min``."""
    kind, *given = text.split() or [""]
    numbers = [one for one in given if not one.endswith("%")]
    shares = [one for one in given if one.endswith("%")]
    try:
        match (kind, [seconds(one, what) for one in numbers], [float(one[:-1]) / 100 for one in shares]):
            case ("none", [], []):
                return Backoff.none()
            case ("fixed", [delay], []):
                return Backoff.fixed(delay)
            case ("linear", [base], []):
                return Backoff.linear(base)
            case ("linear", [base, most], []):
                return Backoff.linear(base, max=most)
            case ("exponential", times, jitter) if len(times) <= 2 and len(jitter) <= 1:
                usual = Backoff()
                base = times[0] if times else usual.base
                most = times[1] if len(times) == 2 else usual.max
                return Backoff(base, most, jitter[0] if jitter else usual.jitter)
            case (_, [], []) if kind[:1].isdigit():
                return Backoff.list(seconds(one, what) for one in kind.split(","))
            case _:
                pass
    except ValueError:
        pass
    raise Invalid(
        f"{what} is {text!r}: write none, 'fixed 30s', 'linear 5s 10min', 'exponential 1s 1h 50%', "
        "or delays, 5s,30s,10min"
    )


def span(value: Any) -> str:
    """Return a duration as text, in the largest unit that divides it."""
    ms = convert.millis(value, "the duration")
    unit, size = next(
        ((unit, size) for unit, size in MILLISECONDS.items() if ms and ms % size == 0), ("s", 1000)
    )
    return f"{ms // size}{unit}"


def backoff_words(value: Backoff) -> str:
    """Return a back-off as text that can be typed."""
    match value.kind:
        case "none":
            return "none"
        case "fixed":
            return f"fixed {span(value.base)}"
        case "linear":
            return f"linear {span(value.base)} {span(value.max)}"
        case "list":
            return ",".join(map(span, value.delays))
        case _:
            return f"exponential {span(value.base)} {span(value.max)} {round(value.jitter * 100)}%"


def policy_words(name: str, value: Any) -> str:
    """Return a field of a policy as text that can be typed."""
    match value:
        case None:
            return "unfinished" if name == "dedup_window" else NONE
        case bool():
            return "yes" if value else "no"
        case timedelta():
            return span(value)
        case Backoff():
            return backoff_words(value)
        case Block():
            return f"block {span(value.timeout)}"
        case int():
            return f"{value:,}"
        case _:
            return str(value)
