"""Output of ``stats --watch``: the queue file now, and the commits since the last update."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import datetime, timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any

from bucketq import QueueFile, Stats
from bucketq.cli import _show as show
from bucketq.cli._app import answer, out, say

if TYPE_CHECKING:
    from bucketq.cli.files import Facts, Picture

Pace = dict[str, Any]
MOST = 500
"""The most commits of the log that one update reads."""


def watch(file: QueueFile, every: float, *, as_json: bool, facts: Facts, picture: Picture) -> None:
    """Update repeatedly: a live table on a terminal, otherwise a line per update."""
    looks = looked(file, every)
    if as_json or not out.is_terminal:
        for now, pace in looks:
            if as_json:
                answer({**facts(now), "pace": pace})
            else:
                say(line(now, facts(now)["queues"], pace))
        return
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    with Live(console=out, auto_refresh=False) as live:
        for now, pace in looks:
            live.update(Group(picture(now), Text(), Text(words(pace), style="dim")), refresh=True)


def looked(file: QueueFile, every: float) -> Iterator[tuple[Stats, Pace | None]]:
    """Yield the statistics repeatedly, each time with the commits since the last one. Never ends."""
    before, at = file.stats(), monotonic()
    yield before, None
    while True:
        threading.Event().wait(every)
        now, then, at = file.stats(), at, monotonic()
        yield now, paced(file, before, now, at - then)
        before = now


def paced(file: QueueFile, before: Stats, now: Stats, took: float) -> Pace:
    """Return the commits of all writers between two updates."""
    commits = max(now.commit_seq - before.commit_seq, 0)
    log = file.history(limit=min(commits, MOST)) if commits else []
    found = [one for one in log if before.commit_seq < one.commit_seq <= now.commit_seq]
    return {
        "commits": commits,
        "commits_per_s": round(commits / took, 2),
        "writers": len({one.writer for one in found}),
        "ops_per_commit": round(sum(one.ops for one in found) / len(found), 2) if found else None,
        "bytes_per_commit": round(sum(one.bytes for one in found) / len(found)) if found else None,
    }


def words(pace: Pace | None) -> str:
    """Return the pace as text."""
    if pace is None:
        return "..."
    if not pace["commits"]:
        return "no commit since the last update"
    parts = [show.plural(pace["commits"], "commit"), f"{pace['commits_per_s']:,.1f} per second"]
    if pace["ops_per_commit"] is not None:
        parts += [f"{pace['ops_per_commit']:,.1f} ops", f"{show.size(pace['bytes_per_commit'])} each"]
        parts.append(f"by {show.plural(pace['writers'], 'writer')}")
    return " · ".join(parts)


def line(now: Stats, queues: list[dict[str, Any]], pace: Pace | None) -> str:
    """Return one update on one line."""
    parts = [f"{datetime.now().astimezone():%H:%M:%S} commit {now.commit_seq:,}"]
    for queue in queues:
        counts = ", ".join(f"{count:,} {state}" for state, count in queue["counts"].items() if count)
        waited = queue["oldest_ready"]
        waits = "" if waited is None else f", waiting {show.span(timedelta(seconds=waited), short=True)}"
        parts.append(f"{queue['name']}: {counts or 'empty'}{waits}")
    if pace is not None:
        parts.append(words(pace))
    return " · ".join(parts)
