"""Several processes on one directory: one that is stopped or killed blocks no other, and no two have one turn."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import bucketq
from patience import PATIENCE

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and locks of another kind")

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start Python programs, and end them with the test."""
    children: list[subprocess.Popen[str]] = []

    def start(code: str, *args: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        child = subprocess.Popen(
            [sys.executable, "-c", code, *args], stdin=pipe, stdout=pipe, stderr=pipe, text=True
        )
        children.append(child)
        return child

    yield start
    for child in children:
        child.kill()
        child.communicate()


BUSY = """
import bucketq, sys
with bucketq.open(sys.argv[1]) as file:
    q = file.queue("theirs")
    while True:
        q.enqueue(1)
        print("enqueued", flush=True)
"""

STOPS = 60


def test_a_process_that_is_stopped_while_it_commits_keeps_nobody_off(start, tmp_path):
    place = str(tmp_path / "jobs")
    with bucketq.open(place, deadline=4) as file:
        q = file.queue("ours")
        q.enqueue(0)
        child = start(BUSY, place)
        for stop in range(STOPS):
            assert child.stdout.readline() == "enqueued\n", child.stderr.read()
            for _ in range(stop % 8):
                q.counts()  # So that each stop hits another moment of the child's commit.
            child.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
            q.enqueue(1)
            child.send_signal(signal.SIGCONT)
        child.kill()
        assert q.counts().counts["ready"] == STOPS + 1


WRITER = """
import bucketq, sys
place, name, jobs = sys.argv[1], sys.argv[2], int(sys.argv[3])
with bucketq.open(place) as file:
    q = file.queue("q")
    for i in range(jobs):
        try:
            q.enqueue(f"{name} {i}")
        except bucketq.Contended:
            continue
        print(f"{name} {i}", flush=True)
print("end")
"""


def test_deleting_whatever_is_no_object_beside_four_writers_loses_no_job(start, tmp_path):
    directory = tmp_path / "store"
    place = str(directory / "jobs")
    bucketq.open(place).close()
    writers = [start(WRITER, place, str(name), "150") for name in range(4)]
    while any(writer.poll() is None for writer in writers):
        for path in directory.glob("*.lock"):  # Includes names that begin with a dot.
            path.unlink(missing_ok=True)
    told: list[str] = []
    for writer in writers:
        out, err = writer.communicate(timeout=PATIENCE)
        *acknowledged, end = out.splitlines()
        assert (end, err) == ("end", "")
        told += acknowledged
    assert len(told) > 400
    with bucketq.open(place) as file:
        there, after = [], None
        while True:
            page = file.queue("q").list(after=after, limit=500)
            there += [file.queue("q").get(job.id).data for job in page.jobs]
            after = page.next
            if after is None:
                break
    assert sorted(set(told) - set(there)) == []
    assert len(there) == len(set(there))


HOLDER = """
import fcntl, os, signal, sys
head = sys.argv[1]
place, key = os.path.split(head)
body = os.path.join(place, f".{key}.00000000000000aa.tmp")
with open(head, "r+b") as locked:
    fcntl.flock(locked, fcntl.LOCK_EX)
    with open(body, "wb") as new:
        new.write(b"late")
    os.kill(os.getpid(), signal.SIGSTOP)  # Between its comparison and its rename.
    try:
        os.rename(body, head)
    except FileNotFoundError:
        print("cancelled", flush=True)
"""


def test_a_process_that_is_stopped_before_its_rename_is_passed_and_changes_nothing_later(start, tmp_path):
    place = str(tmp_path / "jobs")
    with bucketq.open(place, deadline=4) as file:
        q = file.queue("q")
        q.enqueue(1)
        holder = start(HOLDER, f"{place}.head")
        os.waitid(os.P_PID, holder.pid, os.WSTOPPED | os.WNOWAIT)
        for number in range(2, 5):
            q.enqueue(number)
        holder.send_signal(signal.SIGCONT)
        assert holder.communicate(timeout=PATIENCE) == ("cancelled\n", "")
        q.enqueue(5)
        assert [job.data for job in q.claim(9)] == [1, 2, 3, 4, 5]
    assert sorted(path.name for path in tmp_path.glob(".*")) == []


FULL = """
import bucketq, json, resource, sys
file = bucketq.open(sys.argv[1], **json.loads(sys.argv[2]))
q = file.queue("q")
q.enqueue(1)
before = file.metrics().requests["put"]
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))  # What is written is refused as on a full disk.
try:
    q.enqueue(2)
except bucketq.QueueFull as error:
    print(error.code, "make room on this disk" in error.message, file.metrics().requests["put"] - before <= 1)
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
q.enqueue(3)
print([job.data for job in q.claim(9)])
if file.dirty.commits:
    file.sync()
file.close()
"""


@pytest.mark.parametrize("settings", [{}, {"mode": "local"}], ids=["durable", "local"])
def test_a_full_disk_refuses_at_once_and_says_what_to_do(start, tmp_path, settings):
    cache = {"cache": str(tmp_path / "state")} if settings else {}
    child = start(FULL, str(tmp_path / "jobs"), json.dumps(settings | cache))
    assert child.communicate(timeout=PATIENCE) == ("disk_full True True\n[1, 3]\n", "")


def test_a_full_disk_beneath_the_cache_stops_nothing(start, tmp_path):
    code = """
import bucketq, resource, sys
with bucketq.open("memory://jobs", cache=sys.argv[1], tail=4096) as file:
    q = file.queue("q")
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
    for i in range(30):
        q.enqueue("x" * 2_000)
    print(q.counts().counts["ready"])
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
"""
    child = start(code, str(tmp_path / "cache"))
    assert child.communicate(timeout=PATIENCE) == ("30\n", "")


def modes(place: Path) -> dict[str, str]:
    return {
        str(path.relative_to(place)): oct(path.stat().st_mode & 0o777) for path in sorted(place.rglob("*"))
    }


def test_what_is_made_is_its_owners_alone(tmp_path):
    before = os.umask(0)
    try:
        with bucketq.open(tmp_path / "new" / "jobs") as file:
            file.queue("q").enqueue_many(["x" * 200_000] * 9)
            file.queue("q").enqueue("x")
        with bucketq.open(tmp_path / "new" / "jobs", mode="local", cache=tmp_path / "a" / "state") as file:
            file.queue("q").enqueue(1)
        with bucketq.open(tmp_path / "new" / "jobs", cache=tmp_path / "b" / "cache") as file:
            file.queue("q").enqueue(1)
    finally:
        os.umask(before)
    found = modes(tmp_path)
    assert {oct(0o600), oct(0o700)} == set(found.values()), found
    for path, mode in found.items():
        assert (tmp_path / path).is_dir() == (mode == oct(0o700)), found


def test_permissions_that_somebody_gave_stay(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o770)
    with bucketq.open(shared / "jobs") as file:
        file.queue("q").enqueue(1)
        assert set(modes(shared).values()) == {oct(0o660)}
        (shared / "jobs.head").chmod(0o644)
        file.queue("q").enqueue(1)
        assert modes(shared)["jobs.head"] == oct(0o644)
    assert shared.stat().st_mode & 0o777 == 0o770


@pytest.mark.parametrize("how", ["deleted", "moved", "replaced"])
@pytest.mark.parametrize("fsync", ["each_commit", "never"])
def test_a_local_directory_that_goes_away_acknowledges_nothing(tmp_path, how, fsync):
    state = tmp_path / "state"
    with bucketq.open("memory://goes", mode="local", cache=state, fsync=fsync) as file:
        q = file.queue("q")
        q.enqueue(1)
        directory = Path(file.directory)
        if how == "deleted":
            shutil.rmtree(directory)
        else:
            directory.rename(tmp_path / "elsewhere")
        if how == "replaced":
            shutil.copytree(tmp_path / "elsewhere", directory)
        for _ in range(2):
            with pytest.raises(bucketq.Error) as caught:
                q.enqueue(2)
            assert "deleted or moved" in caught.value.message or caught.value.code == "outcome_unknown", (
                caught.value
            )
        if how == "moved":
            (tmp_path / "elsewhere").rename(directory)
            q.enqueue(3)
            assert [job.data for job in q.claim(9)] == [1, 3]
