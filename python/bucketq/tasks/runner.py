"""The handler of a worker that runs the tasks of an app: reads the call, runs it, and says how its job ends."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from bucketq._ending import Ending, EndOp
from bucketq._threads import Threads
from bucketq.tasks import execute, join
from bucketq.tasks.context import CurrentJob
from bucketq.tasks.message import Message, message
from bucketq.tasks.result import stored
from bucketq.types import New

if TYPE_CHECKING:
    from collections.abc import Callable

    from bucketq.aio import Job, QueueFile
    from bucketq.tasks.app import App
    from bucketq.tasks.execute import Outcome
    from bucketq.tasks.pool import Pool
    from bucketq.tasks.task import TaskBase

__all__ = ["Runner"]


class Runner:
    """Called by the worker with each job."""

    def __init__(
        self, app: App, file: QueueFile, concurrency: int, pool: Pool | None, ran: Callable[[], object]
    ) -> None:
        self._app = app
        self._file = file
        self._pool = pool
        self._ran = ran
        self._threads = Threads(concurrency, "bucketq-task")

    async def __call__(self, job: Job) -> Ending:
        """Run the task of the job."""
        try:
            call = message(self._app.codec.loads(job.payload))
        except Exception as error:
            return rejected(job, f"the payload is not a call of a task of this app: {error}")
        if call.task == join.NAME:
            return await join.ending(self._file, self._app.codec, job, call)
        task = self._task(call.task)
        if task is None:
            names = ", ".join(sorted(self._app.tasks)) or "none"
            return rejected(
                job, f"this app has no task {call.task!r}: it was renamed or removed; it has {names}"
            )
        ending = await self._run(job, task, call)
        if ending.what != "released":
            self._ran()
        return ending

    def _task(self, name: str) -> TaskBase[..., Any] | None:
        return self._app.tasks.get(name)

    async def _current(self, job: Job, task: TaskBase[..., Any]) -> CurrentJob:
        return CurrentJob.of(job, task.name)

    async def _run(self, job: Job, task: TaskBase[..., Any], call: Message) -> Ending:
        current = await self._current(job, task)
        if self._pool is not None:
            telemetry = job._file.hooks.telemetry
            trace = {} if telemetry is None else telemetry.here()
            outcome = await self._pool.run(task, job.payload, current, trace)
            if outcome is None:
                return Ending("released", EndOp("release", job._released), task.name)
        elif execute.is_async(task):
            outcome = await execute.run_async(task, call, current)
        else:
            outcome = await self._threads.run(execute.run, task, call, current)
        return end(job, task, outcome)

    def close(self) -> None:
        """End the threads, each after the function it runs now."""
        self._threads.close()


def rejected(job: Job, reason: str) -> Ending:
    """Return the ending of a job that can never run."""
    return Ending("rejected", EndOp("reject", partial(job._rejected, reason)), summary=reason)


def end(job: Job, task: TaskBase[..., Any], outcome: Outcome) -> Ending:
    """Return how the job of this outcome ends."""
    if outcome.what == "done":
        # In one commit with what follows.
        then = [New(one.queue, one.payload, **one.extras) for one in outcome.then]
        ack = EndOp("ack", partial(job._acked_then, outcome.result, then))
        alone = EndOp("ack", partial(job._acked, outcome.result)) if then else None
        return Ending("done", ack, task.name, requeued=alone)
    text = stored(outcome.summary, outcome.traceback)
    failed = outcome.what == "failed"
    end_op = (
        EndOp("nack", partial(job._nacked, text, None))
        if failed
        else EndOp("reject", partial(job._rejected, text))
    )
    return Ending(outcome.what, end_op, task.name, outcome.summary, outcome.traceback, error=outcome.error)
