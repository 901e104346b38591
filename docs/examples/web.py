"""A web service that leaves slow work to a worker, without any web framework.

    bucketq worker web:jobs                                         # in one terminal
    python web.py                                                   # in another, or: gunicorn --workers 4 web:app
    curl -d '{"to": "ada@example.org"}' http://127.0.0.1:8000/mails
    curl http://127.0.0.1:8000/mails/ID

Beside it are the same service with Flask and with FastAPI, flask_app.py and fastapi_app.py.
"""

import json
import os
from wsgiref.simple_server import make_server

import bucketq

jobs = bucketq.App("jobs")  # a directory; or "s3://acme/jobs"


@jobs.task(queue="mails", max_attempts=5, retry_on=(ConnectionError,))
def send(to: str) -> dict[str, str]:
    """Stands for a call of a mail server."""
    if "@" not in to:
        raise bucketq.Reject(f"{to} is no address")
    return {"sent": to}


def accept(body: bytes, key: str | None) -> tuple[str, dict[str, object]]:
    """Enqueue a mail. The reply names the job, which is in the bucket by then.

    A client that got no clear reply sends the request again with the same key: within an hour that is the same job.
    """
    try:
        to = str(json.loads(body)["to"])
    except (ValueError, KeyError, TypeError):
        return "400 Bad Request", {"error": 'send {"to": "an address"}'}
    try:
        return "202 Accepted", {"id": send.options(dedup=key).enqueue(to).id}
    except bucketq.QueueFull:
        return "429 Too Many Requests", {"error": "try again later"}
    except (bucketq.Unavailable, bucketq.Contended, bucketq.OutcomeUnknown):
        return "503 Service Unavailable", {"error": "try again"}


def show(id: str) -> tuple[str, dict[str, object]]:
    """Say what has become of a mail."""
    try:
        job = jobs.file.get(id)
    except (bucketq.NotFound, bucketq.Invalid):
        return "404 Not Found", {"error": "there is no such mail"}
    return "200 OK", {"id": job.id, "state": job.state, "result": job.result, "error": job.last_error}


def app(environ, start_response):
    """The service, for any WSGI server. Each of its processes opens the queue file itself."""
    call = environ["REQUEST_METHOD"], *environ["PATH_INFO"].strip("/").split("/")
    match call:
        case "POST", "mails":
            body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            status, reply = accept(body, environ.get("HTTP_IDEMPOTENCY_KEY"))
        case "GET", "mails", id:
            status, reply = show(id)
        case _:
            status, reply = "404 Not Found", {"error": "POST /mails or GET /mails/ID"}
    start_response(status, [("Content-Type", "application/json")])
    return [json.dumps(reply).encode() + b"\n"]


if __name__ == "__main__":
    with make_server("127.0.0.1", int(os.environ.get("PORT", "8000")), app) as server:
        server.serve_forever()
