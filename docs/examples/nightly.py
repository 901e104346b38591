"""Work at fixed times, without cron and without a beat process: the workers fire the schedules, each time once.

    bucketq worker nightly:app               # in one terminal, or on ten hosts
    bucketq schedules --url jobs             # in another: when each fires next

The schedules are in the queue file. After a night without workers the missed report is written once, when a worker is
back.
"""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import bucketq

app = bucketq.App("jobs")  # a directory; or "s3://acme/jobs"
REPORTS = Path("reports")
KEEP = timedelta(days=30)


def due() -> datetime:
    """Return the time for which the present job was enqueued. A second attempt gets the same."""
    return datetime.fromtimestamp(int(bucketq.current_job().headers["bucketq-due-ms"]) / 1000, UTC)


@app.every("0 2 * * *", timezone="Europe/Oslo")
@app.task(queue="nightly", max_attempts=3)
def report() -> str:
    """Write the report of the day before. Writing it again does no harm."""
    day = (due() - timedelta(days=1)).date()
    REPORTS.mkdir(exist_ok=True)
    path = REPORTS / f"{day}.txt"
    path.write_text(f"report of {day}\n")
    return path.name


@app.every(3600)
@app.task(queue="nightly")
def clean() -> int:
    """Delete reports that are too old. Returns how many."""
    last = (due() - KEEP).date().isoformat()
    old = [path for path in REPORTS.glob("*.txt") if path.stem < last]
    for path in old:
        path.unlink()
    return len(old)


if __name__ == "__main__":
    app.worker().run()
