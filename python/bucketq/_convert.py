"""Converts between Python's values and the engine's: bytes with a content type, milliseconds, plain dicts.

Every module that uses ``_native`` calls it. It rejects wrong arguments before anything is sent.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

from bucketq import _native
from bucketq._durations import milliseconds
from bucketq.errors import Invalid

if TYPE_CHECKING:
    from bucketq.types import Extras, Seconds

Blob = tuple[bytes, str]
"""Bytes and their content type."""
Dict = dict[str, Any]
"""A record from the engine, by field name."""

JSON = "application/json"
TEXT = "text/plain"
BYTES = "application/octet-stream"

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)
MAX_MILLIS = 2**62

EXTRAS = (
    "delay",
    "at",
    "priority",
    "max_attempts",
    "backoff",
    "dedup",
    "dedup_window",
    "group",
    "headers",
    "expires",
    "max_run",
    "content_type",
    "id",
)


def millis(value: Seconds, what: str) -> int:
    """Return a duration in milliseconds."""
    if isinstance(value, timedelta):
        result = value // MILLISECOND
    elif isinstance(value, str):
        result = milliseconds(value, what)
    elif isinstance(value, bool) or not isinstance(value, (int, float)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise Invalid(f"{what} is {value!r}: give seconds as a number, text such as '5min', or a timedelta")
    elif not math.isfinite(value):
        raise Invalid(f"{what} is {value!r}: give a finite number of seconds")
    else:
        result = round(value * 1000)
    if result < 0:
        raise Invalid(f"{what} is {value!r}: it cannot be negative")
    if result > MAX_MILLIS:
        raise Invalid(f"{what} is {value!r}: it is too long")
    return result


def maybe_millis(value: Seconds | None, what: str) -> int | None:
    """Return a duration in milliseconds; None for None."""
    return None if value is None else millis(value, what)


def moment(value: datetime, what: str) -> int:
    """Return milliseconds since 1970 in UTC."""
    if not isinstance(value, datetime):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise Invalid(f"{what} is {value!r}: give an aware datetime")
    if value.tzinfo is None or value.utcoffset() is None:
        raise Invalid(f"{what} is {value!r} without a time zone: use datetime.now(UTC) or .astimezone()")
    return (value - EPOCH) // MILLISECOND


def time(ms: int) -> datetime:
    """Return the time in UTC."""
    return EPOCH + timedelta(milliseconds=ms)


def maybe_time(ms: int | None) -> datetime | None:
    """Return the time in UTC; None for None."""
    return None if ms is None else time(ms)


def whole(value: int, what: str, low: int, high: int) -> int:
    """Return the number if it is whole and within bounds."""
    if isinstance(value, bool) or not isinstance(value, int):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise Invalid(f"{what} is {value!r}: give a whole number")
    if not low <= value <= high:
        raise Invalid(f"{what} is {value}: give a number between {low} and {high}")
    return value


def name(value: str | None, what: str) -> str | None:
    """Return the value if it is text or None."""
    if value is not None and not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise Invalid(f"{what} is {value!r}: give text")
    return value


def names(values: Iterable[str], what: str) -> list[str]:
    """Return the texts as a list. Rejects a single text: the caller likely meant a list of one."""
    if isinstance(values, str):
        raise Invalid(f"{what} is the text {values!r}: give a list, [{values!r}]")
    return list(values)


class Encoded(bytes):
    """Bytes that are encoded already, with their content type."""

    content_type: str

    @classmethod
    def of(cls, data: bytes, content_type: str) -> Encoded:
        """Return these bytes."""
        encoded = cls(data)
        encoded.content_type = content_type
        return encoded

    def __reduce__(self) -> Any:
        return Encoded.of, (bytes(self), self.content_type)


def is_json(content_type: str) -> bool:
    """Return True for any content type of JSON."""
    kind = content_type.partition(";")[0].strip().lower()
    return kind == JSON or kind.endswith("+json")


def encode(data: Any, content_type: str | None = None) -> tuple[bytes, str]:
    """Return the bytes of the data and their content type: bytes and text unchanged, all else as JSON."""
    match data:
        case Encoded():
            return data, data.content_type
        case bytes():
            return data, content_type or BYTES
        case bytearray():
            return bytes(data), content_type or BYTES
        case memoryview():
            return data.tobytes(), content_type or BYTES
        case str() if content_type is None or not is_json(content_type):
            try:
                return data.encode(), content_type or TEXT
            except UnicodeEncodeError as error:
                raise Invalid(f"the text cannot be written as UTF-8: {error.reason}") from error
        case _ if content_type is not None and not is_json(content_type):
            raise Invalid(f"{type(data).__name__} cannot be written as {content_type}: give bytes or text")
        case _:
            try:
                written = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
                return written.encode(), content_type or JSON
            except (TypeError, ValueError, RecursionError) as error:
                raise Invalid(f"the data cannot be written as JSON: {error}; give bytes or text") from error


def decode(payload: bytes, content_type: str) -> Any:
    """Reverse ``encode``: JSON and text are decoded, all else stays bytes."""
    if is_json(content_type):
        try:
            return json.loads(payload)
        except ValueError as error:
            raise Invalid(
                f"the payload says {content_type} but is not JSON: {error}; see .payload"
            ) from error
    return text(payload) if content_type.lower().startswith("text/") else payload


def text(payload: bytes) -> str:
    """Return the payload as UTF-8 text."""
    try:
        return payload.decode()
    except UnicodeDecodeError as error:
        raise Invalid(f"the payload is not UTF-8 text: {error.reason}; see .payload") from error


def queue_and_data(args: tuple[Any, ...]) -> tuple[str | None, Any]:
    """Split the arguments ``(data)`` or ``(queue, data)`` into queue and data."""
    match args:
        case (data,):
            return None, data
        case (str(queue), data):
            return queue, data
        case _:
            raise TypeError("New takes the data, or the name of a queue and the data")


def nearest(key: str, known: Iterable[str]) -> str:
    """Return a hint for an error message: the known name most similar to ``key``, or all names."""
    from difflib import get_close_matches

    known = list(known)
    close = get_close_matches(key, known, n=1)
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"


def check_extras(extras: Extras) -> None:
    """Reject unknown names."""
    for key in extras:
        if key not in EXTRAS:
            raise TypeError(f"a job has no {key!r}: {nearest(key, EXTRAS)}")


def job(data: Any, extras: Extras) -> tuple[Blob, Dict]:
    """Return a job to enqueue in the engine's form."""
    return encode(data, extras.get("content_type")), native_extras(extras)


