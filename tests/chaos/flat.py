"""Decide whether a series of samples has stopped growing.

The samples after the warm-up are put into blocks, each of which counts once, and a line is fitted to the
blocks by least squares. A block covers many cycles of bases and collections: it counts by its mean for values that come
and go in cycles, by its median for values with extreme single samples. A series is flat when both hold:

- it is not certain that it grows by more than `CREEP` of its level in a day, over all the time and in its second half:
  a single step, such as a heap that a longer backlog has made larger, is no growth,
- it is certain that it grew by no more than its tolerance in the sampled time: a measurement too noisy to have seen
  growth proves nothing.

Certain means 99.9 %. A run judges dozens of series, and should fail by chance once in a few dozen runs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

BLOCKS = 12
# Student's t, one-sided, 99.9 %, by the number of blocks: the degrees of freedom are two fewer.
T = {BLOCKS: 4.144, BLOCKS // 2: 7.173}
CREEP = 0.1
HOUR, DAY = 3600.0, 86400.0


@dataclass(frozen=True)
class Tolerance:
    """Growth in the sampled time that is tolerated: a share of the level, or `least` if that is more."""

    share: float
    least: float


@dataclass(frozen=True)
class Line:
    """A line through blocks: the slope per second, and the most by which it is certainly not further off."""

    slope: float
    error: float

    def climbs(self, allowed: float) -> bool:
        """Whether it certainly grows by more than this in a day."""
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
        """Whether it certainly grows by more than it may in a day, and still does in the second half."""
        allowed = CREEP * max(abs(self.level), self.tolerance.least)
        return self.whole.climbs(allowed) and self.later.climbs(allowed)

    @property
    def vague(self) -> bool:
        """Whether it may have grown by more than the tolerance, within the error."""
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
    """Fit a line to these samples; `level` reduces a block to one number."""
    count = len(times)
    if count < 2 * BLOCKS:
        raise ValueError(f"{count} samples are too few for {BLOCKS} blocks")
    edges = [count * block // BLOCKS for block in range(BLOCKS + 1)]
    x = [statistics.fmean(times[a:b]) for a, b in pairwise(edges)]
    y = [level(values[a:b]) for a, b in pairwise(edges)]
    half = BLOCKS // 2
    whole, later = line(x, y), line(x[half:], y[half:])
    return Trend(sum(y) / BLOCKS, whole, later, times[-1] - times[0], tolerance)
