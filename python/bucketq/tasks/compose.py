"""Chains and groups: tasks that follow other tasks, enqueued in one commit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast
from uuid import uuid4

from bucketq import _convert as convert
from bucketq._other_api import awaitable
from bucketq.errors import Invalid, NotFound
from bucketq.tasks import join
from bucketq.tasks.result import Awaited, Result
from bucketq.tasks.task import Call

if TYPE_CHECKING:
    from bucketq import aio
    from bucketq.tasks.app import App
    from bucketq.tasks.message import Step
    from bucketq.types import Extras, Seconds

__all__ = ["Chain", "Group", "GroupResult"]

R = TypeVar("R")
AnyCall = Call[Any]
MOST = 10_000


def allowed(calls: Iterable[Any], what: str) -> list[AnyCall]:
    """Return the calls as a list. Raises Invalid if one of them cannot be part of a chain or group."""
    found: list[AnyCall] = []
    for call in calls:
        if not isinstance(call, Call):
            raise Invalid(f"{what} takes calls, task.job(...), not {call!r}")
        call = cast("AnyCall", call)
        if "dedup" in call.extras:
            raise Invalid(
                f"{call.task.name}: dedup is not allowed in {what}, because what follows would never run"
            )
        found.append(call)
    return found


class Chain(Generic[R]):
    """Calls one after the other. The commit that ends one enqueues the next."""

    def __init__(self, app: App, calls: Sequence[AnyCall], then: tuple[Step, ...] = ()) -> None:
        self.app = app
        self.calls = allowed(calls, "a chain")
        if not self.calls:
            raise Invalid("a chain needs at least one call: app.chain(first.job(), second.job())")
        if self.calls[0].message.previous:
            raise Invalid("PREVIOUS is an argument only for a later task: the first one has none before it")
        steps: list[Step] = []
        for call in reversed(self.calls):
            steps.append(call.step(then=then))
            then = (steps[-1],)
        self.steps = steps[::-1]

    def first(self) -> tuple[str, convert.Encoded, Extras]:
        """Return the job to enqueue now: queue, payload, options."""
        step = self.steps[0]
        payload = step.message.payload(self.app.codec)
        return step.queue, payload, {**step.extras, "id": step.id, "content_type": payload.content_type}

    def result(self) -> Result[R]:
        """Return the handle on the value of the last call."""
        *before, last = self.steps
        awaited = tuple((Awaited(step.id),) for step in before)
        return Result(self.app, last.id, self.calls[-1].task.read, before=awaited)


class GroupResult(Generic[R]):
    """The results of a group."""

    __slots__ = ("results", "then")

    def __init__(self, results: tuple[Result[Any], ...], then: Result[R] | None) -> None:
        self.results = results
        """The results of the calls, in their order."""
        self.then = then
        """The result of ``then``; None without it."""

    def result(self, *, timeout: Seconds | None = None) -> list[Any]:
        """Wait for all calls, and return their values in order. Raises TaskFailed as soon as one has failed."""
        from bucketq.tasks.waiting import run

        return run(self._all(awaitable(self.results[0]._app.file), timeout))

    async def aresult(self, *, timeout: Seconds | None = None) -> list[Any]:
        """Wait as ``result`` does."""
        return await self._all(await self.results[0]._app.afile(), timeout)

    async def _all(self, file: aio.QueueFile, timeout: Seconds | None) -> list[Any]:
        from bucketq.tasks.waiting import Limit, finished

        results, values = {one.id: one for one in self.results}, dict[str, Any]()
        async with aclosing(finished(file, results, Limit(timeout))) as found:
            async for id, detail in found:
                if isinstance(detail, NotFound):
                    raise detail
                values[id] = results[id]._returned(detail)
        return [values[one.id] for one in self.results]

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self.results)}>"


class Group(Generic[R]):
    """Calls side by side, and one that runs once they are all done."""

    def __init__(self, app: App, calls: Iterable[AnyCall], then: Call[R] | None) -> None:
        self.app = app
        self.calls = allowed(calls, "a group")
        if not self.calls:
            raise Invalid("a group needs at least one call: app.group([first.job(), second.job()])")
        if len(self.calls) > MOST:
            raise Invalid(f"a group has {len(self.calls)} calls, at most {MOST}: make several groups")
        for call in self.calls:
            if "id" in call.extras:
                raise Invalid(
                    f"{call.task.name}: id is not allowed in a group, which sets the ids of its jobs"
                )
            if call.message.previous:
                raise Invalid(f"{call.task.name}: PREVIOUS is an argument only for then=")
        self.then_call = None if then is None else allowed([then], "a group")[0]
        id = uuid4()
        self.then = None if self.then_call is None else self.then_call.step(str(join.then_id(id)))
        self.steps = [
            call.step(
                str(join.job_id(id, index)),
                () if self.then is None else (join.arrival(id, index, len(self.calls), self.then),),
            )
            for index, call in enumerate(self.calls)
        ]
        self._arrival = str(join.arrival_id(id, 0))

    def jobs(self) -> list[tuple[str, convert.Encoded, Extras]]:
        """Return the jobs to enqueue now: queue, payload, options."""
        found: list[tuple[str, convert.Encoded, Extras]] = []
        for step in self.steps:
            payload = step.message.payload(self.app.codec)
            found.append(
                (step.queue, payload, {**step.extras, "id": step.id, "content_type": payload.content_type})
            )
        return found

    def result(self) -> GroupResult[R]:
        """Return the handles on all values."""
        each = tuple(
            Result[Any](self.app, step.id, call.task.read)
            for step, call in zip(self.steps, self.calls, strict=True)
        )
        if self.then is None or self.then_call is None:
            return GroupResult(each, None)
        # ``then`` is enqueued by the commit that ends the arrivals.
        calls = tuple(Awaited(step.id) for step in self.steps)
        before = (calls, (Awaited(self._arrival, required=False),))
        return GroupResult(each, Result(self.app, self.then.id, self.then_call.task.read, before=before))
