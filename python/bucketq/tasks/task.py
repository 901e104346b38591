"""Tasks: functions whose calls can be enqueued."""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine
from functools import cached_property, update_wrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack, cast
from uuid import uuid4

from bucketq import _convert as convert
from bucketq._spelled import spelled
from bucketq.errors import Invalid
from bucketq.tasks import codec
from bucketq.tasks.checking import Signature
from bucketq.tasks.codec import Json
from bucketq.tasks.message import Message, Options, Step, places, without
from bucketq.tasks.result import Result

if TYPE_CHECKING:
    from bucketq._convert import Encoded
    from bucketq.tasks.app import App
    from bucketq.types import Enqueued, Extras, JobDetail

__all__ = ["AsyncTask", "Call", "Configured", "Task", "TaskBase"]

P = ParamSpec("P")
R = TypeVar("R")
RetryOn = tuple[type[BaseException], ...]


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a task by default: module and function. A program run directly is named after its file."""
    module: str = function.__module__
    if module in {"__main__", "__mp_main__"}:
        names: dict[str, Any] = getattr(function, "__globals__", {})
        spec, path = names.get("__spec__"), names.get("__file__")
        if spec is not None:
            module = spec.name.removesuffix(".__main__")
        elif path is not None:
            module = Path(path).stem
    return f"{module}.{function.__qualname__}"


class TaskBase(Generic[P, R]):
    """The part that tasks of functions and of coroutine functions share."""

    def __init__(
        self,
        app: App,
        function: Callable[..., Any],
        *,
        name: str,
        options: Options,
        retry_on: RetryOn | None,
    ) -> None:
        update_wrapper(cast("Any", self), function)
        self.app = app
        """The app it belongs to."""
        self.function = function
        """The function itself."""
        self.name = name
        """The name that is stored with each job. A task of this name runs the job."""
        self.retry_on = retry_on
        """Only these exceptions lead to another attempt; None: all."""
        self._options = options

    @property
    def queue(self) -> str:
        """The queue of its jobs."""
        return self._options.get("queue", "default")

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Result[R]:
        """Enqueue a call. It is in the bucket once this returns."""
        return Call[R](self, self._options, args, kwargs).enqueue()

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Result[R]:
        """Enqueue a call, awaitable."""
        return await Call[R](self, self._options, args, kwargs).aenqueue()

    def job(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Return a call for ``app.chain`` and ``app.group``, without enqueueing it."""
        return Call[R](self, self._options, args, kwargs)

    @spelled(Options)
    def options(self, **options: Unpack[Options]) -> Configured[P, R]:
        """Return the task with other options for its next calls: ``send.options(delay=60).enqueue(...)``."""
        return Configured(self, self._options, options)

    @cached_property
    def signature(self) -> Signature:
        """Its parameters."""
        return Signature(self.function, as_json=isinstance(self.app.codec, Json))

    def read(self, detail: JobDetail) -> Any:
        """Return the value in a finished job."""
        value = codec.value(self.app.codec, detail.result_payload, detail.result_content_type)
        return self.signature.loaded_result(value)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"


class Task(TaskBase[P, R]):
    """A function whose calls can be enqueued. Called directly it is the function."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function here and now."""
        return cast("R", self.function(*args, **kwargs))


class AsyncTask(TaskBase[P, R]):
    """A coroutine function whose calls can be enqueued. Called directly it is the coroutine function."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Return the coroutine."""
        return cast("Coroutine[Any, Any, R]", self.function(*args, **kwargs))


class Configured(Generic[P, R]):
    """A task with options for its next calls."""

    __slots__ = ("_options", "_task")

    def __init__(self, task: TaskBase[P, R], before: Options, options: Options) -> None:
        for key in options:
            if key not in Options.__annotations__:
                raise TypeError(
                    f"a task has no option {key!r}: {convert.nearest(key, Options.__annotations__)}"
                )
        self._task = task
        self._options = cast("Options", {**before, **options})
        checked(self._options)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Result[R]:
        """Enqueue a call with these options."""
        return Call[R](self._task, self._options, args, kwargs).enqueue()

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Result[R]:
        """Enqueue a call with these options, awaitable."""
        return await Call[R](self._task, self._options, args, kwargs).aenqueue()

    def job(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Return a call with these options, without enqueueing it."""
        return Call[R](self._task, self._options, args, kwargs)

    @spelled(Options)
    def options(self, **options: Unpack[Options]) -> Configured[P, R]:
        """Change more options."""
        return Configured(self._task, self._options, options)


def checked(options: Options) -> tuple[str, Extras]:
    """Return the queue and the options of the job. Raises Invalid if the engine would refuse them."""
    rest = dict(options)
    queue = rest.pop("queue", "default")
    if not isinstance(queue, str) or not queue:
        raise Invalid(f"queue is {queue!r}: give its name")
    extras = cast(
        "Extras", {key: value for key, value in rest.items() if value is not None or key == "dedup_window"}
    )
    convert.native_extras(extras)
    return queue, extras


class Call(Generic[R]):
    """A call of a task with its arguments and options, checked against the signature and not yet enqueued."""

    __slots__ = ("app", "extras", "message", "queue", "task")

    def __init__(
        self, task: TaskBase[..., R], options: Options, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        try:
            stored, named = task.signature.check(args, kwargs)
        except TypeError as error:
            raise TypeError(f"{task.name}: {error}") from None
        self.task = task
        self.app = task.app
        self.queue, self.extras = checked(options)
        previous = places(stored, named)
        self.message = Message(
            task.name,
            tuple(map(without, stored)),
            {name: without(value) for name, value in named.items()},
            previous,
        )

    def enqueue(self) -> Result[R]:
        """Enqueue it."""
        payload = self._payload()
        if self.app.eager is not None:
            return self.app.eager.run(self)
        receipt = self.app.file.queue(self.queue).enqueue(payload, **self._extras(payload))
        return self._result(receipt)

    async def aenqueue(self) -> Result[R]:
        """Enqueue it, awaitable."""
        payload = self._payload()
        if self.app.eager is not None:
            return await self.app.eager.arun(self)
        file = await self.app.afile()
        return self._result(await file.queue(self.queue).enqueue(payload, **self._extras(payload)))

    def step(self, id: str | None = None, then: tuple[Step, ...] = ()) -> Step:
        """Return it as part of a chain, with an id of its own."""
        from dataclasses import replace

        extras = cast("Extras", dict(self.extras))
        given = extras.pop("id", None)
        return Step(self.queue, given or id or str(uuid4()), extras, replace(self.message, then=then))

    def _payload(self) -> Encoded:
        if self.message.previous:
            raise Invalid(
                f"{self.task.name}: PREVIOUS is an argument only for a later task of a chain or group"
            )
        return self.message.payload(self.app.codec)

    def _extras(self, payload: Encoded) -> Extras:
        return {**self.extras, "content_type": payload.content_type}

    def _result(self, receipt: Enqueued) -> Result[R]:
        return Result(self.app, receipt.id, self.task.read, deduplicated=receipt.deduplicated)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.task.name}>"


def resolve(module: str, qualname: str) -> TaskBase[..., Any]:
    """Import a task from where it is defined. Raises LookupError if it is not there."""
    from importlib import import_module

    found: Any = sys.modules["__main__"] if module in {"__main__", "__mp_main__"} else import_module(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, TaskBase):
        raise LookupError(f"{module}.{qualname} is not a task")
    return cast("TaskBase[..., Any]", found)
