"""Celery's result backend: results are jobs that nobody claims, found by ids made from their keys.

A state is never overwritten. Each change of a result is another job with the next number, and the newest counts; they
expire together. So two processes that store at the same moment cannot undo each other.
"""

# Celery has no types, and the arguments of its methods are given, used or not.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportIncompatibleMethodOverride=false, reportMissingTypeStubs=false, reportUntypedBaseClass=false
# pyright: reportUnknownParameterType=false
# ruff: noqa: ARG002

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid5

from celery import states
from celery.backends.base import KeyValueStoreBackend
from celery.exceptions import TimeoutError as TimedOut

from bucketq._working import PASSING
from bucketq.contrib.celery.place import opened, shown
from bucketq.contrib.celery.table import NEVER
from bucketq.errors import Invalid, NotFound, OutcomeUnknown
from bucketq.types import Extras, JobDetail

if TYPE_CHECKING:
    from bucketq import QueueFile

RESULTS = "celery.results"
"""The queue with the results, the saved groups and the signs of waiting callers."""
CHORDS = "celery.chords"
"""The queue with a job for each part of a chord that has returned."""
KEYS = UUID("5d0f0f5c-8a0e-5a43-8f0b-7f3a3f0d7c11")
"""The namespace of the ids."""
STATES = 8
"""States of a result that are looked up together; most results have one."""
WAITS, FIRED = "waits", "fired"
"""The sign of a caller that waits, and that of a chord whose body was called."""
MOST_CHORDS = 1000
"""Chords whose parts a process counts without reading them again."""
SLICE = 1.0
"""Seconds after which a waiting caller looks at its own conditions."""


def id_of(key: str | bytes, what: object) -> str:
    """Return the id of a job that belongs to this key."""
    name = key.decode() if isinstance(key, bytes) else key
    return str(uuid5(KEYS, f"{name}\0{what}"))


