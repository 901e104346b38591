"""The one caller of a system: enqueues as lines of its standard input say, and replies with lines of JSON.

Usage: caller.py ORDERS, with the module of the system as `app`. `one KIND PREFIX COUNT SECONDS` enqueues one job
after the other until either limit, `bulk KIND PREFIX COUNT` by the system's call for many jobs, or in a loop if it has
none.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from typing import Any


def one(app: Any, kind: str, prefix: str, count: int, seconds: float) -> dict[str, Any]:
    times: list[float] = []
    began = time.monotonic()
    while len(times) < count and time.monotonic() - began < seconds:
        call = time.perf_counter()
        app.enqueue(kind, f"{prefix}{len(times)}")
        times.append(time.perf_counter() - call)
    return {"began": began, "jobs": len(times), "ms": [round(t * 1000, 4) for t in times]}


def bulk(app: Any, kind: str, prefix: str, count: int) -> dict[str, Any]:
    tags = [f"{prefix}{number}" for number in range(count)]
    began = time.monotonic()
    app.bulk(kind, tags)
    return {"began": began, "jobs": count}


def main() -> None:
    app = importlib.import_module(json.loads(sys.argv[1])["app"])
    for line in sys.stdin:
        call, kind, prefix, count, *seconds = line.split()
        told = (
            bulk(app, kind, prefix, int(count))
            if call == "bulk"
            else one(app, kind, prefix, int(count), float(seconds[0]))
        )
        print(json.dumps(told), flush=True)


main()
