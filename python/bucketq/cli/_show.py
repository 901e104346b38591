"""Formats values for people, as tables that fit 80 columns, and as JSON."""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

from rich import box
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from bucketq import Attempt, HostRole, JobDetail, JobInfo, QueueInfo, Rate, State
from bucketq._show import STATES

COLOURS: dict[State, str] = {
    "scheduled": "cyan",
    "ready": "blue",
    "leased": "yellow",
    "done": "green",
    "dead": "red",
    "cancelled": "bright_black",
}
GAP = 2
"""Spaces between two columns."""
LEAST = 10
"""The width that a cut column keeps, as long as others can be cut."""
PREVIEW = 2000
"""Characters of a payload shown; ``--payload`` prints all of it."""


def span(length: timedelta, *, short: bool = False) -> str:
    """Format a duration in one or two units: 350 ms, 12 s, 3 min 5 s, 2 h 10 min, 4 d 3 h; if short, in one."""
    seconds = length.total_seconds()
    if seconds < 1:
        return f"{round(seconds * 1000)} ms"
    whole = round(seconds)
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    for index, (unit, size) in enumerate(units):
        if whole >= size:
            count, rest = divmod(whole, size)
            lesser = () if short else units[index + 1 : index + 2]
            more = "".join(f" {rest // s} {u}" for u, s in lesser if rest // s)
            return f"{count} {unit}{more}"
    return "0 s"


def when(time: datetime | None, now: datetime, *, short: bool = False) -> str:
    """Format a time relative to now."""
    if time is None:
        return ""
    return f"in {span(time - now, short=short)}" if time > now else f"{span(now - time, short=short)} ago"


def size(count: int) -> str:
    """Format bytes in a suitable unit."""
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 10 else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} GiB"


def plural(count: int, noun: str) -> str:
    """Format ``1 job``, ``2 jobs``."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def host(role: HostRole) -> str:
    """Return which process of this host writes, on one line."""
    match role.role:
        case "leads":
            count = role.processes or 0
            others = f"{count:,} other process" + ("" if count == 1 else "es")
            return f"this process writes for this host, for {others}"
        case "joined":
            since = "" if role.since is None else f", for {span(role.since)} so far"
            return f"{role.leader} writes for this host{since}"
        case _:
            why = role.reason or "as its settings or its store say"
            return f"this process writes for itself only: {why}"


def safe(text: str) -> str:
    """Replace the control characters of a text, which could control the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)


def plainly(text: str, style: str = "") -> Text:
    """Return safe text in which nothing counts as markup."""
    return Text(safe(text), style=style)


def state(job: JobInfo) -> Text:
    """Return the state in its colour; ``expired`` for an expired lease."""
    return Text("expired" if job.expired else job.state, style=COLOURS[job.state])


def table(
    head: Sequence[str], rows: Sequence[Sequence[Text]], *, width: int, right: Collection[str], give: str
) -> Table:
    """Return a table without wrapped lines. If it is too wide, column ``give`` and the last one are cut."""
    longest = [max(len(name), *(len(row[i]) for row in rows)) for i, name in enumerate(head)]
    over = sum(longest) + GAP * (len(head) - 1) - width
    for index, least in ((len(head) - 1, LEAST), (head.index(give), LEAST), (len(head) - 1, len(head[-1]))):
        cut = min(max(over, 0), max(longest[index] - least, 0))
        longest[index] -= cut
        over -= cut
    result = Table(
        box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold", show_edge=False, padding=(0, GAP - 1, 0, 0)
    )
    for name in head:
        result.add_column(name, no_wrap=True, justify="right" if name in right else "left")
    for row in rows:
        for cell, most in zip(row, longest, strict=True):
            cell.truncate(most, overflow="ellipsis")
        result.add_row(*row)
    return result


def queues(infos: Iterable[QueueInfo], *, width: int) -> Table:
    """Return a table with one line per queue; the column dropped appears only if jobs were dropped."""
    infos, rows = list(infos), list[list[Text]]()
    drops = any(info.dropped for info in infos)
    for info in infos:
        name = plainly(info.name)
        if info.draining:
            name = Text.assemble(("draining ", "yellow"), name)
        elif info.paused:
            name = Text.assemble(("paused ", "yellow"), name)
        counts = [
            Text(f"{info.counts[one]:,}", style=COLOURS[one] if info.counts[one] else "dim") for one in STATES
        ]
        dropped = [Text(f"{info.dropped:,}", style="yellow" if info.dropped else "dim")] if drops else []
        waits = Text("" if info.oldest_ready is None else span(info.oldest_ready, short=True))
        rows.append([name, *counts, *dropped, waits])
    head = ["queue", *STATES, *(["dropped"] if drops else []), "waiting"]
    return table(head, rows, width=width, right=head[1:], give="queue")


def jobs(infos: Iterable[JobInfo], *, with_queue: bool, width: int) -> Table:
    """Return a table with one line per job; ids are never cut, because other commands need them."""
    now = datetime.now(UTC)
    rows: list[list[Text]] = []
    for job in infos:
        tries = Text(f"{job.attempt}/{job.max_attempts}")
        queue = [plainly(job.queue)] if with_queue else []
        gist_of_it = Text(safe(gist(job, now)).replace("\n", " "), style="dim")
        rows.append([Text(job.id), *queue, state(job), tries, Text(size(job.size)), gist_of_it])
    head = ["id", *(["queue"] if with_queue else []), "state", "try", "size", "what"]
    return table(head, rows, width=width, right=("try", "size"), give="queue" if with_queue else "what")


