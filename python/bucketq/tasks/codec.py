"""How the arguments and results of tasks become bytes."""

from __future__ import annotations

from typing import Any, Protocol

from bucketq import _convert as convert

__all__ = ["JSON", "Codec", "Json"]


class Codec(Protocol):
    """Turns values into bytes and back. Every process that enqueues or runs the tasks of an app needs the same one."""

    @property
    def content_type(self) -> str:
        """The content type of the bytes, stored with each job."""
        ...

    def dumps(self, value: Any) -> bytes:
        """Return the value as bytes. Raises ValueError or TypeError if that is impossible."""
        ...

    def loads(self, data: bytes) -> Any:
        """Return the value in these bytes."""
        ...


class Json:
    """The codec of an app by default."""

    content_type = convert.JSON

    def dumps(self, value: Any) -> bytes:
        """Return the value as JSON in UTF-8."""
        return convert.encode(value, convert.JSON)[0]

    def loads(self, data: bytes) -> Any:
        """Return the value of the JSON text."""
        return convert.decode(data, convert.JSON)


JSON = Json()


def result(codec: Codec, value: Any) -> convert.Encoded | None:
    """Return a result as it is stored. JSON: text and bytes stay as they are, as for other jobs."""
    if value is None:
        return None
    if isinstance(codec, Json):
        return convert.Encoded.of(*convert.encode(value))
    return convert.Encoded.of(codec.dumps(value), convert.BYTES)


def value(codec: Codec, payload: bytes | None, content_type: str | None) -> Any:
    """Reverse ``result``."""
    if payload is None:
        return None
    return convert.decode(payload, content_type or "") if isinstance(codec, Json) else codec.loads(payload)
