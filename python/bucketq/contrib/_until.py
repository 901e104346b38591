"""Values that are kept as jobs for a time. The next commit deletes an expired one, so a reader looks at its time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bucketq.types import JobInfo

UNTIL = "bucketq-until-ms"


def until(ttl: float) -> dict[str, str]:
    """Return the header of a value that is kept for this number of seconds."""
    return {UNTIL: str(int((time.time() + ttl) * 1000))}


def is_over(job: JobInfo) -> bool:
    """Return True if the value was kept for its time."""
    return UNTIL in job.headers and int(job.headers[UNTIL]) <= time.time() * 1000
