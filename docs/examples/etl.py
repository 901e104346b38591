"""One job for each day of data, and one that adds them up once all days are done.

    bucketq worker etl:app --processes 2     # in one terminal
    python etl.py 2026-01-01 2026-01-31      # in another: input/DAY.csv becomes output/DAY.csv, then output/total.csv

A day may be loaded twice, for example after a crash: its output appears whole and is replaced whole. If a day fails
three times, the program ends with its error, and the total waits. Repair the input, and the worker does the rest after:

    bucketq requeue --url jobs --queue days
"""

import csv
import os
import sys
from collections import Counter
from datetime import date, timedelta
from pathlib import Path

import bucketq

app = bucketq.App("jobs")  # a directory; or "s3://acme/jobs"
INPUT, OUTPUT = Path("input"), Path("output")


def write(path: Path, sums: Counter[str]) -> None:
    """Write a table under another name, then rename it: nobody sees half of it."""
    path.parent.mkdir(exist_ok=True)
    draft = path.with_suffix(f".{os.getpid()}.tmp")
    with draft.open("w", newline="") as file:
        csv.writer(file).writerows(sorted(sums.items()))
    draft.replace(path)


@app.task(queue="days", max_attempts=3, backoff=bucketq.Backoff.fixed(1))
def load(day: str) -> int:
    """Add up the sales of a day by product. Returns how many there were."""
    sums: Counter[str] = Counter()
    with (INPUT / f"{day}.csv").open(newline="") as file:
        rows = [(row["product"], int(row["amount"])) for row in csv.DictReader(file)]
    for product, amount in rows:
        sums[product] += amount
    write(OUTPUT / f"{day}.csv", sums)
    return len(rows)


@app.task(queue="totals")
def total(counts: list[int], days: list[str]) -> str:
    """Add up the days. `counts` are the results of their jobs."""
    sums: Counter[str] = Counter()
    for day in days:
        with (OUTPUT / f"{day}.csv").open(newline="") as file:
            sums.update({product: int(amount) for product, amount in csv.reader(file)})
    write(OUTPUT / "total.csv", sums)
    return f"{sum(counts)} sales on {len(days)} days, {sum(sums.values())} in all"


def start(first: date, last: date) -> bucketq.GroupResult[str]:
    """Enqueue all days in one commit. The commit that ends the last of them enqueues the total."""
    days = [(first + timedelta(days=n)).isoformat() for n in range((last - first).days + 1)]
    return app.group([load.job(day) for day in days], then=total.job(bucketq.PREVIOUS, days))


if __name__ == "__main__":
    started = start(*(date.fromisoformat(day) for day in sys.argv[1:3]))
    print(started.then.result(timeout=600))
