"""A job claimed by another process: its id and token suffice to end or extend it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bucketq import _convert as convert
from bucketq._job import Settling

if TYPE_CHECKING:
    from bucketq import _native
    from bucketq.file import QueueFile
    from bucketq.queue import Job
    from bucketq.types import Seconds


def keep(job: Job) -> str:
    """Keep the job claimed after this process ends. Returns the token."""
    job._begin()
    return job._token


class Lease(Settling):
    """Ends or extends the job ``id`` with the token that its claim returned."""

    def __init__(self, file: QueueFile, id: str, token: str) -> None:
        self._file = file._file
        self._token = (id, token)

    @property
    def _proof(self) -> tuple[str, str]:
        return self._token

    def _extend(self, lease: Seconds) -> _native.Call[None]:
        return self._file.extend(self._proof, convert.millis(lease, "lease"))
