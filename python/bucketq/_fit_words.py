"""Numbers for people, and the sentences of a verdict: the same as in Rust and on the page."""

from __future__ import annotations

import math


def then(change: str, value: float) -> str:
    return {
        "nothing": "Nothing here would change it.",
        "arrival": f"Load stays healthy up to {amount(value)} jobs/s.",
        "batch": f"A batch over {amount(value)} would make that strong.",
        "work": f"Jobs with over {time(value)} of work would make that strong.",
        "budget": f"A budget of {time(value)} would make that strong.",
        "store": "A store without the limit on commits would change it.",
        "broker": "One process that commits for all, a broker, would change it.",
        "callers": "More calls at once, or more jobs in a call, would change it.",
        "split": f"Sharing the work among {amount(value)} queue files would change it.",
    }[change]


def amount(value: float) -> str:
    """Format with three significant digits, whole from 100 on, with thousands commas; halves round up."""
    if value == math.inf:
        return "any number"
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3 if value >= 0.1 else 4
    # A little more than a half, so that a half that lost its last bit still rounds up.
    scaled = math.floor(value * 10**digits + 0.5 + 1e-9)
    if digits == 0:
        return f"{scaled:,}"
    return f"{scaled / 10**digits:.{digits}f}".rstrip("0").rstrip(".")


def percent(share: float) -> str:
    return f"{amount(100 * share)}%"


def time(ms: float) -> str:
    for least, unit in ((7_200_000, "h"), (120_000, "min"), (1000, "s")):
        if ms >= least:
            return f"{amount(ms / {'h': 3_600_000, 'min': 60_000, 's': 1000}[unit])} {unit}"
    return f"{amount(ms)} ms"
