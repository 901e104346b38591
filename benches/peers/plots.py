"""Plots of `make bench-peers` as SVG. Dots on a logarithmic scale: the differences are of orders of magnitude."""

from __future__ import annotations

import math

WIDTH, LEFT, RIGHT, TOP, LINE = 760, 190, 60, 64, 24
OURS, THEIRS = "#1f6f8b", "#8a8a8a"
INK, GRID = "#222222", "#dddddd"


def mark(x: float, y: float, colour: str, which: int) -> str:
    """Draw a dot, a ring around it or a square, so that all of them can be seen where they coincide."""
    if which == 2:
        box = f'x="{x - 9:.1f}" y="{y - 9:.1f}" width="18" height="18"'
        return f'<rect {box} fill="none" stroke="{colour}" stroke-width="1.5"/>'
    dot = f'cx="{x:.1f}" cy="{y:.1f}"'
    if which == 1:
        return f'<circle {dot} r="6.5" fill="none" stroke="{colour}" stroke-width="2"/>'
    return f'<circle {dot} r="4" fill="{colour}"/>'


def told(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def dots(title: str, marks: list[str], rows: list[tuple[str, bool, list[list[float]]]]) -> str:
    """Draw a line per row: its name, whether it is bucketq, and for each mark the measurement of every round."""
    rows = [row for row in rows if any(any(values) for values in row[2])]
    every = [value for _, _, seen in rows for values in seen for value in values if value > 0] or [1.0]
    low, high = math.floor(math.log10(min(every))), math.ceil(math.log10(max(every)))
    high = max(high, low + 1)
    height = TOP + LINE * len(rows) + 28

    def x(value: float) -> float:
        return LEFT + (math.log10(value) - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        'font-family="system-ui, sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="20" fill="{INK}" font-size="14">{title}</text>',
    ]
    for which, name in enumerate(marks):
        at = LEFT + 160 * which
        parts.append(mark(at, 40, INK, which))
        parts.append(f'<text x="{at + 12}" y="44" fill="{INK}">{name}</text>')
    for power in range(low, high + 1):
        at = x(10.0**power)
        parts.append(f'<line x1="{at:.1f}" y1="{TOP - 8}" x2="{at:.1f}" y2="{height - 22}" stroke="{GRID}"/>')
        parts.append(
            f'<text x="{at:.1f}" y="{height - 8}" fill="{INK}" text-anchor="middle">{10.0**power:,g}</text>'
        )
    for row, (name, ours, seen) in enumerate(rows):
        y, colour = TOP + LINE * row + LINE / 2, OURS if ours else THEIRS
        parts.append(f'<text x="{LEFT - 12}" y="{y + 4:.1f}" text-anchor="end" fill="{INK}">{name}</text>')
        shown = [[value for value in values if value > 0] for values in seen]
        for which, values in enumerate(shown):
            if not values:
                continue
            parts.append(
                f'<line x1="{x(min(values)):.1f}" y1="{y:.1f}" x2="{x(max(values)):.1f}" y2="{y:.1f}" '
                f'stroke="{colour}" stroke-width="2"/>'
            )
            parts.append(mark(x(sum(values) / len(values)), y, colour, which))
        last = max((max(values) for values in shown if values), default=0)
        if last:
            parts.append(f'<text x="{x(last) + 13:.1f}" y="{y + 4:.1f}" fill="{INK}">{told(last)}</text>')
    return "\n".join([*parts, "</svg>", ""])
