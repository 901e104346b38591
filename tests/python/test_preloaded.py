"""gunicorn with a preloaded app that has enqueued jobs before its workers are forked."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import urllib.request

import pytest

import bucketq
from patience import PATIENCE

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")

APP = """
import bucketq, os

PLACE = os.environ["PLACE"]
with bucketq.open(PLACE) as file:
    file.queue("q").enqueue("before the fork")
inherited = bucketq.open(PLACE)
inherited.queue("q").enqueue("before the fork")
own = {}

def app(environ, start_response):
    if os.getpid() not in own:
        own[os.getpid()] = bucketq.open(PLACE)
    own[os.getpid()].queue("q").enqueue("in a worker")
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [str(os.getpid()).encode()]
"""


@pytest.mark.parametrize("kind", ["sync", "gthread"])
def test_workers_of_gunicorn_with_an_app_that_is_loaded_before_the_fork_enqueue(tmp_path, kind):
    place = str(tmp_path / "jobs")
    (tmp_path / "shop.py").write_text(APP)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        os.set_inheritable(listening.fileno(), True)
        with (tmp_path / "log").open("w+") as log:
            threads = "2" if kind == "gthread" else "1"
            how = ["--worker-class", kind, "--threads", threads, "--bind", f"fd://{listening.fileno()}"]
            server = subprocess.Popen(
                [sys.executable, "-m", "gunicorn", "--preload", "--workers", "3", *how, "shop:app"],
                cwd=tmp_path,
                env=os.environ | {"PLACE": place},
                pass_fds=[listening.fileno()],
                stdout=log,
                stderr=log,
            )
            try:
                workers = set()
                for _ in range(40):
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=PATIENCE) as answer:
                        assert answer.status == 200
                        workers.add(answer.read())
                server.terminate()
                assert server.wait(PATIENCE) == 0
            finally:
                server.kill()
                server.wait()
            log.seek(0)
            said = log.read()
    assert "Traceback" not in said, said
    assert workers
    with bucketq.open(place) as file:
        jobs = [job.data for job in file.queue("q").claim(99)]
    assert (jobs.count("before the fork"), jobs.count("in a worker")) == (2, 40)
