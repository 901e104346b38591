"""Runs the work of a task in a child process: a job that ends its process takes no other job with it.

The child reports each job that it claims, begins, runs and ends. When it dies, its parent knows which job ran; the next
child ends that attempt and releases the others. The parent itself never opens the queue file.
"""

# pyright: basic
from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe
from typing import Any

__all__ = ["Books", "Left", "Tell", "supervise"]

REPORTED = 1000
"""Jobs that a task names as dead."""
IDLE_DEATHS = 3
"""Children in a row that may die while no job runs."""
Tell = Callable[..., None]
Left = list[tuple[str, str, str | None]]
"""Jobs of a dead child: id, token, and the reason why the attempt failed; None if it had not begun."""


@dataclass
class Books:
    """The state of the jobs of its children, as the parent knows it."""

    acked: int = 0
    failed: int = 0
    crashed: int = 0
    lost: int = 0
    dead: int = 0
    died: list[tuple[str, str]] = field(default_factory=list)
    over: bool = False
    error: Exception | None = None
    held: dict[str, str] = field(default_factory=dict)
    begun: set[str] = field(default_factory=set)
    ran: set[str] = field(default_factory=set)

    def note(self, what: str, *args: Any) -> None:
        """Enter one report of a child."""
        match what:
            case "held":
                self.held |= args[0]
            case "begun":
                self.begun |= set(args[0])
            case "ran":
                self.begun -= set(args[0])
                self.ran |= set(args[0])
            case "ended":
                for id in args[0]:
                    self.held.pop(id, None)
                    self.begun.discard(id)
                    self.ran.discard(id)
            case "died":
                self.dead += 1
                if len(self.died) < REPORTED:
                    self.died.append(args[0])
            case "error":
                self.error = args[0]
            case "over":
                self.over = True
            case counter:
                setattr(self, counter, getattr(self, counter) + args[0])

    def left(self, status: int) -> Left:
        """Return the jobs of a child that died, and forget them."""
        # If no job was running, the last ones to run may have caused it: repeated unharmed, they could do so forever.
        guilty = self.begun or self.ran
        found: Left = [
            (id, token, reason(status) if id in guilty else None) for id, token in self.held.items()
        ]
        self.held, self.begun, self.ran = {}, set(), set()
        return found


def supervise(body: Callable[[Tell, Left], None]) -> Books:
    """Call ``body`` in a child, and again with the jobs that were left over whenever the child dies."""
    books, left, idle = Books(), [], 0
    if not hasattr(os, "fork"):
        # On Windows a job that ends its process ends its task.
        body(books.note, left)
        return books
    while True:
        status = in_child(body, books, left)
        if books.error is not None:
            raise books.error
        if books.over:
            return books
        left = books.left(status)
        idle = 0 if any(why for _, _, why in left) else idle + 1
        if idle == IDLE_DEATHS:
            raise RuntimeError(f"{reason(status)}, {idle} times, and no job was running")


def in_child(body: Callable[[Tell, Left], None], books: Books, left: Left) -> int:
    """Run the body in a forked process until it ends. Returns its exit code, or minus its signal."""
    reports, told = Pipe(duplex=False)
    lives, life = Pipe(duplex=False)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    pid = os.fork()
    if pid == 0:
        reports.close()
        life.close()
        threading.Thread(target=die_with, args=(lives,), daemon=True).start()
        run(body, told, left)
    told.close()
    lives.close()
    try:
        # The end of the child, or a report cut short by it, ends this.
        with reports, suppress(EOFError, OSError):
            while True:
                books.note(*reports.recv())
    finally:
        life.close()
        _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def run(body: Callable[[Tell, Left], None], told: Connection, left: Left) -> None:
    """Run the body and end this process without a trace of its parent: no buffers, no exit handlers."""
    lock = threading.Lock()

    def tell(*report: Any) -> None:
        with lock:
            told.send(report)

    try:
        try:
            body(tell, left)
            tell("over")
        except Exception as error:
            try:
                tell("error", error)
            except Exception:
                tell("error", RuntimeError(f"{type(error).__name__}: {error}"))
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    finally:
        os._exit(0)


def die_with(parent: Connection) -> None:
    """End this process when its parent has ended: Spark kills only the parent."""
    with suppress(EOFError, OSError):
        parent.recv()
    os._exit(1)


def reason(status: int) -> str:
    """Say how a process ended."""
    if status >= 0:
        return f"the process that ran it ended with exit code {status}"
    name = signal.Signals(-status).name
    memory = ", perhaps for lack of memory" if -status == signal.SIGKILL else ""
    return f"the process that ran it ended by {name}{memory}"
