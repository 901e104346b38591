"""The location and settings of a queue file, in a form that can be sent to executors."""

# pyright: basic
from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from os import PathLike
from typing import Any

from bucketq import _convert as convert
from bucketq import _native
from bucketq.errors import Invalid, NotFound
from bucketq.file import QueueFile
from bucketq.settings import resolve

__all__ = ["Place"]


@dataclass(frozen=True)
class Place:
    """A URL and engine settings, resolved once on the driver: executors may have another environment."""

    url: str
    # They may contain credentials, and plans and errors show the repr.
    settings: tuple[tuple[str, Any], ...] = field(repr=False)

    @classmethod
    def of(cls, url: str | PathLike[str] | None, settings: Mapping[str, Any]) -> Place:
        """Return the place for arguments of a call."""
        url, options = resolve(url, None, settings)  # type: ignore[arg-type]
        if url.startswith("memory:"):
            raise Invalid(
                "Spark runs in many processes, and a memory:// queue file exists in only one: use a path or s3://",
                "url",
            )
        if "://" not in url:
            url = os.path.abspath(url)
        return cls(url, tuple(sorted(options.items())))

    @classmethod
    def of_options(cls, options: Mapping[str, str], known: Mapping[str, str]) -> Place:
        """Return the place for options of a DataFrame; options in ``known`` are not settings of the engine."""
        given: dict[str, Any] = {}
        for name, text in options.items():
            if name == "url" or name in known:
                continue
            if name not in convert.SETTINGS:
                near = convert.nearest(name, (*sorted(known.values()), *convert.SETTINGS))
                raise Invalid(f"there is no option {name!r}: {near}", "option")
            given[name] = _native.parse_setting(name, text)
        return cls.of(options.get("url") or options.get("path"), given)

    def as_options(self) -> dict[str, str]:
        """Return options from which :meth:`of_options` makes this place again."""
        options = {"url": self.url}
        kinds = {name: kind for name, kind, _, _ in _native.settings()}
        for name, value in self.settings:
            if kinds[name].startswith("seconds") and not isinstance(value, str):
                value = value / 1000
            options[name] = str(value).lower() if isinstance(value, bool) else str(value)
        return options

    def setting(self, name: str, default: Any) -> Any:
        """Return the value of a setting, or ``default``."""
        return dict(self.settings).get(name, default)

    def objects(self) -> _native.Objects:
        """Return access to its objects; connections are reused by later calls of this process."""
        return _objects(self, os.getpid())

    def open(self) -> QueueFile:
        """Open a handle; it shares the writer of other handles of this process with the same settings."""
        return QueueFile(_native.open(self.url, dict(self.settings)).wait(), self.url)

    def check_queues(self, names: Iterable[str]) -> int:
        """Raise if one of these queues does not exist; also if the queue file does not. A deleted queue that has an
        archive counts. Returns a position in the order of finishes: later runs come after it.
        """
        names = list(names)
        pinned = self.objects().pin().wait()
        known = {queue["name"] for queue in pinned.queues()}
        position = (pinned.commit_seq + 1 << 24) - 1
        if known.issuperset(names):
            return position
        known |= {listed["queue"] for listed in pinned.archives(0)}
        for name in names:
            if name not in known:
                near = convert.nearest(name, sorted(known)) if known else "it has none yet"
                raise NotFound(f"there is no queue {name!r} in {self.url}: {near}", "no_such_queue")
        return position

    def read(self, key: str, hash: bytes | None = None) -> bytes | None:
        """Return the bytes of an object."""
        return self.objects().get(key, hash).wait()


@lru_cache(maxsize=16)
def _objects(place: Place, _pid: int) -> _native.Objects:
    return _native.objects(place.url, dict(place.settings)).wait()
