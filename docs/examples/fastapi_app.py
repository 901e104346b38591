"""A FastAPI service that leaves slow work to a worker. It needs: pip install bucketq fastapi uvicorn.

    bucketq worker fastapi_app:jobs                # in one terminal
    uvicorn --workers 2 fastapi_app:app            # in another
    curl -H 'Content-Type: application/json' -d '{"to": "ada@example.org"}' http://127.0.0.1:8000/mails
    curl http://127.0.0.1:8000/mails/ID?wait=10

Nothing here blocks the event loop. In Starlette the lifespan and the calls are the same.
"""

from asyncio import to_thread
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import FastAPI, Header, HTTPException, Query, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

import bucketq

jobs = bucketq.App("jobs")  # a directory; or "s3://acme/jobs"


class Mail(BaseModel):
    """A mail to send. Tasks take and return pydantic models as they are."""

    to: str
    subject: str = "hello"


@jobs.task(queue="mails", max_attempts=5, retry_on=(ConnectionError,))
async def send(mail: Mail) -> dict[str, str]:
    """Stands for a call of a mail server."""
    if "@" not in mail.to:
        raise bucketq.Reject(f"{mail.to} is no address")
    return {"sent": mail.to, "subject": mail.subject}


@asynccontextmanager
async def lifespan(app: FastAPI):
    """Open the queue file when a process starts, so that a wrong URL is not first noticed by a client."""
    await jobs.afile()
    yield
    await to_thread(jobs.close)


app = FastAPI(lifespan=lifespan)


@app.exception_handler(bucketq.QueueFull)
async def full(request: Request, error: bucketq.QueueFull) -> JSONResponse:
    """The queue has as many jobs as its policy allows."""
    return JSONResponse({"detail": "try again later"}, status_code=429)


@app.exception_handler(bucketq.Unavailable)
@app.exception_handler(bucketq.Contended)
@app.exception_handler(bucketq.OutcomeUnknown)
async def unavailable(request: Request, error: bucketq.Error) -> JSONResponse:
    """The store cannot be reached, or is too busy."""
    return JSONResponse({"detail": "try again"}, status_code=503)


@app.post("/mails", status_code=202)
async def accept(mail: Mail, idempotency_key: Annotated[str | None, Header()] = None) -> dict[str, str]:
    """Enqueue a mail. It is in the bucket by the time of the reply.

    A client that got no clear reply sends the request again with the same key: within an hour that is the same job.
    """
    result = await send.options(dedup=idempotency_key).aenqueue(mail)
    return {"id": result.id}


@app.get("/mails/{id}")
async def show(id: str, wait: Annotated[float, Query(ge=0, le=30)] = 0) -> dict[str, object]:
    """Say what has become of a mail. With ``wait`` the reply comes once it is sent, or after that many seconds."""
    file = await jobs.afile()
    try:
        job = await file.queue("mails").wait(id, timeout=wait) or await file.get(id)
    except (bucketq.NotFound, bucketq.Invalid):
        job = None
    if job is None:
        raise HTTPException(404, "there is no such mail")
    return {"id": job.id, "state": job.state, "result": job.result, "error": job.last_error}
