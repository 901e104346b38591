"""The programs of docs/examples that report what workers do: to Sentry, to OpenTelemetry, and with structlog."""

import gzip
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from typing import Self

import pytest

import bucketq
from patience import PATIENCE
from programs import Place


class Sentry:
    """A server that takes envelopes, as Sentry does."""

    def __init__(self) -> None:
        self.events: Queue[dict] = Queue()
        events = self.events

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                lines = body.splitlines()
                # A header of the envelope, then a header and a payload for each item.
                for head, item in zip(lines[1::2], lines[2::2], strict=True):
                    if json.loads(head)["type"] == "event":
                        events.put(json.loads(item) | {"path": self.path})
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *words: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.dsn = f"http://key@127.0.0.1:{self.server.server_port}/7"

    def __enter__(self) -> Self:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def sentry() -> Iterator[Sentry]:
    with Sentry() as server:
        yield server


@pytest.mark.parametrize("processes", [0, 1])
def test_each_failed_attempt_reaches_sentry_with_its_job_as_tags(sentry, tmp_path, processes):
    place = Place(tmp_path, "sentry_app.py")
    assert any(line.startswith("export SENTRY_DSN=https://KEY@") for line in place.lines)
    place.environ["SENTRY_DSN"] = sentry.dsn
    worker = [*place.line("bucketq worker"), "--processes", str(processes)]
    with place.running(worker):
        id = place.run(place.line("python")).strip()
        first, last = (sentry.events.get(timeout=PATIENCE) for _ in range(2))
        place.run([*place.line("python")[:-1], "ada@example.org"])
    for event, attempt in ((first, "1"), (last, "2")):
        assert event["path"] == "/api/7/envelope/"
        told = {name: str(value) for name, value in event["tags"].items()}
        assert told == {"queue": "mails", "id": id, "task": "sentry_app.send", "attempt": attempt}
        if processes:
            assert event["message"] == "ValueError: nobody is no address"
            assert "in send" in event["contexts"]["worker"]["traceback"]
        else:
            (found,) = event["exception"]["values"]
            assert (found["type"], found["value"]) == ("ValueError", "nobody is no address")
            assert found["stacktrace"]["frames"][-1]["function"] == "send"
            assert found["stacktrace"]["frames"][-1]["vars"] == {"to": "'nobody'"}
    assert sentry.events.empty()


def spans(text: str) -> dict[str, dict]:
    """Return the spans that a console exporter has printed, by name."""
    found, decoder = {}, json.JSONDecoder()
    while text := text.lstrip():
        span, end = decoder.raw_decode(text)
        found[span["name"]], text = span, text[end:]
    return found


@pytest.mark.parametrize("processes", [0, 1])
def test_the_spans_of_a_task_belong_to_the_trace_in_which_it_was_enqueued(tmp_path, processes):
    place = Place(tmp_path, "otel_app.py")
    out, err = place.both(place.line("python"))
    here = spans(out)
    worked, log = place.both([*place.line("bucketq worker"), "--wait", "0", "--processes", str(processes)])
    assert "1 job done" in log
    there = spans(worked)
    with bucketq.open(tmp_path / "jobs") as file:
        assert file.get(err.strip()).result == {"sent": "ada@example.org"}
    order, send = here["order"], here["send mails"]
    process, smtp = there["process mails"], there["smtp"]
    assert len({span["context"]["trace_id"] for span in (order, send, process, smtp)}) == 1
    assert send["parent_id"] == order["context"]["span_id"]
    assert process["parent_id"] == send["context"]["span_id"]
    assert smtp["parent_id"] == process["context"]["span_id"]
    assert process["attributes"]["messaging.message.id"] == err.strip()
    assert {"receive mails", "ack mails"} <= set(there)


@pytest.mark.parametrize("processes", [0, 1])
def test_the_log_of_a_worker_and_of_its_tasks_is_json(tmp_path, processes):
    place = Place(tmp_path, "structlog_app.py")
    sent = place.run(place.line("python")).strip()
    failed = place.run([*place.line("python")[:-1], "nobody"]).strip()
    words = [*place.line("bucketq worker"), "--wait", "0", "--processes", str(processes)]
    out, err = place.both(words)
    assert out == ""
    lines = [json.loads(line) for line in err.splitlines()]
    assert all({"event", "level", "logger", "timestamp"} <= set(line) for line in lines)

    def about(id: str) -> list[dict]:
        return [line for line in lines if line.get("id") == id]

    first, end = about(sent)
    assert (first["event"], first["to"], first["logger"]) == ("sending", "ada@example.org", "mails")
    assert (end["ended"], end["logger"], end["level"]) == ("done", "bucketq.worker", "info")
    for line in (first, end):
        assert (line["queue"], line["task"], line["attempt"]) == ("mails", "structlog_app.send", 1)
    assert end["seconds"] >= 0
    _, end = about(failed)
    assert (end["ended"], end["error"], end["level"]) == (
        "failed",
        "ValueError: nobody is no address",
        "warning",
    )
    if not processes:
        assert end["exception"][0]["exc_type"] == "ValueError"
    assert any(line["event"].startswith("structlog_app:jobs starts: ") for line in lines)