def gist(job: JobInfo, now: datetime) -> str:
    """Return the most important fact about a job in its state."""
    match job.state:
        case "dead":
            reason = "rejected" if job.died is None else job.died.reason.replace("_", " ")
            return job.last_error or reason
        case "scheduled":
            time = job.run_at
        case "leased":
            time = job.expires_at
        case "ready" if job.died is not None:
            return f"died in {job.died.queue}: {job.died.error or job.died.reason.replace('_', ' ')}"
        case "ready":
            time = job.enqueued_at
        case _:
            time = job.finished_at
    return when(time, now, short=True)


def moment(time: datetime, now: datetime) -> str:
    """Format a time to the second, and relative to now."""
    return f"{time.astimezone():%Y-%m-%d %H:%M:%S}  {when(time, now)}"


def detail(job: JobDetail) -> Table:
    """Return everything about one job, one fact per line."""
    now = datetime.now(UTC)
    result = Table.grid(padding=(0, 2, 0, 0))
    result.add_column(style="bold", no_wrap=True)
    result.add_column(overflow="fold")

    def line(name: str, value: object) -> None:
        if value is not None and value != "":
            result.add_row(name, value if isinstance(value, Text) else escape(safe(str(value))))

    line("id", job.id)
    line("queue", job.queue)
    line("state", state(job))
    line("attempt", f"{job.attempt} of {job.max_attempts}" + (f", run {job.run}" if job.run else ""))
    line("priority", job.priority or None)
    line("group", job.group)
    line("dedup", job.dedup)
    for key, value in job.headers.items():
        line("header", f"{key}: {value}")
    line("enqueued", moment(job.enqueued_at, now))
    if job.state in {"scheduled", "ready"}:
        line("runs", moment(job.run_at, now))
    for name, time in (
        ("claimed", job.claimed_at),
        ("lease until", job.expires_at),
        ("finished", job.finished_at),
    ):
        line(name, None if time is None else moment(time, now))
    line("worker", job.worker)
    line("fence", job.fence)
    line("last error", job.last_error)
    if job.died is not None:
        reason, tries = job.died.reason.replace("_", " "), plural(job.died.attempts, "attempt")
        line("died", f"in {job.died.queue}, {reason} after {tries}, {when(job.died.at, now)}")
    for one in job.attempts:
        earlier = "" if one.run == job.run else f"run {one.run}, "
        line(f"attempt {one.attempt}", earlier + ending(one, now))
    line("payload", f"{size(job.size)}, {job.content_type}")
    line("", preview(job.payload))
    if job.result_payload is not None:
        line("result", f"{size(len(job.result_payload))}, {job.result_content_type}")
        line("", preview(job.result_payload))
    return result


def ending(one: Attempt, now: datetime) -> str:
    """Return how an attempt ended, on one line."""
    worker = "" if one.worker is None else f" by {one.worker}"
    lasted = "" if one.claimed_at is None else f" after {span(one.ended_at - one.claimed_at)}"
    said = "" if one.error is None else f": {one.error}"
    return f"{one.ended}{lasted}{worker}, {when(one.ended_at, now)}{said}"


def preview(payload: bytes) -> Text:
    """Return the beginning of the bytes, as text if they are text."""
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        text = payload[: PREVIEW // 2].hex(" ")
    cut = len(text) > PREVIEW
    return Text(safe(text[:PREVIEW]) + (" ..." if cut else ""), style="dim")


def plain(value: Any) -> Any:
    """Convert a value for JSON: times in ISO 8601, durations in seconds."""
    match value:
        case datetime():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case Path():
            return str(value)
        case Rate():
            return str(value)
        case Mapping():
            pairs = cast(Mapping[str, Any], value)
            return {key: plain(part) for key, part in pairs.items()}
        case list() | tuple():
            return [plain(part) for part in cast(Iterable[Any], value)]
        case JobDetail():
            own = {one.name: plain(getattr(value, one.name)) for one in fields(JobInfo)}
            own |= body("payload", value.payload, value.content_type)
            if value.result_payload is not None:
                own |= body("result", value.result_payload, value.result_content_type or "")
            return own | {"attempts": plain(value.attempts)}
        case _ if is_dataclass(value):
            return {one.name: plain(getattr(value, one.name)) for one in fields(value)}
        case _:
            return value


def body(name: str, payload: bytes, content_type: str) -> dict[str, Any]:
    """Convert bytes for JSON: decoded if they are text or JSON, otherwise base64."""
    from bucketq._convert import decode
    from bucketq.errors import Invalid

    try:
        decoded: Any = decode(payload, content_type)
    except Invalid:
        decoded = payload
    if isinstance(decoded, bytes):
        return {f"{name}_base64": base64.b64encode(decoded).decode(), f"{name}_type": content_type}
    return {name: decoded, f"{name}_type": content_type}
