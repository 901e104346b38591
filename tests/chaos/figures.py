"""Counts of a run, from its diaries and the log of its faults."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict

import faults
from check import Call, Diaries
from diary import now


def seat_kind(call: Call) -> str:
    return call.process.rpartition("-")[0].rstrip("0123456789")


def wrong_clock(call: Call) -> bool:
    """Whether the wall clock of the process was far from the machine's, both measured by the steady clock."""
    here = time.time_ns() - now()
    return abs(call.facts["w"] * 1_000_000 - call.asked - here) > 30e9


def recovery(log: faults.Log, diaries: Diaries) -> dict[str, dict[str, float]]:
    """Return the time from the end of a fault to the first success of a later call, of the processes it hit."""
    answers: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for call in diaries.calls:
        if call.ok and call.answered is not None:
            answers[call.process.rpartition("-")[0]].append((call.asked, call.answered))
    times: defaultdict[str, list[float]] = defaultdict(list)
    for one in log.struck:
        theirs = answers[one.seat] if one.seat else [a for all_of_it in answers.values() for a in all_of_it]
        after = [answered for asked, answered in theirs if asked >= one.end]
        if one.end and after:
            times[one.name].append((min(after) - one.end) / 1e9)
    return {
        name: {"median": round(statistics.median(t), 3), "worst": round(max(t), 3)}
        for name, t in sorted(times.items())
    }
