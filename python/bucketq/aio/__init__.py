"""The asyncio API: the same classes, names and order as ``bucketq``.

>>> import asyncio
>>> from bucketq import aio
>>> async def main():
...     async with await aio.open("memory://example-aio") as file:
...         q = file.queue("emails")
...         await q.enqueue({"to": "ada@example.org"})
...         async for job in q.jobs(wait=0):
...             async with job:  # acked at the end; an exception nacks
...                 print(job.data["to"])
>>> asyncio.run(main())
ada@example.org

The synchronous method of the same name documents each method. Cancelling a task leaves no job claimed.
"""

from bucketq._aio_worker import Worker
from bucketq.aio.file import Atomic, QueueFile, open
from bucketq.aio.operate import check, fix_time, measure, probe, restore, set_max_skew
from bucketq.aio.queue import Batch, Job, Jobs, Queue

__all__ = [
    "Atomic",
    "Batch",
    "Job",
    "Jobs",
    "Queue",
    "QueueFile",
    "Worker",
    "check",
    "fix_time",
    "measure",
    "open",
    "probe",
    "restore",
    "set_max_skew",
]
