"""Durations as people type them, in arguments, settings and flags: ``90``, ``90s``, ``5min``, ``1h30min``, ``2d``."""

from __future__ import annotations

import re

from bucketq.errors import Invalid

MILLISECONDS = {"d": 86_400_000, "h": 3_600_000, "min": 60_000, "s": 1000, "ms": 1}
"""Units, in milliseconds."""
NAMES = {None: "s", "m": "min"}
"""Units that have another name."""
PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|min|m|h|d)?\s*")
WITH_UNITS = re.compile(r"(\d+(\.\d+)?\s*(ms|s|min|m|h|d)\s*)+")
HOW = "write seconds, or 250ms, 90s, 5min, 1h30min, 2d"


def milliseconds(text: str, what: str) -> int:
    """Parse a duration."""
    total, at = 0.0, 0
    given = text.strip()
    if not given:
        raise Invalid(f"{what} is empty: {HOW}")
    while at < len(given):
        part = PART.match(given, at)
        if part is None or (part[2] is None and (at or part.end() < len(given))):
            raise Invalid(f"{what} is {text!r}: {HOW}")
        total += float(part[1]) * MILLISECONDS[NAMES.get(part[2], part[2])]
        at = part.end()
    return round(total)


def is_duration(text: str) -> bool:
    """Return True for a duration with units, which no cron expression resembles."""
    return WITH_UNITS.fullmatch(text.strip()) is not None
