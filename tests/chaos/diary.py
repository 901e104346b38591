"""What a process writes down: one JSON object a line, in one write, so that a kill leaves whole lines.

`t` is the time of this machine's steady clock in nanoseconds: the same for all, whatever their wall clocks say.

| `e` | what it says |
|---|---|
| `ask` | call `n` is about to be made at `w` by the wall clock: `op` and what it is about |
| `ans` | call `n` was answered: `ok`, or `err` with the kind and `code`; of a claim the jobs |
| `held` | a job of a claim is surely still held at this time |
| `up` | the queue file is open; `seq` is the newest commit it shows |
| `loc` | in Local mode: the directory has call `n` |
| `synced` | in Local mode: everything that the directory has is published, in commit `seq` |
| `discarding`, `discarded` | in Local mode: what is not published is about to be dropped, is dropped |
| `idle` | everything is answered, and nothing is asked any more |
| `!` | something that must never happen |
"""

from __future__ import annotations

import itertools
import json
import os
import time
from typing import Any


def now() -> int:
    """The steady clock of the machine, the same in every process."""
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
