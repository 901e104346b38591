"""The parts of jobs and batches that the synchronous and async API share: reading them, which needs no I/O."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from bucketq import _convert as convert
from bucketq import _native, _show
from bucketq._listening import watch
from bucketq._op import claim_after, enqueue, following, new, words
from bucketq.types import JobInfo, New

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bucketq._listening import Task, Thread
    from bucketq._op import Request
    from bucketq.types import Seconds, State


T = TypeVar("T")


class Settling:
    """Ends a claimed job with the proof of its lease."""

    __slots__ = ()
    _file: _native.File

    @property
    def _proof(self) -> _native.Held | tuple[str, str]:
        """The job claimed here, or the id and the token of one that another process claimed."""
        # Each of the two classes that end jobs defines it.
        raise NotImplementedError

    def _ack(self, result: Any) -> _native.Call[Any]:
        return self._settle("ack", self._acked(result))

    def _acked(self, result: Any) -> _native.Op[None]:
        return _native.Op.ack(self._proof, None if result is None else convert.encode(result))

    def _nack(self, error: object, delay: Seconds | None) -> _native.Call[State]:
        return self._settle("nack", self._nacked(error, delay))

    def _nacked(self, error: object, delay: Seconds | None) -> _native.Op[State]:
        return _native.Op.nack(self._proof, convert.maybe_millis(delay, "delay"), words(error))

    def _release(self) -> _native.Call[None]:
        return self._settle("release", self._released())

    def _released(self) -> _native.Op[None]:
        return _native.Op.release(self._proof)

    def _reject(self, error: object) -> _native.Call[None]:
        return self._settle("reject", self._rejected(error))

    def _rejected(self, error: object) -> _native.Op[None]:
        return _native.Op.reject(self._proof, words(error))

    def _settle(self, how: str, op: _native.Op[T]) -> _native.Call[T]:
        del how  # Only calls on a job that was claimed here are traced.
        return self._file.call(op)


class JobBase(_native.Held, Settling):
    """A claimed job: its fields, and whether this worker still holds it."""

    __slots__ = ("__weakref__", "_data", "_file", "_request", "_span", "_swallow")
    _request: Request
    _swallow: bool

    def __new__(cls, file: _native.File, held: _native.Held, request: Request, *, swallow: bool) -> Self:
        """Return the claimed job as a job of this class."""
        job = super().__new__(cls, held)
        job._file = file
        job._request = request
        job._swallow = swallow
        return job

    @property
    def data(self) -> Any:
        """The payload, decoded by its content type."""
        try:
            return self._data
        except AttributeError:
            self._data = convert.decode(self.payload, self.content_type)
            return self._data

    @property
    def text(self) -> str:
        """The payload as UTF-8 text."""
        return convert.text(self.payload)

    @property
    def info(self) -> JobInfo:
        """All fields of the job when it was claimed: times, priority, group, last error."""
        return _show.info(self._info())

    def __repr__(self) -> str:
        stage = "ended" if self.ended else "lost" if self.lost else f"attempt {self.attempt}"
        return f"<{type(self).__name__} {self.id} of {self.queue!r}, {stage}>"

    @property
    def _proof(self) -> _native.Held:
        return self

    def _ack(self, result: Any, then: Iterable[New] = ()) -> _native.Call[Any]:
        return self._settle("ack", self._acked_then(result, then))

    def _acked_then(self, result: Any, then: Iterable[New]) -> _native.Op[Any]:
        ack = self._acked(result)
        steps = [
            enqueue(
                one.queue or self.queue,
                [new(self._file, one.data, following(self, position, one.extras))],
            )
            for position, one in enumerate(then)
        ]
        return _native.Op.atomic([ack, *steps]) if steps else ack

    def _ack_next(self, result: Any, then: Iterable[New]) -> _native.Call[builtins.list[_native.Held]]:
        return claim_after(self._file, self, "ack", self._acked_then(result, then))

    def _next(self, held: Iterable[_native.Held], kind: type[Thread | Task]) -> Self | None:
        """Return the job that was claimed in the commit that ended this one."""
        jobs = [type(self)(self._file, one, self._request, swallow=self._swallow) for one in held]
        watched = watch(self._file, jobs, self._request.on_lost, kind)
        return watched[0] if watched else None

    def _settle(self, how: str, op: _native.Op[T]) -> _native.Call[T]:
        call, telemetry = super()._settle(how, op), self._file.hooks.telemetry
        return call if telemetry is None else telemetry.settle(self, how, call)

    def _process(self) -> AbstractContextManager[Any]:
        """Return a context for the work on the job: a trace span if its handle is instrumented."""
        telemetry = self._file.hooks.telemetry
        return nullcontext() if telemetry is None else telemetry.process(self)

    def _enter(self) -> None:
        self._begin()
        self._span = self._process()
        self._span.__enter__()

    def _leave(self, error: BaseException | None) -> None:
        """Leave the context of the work, after the call that ends the job."""
        if error is None:
            self._span.__exit__(None, None, None)
            return
        # A span records the error and lets it propagate.
        with suppress(type(error)):
            self._span.__exit__(type(error), error, error.__traceback__)

    def _left(self, error: BaseException | None) -> _native.Call[Any] | None:
        """End the job when its block is left: ack, nack, or release if the job did not cause the exception."""
        if self.ended:
            return None
        if error is None:
            return self._ack(None, ())
        # At most once: a job that was begun under a lease that never ends is not handed out again.
        nacked = isinstance(error, Exception) or not self._ends
        return self._nack(error, None) if nacked else self._release()


J = TypeVar("J", bound=JobBase)


class BatchBase(Generic[J]):
    """The jobs of one claim, a sequence. The end of its block releases the jobs that were neither read nor entered."""

    __slots__ = ("_file", "_jobs")

    def __init__(self, file: _native.File, jobs: list[J]) -> None:
        self._file = file
        self._jobs = jobs

    def __len__(self) -> int:
        return len(self._jobs)

    def __getitem__(self, index: int) -> J:
        return self._jobs[index]

    def __iter__(self) -> Iterator[J]:
        return iter(self._jobs)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)} jobs>"

    def _give_back(self) -> _native.Call[Any] | None:
        untouched = [job for job in self._jobs if job._untouched]
        for job in untouched:
            job._give_back()
        return self._file.flush() if untouched else None
