"""Line plots over time as SVG: axes with units, a limited number of points, for light and dark mode. No I/O."""

# pyright: basic
from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import pairwise

__all__ = ["LINES", "amount", "duration", "plot"]

LINES = 6
"""The most lines in a plot; the page has a colour for each."""
POINTS = 360
WIDE, HIGH, LEFT, TOP, BELOW = 760, 230, 64, 22, 26
HOUR = 3600
STEPS = tuple(HOUR * n for n in (1, 2, 3, 6, 12, 24, 48, 96, 168, 336, 720, 2160, 4320, 8760))
Line = tuple[str, Sequence[tuple[datetime, float]]]


def plot(lines: Sequence[Line], unit: str, show: Callable[[float], str]) -> str:
    """Return a figure with these lines; ``unit`` is the label above the axis, ``show`` formats its values."""
    lines = [(name, thinned(points)) for name, points in lines if points]
    if not lines:
        return '<p class="none">Nothing to show.</p>'
    times = [at.timestamp() for _, points in lines for at, _ in points]
    begin, span = min(times), max(max(times) - min(times), HOUR)
    least = min(min(value for _, value in points) for _, points in lines)
    ticks = nice(min(least, 0), max(max(value for _, value in points) for _, points in lines), show)
    low, high = ticks[0], ticks[-1]

    def x(at: float) -> float:
        return LEFT + (at - begin) / span * (WIDE - LEFT - 8)

    def y(value: float) -> float:
        return TOP + (high - value) / (high - low) * (HIGH - TOP - BELOW)

    drawn = [f'<text class="unit" x="{LEFT}" y="12">{html.escape(unit)}</text>']
    for value in ticks:
        drawn.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDE - 8}" y1="{y(value):.1f}" y2="{y(value):.1f}"/>'
        )
        drawn.append(
            f'<text class="y" x="{LEFT - 6}" y="{y(value) + 4:.1f}">{html.escape(show(value))}</text>'
        )
    for at, text in moments(begin, span):
        # Labels at the right edge must stay inside the figure.
        edge = ' style="text-anchor:end"' if x(at) > WIDE - 50 else ""
        drawn.append(f'<text class="x" x="{x(at):.1f}" y="{HIGH - 8}"{edge}>{text}</text>')
    for number, (name, points) in enumerate(lines):
        for part in unbroken(points):
            places = [(x(at.timestamp()), y(value)) for at, value in part]
            path = " ".join(f"{left:.1f},{top:.1f}" for left, top in places)
            title = f"<title>{html.escape(name)}</title>"
            drawn.append(f'<polyline class="c{number}" points="{path}">{title}</polyline>')
            if len(places) < 3:
                drawn += [f'<circle class="c{number}" cx="{a:.1f}" cy="{b:.1f}" r="3"/>' for a, b in places]
    names = "".join(
        f'<span class="key"><i class="c{number}"></i>{html.escape(name)}</span>'
        for number, (name, _) in enumerate(lines)
    )
    return (
        f'<figure><div class="wide"><svg viewBox="0 0 {WIDE} {HIGH}" role="img" aria-label="{html.escape(unit)}">'
        f"{''.join(drawn)}</svg></div><figcaption>{names}</figcaption></figure>"
    )


def unbroken(points: Sequence[tuple[datetime, float]]) -> list[list[tuple[datetime, float]]]:
    """Split the points at long gaps without data, across which a line would be misleading."""
    gaps = sorted((b[0] - a[0]).total_seconds() for a, b in pairwise(points))
    most = max(6 * HOUR, 4 * gaps[len(gaps) // 2]) if gaps else 0
    parts = [[points[0]]]
    for before, point in pairwise(points):
        if (point[0] - before[0]).total_seconds() > most:
            parts.append([])
        parts[-1].append(point)
    return parts


def thinned(points: Sequence[tuple[datetime, float]]) -> list[tuple[datetime, float]]:
    """Reduce to at most POINTS points, each the largest of its stretch, so that peaks stay."""
    step = max(math.ceil(len(points) / POINTS), 1)
    return [max(points[i : i + step], key=lambda p: p[1]) for i in range(0, len(points), step)]


def nice(low: float, high: float, show: Callable[[float], str]) -> list[float]:
    """Return three to six round values from below the least to above the greatest."""
    high = max(high, low + 1e-9)
    if high - low < 1e-6:
        high = low + 1
    base = show is duration and high > 90_000
    scale = 60_000.0 if base else 1.0
    rough = (high - low) / scale / 4
    power = 10 ** math.floor(math.log10(rough))
    step = next(n * power for n in (1, 2, 2.5, 5, 10) if n * power >= rough) * scale
    first = math.floor(low / step)
    return [step * n for n in range(first, math.ceil(high / step - 1e-9) + 1)]


def moments(begin: float, span: float) -> list[tuple[float, str]]:
    """Return the positions and labels of the time axis, at most seven."""
    step = next((s for s in STEPS if span / s <= 7), STEPS[-1] * math.ceil(span / STEPS[-1] / 7))
    form = "%d %b %H:%M" if step < 24 * HOUR else ("%d %b" if span < 300 * 24 * HOUR else "%b %Y")
    first = math.ceil(begin / step) * step
    found = [first + step * n for n in range(math.floor((begin + span - first) / step) + 1)] or [begin]
    return [(at, datetime.fromtimestamp(at, UTC).strftime(form)) for at in found]


def amount(value: float) -> str:
    """Format a number briefly."""
    for least, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= least:
            return f"{value / (1e3 if letter == 'k' else least):.3g}{letter}"
    return f"{value:,.0f}" if value == int(value) else f"{value:.3g}"


def duration(ms: float) -> str:
    """Format milliseconds for people."""
    for least, size, name in (
        (172_800_000, 86_400_000, "d"),
        (7_200_000, 3_600_000, "h"),
        (120_000, 60_000, "min"),
        (1000, 1000, "s"),
    ):
        if abs(ms) >= least:
            return f"{ms / size:.3g} {name}"
    return f"{ms:.3g} ms" if ms else "0"
