"""The environment of a process: the variables that name a server, and the limits of the process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import bucketq
from servers import BUCKET, Server, running


def gofakes3(port: int) -> list[str]:
    return ["-backend", "memory", "-autobucket", "-host", f"127.0.0.1:{port}"]


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path):
    """Set credentials and nothing else, so that each test names its server itself."""
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "bucketq")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "bucketq-secret")
    return monkeypatch


def test_one_url_is_another_queue_file_when_the_environment_names_another_server(environment):
    url = f"s3://{BUCKET}/moved/jobs"
    with running("gofakes3", gofakes3) as first, running("gofakes3", gofakes3) as second:
        environment.setenv("AWS_ENDPOINT_URL_S3", first.endpoint)
        with bucketq.open(url) as here:
            here.queue("q").enqueue("first")
            environment.setenv("AWS_ENDPOINT_URL_S3", second.endpoint)
            with bucketq.open(url) as there:
                assert there.stats().queues == (), "nothing was enqueued on this server"
                there.queue("q").enqueue("second")
                assert [job.data for job in there.queue("q").claim(9)] == ["second"]
            environment.setenv("AWS_ENDPOINT_URL_S3", first.endpoint)
            with bucketq.open(url) as again:
                assert [job.data for job in again.queue("q").claim(9)] == ["first"]
        # Different credentials make a different writer, even if the server treats them alike.
        with bucketq.open(url) as one:
            environment.setenv("AWS_ACCESS_KEY_ID", "somebody-else")
            with bucketq.open(url) as two:
                two.queue("q").enqueue("third")
            assert one.stats().commit_seq > 1


def test_a_password_in_the_address_of_a_server_is_never_shown(environment, server: Server, capfd):
    host = server.endpoint.removeprefix("http://")
    environment.setenv("AWS_ENDPOINT_URL", f"http://grizzly:TOP/SECRET@{host}")
    told: list[str] = []
    for call in (
        lambda: bucketq.probe(f"s3://{BUCKET}/secret/jobs").store,
        lambda: bucketq.open(f"s3://{BUCKET}/secret/jobs", create=False).close(),
        lambda: bucketq.check(f"s3://{BUCKET}/secret/jobs"),
        lambda: bucketq.measure(f"s3://{BUCKET}/secret/jobs", samples=1).store,
    ):
        try:
            told.append(repr(call()))
        except bucketq.Error as error:
            told.append(f"{error!r} {error} {getattr(error, '__notes__', '')}")
    command = [sys.executable, "-m", "bucketq", "doctor", "--url", f"s3://{BUCKET}/secret/jobs"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    shown = capfd.readouterr()
    everything = "\n".join([*told, done.stdout, done.stderr, shown.out, shown.err])
    assert "SECRET" not in everything, everything
    # No hexadecimal name of an object can contain this user by chance.
    assert "grizzly" not in everything, everything


EXHAUST = """
import os, resource, sys, tempfile
import bucketq

url = sys.argv[1] if sys.argv[1] != "directory" else os.path.join(tempfile.mkdtemp(), "jobs")
used = len(os.listdir("/proc/self/fd"))
resource.setrlimit(resource.RLIMIT_NOFILE, (used + 32, used + 32))
held = []
while True:
    try:
        held.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        break
for room in range(30):
    try:
        with bucketq.open(url) as file:
            file.queue("q").enqueue(room)
            break
    except bucketq.Unavailable as error:
        print(error.code, error)
    os.close(held.pop())
else:
    sys.exit("never opened")
print("opened")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts descriptors in /proc")
@pytest.mark.parametrize("url", ["memory://exhausted", "directory"])
@pytest.mark.parametrize("unknown", [{}, {"BUCKETQ_NO_SUCH_SETTING": "1"}], ids=["plain", "unknown variable"])
def test_without_descriptors_an_opening_is_unavailable_and_says_so(url: str, unknown: dict[str, str]):
    command = [sys.executable, "-c", EXHAUST, url]
    environ = os.environ | unknown
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1] == "opened"
    assert len(lines) > 1, "the first opening had no descriptor"
    assert all("ulimit -n" in line for line in lines[:-1]), done.stdout
