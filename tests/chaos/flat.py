"""Whether something that is sampled again and again has stopped growing.

The samples of the time that counts are put into blocks, each of which counts once, and a line is laid through the
blocks by least squares. A block stands for many cycles of bases and collections: by its mean where something comes and
goes in cycles, by its median where single samples lie far off. What is measured is flat when both hold:

- it is not certain that it grows by more than `CREEP` of its level in a day, all the time and in the second half of it:
  one step, such as a heap that a longer backlog has made larger, is no growth,
- it is certain that it grew by no more than its tolerance in the time looked at: a measurement too noisy to have seen
  growth proves nothing.

Certain is 99.9 %. Dozens of things are judged in one run, and a run should fail by chance once in a few dozen.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

BLOCKS = 12
# Student's t, one side, 99.9 %, by the number of blocks: there are two degrees of freedom less.
T = {BLOCKS: 4.144, BLOCKS // 2: 7.173}
CREEP = 0.1
HOUR, DAY = 3600.0, 86400.0


@dataclass(frozen=True)
class Tolerance:
    """Growth in the time looked at that would not be noticed: a share of the level, or so much if that is more."""

    share: float
    least: float


@dataclass(frozen=True)
class Line:
    """A line through blocks; the slope is a second's, and certainly no further off than the error."""

    slope: float
    error: float

    def climbs(self, allowed: float) -> bool:
        """For certain, by more than this in a day."""
        return (self.slope - self.error) * DAY > allowed


def line(x: Sequence[float], y: Sequence[float]) -> Line:
    count = len(x)
    middle, level = sum(x) / count, sum(y) / count
    spread = sum((at - middle) ** 2 for at in x)
    slope = sum((at - middle) * (value - level) for at, value in zip(x, y, strict=True)) / spread
    left = sum((value - level - slope * (at - middle)) ** 2 for at, value in zip(x, y, strict=True))
    return Line(slope, T[count] * math.sqrt(left / (count - 2) / spread))


@dataclass(frozen=True)
class Trend:
    level: float
    whole: Line
    later: Line
    """The second half of the time alone."""
    seconds: float
    tolerance: Tolerance

    @property
    def slope(self) -> float:
        return self.whole.slope

    @property
    def error(self) -> float:
        return self.whole.error

    @property
    def grows(self) -> bool:
        """For certain, by more than it may in a day, and still does."""
        allowed = CREEP * max(abs(self.level), self.tolerance.least)
        return self.whole.climbs(allowed) and self.later.climbs(allowed)

    @property
    def vague(self) -> bool:
        """It may have grown by more than the tolerance, and nobody can tell."""
        most = max(self.tolerance.share * abs(self.level), self.tolerance.least)
        return (self.slope + self.error) * self.seconds > most

    @property
    def flat(self) -> bool:
        return not self.grows and not self.vague

    @property
    def per_hour(self) -> float:
        return self.slope * HOUR

    @property
    def day_share(self) -> float:
        """Growth in a day, as a share of the level."""
        return self.slope * DAY / abs(self.level) if self.level else 0.0


def trend(
    times: Sequence[float],
    values: Sequence[float],
    tolerance: Tolerance,
    level: Callable[[Sequence[float]], float] = statistics.fmean,
) -> Trend:
    """The line through these samples; `level` makes one number of a block."""
    count = len(times)
    if count < 2 * BLOCKS:
        raise ValueError(f"{count} samples are too few for {BLOCKS} blocks")
    edges = [count * block // BLOCKS for block in range(BLOCKS + 1)]
    x = [statistics.fmean(times[a:b]) for a, b in pairwise(edges)]
    y = [level(values[a:b]) for a, b in pairwise(edges)]
    half = BLOCKS // 2
    whole, later = line(x, y), line(x[half:], y[half:])
    return Trend(sum(y) / BLOCKS, whole, later, times[-1] - times[0], tolerance)
