"""The handle on a task's result."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from bucketq._other_api import awaitable
from bucketq.errors import NotFound

if TYPE_CHECKING:
    from collections.abc import Callable

    from bucketq import aio
    from bucketq.tasks.app import App
    from bucketq.types import JobDetail, Seconds, State

__all__ = ["Result", "TaskFailed"]

R = TypeVar("R", covariant=True)
TRACEBACK = "\nTraceback (most recent call last):\n"
MOST_TEXT = 4000
"""The engine keeps a little more of the text of a failure."""


class TaskFailed(Exception):
    """The task of this job did not succeed, and will not run again unless it is requeued."""

    def __init__(self, id: str, state: State, error: str, traceback: str = "") -> None:
        what = "was cancelled" if state == "cancelled" else f"failed: {error}" if error else "failed"
        super().__init__(f"job {id} {what}" + (f"\n\nIn the worker:\n{traceback}" if traceback else ""))
        self.id = id
        """The job."""
        self.state = state
        """``dead`` or ``cancelled``."""
        self.error = error
        """The last failure in one line, such as ``ValueError: no address``."""
        self.traceback = traceback
        """Where it was raised in the worker; empty if that is not known."""

    def __reduce__(self) -> Any:
        return type(self), (self.id, self.state, self.error, self.traceback)


def stored(summary: str, traceback: str) -> str:
    """Return the text that is stored for a failure: the summary, then as much of the traceback as there is room."""
    room = MOST_TEXT - len(summary.encode()) - len(TRACEBACK) - 8
    head, _, body = traceback.partition(TRACEBACK.lstrip())
    body = body or head
    if room < 200 or not body:
        return summary
    lines = body.rstrip().splitlines()
    kept: list[str] = []
    # The end says where it was raised.
    for line in reversed(lines):
        room -= len(line.encode()) + 1
        if room < 0:
            kept.append("  ...")
            break
        kept.append(line)
    return summary + TRACEBACK + "\n".join(reversed(kept))


def parts(text: str | None) -> tuple[str, str]:
    """Return the summary and the traceback of a stored failure."""
    summary, found, body = (text or "").partition(TRACEBACK)
    return summary, f"{found}{body}".lstrip("\n")


@dataclass(frozen=True, slots=True)
class Awaited:
    """A job that must finish before the result is there."""

    id: str
    required: bool = True
    """Whether the result fails with it."""


class Result(Generic[R]):
    """The result of an enqueued task, now or later."""

    __slots__ = ("_app", "_before", "_read", "deduplicated", "id")

    def __init__(
        self,
        app: App,
        id: str,
        read: Callable[[JobDetail], Any],
        *,
        deduplicated: bool = False,
        before: tuple[tuple[Awaited, ...], ...] = (),
    ) -> None:
        self._app = app
        self._read = read
        # Each stage is enqueued when the one before it is done.
        self._before = before
        self.id = id
        """The id of the job."""
        self.deduplicated = deduplicated
        """True if a job with the same dedup key existed; the result is that job's."""

    def result(self, *, timeout: Seconds | None = None) -> R:
        """Wait until the task is done, and return its value.

        Raises TaskFailed if it failed for good, and TimeoutError if it is not finished within ``timeout``.
        """
        file = self._app.file
        if self._before:
            from bucketq.tasks.waiting import run

            return run(self._awaited(awaitable(file), timeout))
        return self._returned(file.queue(ANY_QUEUE).wait(self.id, timeout=timeout))

    async def aresult(self, *, timeout: Seconds | None = None) -> R:
        """Wait as ``result`` does."""
        file = await self._app.afile()
        if self._before:
            return await self._awaited(file, timeout)
        return self._returned(await file.queue(ANY_QUEUE).wait(self.id, timeout=timeout))

    async def _awaited(self, file: aio.QueueFile, timeout: Seconds | None) -> R:
        """Wait for the jobs before this one first: it is enqueued when they are done, and never if one fails."""
        from bucketq.tasks.waiting import Limit, finished

        limit = Limit(timeout)
        for stage in self._before:
            jobs = {one.id: one for one in stage}
            async with aclosing(finished(file, jobs, limit)) as found:
                async for id, detail in found:
                    # One that has left the file has finished.
                    if not isinstance(detail, NotFound):
                        self._check(jobs[id], detail)
        return self._returned(await file.queue(ANY_QUEUE).wait(self.id, timeout=limit.left()))

    def _returned(self, detail: JobDetail | None) -> R:
        self._check(Awaited(self.id), detail)
        return self._read(cast("JobDetail", detail))

    def _check(self, one: Awaited, detail: JobDetail | None) -> None:
        if detail is None:
            raise TimeoutError(f"job {one.id} is not finished yet")
        if one.required and detail.state != "done":
            raise TaskFailed(detail.id, detail.state, *parts(detail.last_error))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"


ANY_QUEUE = "default"
"""A job is found by its id alone, in any queue."""
