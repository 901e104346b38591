"""Runs a worker until it ends: with its metrics, notifications for systemd, a record at its begin and its end."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import timedelta
from logging import getLogger
from time import monotonic
from typing import Any

from bucketq import AppWorker, Worked, Worker
from bucketq._scrape import Scraped
from bucketq.cli._notify import Watchdog, notify
from bucketq.cli._show import plural, span

__all__ = ["serve"]

log = getLogger("bucketq.worker")

REACTS = 5.0
"""Seconds within which a healthy worker reacts."""


def serve(name: str, found: Worker | AppWorker, *, wait: float | None, metrics: str | None) -> Worked:
    """Run the worker until it is drained; with ``wait``, until no job came for that long."""
    file = found.app.file if isinstance(found, AppWorker) else found._file

    def healthy() -> bool:
        return found._responds(REACTS)

    serving = nullcontext() if metrics is None else Scraped(file, metrics, healthy)
    with serving, Watchdog(healthy):
        begin(name, found, file)
        began = monotonic()
        notify("READY=1")
        try:
            worked = found.run(wait=wait)
        finally:
            notify("STOPPING=1")
    end(worked, monotonic() - began)
    return worked


def begin(name: str, found: Worker | AppWorker, file: Any) -> None:
    """Log what the worker will do, in one record."""
    if isinstance(found, AppWorker):
        options, queues = found.options, found.queues
        at_once, processes = options.jobs_at_once, options.processes
    else:
        queues, at_once, processes = found._queues or tuple(found._handlers), found._concurrency, 0
    role = file.host_role
    leader = {"leads": "this process", "alone": "this process, alone"}.get(role.role, role.leader)
    where = f", {plural(processes, 'child process')}" if processes == 1 else ""
    where = f", {processes:,} child processes" if processes > 1 else where
    log.info(
        "%s starts: queues %s; %d at a time%s; store %s; writer: %s",
        name,
        ", ".join(queues),
        at_once,
        where,
        file.url,
        leader,
    )


def end(worked: Worked, seconds: float) -> None:
    """Log what the worker has done, in one record."""
    counts = {part: getattr(worked, part) for part in Worked.__slots__}
    rest = "".join(f", {count:,} {part}" for part, count in counts.items() if part != "done" and count)
    log.info("%s done%s, in %s", plural(worked.done, "job"), rest, span(timedelta(seconds=seconds)))
