"""The log of a worker on standard error: one line per record, as text or as JSON. Tracebacks follow indented."""

from __future__ import annotations

import json
import logging
import os
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TextIO

from bucketq.cli._show import safe

if TYPE_CHECKING:
    from bucketq._report import JobFacts

__all__ = ["LogFormat", "set_up"]

LogFormat = Literal["text", "json", "own"]
"""How a worker logs; own: as the program of its user has set it up."""
SHORT = 8
"""The length of a short id: its end, because ids of one moment begin alike."""
COLOURS = {"INFO": "32", "WARNING": "33", "ERROR": "31", "CRITICAL": "31"}


def facts(record: logging.LogRecord) -> JobFacts | None:
    """Return the fields of a record about a job."""
    return getattr(record, "job", None)


def time(record: logging.LogRecord) -> str:
    """Return the time of a record with its zone."""
    return datetime.fromtimestamp(record.created, UTC).astimezone().isoformat(timespec="milliseconds")


def trace(record: logging.LogRecord, formatter: logging.Formatter) -> str:
    """Return the traceback of a record: its own, or that of a child process."""
    job = facts(record)
    if job is not None and job.traceback:
        return job.traceback.rstrip()
    return formatter.formatException(record.exc_info) if record.exc_info and record.exc_info[0] else ""


class Text(logging.Formatter):
    """Time, level, and the message; of a job: queue, short id, what happened, task, attempt, seconds, reason."""

    def __init__(self, *, colours: bool) -> None:
        super().__init__()
        self._colours = colours

    def format(self, record: logging.LogRecord) -> str:
        """Return the lines of a record."""
        level = record.levelname
        if self._colours and level in COLOURS:
            level = f"\x1b[{COLOURS[level]}m{level}\x1b[0m"
        job = facts(record)
        if job is None:
            words = record.getMessage()
        else:
            parts = [
                job.queue,
                job.id[-SHORT:],
                job.what,
                job.task,
                f"attempt {job.attempt}",
                f"{job.seconds:.3f} s",
            ]
            words = " ".join(part for part in parts if part) + (f": {job.summary}" if job.summary else "")
        line = f"{time(record)} {level} {safe(one_line(words))}"
        lines = trace(record, self).splitlines()
        return "\n".join([line, *(f"  {safe(one)}" for one in lines)])


class Json(logging.Formatter):
    """An object per record."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        told: dict[str, Any] = {
            "time": time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        job = facts(record)
        told["message"] = record.getMessage()
        if job is not None:
            told |= {"queue": job.queue, "id": job.id, "task": job.task or None, "event": job.what}
            told |= {"attempt": job.attempt, "seconds": round(job.seconds, 6), "error": job.summary or None}
        if text := trace(record, self):
            told["traceback"] = text
        return json.dumps({key: value for key, value in told.items() if value is not None}, ensure_ascii=True)


def one_line(text: str) -> str:
    """Return the text with its line breaks written out."""
    return text.replace("\r", "\\r").replace("\n", "\\n")


def set_up(format: LogFormat, *, verbose: bool = False, stream: TextIO | None = None) -> None:
    """Log the records of every logger there; those of bucketq from info on. Called in children too."""
    if format == "own":
        return
    stream = stream or sys.stderr or sys.__stderr__
    colours = stream is not None and stream.isatty() and "NO_COLOR" not in os.environ
    handler = logging.StreamHandler(stream)
    handler.setFormatter(Json() if format == "json" else Text(colours=colours))
    root = logging.getLogger()
    if not any(isinstance(one.formatter, (Text, Json)) for one in root.handlers):
        root.addHandler(handler)
    logging.getLogger("bucketq").setLevel(logging.DEBUG if verbose else logging.INFO)


def child(format: LogFormat, verbose: bool) -> None:
    """Set up the log of a child process as that of its parent."""
    set_up(format, verbose=verbose)
