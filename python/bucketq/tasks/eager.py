"""Runs tasks when they are enqueued, without a queue file: for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from bucketq.tasks import execute
from bucketq.tasks.compose import GroupResult
from bucketq.tasks.context import CurrentJob
from bucketq.tasks.message import message
from bucketq.tasks.result import Result, TaskFailed

if TYPE_CHECKING:
    from bucketq.tasks.app import App
    from bucketq.tasks.compose import Chain, Group
    from bucketq.tasks.execute import Outcome
    from bucketq.tasks.message import Message
    from bucketq.tasks.task import Call
    from bucketq.types import Seconds

__all__ = ["Eager", "EagerResult"]

R = TypeVar("R", covariant=True)
S = TypeVar("S")


class EagerResult(Result[R]):
    """The result of a task that has run already."""

    __slots__ = ("_outcome", "_value")

    def __init__(self, app: App, id: str, outcome: Outcome, value: Any) -> None:
        super().__init__(app, id, lambda _: value)
        self._outcome = outcome
        self._value = value

    def result(self, *, timeout: Seconds | None = None) -> R:
        """Return the value, or raise TaskFailed."""
        del timeout
        if self._outcome.what != "done":
            failed = TaskFailed(self.id, "dead", self._outcome.summary, self._outcome.traceback)
            raise failed from self._outcome.error
        return self._value

    async def aresult(self, *, timeout: Seconds | None = None) -> R:
        """Return the value, or raise TaskFailed."""
        return self.result(timeout=timeout)


class EagerGroupResult(GroupResult[S]):
    """The results of a group that has run already."""

    __slots__ = ()

    def result(self, *, timeout: Seconds | None = None) -> list[Any]:
        """Return the values, or raise TaskFailed."""
        return [one.result(timeout=timeout) for one in self.results]

    async def aresult(self, *, timeout: Seconds | None = None) -> list[Any]:
        """Return the values, or raise TaskFailed."""
        return self.result(timeout=timeout)


class Eager:
    """Runs each call as a worker would, with arguments and results that were stored and read."""

    def __init__(self, app: App) -> None:
        self._app = app

    def run(self, call: Call[R]) -> EagerResult[R]:
        """Run one call."""
        return self._result(call, self._outcome(call, call.message))

    async def arun(self, call: Call[R]) -> EagerResult[R]:
        """Run one call in the running event loop."""
        return self._result(call, await self._aoutcome(call, call.message))

    def run_chain(self, chain: Chain[R]) -> EagerResult[R]:
        """Run the calls one after the other, until one fails."""
        outcome, before = None, None
        for call in chain.calls:
            outcome = self._outcome(call, call.message.filled(before))
            if outcome.what != "done":
                break
            before = call.task.signature.dumped_result(outcome.value)
        assert outcome is not None  # noqa: S101
        return self._result(chain.calls[-1], outcome)

    async def arun_chain(self, chain: Chain[R]) -> EagerResult[R]:
        """Run the calls one after the other, until one fails."""
        outcome, before = None, None
        for call in chain.calls:
            outcome = await self._aoutcome(call, call.message.filled(before))
            if outcome.what != "done":
                break
            before = call.task.signature.dumped_result(outcome.value)
        assert outcome is not None  # noqa: S101
        return self._result(chain.calls[-1], outcome)

    def run_group(self, group: Group[R]) -> GroupResult[R]:
        """Run the calls, then what follows."""
        outcomes = [self._outcome(call, call.message) for call in group.calls]
        last = group.then_call
        if last is None:
            return self._group(group, outcomes, None)
        values = self._values(group, outcomes)
        failed = next((one for one in outcomes if one.what != "done"), None)
        return self._group(group, outcomes, failed or self._outcome(last, last.message.filled(values)))

    async def arun_group(self, group: Group[R]) -> GroupResult[R]:
        """Run the calls, then what follows."""
        outcomes = [await self._aoutcome(call, call.message) for call in group.calls]
        last = group.then_call
        if last is None:
            return self._group(group, outcomes, None)
        values = self._values(group, outcomes)
        failed = next((one for one in outcomes if one.what != "done"), None)
        return self._group(group, outcomes, failed or await self._aoutcome(last, last.message.filled(values)))

    def _values(self, group: Group[Any], outcomes: list[Outcome]) -> list[Any]:
        pairs = zip(group.calls, outcomes, strict=True)
        return [call.task.signature.dumped_result(one.value) for call, one in pairs]

    def _group(self, group: Group[R], outcomes: list[Outcome], last: Outcome | None) -> GroupResult[R]:
        each = tuple(self._result(call, one) for call, one in zip(group.calls, outcomes, strict=True))
        if last is None or group.then_call is None:
            return EagerGroupResult(each, None)
        return EagerGroupResult(each, self._result(group.then_call, last))

    def _outcome(self, call: Call[Any], given: Message) -> Outcome:
        job, again = self._job(call), self._read(given)
        if not execute.is_async(call.task):
            return execute.run(call.task, again, job)
        import asyncio
        import threading

        found: list[Outcome] = []

        def run() -> None:
            found.append(asyncio.run(execute.run_async(call.task, again, job)))

        # In a thread of its own: an event loop may run in this one.
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        return found[0]

    async def _aoutcome(self, call: Call[Any], given: Message) -> Outcome:
        job, again = self._job(call), self._read(given)
        if execute.is_async(call.task):
            return await execute.run_async(call.task, again, job)
        return execute.run(call.task, again, job)

    def _read(self, given: Message) -> Message:
        return message(self._app.codec.loads(given.payload(self._app.codec)))

    def _job(self, call: Call[Any]) -> CurrentJob:
        headers = dict(call.extras.get("headers") or {})
        return CurrentJob(str(uuid4()), call.queue, call.task.name, 1, 1, 0, 0, headers)

    def _result(self, call: Call[Any], outcome: Outcome) -> EagerResult[Any]:
        value = None
        if outcome.what == "done":
            stored = call.task.signature.dumped_result(outcome.value)
            value = call.task.signature.loaded_result(stored)
        return EagerResult(self._app, str(uuid4()), outcome, value)
