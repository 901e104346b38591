"""Converts a queue file or job between the synchronous and async API: both share one native object."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bucketq.queue import Job

if TYPE_CHECKING:
    from bucketq import aio
    from bucketq.file import QueueFile


def awaitable(file: QueueFile) -> aio.QueueFile:
    """Return the queue file for asyncio."""
    from bucketq import aio

    return aio.QueueFile(file._file, file.url)


def blocking(job: aio.Job) -> Job:
    """Return the job for synchronous code."""
    return Job(job._file, job, job._request, swallow=False)


def plain(file: QueueFile | aio.QueueFile) -> QueueFile:
    """Return the queue file for synchronous code."""
    from bucketq.file import QueueFile

    return QueueFile(file._file, file.url)
