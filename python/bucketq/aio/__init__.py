"""The same as ``bucketq``, awaitable: the same classes with the same names in the same order.

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

What a method does is said at the blocking one of the same name. A task that is cancelled leaves nothing claimed.
"""

from bucketq._aio_worker import Worker
from bucketq.aio.file import Atomic, QueueFile, check, measure, open, probe, restore
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
    "measure",
    "open",
    "probe",
    "restore",
]
