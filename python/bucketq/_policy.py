"""Converts policies and schedules to and from the engine's form: JSON with times in milliseconds."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

from bucketq import _convert as convert
from bucketq._convert import Dict
from bucketq._durations import MILLISECONDS
from bucketq.errors import Error, Invalid
from bucketq.types.life import ArchiveObject, Archives, Life, Lives, ScheduleInfo
from bucketq.types.policy import Backoff, Block, Overflow, Policy, Rate

if TYPE_CHECKING:
    from datetime import datetime, tzinfo

    from bucketq.types.life import Missed
    from bucketq.types.policy import Changes, Seconds

END_OF_TIME = 253_402_300_800_000
"""The first millisecond beyond the range of datetime."""


def backoff(value: Backoff, what: str = "backoff") -> Dict:
    """Return a back-off in the engine's form."""
    if not isinstance(value, Backoff):  # pyright: ignore[reportUnnecessaryIsInstance]
        hint = "Backoff.none() means no waiting" if value is None else "Backoff.fixed(30), Backoff() ..."
        raise Invalid(f"{what} is {value!r}: give a Backoff; {hint}")
    base, most = convert.millis(value.base, f"{what}.base"), convert.millis(value.max, f"{what}.max")
    if not 0 <= value.jitter <= 1:
        raise Invalid(f"{what}.jitter is {value.jitter!r}: give a share between 0 and 1")
    if base > most and value.kind in {"linear", "exponential"}:
        raise Invalid(f"{what}.base is {value.base!r}, more than its max {value.max!r}: give a larger max")
    match value.kind:
        case "none":
            return {"kind": "none"}
        case "fixed":
            return {"kind": "fixed", "delay_ms": base}
        case "linear":
            return {"kind": "linear", "base_ms": base, "max_ms": most}
        case "list":
            delays = [convert.millis(delay, f"{what}.delays") for delay in value.delays]
            return {"kind": "list", "delays_ms": delays}
        case "exponential" if base == 0:
            return {"kind": "none"}
        case "exponential":
            jitter = round(value.jitter * 100)
            return {"kind": "exponential", "base_ms": base, "max_ms": most, "jitter_percent": jitter}
        case _:
            raise Invalid(f"{what}.kind is {value.kind!r}: use Backoff.none, fixed, linear or list")


def unknown(what: str, native: object) -> Error:
    """Return the error for a value that this package does not know although the engine does."""
    return Error(f"bug in bucketq, please report it: there is no {what} {native!r}")


def backoff_of(native: Dict) -> Backoff:
    """Return the engine's back-off as a ``Backoff``."""
    match native["kind"]:
        case "none":
            return Backoff.none()
        case "fixed":
            return Backoff.fixed(native["delay_ms"] / 1000)
        case "linear":
            return Backoff.linear(native["base_ms"] / 1000, max=native["max_ms"] / 1000)
        case "list":
            return Backoff.list(delay / 1000 for delay in native["delays_ms"])
        case "exponential":
            base, most = native["base_ms"] / 1000, native["max_ms"] / 1000
            return Backoff(base, most, native["jitter_percent"] / 100)
        case kind:
            raise unknown("back-off", kind)


def overflow(value: Overflow, what: str) -> Any:
    """Return the overflow rule in the engine's form."""
    match value:
        case "raise" | "drop_oldest":
            return value
        case "block":
            return overflow(Block(), what)
        case Block():
            return {"block": {"timeout_ms": convert.millis(value.timeout, f"{what}.timeout")}}
        case _:
            raise Invalid(f"{what} is {value!r}: give 'raise', 'block', 'drop_oldest' or Block(timeout=30)")


def overflow_of(native: Any) -> Overflow:
    """Return the engine's overflow rule as an ``Overflow``."""
    match native:
        case "raise" | "drop_oldest":
            return native
        case {"block": {"timeout_ms": timeout_ms}}:
            return Block(timeout_ms / 1000)
        case _:
            raise unknown("overflow", native)


def rate(value: Rate | str, what: str) -> str:
    """Return a rate as the engine's text; the engine rejects a wrong one."""
    if isinstance(value, Rate):
        convert.whole(value.count, f"{what}.count", 0, 2**32 - 1)
        if value.burst is not None:
            convert.whole(value.burst, f"{what}.burst", 0, 2**32 - 1)
        return str(value)
    if not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise Invalid(f"{what} is {value!r}: give text such as '100/min', or a Rate")
    return value


def rate_of(native: str) -> Rate:
    """Return the engine's text, ``100/min`` or ``10/30s burst 1``, as a ``Rate``."""
    rate, _, burst = native.partition(" burst ")
    count, _, per = rate.partition("/")
    unit = per.lstrip("0123456789")
    many = per[: len(per) - len(unit)]
    seconds = int(many or 1) * MILLISECONDS[unit] / 1000
    return Rate(int(count), seconds, int(burst) if burst else None)


