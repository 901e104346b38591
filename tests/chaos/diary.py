"""The diary of a process: one JSON object a line, in one write, so that a kill leaves whole lines.

`t` is the time of this machine's steady clock in nanoseconds: the same for all, whatever their wall clocks say.

| `e` | meaning |
|---|---|
| `ask` | call `n` is about to be made, at `w` by the wall clock: `op` and its arguments |
| `ans` | call `n` returned: `ok`, or `err` with the kind and `code`; for a claim the jobs |
| `held` | a job of a claim is surely still held at this time |
| `up` | the queue file is open; `seq` is the newest commit visible in it |
| `loc` | in Local mode: call `n` is in the directory |
| `synced` | in Local mode: everything in the directory is published, in commit `seq` |
| `discarding`, `discarded` | in Local mode: unpublished changes are about to be dropped, are dropped |
| `idle` | every call has returned, and no more calls are made |
| `!` | something that must never happen |
"""

from __future__ import annotations

import itertools
import json
import os
import time
from typing import Any


def now() -> int:
    """Return the steady clock of the machine, the same in every process."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


class Diary:
    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._count = itertools.count()

    def note(self, event: str, **facts: Any) -> None:
        line = json.dumps({"t": now(), "e": event} | facts, separators=(",", ":"))
        os.write(self._file, f"{line}\n".encode())

    def ask(self, op: str, **facts: Any) -> int:
        number = next(self._count)
        self.note("ask", n=number, op=op, w=time.time_ns() // 1_000_000, **facts)
        return number
