"""The same queue file or job on the other face: both stand on one native object, so neither opens anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bucketq.queue import Job

if TYPE_CHECKING:
    from bucketq import aio
    from bucketq.file import QueueFile


def awaitable(file: QueueFile) -> aio.QueueFile:
    """The queue file with awaitable calls."""
    from bucketq import aio

    return aio.QueueFile(file._file, file.url)


def blocking(job: aio.Job) -> Job:
    """The job with blocking calls."""
    return Job(job._file, job._held, swallow=False)


def plain(file: QueueFile | aio.QueueFile) -> QueueFile:
    """The queue file with blocking calls."""
    from bucketq.file import QueueFile

    return QueueFile(file._file, file.url)