def native_extras(extras: Extras) -> dict[str, Any]:
    """Return the extras in the engine's form."""
    check_extras(extras)
    out: dict[str, Any] = {}
    given: dict[str, Any] = {key: value for key, value in extras.items() if value is not None}
    given.pop("content_type", None)
    if "dedup" in given and "dedup_window" in extras and extras["dedup_window"] in {None, "unfinished"}:
        given.pop("dedup_window", None)
        out["dedup_unfinished"] = True
    for key, value in given.items():
        match key:
            case "delay":
                out["delay_ms"] = millis(value, "delay")
            case "at":
                out["at_ms"] = moment(value, "at")
            case "expires" | "max_run":
                out[f"{key}_ms"] = millis(value, key)
            case "dedup_window":
                out["dedup_window_ms"] = millis(value, key)
            case "priority":
                out[key] = whole(value, key, -(2**31), 2**31 - 1)
            case "max_attempts":
                out[key] = whole(value, key, 1, 2**32 - 1)
            case "backoff":
                from bucketq._policy import backoff

                out[key] = json.dumps(backoff(value))
            case "headers":
                out[key] = headers(value)
            case _:
                out[key] = name(value, key)
    if "delay" in given and "at" in given:
        raise Invalid("delay and at exclude each other: give one of them")
    if "dedup_window" in given and "dedup" not in given:
        raise Invalid("dedup_window without dedup: give the key too")
    return out


def headers(value: Mapping[str, str]) -> dict[str, str]:
    """Check that headers map text to text."""
    try:
        pairs: dict[Any, Any] = dict(value)
    except (TypeError, ValueError):
        pairs = {None: None}
    if not all(isinstance(part, str) for pair in pairs.items() for part in pair):
        raise Invalid("headers map text to text")
    return pairs


SETTINGS = {name: kind for name, kind, _, _ in _native.settings()}
"""Every setting of the engine, with the values it takes."""


def native_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings in the engine's form."""
    out: dict[str, Any] = {}
    for key, value in settings.items():
        if key not in SETTINGS:
            raise Invalid(f"there is no setting {key!r}: {nearest(key, SETTINGS)}", "option")
        out[key] = setting(key, value)
    return out


def setting(key: str, value: Any) -> Any:
    """Return the value of a setting: durations as milliseconds, paths as text."""
    kind, _, words = SETTINGS[key].partition(" ")
    if kind == "seconds" and value is not None and value not in words.split():
        if words and isinstance(value, str) and not value.strip()[:1].isdigit():
            return value  # The engine refuses it, and names the words.
        return millis(value, key)
    return os.fspath(cast("os.PathLike[str]", value)) if isinstance(value, os.PathLike) else value
