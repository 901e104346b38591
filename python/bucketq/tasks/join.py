"""The fan-in of a group: ``then`` is enqueued exactly once, after all calls of the group are done.

The commit that acks a call of the group also enqueues its *arrival*, a small job with the call's result. A worker that
claims an arrival looks for all the others. One that is not the last puts itself aside. One that finds all of them
enqueues ``then``, ends itself and cancels the others, in one commit.

The arrival that was enqueued last always finds all the others, because each of them was enqueued by an earlier commit
and stays unfinished until the group is complete. Two arrivals may both find all: the first commit cancels the other
arrival, whose own commit is then refused. So neither a crash nor a race can lose ``then`` or enqueue it twice.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid5

from bucketq._ending import Ending
from bucketq.tasks.message import Message, Step, step

if TYPE_CHECKING:
    from bucketq.aio import Job, QueueFile
    from bucketq.tasks.codec import Codec
    from bucketq.types import JobDetail

__all__ = ["NAME", "arrival", "arrival_id", "ending", "job_id", "then_id"]

NAME = "bucketq.join"
"""The name in the payload of an arrival. No task has it: task names of an app have a module of their own."""
ASIDE = 86_400
"""Seconds until an arrival looks again, in case a call of its group has left the file without being done."""
ATTEMPTS = 1_000_000
AT_ONCE = 64


def job_id(group: UUID, index: int) -> UUID:
    """Return the id of a call's job."""
    return uuid5(group, f"job {index}")


def arrival_id(group: UUID, index: int) -> UUID:
    """Return the id of a call's arrival."""
    return uuid5(group, f"arrival {index}")


def then_id(group: UUID) -> UUID:
    """Return the id of the job that follows the group."""
    return uuid5(group, "then")


def arrival(group: UUID, index: int, count: int, then: Step) -> Step:
    """Return the arrival that the commit of this call's ack enqueues."""
    kwargs = {"group": str(group), "index": index, "count": count, "value": None, "then": then.wire()}
    previous = ("value",) if then.message.previous else ()
    message = Message(NAME, (), kwargs, previous)
    return Step(then.queue, str(arrival_id(group, index)), {"max_attempts": ATTEMPTS}, message)


async def ending(file: QueueFile, codec: Codec, job: Job, message: Message) -> Ending:
    """Return how this arrival ends: put aside, or as the one that enqueues ``then``."""
    kwargs = message.kwargs
    group, index, count = UUID(kwargs["group"]), kwargs["index"], kwargs["count"]
    values: list[Any] = [None] * count
    values[index] = kwargs["value"]
    # Calls are claimed in order, so the last one is likely to be missing.
    others = [other for other in reversed(range(count)) if other != index]
    size = 1
    while others:
        some, others = others[:size], others[size:]
        found = await file.get_many(str(arrival_id(group, other)) for other in some)
        for other, detail in zip(some, found, strict=True):
            if detail is None or detail.finished_at is not None:
                return await missing(file, job, group, other)
            values[other] = value(codec, detail)
        size = min(size * 2, AT_ONCE)
    return Ending("done", partial(complete, file, codec, job, kwargs, values), NAME, overtaken=True)


def value(codec: Codec, detail: JobDetail) -> Any:
    """Return the result that an arrival carries."""
    return codec.loads(detail.payload)["kwargs"]["value"]


async def missing(file: QueueFile, job: Job, group: UUID, other: int) -> Ending:
    """Return the ending while another call of the group has not arrived."""
    call = await file.get(str(job_id(group, other)))
    # Read in this order: a call that is done has an arrival.
    there = call is not None or await file.get(str(arrival_id(group, other))) is not None
    if there:
        aside = partial(job.nack, "waits for the rest of its group", delay=ASIDE)
        return Ending("done", aside, NAME, overtaken=True)
    gone = (
        f"call {other} of its group has left the file without being done, so that nothing follows the group"
    )
    return Ending("rejected", partial(job.reject, gone), NAME, gone, overtaken=True)


async def complete(
    file: QueueFile, codec: Codec, job: Job, kwargs: dict[str, Any], values: list[Any]
) -> None:
    """Enqueue what follows the group, and end all its arrivals."""
    then, group = step(kwargs["then"]), UUID(kwargs["group"])
    payload = then.message.filled(values).payload(codec)
    async with file.atomic() as tx:
        tx.ack(job)
        tx.enqueue(
            then.queue, payload, **{**then.extras, "id": then.id, "content_type": payload.content_type}
        )
        for other in range(len(values)):
            if other != kwargs["index"]:
                tx.cancel(str(arrival_id(group, other)), leased=True)
