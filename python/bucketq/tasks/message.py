"""The payload of a task's job: the name of the task, its arguments, and what to enqueue when it is done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, TypedDict, cast

from bucketq import _convert as convert
from bucketq import _policy as policies
from bucketq.errors import Invalid
from bucketq.tasks.codec import Codec
from bucketq.types import Backoff, Extras, Seconds

__all__ = ["PREVIOUS", "Message", "Options", "Step"]

Wire = dict[str, Any]


class Options(TypedDict, total=False):
    """Options of one call of a task."""

    queue: str
    """Another queue than the task's."""
    delay: Seconds | None
    """Run it no sooner than this long from now; in a chain, from the end of the task before."""
    at: datetime | None
    """Run it no sooner than this time, an aware datetime."""
    priority: int
    """Lower runs first; 0 by default."""
    max_attempts: int | None
    """Claims before the job is dead; by default as the task or the queue's policy says."""
    backoff: Backoff | None
    """Waiting time between attempts; by default as the task or the queue's policy says."""
    dedup: str | None
    """Within the policy's window, an hour by default, enqueueing this key again returns the first job."""
    dedup_window: Any
    """Overrides that window: seconds, or "unfinished" or None for as long as the first job is unfinished."""
    group: str | None
    """Jobs of a group run in the order they were enqueued, one at a time unless the policy allows more."""
    headers: Mapping[str, str] | None
    """Small metadata beside the arguments."""
    expires: Seconds | None
    """Its job expires this long after its enqueue if no worker has claimed it."""
    max_run: Seconds | None
    """How long an attempt may take: then it has failed with "timed out"."""
    id: str | None
    """Your own UUID for the job: enqueueing it again changes nothing."""


class Previous:
    """The result of the task before: an argument of a later task in a chain, or of ``then`` in a group."""

    def __repr__(self) -> str:
        return "PREVIOUS"


PREVIOUS: Any = Previous()
"""In the arguments of a later task of ``app.chain``: the result of the task before. For ``then`` of ``app.group``: a
list of the results, in the order of the tasks."""


@dataclass(frozen=True, slots=True)
class Message:
    """A call of a task."""

    task: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    previous: tuple[int | str, ...] = ()
    """The arguments that stand for the result of the task before."""
    then: tuple[Step, ...] = ()
    """The calls that the commit which ends the job enqueues."""

    def filled(self, value: Any) -> Message:
        """Return the call with the result of the task before in its places."""
        if not self.previous:
            return self
        args, kwargs = list(self.args), dict(self.kwargs)
        for place in self.previous:
            if isinstance(place, int):
                args[place] = value
            else:
                kwargs[place] = value
        return replace(self, args=tuple(args), kwargs=kwargs, previous=())

    def wire(self) -> Wire:
        """Return it as plain values."""
        wire: Wire = {"task": self.task, "args": list(self.args), "kwargs": self.kwargs}
        if self.previous:
            wire["previous"] = list(self.previous)
        if self.then:
            wire["then"] = [step.wire() for step in self.then]
        return wire

    def payload(self, codec: Codec) -> convert.Encoded:
        """Return the payload of its job."""
        try:
            return convert.Encoded.of(codec.dumps(self.wire()), codec.content_type)
        except Invalid as error:
            raise Invalid(
                f"an argument of {self.task} cannot be stored: {error.message}", error.code
            ) from error
        except (TypeError, ValueError) as error:
            raise Invalid(f"an argument of {self.task} cannot be stored: {error}") from error


@dataclass(frozen=True, slots=True)
class Step:
    """A call of a task with its queue, id and options."""

    queue: str
    id: str
    extras: Extras
    message: Message

    def wire(self) -> Wire:
        """Return it as plain values."""
        return {
            "queue": self.queue,
            "id": self.id,
            "extras": plain(self.extras),
            "message": self.message.wire(),
        }


def message(wire: Any) -> Message:
    """Return the call in a payload. Raises ValueError if it is something else."""
    try:
        return Message(
            str(wire["task"]),
            tuple(wire["args"]),
            {str(name): value for name, value in wire["kwargs"].items()},
            tuple(wire.get("previous", ())),
            tuple(step(one) for one in wire.get("then", ())),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("it is not a call of a task") from error


def step(wire: Wire) -> Step:
    """Return the step of these plain values."""
    return Step(wire["queue"], wire["id"], extras(wire["extras"]), message(wire["message"]))


def plain(extras: Extras) -> Wire:
    """Return the options of a job as plain values."""
    convert.native_extras(extras)
    out: Wire = {}
    for name, value in extras.items():
        match value:
            case Backoff():
                out[name] = policies.backoff(value)
            case timedelta():
                out[name] = value.total_seconds()
            case datetime():
                out[name] = value.isoformat()
            case Mapping():
                out[name] = dict(cast("Mapping[str, str]", value))
            case _:
                out[name] = value
    return out


def extras(wire: Wire) -> Extras:
    """Reverse ``plain``."""
    out = dict(wire)
    if out.get("backoff") is not None:
        out["backoff"] = policies.backoff_of(out["backoff"])
    if out.get("at") is not None:
        out["at"] = datetime.fromisoformat(out["at"])
    return cast("Extras", out)


def places(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[int | str, ...]:
    """Return the places of PREVIOUS in the arguments."""
    found: list[int | str] = [index for index, value in enumerate(args) if isinstance(value, Previous)]
    return (*found, *(name for name, value in kwargs.items() if isinstance(value, Previous)))


def without(value: Any) -> Any:
    """Return an argument as it is stored: PREVIOUS becomes None."""
    return None if isinstance(value, Previous) else value
