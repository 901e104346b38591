"""Errors of tasks reach Sentry, with queue, id, task and attempt as tags. It needs: pip install bucketq sentry-sdk.

    export SENTRY_DSN=https://KEY@sentry.example.org/1
    bucketq worker sentry_app:jobs                 # in one terminal; with --processes 4 it reports in the same way
    python sentry_app.py nobody                    # in another: enqueues a mail that cannot be sent

A worker logs one record about each job that ends; the handler below turns those about failures into events.
"""

import logging
import sys

import sentry_sdk

import bucketq

jobs = bucketq.App("jobs")  # a directory; or "s3://acme/jobs"


class Failures(logging.Handler):
    """Reports each failed attempt. Sentry sends events on a thread of its own, so no job waits for them."""

    def emit(self, record: logging.LogRecord) -> None:
        """Report the attempt that this record is about, if it failed."""
        job = getattr(record, "job", None)
        if job is None or job.what not in {"failed", "rejected"}:
            return
        with sentry_sdk.new_scope() as scope:
            for tag in ("queue", "id", "task", "attempt"):
                scope.set_tag(tag, getattr(job, tag))
            if record.exc_info and record.exc_info[1]:
                scope.capture_exception(record.exc_info[1])
            else:  # It was raised in a child process, which sends its traceback as text.
                scope.set_context("worker", {"traceback": job.traceback})
                scope.capture_message(job.summary, level="error")


sentry_sdk.init(auto_enabling_integrations=False)  # reads SENTRY_DSN; a worker needs no web framework
logging.getLogger("bucketq.worker").addHandler(Failures())


@jobs.task(queue="mails", max_attempts=2, backoff=bucketq.Backoff.fixed("100ms"))
def send(to: str) -> dict[str, str]:
    """Stands for a call of a mail server."""
    if "@" not in to:
        raise ValueError(f"{to} is no address")
    return {"sent": to}


if __name__ == "__main__":
    print(send.enqueue(sys.argv[1]).id)
