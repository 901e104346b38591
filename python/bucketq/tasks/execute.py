"""Runs one call of a task, in whatever process or thread, and says how it ended. Does no I/O of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Literal

from bucketq import _op
from bucketq._convert import Encoded
from bucketq.tasks import codec
from bucketq.tasks.context import CurrentJob, current
from bucketq.worker import Reject

if TYPE_CHECKING:
    from bucketq.tasks.message import Message
    from bucketq.tasks.task import TaskBase
    from bucketq.types import Extras

__all__ = ["Next", "Outcome", "is_async", "run", "run_async"]


@dataclass(frozen=True, slots=True)
class Next:
    """A job to enqueue in the commit that ends this one."""

    queue: str
    payload: Encoded
    extras: Extras


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a call ended. Plain values, so that a child process can send it."""

    what: Literal["done", "failed", "rejected"]
    result: Encoded | None = None
    then: tuple[Next, ...] = ()
    summary: str = ""
    traceback: str = ""
    error: BaseException | None = field(default=None, compare=False)
    """The exception itself, unless it was raised in another process."""
    value: Any = field(default=None, compare=False)
    """The value that the function returned, unless it ran in another process."""


def is_async(task: TaskBase[..., Any]) -> bool:
    """Return True if the task is a coroutine function."""
    return iscoroutinefunction(task.function)


def run(task: TaskBase[..., Any], message: Message, job: CurrentJob | None) -> Outcome:
    """Call the function and return how it ended; never raises."""
    token = current.set(job)
    try:
        args, kwargs = arguments(task, message)
        return done(task, message, task.function(*args, **kwargs))
    except BaseException as error:
        return failed(task, error)
    finally:
        current.reset(token)


async def run_async(task: TaskBase[..., Any], message: Message, job: CurrentJob | None) -> Outcome:
    """Await the coroutine function and return how it ended; raises only if it is cancelled."""
    from asyncio import CancelledError

    token = current.set(job)
    try:
        args, kwargs = arguments(task, message)
        return done(task, message, await task.function(*args, **kwargs))
    except CancelledError:
        raise
    except BaseException as error:
        return failed(task, error)
    finally:
        current.reset(token)


class Changed(Exception):
    """The stored arguments do not fit the task as it is now."""


def arguments(task: TaskBase[..., Any], message: Message) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments as the function gets them."""
    try:
        return task.signature.read(message.args, message.kwargs)
    except (TypeError, ValueError) as error:
        raise Changed(
            f"the signature of {task.name} has changed since the job was enqueued, or the arguments never fitted: "
            f"{error}; give an incompatible task another name"
        ) from error


def done(task: TaskBase[..., Any], message: Message, value: Any) -> Outcome:
    """Return the outcome of a call that returned: its result as it is stored, and the jobs that follow."""
    stored = task.signature.dumped_result(value)
    codecs = task.app.codec
    then = tuple(
        Next(
            step.queue,
            (payload := step.message.filled(stored).payload(codecs)),
            {**step.extras, "id": step.id, "content_type": payload.content_type},
        )
        for step in message.then
    )
    return Outcome("done", codec.result(codecs, stored), then, value=value)


def failed(task: TaskBase[..., Any], error: BaseException) -> Outcome:
    """Return the outcome of a call that raised: another attempt, or dead at once."""
    match error:
        case Changed():
            return Outcome("rejected", summary=str(error), error=error)
        case Reject():
            return Outcome("rejected", summary=str(error) or "Reject", error=error)
        case _:
            again = (
                task.retry_on is None or isinstance(error, task.retry_on) or not isinstance(error, Exception)
            )
            what = "failed" if again else "rejected"
            return Outcome(what, summary=_op.words(error) or "", traceback=trace(error), error=error)


def trace(error: BaseException) -> str:
    """Return the traceback from the task's own code on."""
    import traceback

    within = error.__traceback__
    # The first frames are those of this module.
    while (
        within is not None
        and within.tb_next is not None
        and within.tb_frame.f_globals.get("__name__") == __name__
    ):
        within = within.tb_next
    return "".join(traceback.format_exception(type(error), error, within))
