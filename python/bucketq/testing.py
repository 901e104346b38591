"""Helpers for tests of programs that use bucketq: a private queue file, a clock to advance, an assertion.

>>> from bucketq import testing
>>> clock = testing.Clock()
>>> with testing.open(clock=clock) as file:
...     receipt = file.queue("emails").enqueue({"to": "ada"}, delay=3600)
...     [job] = testing.assert_enqueued(file, "emails", {"to": "ada"})
...     early = file.queue("emails").claim_one()
...     clock.advance(3600)
...     early, file.queue("emails").claim_one().id == job.id
(None, True)
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Unpack

from bucketq import _convert as convert
from bucketq import _native
from bucketq._listening import Task, Thread, start
from bucketq._other_api import plain
from bucketq._spelled import spelled
from bucketq.errors import Invalid
from bucketq.events import OnEvent
from bucketq.file import QueueFile
from bucketq.types import JobDetail, Seconds, Settings

if TYPE_CHECKING:
    from bucketq import aio
    from bucketq.tasks import App

__all__ = ["ANY", "Clock", "assert_enqueued", "eager", "open", "open_aio", "use"]


CENTURY = 100 * 366 * 86_400_000


class Anything:
    def __repr__(self) -> str:
        return "ANY"


ANY: Any = Anything()
"""Matches any data in ``assert_enqueued``."""


class Clock:
    """A clock for queue files in tests. It runs like the machine's clock, and ``advance`` makes it jump.

    Leases of held jobs are not renewed on such a clock: they run out by its time.
    """

    def __init__(self) -> None:
        self._clock = _native.Clock()

    def advance(self, by: Seconds) -> None:
        """Jump ahead, by a hundred years at most."""
        ms = convert.millis(by, "by")
        if ms > CENTURY:
            raise Invalid(f"by is {by!r}: jump at most a hundred years ahead")
        self._clock.advance(ms)

    @property
    def now(self) -> datetime:
        """The time of this clock."""
        return convert.time(self._clock.now_ms())


@spelled(Settings)
def open(
    *, clock: Clock | None = None, on_event: OnEvent | None = None, **settings: Unpack[Settings]
) -> QueueFile:
    """Open a new queue file in memory that no other handle shares. Closing it deletes it."""
    file = _native.open_test(convert.native_settings(settings), clock and clock._clock).wait()
    return QueueFile(start(file, on_event, Thread), "a test")


@spelled(Settings)
async def open_aio(
    *, clock: Clock | None = None, on_event: OnEvent | None = None, **settings: Unpack[Settings]
) -> aio.QueueFile:
    """Open such a queue file for ``bucketq.aio``."""
    from bucketq import aio

    file = await _native.open_test(convert.native_settings(settings), clock and clock._clock)
    return aio.QueueFile(start(file, on_event, Task), "a test")


@contextmanager
def eager(app: App) -> Generator[None]:
    """Run the tasks of the app where they are enqueued, until the end of the block. No queue file is opened.

    Arguments and results are stored and read as usual, so that a value which JSON cannot hold fails here too. Delays
    and attempts are ignored: ``result()`` raises ``TaskFailed`` after the first failure.
    """
    from bucketq.tasks.eager import Eager

    before, app.eager = app.eager, Eager(app)
    try:
        yield
    finally:
        app.eager = before


@spelled(Settings)
@contextmanager
def use(
    app: App, *, clock: Clock | None = None, on_event: OnEvent | None = None, **settings: Unpack[Settings]
) -> Generator[QueueFile]:
    """Let the app use a new queue file in memory until the end of the block.

    ``app.worker().run(wait=0)`` works on it.
    """
    with open(clock=clock, on_event=on_event, **settings) as file:
        before = app.use(file)
        try:
            yield file
        finally:
            app.use(before)


def assert_enqueued(
    file: QueueFile | aio.QueueFile, queue: str, data: Any = ANY, *, times: int = 1, **fields: object
) -> list[JobDetail]:
    """Fail unless the queue has ``times`` jobs with these data and fields of ``JobDetail``. Returns them, oldest first.

    Jobs in any state count unless ``state`` is one of the fields. A file of ``bucketq.aio`` works too, without await.
    """
    __tracebackhide__ = True  # pytest shows the test's own line.
    for name in fields:
        if name not in JobDetail.__dataclass_fields__:
            raise TypeError(f"a job has no {name!r}: {convert.nearest(name, JobDetail.__dataclass_fields__)}")
    there = jobs(plain(file), queue)
    found = [job for job in there if matches(job, data, fields)]
    if len(found) == times:
        return found
    wanted = "".join(f", {name}={value!r}" for name, value in fields.items())
    listed = "".join(f"\n  {job.state}: {job.data!r}" for job in there) or " nothing"
    raise AssertionError(
        f"{len(found)} of {times} jobs in {queue!r} with data={data!r}{wanted}; the queue has:{listed}"
    )


def jobs(file: QueueFile, queue: str) -> list[JobDetail]:
    """Return all jobs of the queue with payloads and results."""
    found: list[JobDetail] = []
    after = None
    while True:
        page = file.list(queue=queue, after=after, limit=1000, payloads=True)
        found += page.jobs
        after = page.next
        if after is None:
            return found


def matches(job: JobDetail, data: Any, fields: dict[str, object]) -> bool:
    """Return True if the job has these data and fields."""
    return (data is ANY or job.data == data) and all(
        getattr(job, name) == value for name, value in fields.items()
    )
