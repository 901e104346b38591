"""What blocking and asyncio jobs and batches have in common: looking at them, which needs no I/O."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from bucketq import _convert as convert
from bucketq import _native, _show
from bucketq._op import enqueue, new, words
from bucketq.types import JobInfo, New

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bucketq.types import Seconds


class JobBase:
    """A claimed job: what it is, and whether it is still this worker's."""

    __slots__ = ("__weakref__", "_data", "_file", "_held", "_swallow", "_work")

    def __init__(self, file: _native.File, held: _native.Held, *, swallow: bool) -> None:
        self._file = file
        self._held = held
        self._swallow = swallow

    @property
    def id(self) -> str:
        """Its identity, a UUID."""
        return self._held.id

    @property
    def queue(self) -> str:
        """The name of its queue."""
        return self._held.queue

    @property
    def data(self) -> Any:
        """The payload, decoded by its content type."""
        try:
            return self._data
        except AttributeError:
            self._data = convert.decode(self.payload, self.content_type)
            return self._data

    @property
    def payload(self) -> bytes:
        """The bytes as they were enqueued."""
        self._held.work()
        return self._held.payload

    @property
    def text(self) -> str:
        """The payload as UTF-8 text."""
        return convert.text(self.payload)

    @property
    def content_type(self) -> str:
        """What the payload is."""
        return self._held.content_type

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self._held.attempt

    @property
    def max_attempts(self) -> int:
        """Attempts before the job is dead."""
        return self._held.max_attempts

    @property
    def run(self) -> int:
        """Which life: 0, and one more with each requeue."""
        return self._held.run

    @property
    def fence(self) -> int:
        """Grows with every claim of the job: hand it to outside resources, and let them refuse smaller ones."""
        return self._held.fence

    @property
    def headers(self) -> Mapping[str, str]:
        """Small facts beside the payload."""
        return self._held.headers

    @property
    def info(self) -> JobInfo:
        """Everything that was known of it when it was claimed: times, priority, group, last error."""
        return _show.info(self._held.info())

    @property
    def lost(self) -> bool:
        """The lease is gone: stop working. Somebody else may have the job."""
        return self._held.lost

    @property
    def ended(self) -> bool:
        """It was acked, nacked, released or rejected here."""
        return self._held.ended

    @property
    def remaining(self) -> float:
        """Seconds for which the lease surely holds; it is extended before they are over. Infinite if it has no end."""
        return self._held.remaining if self._held.ends else math.inf

    def __repr__(self) -> str:
        stage = "ended" if self.ended else "lost" if self.lost else f"attempt {self.attempt}"
        return f"<{type(self).__name__} {self.id} of {self.queue!r}, {stage}>"

    def _ack(self, result: Any, then: Iterable[New]) -> _native.Call[Any]:
        blob = None if result is None else convert.encode(result)
        ack = _native.Op.ack(self._held, blob)
        steps = [enqueue(one.queue or self.queue, [new(self._file, one.data, one.extras)]) for one in then]
        return self._settle("ack", _native.Op.atomic([ack, *steps]) if steps else ack)

    def _nack(self, error: object, delay: Seconds | None) -> _native.Call[Any]:
        op = _native.Op.nack(self._held, convert.maybe_millis(delay, "delay"), words(error))
        return self._settle("nack", op)

    def _release(self) -> _native.Call[Any]:
        return self._settle("release", _native.Op.release(self._held))

    def _reject(self, error: object) -> _native.Call[Any]:
        return self._settle("reject", _native.Op.reject(self._held, words(error)))

    def _settle(self, how: str, op: _native.Op) -> _native.Call[Any]:
        call, telemetry = self._file.call(op), self._file.beside.get("telemetry")
        return call if telemetry is None else telemetry.settle(self, how, call)

    def _extend(self, lease: Seconds) -> _native.Call[Any]:
        return self._held.extend(convert.millis(lease, "lease"))

    def _process(self) -> AbstractContextManager[Any]:
        """The work on it, which is traced if its handle is."""
        telemetry = self._file.beside.get("telemetry")
        return nullcontext() if telemetry is None else telemetry.process(self)

    def _enter(self) -> None:
        self._held.work()
        self._work = self._process()
        self._work.__enter__()

    def _leave(self, error: BaseException | None) -> None:
        """The block is left; what ends the job is still part of the work."""
        if error is None:
            self._work.__exit__(None, None, None)
            return
        # A span notes what went wrong and lets it pass.
        with suppress(type(error)):
            self._work.__exit__(type(error), error, error.__traceback__)

    def _left(self, error: BaseException | None) -> _native.Call[Any] | None:
        """How leaving the block ends the job: ack, nack, or release when it was not the job's fault."""
        if self.ended:
            return None
        if error is None:
            return self._ack(None, ())
        # At most once: what somebody has worked on without an end of the lease is not handed out again.
        nacked = isinstance(error, Exception) or not self._held.ends
        return self._nack(error, None) if nacked else self._release()


J = TypeVar("J", bound=JobBase)


class BatchBase(Generic[J]):
    """The jobs of one claim, a sequence. Leaving its block gives back those that nobody has looked at."""

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
        untouched = [job for job in self._jobs if job._held.untouched]
        for job in untouched:
            job._held.give_back()
        return self._file.flush() if untouched else None
