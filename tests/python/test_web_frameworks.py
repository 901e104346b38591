"""The programs of docs/examples for FastAPI and Flask: two server processes beside a worker."""

import shlex
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

import bucketq
from patience import PATIENCE
from programs import Place, ask, until
from servers import BUCKET, free_port, s3

SERVERS = {
    "fastapi_app": ("uvicorn", lambda port: ["--port", str(port)]),
    "flask_app": ("gunicorn", lambda port: ["--bind", f"127.0.0.1:{port}"]),
}
JSON = {"Content-Type": "application/json"}


class Service:
    """A program with its server and its worker."""

    def __init__(self, place: Place, name: str) -> None:
        self.place, self.port = place, free_port()
        server, bind = SERVERS[name]
        self.serve = [*place.line(server), *bind(self.port), "--log-level", "warning"]
        self.url = f"http://127.0.0.1:{self.port}/mails"

    def post(self, body: object, **headers: str) -> tuple[int, dict]:
        return ask(self.url, body, **JSON, **headers)


@pytest.fixture(params=SERVERS)
def service(request, tmp_path):
    return Service(Place(tmp_path, f"{request.param}.py"), request.param)


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_two_processes_of_a_server_enqueue_and_show_what_the_worker_did(service, tmp_path):
    place = service.place
    with place.running(place.line("bucketq worker")), place.running(service.serve) as server:
        status, mail = service.post({"to": "ada@example.org"})
        assert status == 202
        assert len(children(server.pid)) >= 2
        _, other = service.post({"to": "nobody"})
        with ThreadPoolExecutor(8) as pool:
            sent = list(pool.map(lambda n: service.post({"to": f"{n}@example.org"}), range(24)))
        assert {status for status, _ in sent} == {202}
        with bucketq.open(tmp_path / "jobs") as file:
            queue = file.queue("mails")
            for one in (mail, other, *(reply for _, reply in sent)):
                assert queue.wait(one["id"], timeout=PATIENCE)
            assert (queue.counts().counts["done"], queue.counts().counts["dead"]) == (25, 1)
        _, shown = ask(f"{service.url}/{mail['id']}")
        assert (shown["state"], shown["result"]["sent"]) == ("done", "ada@example.org")
        _, shown = ask(f"{service.url}/{other['id']}")
        assert (shown["state"], shown["error"].splitlines()[0]) == ("dead", "nobody is no address")
        again = {
            service.post({"to": "eve@example.org"}, **{"Idempotency-Key": "mail-7"})[1]["id"] for _ in "ab"
        }
        assert len(again) == 1
        assert service.post(["ada"])[0] in {400, 422}
        for id in ("nothing", "0198c0a0-0000-7000-8000-000000000000"):
            assert ask(f"{service.url}/{id}")[0] == 404


def test_a_client_learns_that_the_queue_is_full_or_that_the_store_is_out_of_reach(service, tmp_path):
    with ExitStack() as stack, s3() as server:
        program = next(tmp_path.glob("*_app.py"))
        where = f's3://{BUCKET}/jobs", deadline=2, **{server.settings}'
        program.write_text(program.read_text().replace('App("jobs"', f'App("{where}'))
        with bucketq.open(f"s3://{BUCKET}/jobs", **server.settings) as file:
            file.queue("mails").configure(max_pending=1)
        stack.enter_context(service.place.running(service.serve))
        until(lambda: service.post({"to": "ada@example.org"})[0] == 429)
        with bucketq.open(f"s3://{BUCKET}/jobs", **server.settings) as file:
            file.queue("mails").configure(max_pending=None)
        stack = stack.pop_all()
    with stack:
        assert service.post({"to": "eve@example.org"})[0] == 503


def test_a_request_of_fastapi_waits_for_the_end_of_the_job(tmp_path):
    place = Place(tmp_path, "fastapi_app.py")
    service = Service(place, "fastapi_app")
    with place.running(service.serve), ThreadPoolExecutor(1) as pool:
        _, mail = service.post({"to": "ada@example.org"})
        assert ask(f"{service.url}/{mail['id']}")[1]["state"] == "ready"
        asked = pool.submit(ask, f"{service.url}/{mail['id']}?wait=30")
        with place.running([*place.line("bucketq worker"), *shlex.split("--max-jobs 1")]):
            assert asked.result(PATIENCE)[1]["result"] == {"sent": "ada@example.org", "subject": "hello"}