def flag(value: bool, what: str) -> bool:
    """Return the value if it is True or False."""
    if not isinstance(value, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise Invalid(f"{what} is {value!r}: give True or False")
    return value


def lasting(value: Seconds, what: str) -> int:
    """Return a duration that is not zero, in milliseconds."""
    ms = convert.millis(value, what)
    if ms == 0:
        number = what.removesuffix("_for")
        hint = f"{number}=0 retains none" if number in KEEPS else "None means forever"
        raise Invalid(f"{what} is {value!r}: give a millisecond at least; {hint}")
    return ms


KEEPS = {"keep", "keep_done", "keep_dead", "keep_cancelled"}
"""The fields of a policy with numbers of finished jobs."""


def count(low: int, most: int) -> Callable[[Any, str], int]:
    """Return a function that checks for a whole number within bounds."""
    return lambda value, what: convert.whole(value, what, low, most)


def on_expiry(value: Any, what: str) -> str:
    """Return what becomes of expired jobs."""
    if value not in {"dead", "delete"}:
        raise Invalid(f"{what} is {value!r}: give 'dead' or 'delete'")
    return value


def window(value: Any, what: str) -> int | None:
    """Return how long a dedup key counts; None: as long as the first job is unfinished."""
    if isinstance(value, str) and value != "unfinished":
        raise Invalid(f"{what} is {value!r}: give seconds, a timedelta, or 'unfinished'")
    if isinstance(value, str):
        return None
    ms = convert.millis(value, what)
    if ms == 0:
        raise Invalid(f"{what} is {value!r}: give a millisecond at least, or 'unfinished'")
    return ms


WITHOUT_END = 2**32 - 1
"""The number of attempts of a job that is never dead for having too many."""
SMALL, LARGE = count(0, 2**32 - 1), count(0, 2**63 - 1)
CHANGES: dict[str, tuple[str, Callable[[Any, str], Any], str]] = {
    "max_attempts": ("max_attempts", SMALL, ""),
    "backoff": ("backoff", backoff, "Backoff.none() means no waiting"),
    "lease": ("lease_ms", convert.millis, ""),
    "max_run": ("max_run_ms", lasting, ""),
    "dead_letter": ("dead_letter", convert.name, ""),
    "expires": ("expires_ms", lasting, ""),
    "on_expiry": ("on_expiry", on_expiry, "give 'dead' or 'delete'"),
    "expire_claimed": ("expire_claimed", flag, "give True or False"),
    "dedup_content": ("dedup_content", flag, "give True or False"),
    "dedup_window": ("dedup_window_ms", window, ""),
    "max_pending": ("max_pending", LARGE, ""),
    "overflow": ("overflow", overflow, "give 'raise', 'block' or 'drop_oldest'"),
    "group_concurrency": ("group_concurrency", SMALL, "give a number"),
    "group_batch": ("group_batch", SMALL, "give a number"),
    "concurrency": ("concurrency", SMALL, ""),
    "rate": ("rate", rate, ""),
    "keep": ("keep", LARGE, "give a number; archive=True saves the others"),
    "keep_for": ("keep_ms", lasting, ""),
    "keep_done": ("keep_done", LARGE, ""),
    "keep_done_for": ("keep_done_ms", lasting, ""),
    "keep_dead": ("keep_dead", LARGE, ""),
    "keep_dead_for": ("keep_dead_ms", lasting, ""),
    "keep_cancelled": ("keep_cancelled", LARGE, ""),
    "keep_cancelled_for": ("keep_cancelled_ms", lasting, ""),
    "archive": ("archive", flag, "give True or False"),
    "archive_for": ("archive_ms", lasting, ""),
    "archive_payloads": ("archive_payloads", flag, "give True or False"),
}
"""For each field of a policy: the engine's name, its converter, and a hint if None is not allowed."""


def changes(given: Changes) -> str:
    """Return the changes in the engine's form."""
    out: Dict = {}
    if not given:
        raise Invalid("name the fields to change, such as max_attempts=5; policy() returns all of them")
    for key, value in cast("dict[str, Any]", given).items():
        if key not in CHANGES:
            raise TypeError(f"a policy has no {key!r}: {convert.nearest(key, CHANGES)}")
        name, into, instead = CHANGES[key]
        if value is None and instead:
            raise Invalid(f"{key} cannot be None: {instead}")
        out[name] = None if value is None else into(value, key)
    if "max_attempts" in out and out["max_attempts"] is None:
        out["max_attempts"] = WITHOUT_END
    return json.dumps(out)


def policy(native: Dict) -> Policy:
    """Return the engine's policy as a ``Policy``."""
    fields: dict[str, Any] = {}
    for key, (name, into, _) in CHANGES.items():
        value = native[name]
        if value is not None and into in {convert.millis, lasting, window}:
            value = timedelta(milliseconds=value)
        fields[key] = value
    if fields["max_attempts"] == WITHOUT_END:
        fields["max_attempts"] = None
    fields["backoff"] = backoff_of(fields["backoff"])
    fields["overflow"] = overflow_of(fields["overflow"])
    fields["rate"] = fields["rate"] and rate_of(fields["rate"])
    return Policy(**fields)


def timing(
    cron: str | None, every: Seconds | None, start: datetime | None, timezone: str | tzinfo | None
) -> str:
    """Return the times of a schedule in the engine's form."""
    if (cron is None) == (every is None):
        raise Invalid("give a cron expression, cron='30 2 * * *', or an interval, every=3600; one of them")
    if every is not None:
        if timezone is not None:
            raise Invalid("timezone goes with cron; start=datetime(...) is the first time of an interval")
        from_ms = None if start is None else convert.moment(start, "start")
        return json.dumps({"every": {"every_ms": convert.millis(every, "every"), "from_ms": from_ms}})
    if start is not None:
        raise Invalid("start goes with every: a cron expression already sets its times")
    zone = "UTC" if timezone is None else getattr(timezone, "key", timezone)
    if not isinstance(zone, str):
        raise Invalid(f"timezone is {timezone!r}: give an IANA name such as 'Europe/Berlin', or a ZoneInfo")
    return json.dumps({"cron": {"expression": convert.name(cron, "cron"), "zone": zone}})


def catches_up(missed: Missed) -> bool:
    """Return True if the schedule enqueues a job for each missed time."""
    if missed not in {"skip", "catch_up"}:
        raise Invalid(f"missed is {missed!r}: give 'skip' or 'catch_up'")
    return missed == "catch_up"


def maybe_time(ms: int | None) -> datetime | None:
    """Return the time in UTC; None for None or never."""
    return None if ms is None or ms >= END_OF_TIME else convert.time(ms)


def next_time(ms: int) -> Any:
    """Return the next time of a schedule in UTC; None if it never comes."""
    return maybe_time(ms)


def schedule(native: tuple[Dict, bytes]) -> ScheduleInfo:
    """Return the engine's schedule as a ``ScheduleInfo``."""
    info, payload = native
    plan, job = info["schedule"], info["schedule"]["job"]
    every: Mapping[str, Any] = {}
    cron: Mapping[str, Any] = {}
    match plan["timing"]:
        case {"every": every}:
            pass
        case {"cron": cron}:
            pass
        case timing:
            raise unknown("timing", timing)
    return ScheduleInfo(
        queue=info["queue"],
        name=info["name"],
        cron=cron.get("expression"),
        timezone=cron.get("zone"),
        every=timedelta(milliseconds=every["every_ms"]) if every else None,
        start=maybe_time(every.get("from_ms")),
        missed=plan["missed"],
        next_at=maybe_time(info["next_ms"]),
        last_at=maybe_time(info["last_ms"]),
        fired=info["fired"],
        paused=info["paused"],
        payload=payload,
        content_type=job["payload"]["content_type"],
        priority=job["priority"],
        max_attempts=job["max_attempts"],
        backoff=job["backoff"] and backoff_of(job["backoff"]),
        dedup=job["dedup"] and job["dedup"]["key"],
        group=job["group"],
        headers=job["headers"],
    )


def archives(native: Dict) -> Archives:
    """Return the archive at one commit."""

    def one(native: Dict) -> ArchiveObject:
        same = ("key", "queue", "bytes", "jobs", "first_seq", "last_seq", "listed_seq")
        fields: dict[str, Any] = {name: native[name] for name in same}
        times: dict[str, Any] = {
            f"{name}_at": convert.time(native[f"{name}_ms"]) for name in ("first", "last", "listed")
        }
        return ArchiveObject(
            **fields,
            **times,
            hash=bytes(native["hash"]).hex(),
            commit_seq=native["seq"],
        )

    return Archives(native["commit_seq"], tuple(map(one, native["objects"])))


def lives(native: tuple[int, list[tuple[Dict, bytes | None, bytes | None, tuple[Any, ...]]]]) -> Lives:
    """Return the finished runs at one commit."""

    def one(
        native: tuple[Dict, bytes | None, bytes | None, tuple[Any, ...]],
    ) -> Life:
        fields, payload, result, (wait, ran, enqueued, finished) = native
        fields = dict(fields)
        for name in ("enqueued", "first_claimed", "claimed", "finished"):
            fields[f"{name}_at"] = maybe_time(fields.pop(f"{name}_ms"))
        fields["run_at"] = convert.time(fields.pop("run_at_ms"))
        fields |= {"payload": payload, "result_payload": result}
        del fields["result"]
        return Life(
            wait=None if wait is None else timedelta(milliseconds=wait),
            ran=None if ran is None else timedelta(milliseconds=ran),
            enqueue_commit_seq=enqueued,
            finish_commit_seq=finished,
            **fields,
        )

    commit_seq, all = native
    return Lives(commit_seq, tuple(map(one, all)))