class Backend(KeyValueStoreBackend):
    """The result backend ``bucketq``."""

    implements_incr = True
    supports_native_join = True

    def __init__(self, app: Any, url: str | None = None, **kwargs: Any) -> None:
        kwargs.setdefault("expires_type", int)
        super().__init__(app=app, url=url, **kwargs)
        self._lock = threading.Lock()
        self._opened: tuple[int, QueueFile] | None = None
        # The part of a chord whose end this thread reports.
        self._part = threading.local()
        # For each chord: a place in the order of its parts, and how many parts there are up to it.
        self._counted: dict[str, tuple[int | None, int]] = {}

    @property
    def file(self) -> QueueFile:
        """The queue file; a forked child opens its own."""
        found = self._opened
        if found is not None and found[0] == os.getpid():
            return found[1]
        if found is not None:
            self._lock = threading.Lock()  # A thread of the parent may have held it.
        with self._lock:
            if self._opened is None or self._opened[0] != os.getpid():
                options = self.app.conf.get("result_backend_transport_options") or {}
                file = opened(self.url, options.get("settings"))
                for name in (RESULTS, CHORDS):
                    if file.create_queue(name):
                        file.queue(name).configure(keep=0, on_expiry="delete")
                self._opened = os.getpid(), file
            return self._opened[1]

    def __reduce__(self, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        """Pickle a backend with its URL, as pickled results need it."""
        return super().__reduce__(args, {**(kwargs or {}), "url": self.url, "expires": self.expires})

    def as_uri(self, include_password: bool = False) -> str:
        """Return the URL for logs."""
        return str(self.url) if include_password else shown(self.url)

    def exception_safe_to_retry(self, exc: Exception) -> bool:
        """Return whether ``result_backend_always_retry`` applies."""
        return isinstance(exc, PASSING)

    # Values by key.

    def get(self, key: str | bytes) -> bytes | None:
        """Return the newest value of a key."""
        return self.mget([key])[0]

    def mget(self, keys: Iterable[str | bytes]) -> list[bytes | None]:
        """Return the newest value of each key."""
        found = self._newest(list(keys))
        return [(newest[1] or None) if newest is not None else None for newest in found]

    def set(self, key: str | bytes, value: str | bytes) -> None:
        """Store a value."""
        self._set_with_state(key, value, states.PENDING)

    def _set_with_state(self, key: str | bytes, value: str | bytes, state: str) -> None:
        number = 0
        while True:
            tx = self.file.atomic()
            repeated = False
            try:
                with tx:
                    tx.enqueue(RESULTS, value, **self.hidden(id_of(key, number)))
                    if state in states.READY_STATES:
                        tx.delete(id_of(key, WAITS))
            except OutcomeUnknown:
                tx.repeat()
                repeated = True
            except Invalid as error:
                if error.code != "id_taken":
                    raise
                newest = self._newest([key])[0]
                if newest is not None and value and self._is_late(key, newest[1], state):
                    return
                number = max(number, -1 if newest is None else newest[0]) + 1
                continue
            if repeated or not tx.results[0].existing:
                return
            number += 1

    def _is_late(self, key: str | bytes, newest: bytes, state: str) -> bool:
        """Return whether another process has stored a state of the task that this one must not replace.

        Celery sends the message of a retry before it stores RETRY: the task may be done by then.
        """
        name = key.encode() if isinstance(key, str) else key
        prefix: Any = self.task_keyprefix
        if not newest or not name.startswith(prefix):
            return False
        meta: Any = self.decode_result(newest)
        there = meta["status"]
        return there == states.SUCCESS or (state == states.RETRY and there in states.READY_STATES)

    def delete(self, key: str | bytes) -> None:
        """Delete the values of a key."""
        name = key.encode() if isinstance(key, str) else key
        prefix: Any = self.chord_keyprefix
        if name.startswith(prefix):
            self._over(name)
            return
        newest = self._newest([key])[0]
        if newest is None:
            return
        many = newest[0] + 1
        if many >= STATES:
            # The ids of deleted jobs do not come back within the hour, so later states have higher numbers. The last
            # of each STATES stays, because it says that there are more.
            self.set(key, b"")
        self._delete([id_of(key, number) for number in range(many) if (number + 1) % STATES])

    def hidden(self, id: str, group: str | None = None) -> Extras:
        """Return the options of a job that no worker ever gets, and that expires with the results."""
        return Extras(id=id, group=group, at=NEVER, expires=self.expires or None)

    def _newest(self, keys: list[str | bytes]) -> list[tuple[int, bytes] | None]:
        """Return the number and the bytes of the newest value of each key."""
        found: list[tuple[int, bytes] | None] = [None] * len(keys)
        places, first = list(range(len(keys))), 0
        while places:
            jobs = self._jobs([id_of(keys[place], first + n) for place in places for n in range(STATES)])
            full: list[int] = []
            for index, place in enumerate(places):
                values = jobs[index * STATES : (index + 1) * STATES]
                there = [(first + n, job.payload) for n, job in enumerate(values) if job is not None]
                found[place] = there[-1] if there else found[place]
                if values[-1] is not None:
                    full.append(place)
            places, first = full, first + STATES
        return found

    def _jobs(self, ids: list[str]) -> list[JobDetail | None]:
        found: list[JobDetail | None] = []
        while len(found) < len(ids):
            # A reply has at most 4 MiB: large values come in several.
            found += self.file.get_many(ids[len(found) : len(found) + 1000])
        return found

    def _delete(self, ids: list[str]) -> None:
        for begin in range(0, len(ids), 1000):
            with self.file.atomic() as tx:
                for id in ids[begin : begin + 1000]:
                    tx.delete(id)

    # Waiting. The caller enqueues a sign; the commit that stores a final state deletes it, and that wakes the caller.

    def wait_for(
        self,
        task_id: str,
        timeout: float | None = None,
        interval: float = 0.5,
        no_ack: bool = True,
        on_interval: Callable[[], object] | None = None,
    ) -> dict[str, Any]:
        """Return the state of a task once it is final. Raises Celery's TimeoutError when that takes too long."""
        self._ensure_not_eager()
        waiting = Waiting(self, timeout, interval, on_interval)
        while True:
            meta = self.get_task_meta(task_id)
            if meta["status"] in states.READY_STATES:
                return meta
            waiting.wait(self.get_key_for_task(task_id))

    def get_many(
        self,
        task_ids: Iterable[str],
        timeout: float | None = None,
        interval: float = 0.5,
        no_ack: bool = True,
        on_message: Callable[[Any], object] | None = None,
        on_interval: Callable[[], object] | None = None,
        max_iterations: int | None = None,
        READY_STATES: frozenset[str] = states.READY_STATES,  # noqa: N803
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the ids and states of these tasks as they become final."""
        missing = list(dict.fromkeys(str(id) for id in task_ids))
        waiting = Waiting(self, timeout, interval, on_interval)
        looks = 0
        while missing:
            look = super().get_many(set(missing), interval=0, max_iterations=1, on_message=on_message)
            ready: dict[str, Any] = dict(look)
            yield from ready.items()
            missing = [id for id in missing if id not in ready]
            looks += 1
            if not missing or looks == max_iterations:
                return
            waiting.wait(self.get_key_for_task(missing[0]))

    # Chords. Each part that has returned is a job, once per part; the last part in their order calls the body.

    def on_chord_part_return(self, request: Any, state: str, result: Any, **kwargs: Any) -> None:
        """Count a part of a chord; the last one calls the body."""
        if request.group:
            key = self.get_key_for_chord(request.group)
            if self.file.get(id_of(key, FIRED)) is not None:
                return  # A message that was delivered again: the body was called.
        self._part.id = request.id
        super().on_chord_part_return(request, state, result, **kwargs)

    def incr(self, key: str | bytes) -> int:
        """Count the part of this thread. Returns its place among the parts of the chord, the same when repeated."""
        group, mark = id_of(key, "parts"), id_of(key, f"part {self._part.id}")
        self.file.queue(CHORDS).enqueue(b"", **self.hidden(mark, group))
        # Parts come behind those that are there: they are read once in each process.
        after, before = self._counted.get(group, (None, 0))
        while True:
            parts, last = self._parts(group, after)
            if mark in parts:
                if len(self._counted) >= MOST_CHORDS:
                    self._counted.clear()
                self._counted[group] = last, before + len(parts)
                return before + parts.index(mark) + 1
            if after is None:
                return 0  # Another process has called the body and forgotten the parts.
            after, before = None, 0

    def _parts(self, group: str, after: int | None = None) -> tuple[list[str], int | None]:
        """Return the parts after this place in their order, and the place of the last."""
        found: list[str] = []
        while True:
            page = self.file.list(queue=CHORDS, group=group, after=after, limit=1000)
            found += [job.id for job in page]
            if page.next is None:
                return found, page.last
            after = page.next

    def _over(self, key: bytes) -> None:
        """Remember that the body of a chord was called, and forget its parts."""
        self.file.queue(CHORDS).enqueue(b"", **self.hidden(id_of(key, FIRED)))
        self._delete(self._parts(id_of(key, "parts"))[0])


class Waiting:
    """One call that waits for results."""

    def __init__(
        self,
        backend: Backend,
        timeout: float | None,
        interval: float,
        on_interval: Callable[[], object] | None,
    ) -> None:
        self._backend = backend
        self._until = None if timeout is None else monotonic() + timeout
        self._interval = interval
        self._on_interval = on_interval
        self._signed: set[bytes] = set()
        self._gone: set[bytes] = set()

    def wait(self, key: bytes) -> None:
        """Wait until it pays to look for this result again."""
        while True:
            if self._on_interval is not None:
                self._on_interval()
            left = SLICE if self._until is None else min(self._until - monotonic(), SLICE)
            if left <= 0:
                raise TimedOut("The operation timed out.")
            queue = self._backend.file.queue(RESULTS)
            if key not in self._signed:
                # The result may have come before the sign: look once more.
                self._signed.add(key)
                queue.enqueue(b"", **self._backend.hidden(id_of(key, WAITS)))
                return
            if key in self._gone:
                # The sign does not come back within the hour: the task ran again after its result was forgotten.
                sleep(min(self._interval, left))
                return
            try:
                queue.wait(id_of(key, WAITS), timeout=left)
            except NotFound:
                self._gone.add(key)
                return
