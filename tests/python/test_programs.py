"""The programs of docs/examples run as their first lines say: with real workers, in an empty directory."""

import csv
import re
import shlex
import subprocess
import sys
from datetime import timedelta
from importlib import import_module

import pytest

import bucketq
from bucketq import testing
from patience import PATIENCE
from programs import EXAMPLES, Place, ask, until
from servers import free_port


@pytest.mark.parametrize("server", ["python web.py", "gunicorn"])
def test_the_web_service_enqueues_and_shows_what_the_worker_did(server, tmp_path):
    place, port = Place(tmp_path, "web.py"), free_port()
    serve = place.line("python")
    if server == "gunicorn":
        (words,) = re.findall(r"or: (gunicorn .*)", (EXAMPLES / "web.py").read_text())
        serve = [*shlex.split(words), "--bind", f"127.0.0.1:{port}", "--log-level", "warning"]
    url = f"http://127.0.0.1:{port}/mails"
    with place.running(place.line("bucketq worker")), place.running(serve, PORT=str(port)):
        status, mail = ask(url, {"to": "ada@example.org"})
        assert status == 202
        _, other = ask(url, {"to": "nobody"})
        with bucketq.open(tmp_path / "jobs") as file:
            for one in (mail, other):
                file.queue("mails").wait(one["id"], timeout=PATIENCE)
        status, shown = ask(f"{url}/{mail['id']}")
        assert (status, shown["state"], shown["result"]) == (200, "done", {"sent": "ada@example.org"})
        _, shown = ask(f"{url}/{other['id']}")
        assert (shown["state"], shown["error"].splitlines()[0]) == ("dead", "nobody is no address")
        once, again = (
            ask(url, {"to": "eve@example.org"}, **{"Idempotency-Key": "mail-7"})[1] for _ in range(2)
        )
        assert once == again != mail
        assert ask(url, ["ada"])[0] == 400
        assert ask(f"{url}/nothing")[0] == ask(url.replace("mails", "letters"))[0] == 404


def test_the_partitions_are_loaded_and_added_up_also_after_one_was_missing(tmp_path):
    place = Place(tmp_path, "etl.py")
    (tmp_path / "input").mkdir()

    def day(number: int) -> None:
        rows = f"product,amount\nbook,{number}\npen,10\n"
        (tmp_path / "input" / f"2026-01-{number:02}.csv").write_text(rows)

    for number in range(1, 31):
        day(number)
    with place.running(place.line("bucketq worker")), bucketq.open(tmp_path / "jobs") as file:
        at = {"cwd": tmp_path, "env": place.environ, "capture_output": True, "text": True}
        failed = subprocess.run(place.line("python"), timeout=PATIENCE, **at)
        assert failed.returncode == 1
        assert "TaskFailed" in failed.stderr
        assert "2026-01-31.csv" in failed.stderr
        assert not (tmp_path / "output" / "total.csv").exists()
        day(31)
        place.run(place.line("bucketq requeue"))

        def results() -> list[str]:  # the counter of the group is a finished job too, without a result
            jobs = (file.get(job.id) for job in file.queue("totals").list(["done"]).jobs)
            return [job.result for job in jobs if job.result is not None]

        until(results)
        assert results() == [f"62 sales on 31 days, {sum(range(1, 32)) + 310} in all"]
    with (tmp_path / "output" / "total.csv").open() as total:
        assert list(csv.reader(total)) == [["book", str(sum(range(1, 32)))], ["pen", "310"]]
    assert not list((tmp_path / "output").glob("*.tmp"))


@pytest.fixture
def nightly(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLES)
    yield import_module("nightly")
    del sys.modules["nightly"]


def test_the_reports_are_written_each_night_and_deleted_after_a_month(nightly, tmp_path):
    clock = testing.Clock()
    with testing.use(nightly.app, clock=clock) as file:
        worker = nightly.app.worker
        worker().run(wait=0)
        assert len(file.schedules()) == 2
        for _ in range(35):
            clock.advance(timedelta(days=1))
            worker().run(wait=0)
        done = file.list(["done"], queue="nightly", limit=1000).jobs
        written = {name for name in (file.get(job.id).result for job in done) if isinstance(name, str)}
        assert len(written) == 35
        left = sorted(path.name for path in (tmp_path / "reports").iterdir())
        assert set(left) < written
        assert 29 <= len(left) <= 31


def test_a_worker_makes_the_schedules_and_the_command_lists_them(tmp_path):
    place = Place(tmp_path, "nightly.py")
    with place.running(place.line("bucketq worker")), bucketq.open(tmp_path / "jobs") as file:
        until(lambda: len(file.schedules()) == 2)
        listed = place.run(place.line("bucketq schedules"))
    assert "0 2 * * *" in listed
    assert "Europe/Oslo" in listed
