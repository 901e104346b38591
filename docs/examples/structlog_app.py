"""One JSON object for each line of the log, of a worker and of its tasks. It needs: pip install bucketq structlog.

    bucketq worker --log-format own structlog_app:jobs     # in one terminal
    python structlog_app.py ada@example.org                # in another

The lines that a task logs name its job. With --processes they do so too, because each child imports this module.
"""

import logging
import sys

import structlog

import bucketq

jobs = bucketq.App("jobs")  # a directory; or "s3://acme/jobs"


def of_the_worker(logger, method, event):
    """Add the fields of the record that a worker logs when a job ends."""
    job = getattr(event["_record"], "job", None)
    if job is not None:
        event |= {"queue": job.queue, "id": job.id, "task": job.task, "attempt": job.attempt}
        event |= {"ended": job.what, "seconds": round(job.seconds, 3)}
        if job.summary:
            event["error"] = job.summary
    return event


def of_the_task(logger, method, event):
    """Add the job whose task logs this."""
    try:
        job = bucketq.current_job()
    except bucketq.Invalid:  # No task runs here.
        return event
    return {"queue": job.queue, "id": job.id, "task": job.task, "attempt": job.attempt} | event


def set_up_logging() -> None:
    """Write the records of structlog and of logging to standard error."""
    shared = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        of_the_task,
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, of_the_worker],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.dict_tracebacks,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    logging.basicConfig(level=logging.INFO, handlers=[handler])


set_up_logging()
log = structlog.get_logger("mails")


@jobs.task(queue="mails", max_attempts=1)
def send(to: str) -> dict[str, str]:
    """Stands for a call of a mail server."""
    log.info("sending", to=to)
    if "@" not in to:
        raise ValueError(f"{to} is no address")
    return {"sent": to}


if __name__ == "__main__":
    print(send.enqueue(sys.argv[1]).id)
