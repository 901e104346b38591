"""Operations on a whole queue file that is not open, as ``bucketq.operate``."""

from __future__ import annotations

from os import PathLike
from typing import Unpack

from bucketq import _convert as convert
from bucketq import _native, _show
from bucketq._spelled import spelled
from bucketq.measured import Measured, Progress, measured_of
from bucketq.settings import Source, resolve
from bucketq.types import (
    ChangedSkew,
    CheckReport,
    FixedTime,
    ProbeReport,
    Restored,
    Seconds,
    Settings,
)

__all__ = ["check", "fix_time", "measure", "probe", "restore", "set_max_skew"]


@spelled(Settings)
async def probe(
    url: str | PathLike[str] | None = None,
    *,
    thorough: bool = True,
    settings: Source | None = None,
    **arguments: Unpack[Settings],
) -> ProbeReport:
    """Test the compare-and-swap of the store at this URL, as ``bucketq.probe``."""
    url, options = resolve(url, settings, arguments)
    return _show.report(await _native.probe(url, thorough, options))


@spelled(Settings)
async def check(
    url: str | PathLike[str] | None = None, *, settings: Source | None = None, **arguments: Unpack[Settings]
) -> CheckReport:
    """Read every object of a queue file and report what is wrong, as ``bucketq.check``."""
    url, options = resolve(url, settings, arguments)
    return _show.checked(await _native.check(url, options))


@spelled(Settings)
async def restore(
    url: str | PathLike[str] | None,
    image: str | PathLike[str],
    *,
    settings: Source | None = None,
    **arguments: Unpack[Settings],
) -> Restored:
    """Make an exported image the newest state of the queue file, as ``bucketq.restore``."""
    url, options = resolve(url, settings, arguments)
    return _show.restored(await _native.restore(url, image, options))


@spelled(Settings)
async def fix_time(
    url: str | PathLike[str] | None = None,
    *,
    only_look: bool = False,
    settings: Source | None = None,
    **arguments: Unpack[Settings],
) -> FixedTime:
    """Bring the time of a queue file back to the present, as ``bucketq.fix_time``."""
    url, options = resolve(url, settings, arguments)
    return _show.fixed_time(await _native.fix_time(url, only_look, options))


@spelled(Settings)
async def set_max_skew(
    url: str | PathLike[str] | None,
    value: Seconds,
    /,
    *,
    settings: Source | None = None,
    **arguments: Unpack[Settings],
) -> ChangedSkew:
    """Change how far the clocks of the queue file's processes may differ, as ``bucketq.set_max_skew``."""
    url, options = resolve(url, settings, arguments)
    return _show.changed_skew(await _native.set_max_skew(url, convert.millis(value, "max_skew"), options))


@spelled(Settings)
async def measure(
    url: str | PathLike[str] | None = None,
    *,
    samples: int = 100,
    progress: Progress | None = None,
    settings: Source | None = None,
    **arguments: Unpack[Settings],
) -> Measured:
    """Measure the store at this URL, as ``bucketq.measure``."""
    url, options = resolve(url, settings, arguments)
    return measured_of(await _native.measure(url, samples, progress, options))
