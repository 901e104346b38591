"""A job that was claimed elsewhere: its id and token are the proof, and enough to end or extend it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bucketq import _convert as convert
from bucketq import _op
from bucketq._native import Op

if TYPE_CHECKING:
    from bucketq.file import QueueFile
    from bucketq.queue import Job
    from bucketq.types import Seconds, State


def keep(job: Job) -> str:
    """Take the job away from this process, which will end before the job does. Answers the token."""
    job._held.work()
    return job._held.token


class Lease:
    """Ends or extends the job ``id`` by the token that its claim answered with."""

    def __init__(self, file: QueueFile, id: str, token: str) -> None:
        self._file = file._file
        self._proof = (id, token)

    def ack(self, *, result: Any = None) -> None:
        """The job is done."""
        blob = None if result is None else convert.encode(result)
        self._file.call(Op.ack(self._proof, blob)).wait()

    def nack(self, error: object = None, *, delay: Seconds | None = None) -> State:
        """The attempt failed."""
        op = Op.nack(self._proof, convert.maybe_millis(delay, "delay"), _op.words(error))
        return self._file.call(op).wait()

    def release(self) -> None:
        """Give the job back unharmed."""
        self._file.call(Op.release(self._proof)).wait()

    def reject(self, error: object = None) -> None:
        """The job can never succeed."""
        self._file.call(Op.reject(self._proof, _op.words(error))).wait()

    def extend(self, lease: Seconds) -> None:
        """Hold the job for this long from now."""
        self._file.extend(self._proof, convert.millis(lease, "lease")).wait()
