"""A Flask application that leaves slow work to a worker. It needs: pip install bucketq flask gunicorn.

    bucketq worker flask_app:jobs                                   # in one terminal
    gunicorn --preload --workers 2 "flask_app:create_app()"         # in another
    curl -H 'Content-Type: application/json' -d '{"to": "ada@example.org"}' http://127.0.0.1:8000/mails
    curl http://127.0.0.1:8000/mails/ID

The application is loaded once and then forked. Each process opens the queue file itself, at its first request.
"""

from flask import Blueprint, Flask, request

import bucketq

jobs = bucketq.App("jobs")  # a directory; or "s3://acme/jobs"
mails = Blueprint("mails", __name__, url_prefix="/mails")


@jobs.task(queue="mails", max_attempts=5, retry_on=(ConnectionError,))
def send(to: str) -> dict[str, str]:
    """Stands for a call of a mail server."""
    if "@" not in to:
        raise bucketq.Reject(f"{to} is no address")
    return {"sent": to}


@mails.post("")
def accept():
    """Enqueue a mail. It is in the bucket by the time of the reply.

    A client that got no clear reply sends the request again with the same key: within an hour that is the same job.
    """
    body = request.get_json(silent=True)
    if not isinstance(body, dict) or not isinstance(body.get("to"), str):
        return {"error": 'send {"to": "an address"}'}, 400
    result = send.options(dedup=request.headers.get("Idempotency-Key")).enqueue(body["to"])
    return {"id": result.id}, 202


@mails.get("/<id>")
def show(id):
    """Say what has become of a mail."""
    try:
        job = jobs.file.get(id)
    except bucketq.Invalid:  # An id that no job can have.
        job = None
    if job is None:
        return {"error": "there is no such mail"}, 404
    return {"id": job.id, "state": job.state, "result": job.result, "error": job.last_error}


def full(error):
    """The queue has as many jobs as its policy allows."""
    return {"error": "try again later"}, 429


def unavailable(error):
    """The store cannot be reached, or is too busy."""
    return {"error": "try again"}, 503


def create_app() -> Flask:
    """Make the application."""
    app = Flask(__name__)
    app.register_blueprint(mails)
    app.register_error_handler(bucketq.QueueFull, full)
    for error in (bucketq.Unavailable, bucketq.Contended, bucketq.OutcomeUnknown):
        app.register_error_handler(error, unavailable)
    return app
