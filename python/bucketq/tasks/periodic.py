"""Tasks that are enqueued periodically, by schedules in the queue file."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta, tzinfo
from logging import getLogger
from typing import TYPE_CHECKING, Any

from bucketq import _convert as convert
from bucketq._durations import is_duration
from bucketq.errors import Invalid
from bucketq.tasks.message import message
from bucketq.tasks.task import checked

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bucketq.file import QueueFile
    from bucketq.tasks.app import App
    from bucketq.tasks.task import TaskBase
    from bucketq.types import Missed, ScheduleInfo, Seconds

__all__ = ["Periodic", "register", "removed"]

MARK = "bucketq-every"
"""The header of jobs whose schedule was made here."""
log = getLogger("bucketq.worker")


@dataclass(frozen=True, slots=True)
class Periodic:
    """A task and when it is enqueued."""

    task: TaskBase[..., Any]
    when: str | Seconds
    timezone: str | tzinfo | None
    missed: Missed

    def __post_init__(self) -> None:
        try:
            self.task.signature.check((), {})
        except TypeError as error:
            raise Invalid(f"{self.task.name} cannot be enqueued periodically: {error}") from None
        for name in ("delay", "at", "id"):
            if self.task._options.get(name) is not None:
                raise Invalid(f"{self.task.name} cannot be enqueued periodically with {name}")
        if not isinstance(self.when, (str, int, float, timedelta)) or isinstance(self.when, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise Invalid(f"every({self.when!r}): give a cron expression or a duration")

    @property
    def name(self) -> str:
        """The name of the schedule."""
        return f"{self.task.name} {self.words}"

    @property
    def words(self) -> str:
        """When it is enqueued, in words."""
        if self.is_cron:
            return f"{self.when}" if self.timezone is None else f"{self.when} {self.timezone}"
        return f"every {convert.millis(self.when, 'every') / 1000:g} s"

    @property
    def is_cron(self) -> bool:
        """True for a cron expression, False for an interval."""
        return isinstance(self.when, str) and not is_duration(self.when)

    def register(self, file: QueueFile) -> None:
        """Create or replace the schedule; an identical one keeps its times."""
        payload = self.task.job().message.payload(self.task.app.codec)
        queue, extras = checked(self.task._options)
        headers = {**(extras.get("headers") or {}), MARK: "1"}
        rest: dict[str, Any] = {**extras, "content_type": payload.content_type, "headers": headers}
        rest |= {"timezone": self.timezone, "missed": self.missed}
        rest["cron" if self.is_cron else "every"] = self.when
        file.queue(queue).schedule(self.name, payload, **rest)


def register(app: App, file: QueueFile, queues: Iterable[str]) -> list[Periodic]:
    """Create the schedules of the tasks in these queues, and log those that the app no longer has."""
    queues = set(queues)
    mine = [one for one in app.periodic if one.task.queue in queues]
    for one in mine:
        one.register(file)
    for info in removed(app, file, queues):
        log.warning(
            "schedule %r of queue %s is not in this app any more, and still enqueues jobs; to delete it, run: "
            "bucketq unschedule %s '%s'",
            info.name,
            info.queue,
            info.queue,
            info.name,
        )
    return mine


def removed(app: App, file: QueueFile, queues: Iterable[str]) -> list[ScheduleInfo]:
    """Return the schedules of these queues that an app made and this app does not have.

    A schedule counts as this app's if the app has its task, or another task of the same module.
    """
    queues = set(queues)
    names = {(one.task.queue, one.name) for one in app.periodic}
    modules = {task.function.__module__ for task in app.tasks.values()}
    found: list[ScheduleInfo] = []
    for info in file.schedules():
        if info.queue not in queues or MARK not in info.headers or (info.queue, info.name) in names:
            continue
        try:
            task = message(app.codec.loads(info.payload)).task
        except (ValueError, TypeError):
            continue
        if task in app.tasks or task.rpartition(".")[0] in modules:
            found.append(info)
    return found
