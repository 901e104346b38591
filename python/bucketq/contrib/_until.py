"""Values that are kept as jobs for a time. A later commit deletes an expired one, so a reader looks at its time."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from bucketq.errors import Contended, OutcomeUnknown, Unavailable

if TYPE_CHECKING:
    from bucketq.contrib._opening import Opening
    from bucketq.types import JobInfo

LATER = (Unavailable, OutcomeUnknown, Contended)
"""Errors of calls that may succeed when they are repeated."""
UNTIL = "bucketq-until-ms"


def until(ttl: float) -> dict[str, str]:
    """Return the header of a value that is kept for this number of seconds."""
    return {UNTIL: str(int((time.time() + ttl) * 1000))}


def is_over(job: JobInfo) -> bool:
    """Return True if the value was kept for its time."""
    return UNTIL in job.headers and int(job.headers[UNTIL]) <= time.time() * 1000


class Expiring:
    """Lets a queue delete expired values; without this they would stay as dead jobs."""

    def __init__(self, opening: Opening, queue: str) -> None:
        self._opening = opening
        self._queue = queue
        # The process that has looked at the policy of the queue.
        self._looked: int | None = None

    def __call__(self) -> None:
        """Set the policy, at the first call in a process that reaches the store."""
        if self._looked == os.getpid():
            return
        with suppress(*LATER):
            queue = self._opening.file.queue(self._queue)
            if queue.policy().on_expiry != "delete":
                queue.configure(on_expiry="delete")
            self._looked = os.getpid()
