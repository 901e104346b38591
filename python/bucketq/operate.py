"""Operations on a whole queue file that is not open: probe, check, restore, fix its time, measure its store."""

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
def probe(
    url: str | PathLike[str] | None = None,
    *,
    thorough: bool = True,
    settings: Source | None = None,
    **arguments: Unpack[Settings],
) -> ProbeReport:
    """Test the compare-and-swap of the store at this URL; creating a queue file runs a shorter form of this test.

    If the test fails, raises Unavailable, which says what the store did. Creates and deletes objects
    ``name.probe-...``.
    """
    url, options = resolve(url, settings, arguments)
    return _show.report(_native.probe(url, thorough, options).wait())


@spelled(Settings)
def check(
    url: str | PathLike[str] | None = None, *, settings: Source | None = None, **arguments: Unpack[Settings]
) -> CheckReport:
    """Read every object of a queue file and report what is wrong. Writes nothing; workers may continue meanwhile.

    >>> import bucketq
    >>> with bucketq.open("memory://checked") as file:
    ...     receipt = file.queue("emails").enqueue("hello")
    ...     bucketq.check("memory://checked").problems
    ()
    """
    url, options = resolve(url, settings, arguments)
    return _show.checked(_native.check(url, options).wait())


@spelled(Settings)
def restore(
    url: str | PathLike[str] | None,
    image: str | PathLike[str],
    *,
    settings: Source | None = None,
    **arguments: Unpack[Settings],
) -> Restored:
    """Make an exported image the newest state of the queue file, even if that is damaged. Stop the workers first.

    Commits after the image are undone, and leases claimed since then are lost.
    If ``url`` is None, the settings name the queue file.
    """
    url, options = resolve(url, settings, arguments)
    return _show.restored(_native.restore(url, image, options).wait())


@spelled(Settings)
def fix_time(
    url: str | PathLike[str] | None = None,
    *,
    only_look: bool = False,
    settings: Source | None = None,
    **arguments: Unpack[Settings],
) -> FixedTime:
    """Bring the time of a queue file back to the present when its newest commit lies in the future.

    This repairs ``clock_skew`` after a writer's clock was ahead; set that clock first. No job is lost. Processes that
    still run fail with ``rolled_back`` and must open the queue file again. ``only_look`` writes nothing. A second call
    does nothing. If ``url`` is None, the settings name the queue file.
    """
    url, options = resolve(url, settings, arguments)
    return _show.fixed_time(_native.fix_time(url, only_look, options).wait())


@spelled(Settings)
def set_max_skew(
    url: str | PathLike[str] | None,
    value: Seconds,
    /,
    *,
    settings: Source | None = None,
    **arguments: Unpack[Settings],
) -> ChangedSkew:
    """Change how far the clocks of the queue file's processes may differ.

    The option ``max_skew`` counts when a queue file is created. Fails while a worker holds a job. Processes that still
    run fail with ``rolled_back`` and must open the queue file again. If ``url`` is None, the settings name the queue
    file.
    """
    url, options = resolve(url, settings, arguments)
    return _show.changed_skew(_native.set_max_skew(url, convert.millis(value, "max_skew"), options).wait())


@spelled(Settings)
def measure(
    url: str | PathLike[str] | None = None,
    *,
    samples: int = 100,
    progress: Progress | None = None,
    settings: Source | None = None,
    **arguments: Unpack[Settings],
) -> Measured:
    """Measure the store at this URL: latencies by size, throughput, clocks.

    ``progress`` is called with the name of the next step, the requests done, and their total; an exception from it ends
    the measurement. Creates and deletes objects ``name.probe-...``.
    """
    url, options = resolve(url, settings, arguments)
    return measured_of(_native.measure(url, samples, progress, options).wait())
