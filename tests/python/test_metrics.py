"""Metrics: as values, as text for Prometheus' own parser, printed and served by the command."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from datetime import timedelta

import pytest
from prometheus_client.parser import text_string_to_metric_families

import bucketq
from bucketq._scrape import Scraped, parse
from command import INTERRUPTING_NOTHING, TIMEOUT, Command, on_a_terminal
from servers import ROOT


def families(text):
    return {family.name: family for family in text_string_to_metric_families(text)}


def value(text, name, **labels):
    (found,) = (
        sample.value
        for family in families(text).values()
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )
    return found


async def worked(file):
    q = file.queue('odd "name"\\')
    await q.enqueue_many([1, 2, 3])
    await q.enqueue("later", delay=60)
    for job in await q.claim(2):
        await job.ack()
    return q


@pytest.mark.own_writer("it counts the requests and commits of this process")
async def test_metrics_are_those_of_the_file_and_of_this_process(box):
    async with await box.open() as file:
        q = await worked(file)
        found = await file.metrics(max_age=None)
        assert found.stats.queues[0].counts == (await q.counts(max_age=60)).counts
        assert found.stats.queues[0].oldest_ready >= timedelta()
        assert found.stats.queues[0].counts["done"] == 2
        assert (found.waited.count, found.ran.count) == (2, 2)
        assert found.commit_ops.sum == found.ops == 5
        assert found.commit_took.count == found.commits == 5
        assert 0 <= found.commit_took.mean < 60
        assert found.commit_took.buckets[-1] == (3600.0, 5)
        assert bucketq.Histogram((), 0.0, 0).mean is None
        assert found.conflicts == {"race": 0, "unanswered": 0}
        assert set(found.requests) == {"put", "upload", "get", "list", "delete"}
        assert found.requests["put"] >= 5
        assert found.bytes["put"] > 1000
        requests = found.requests
        puts = requests["put"] + requests["upload"] + requests["list"]
        assert found.cost_total == pytest.approx((puts * 5 + requests["get"] * 0.4) / 1e6)
        assert found.cost_per_hour > found.cost_total
        gets = (await file.metrics()).requests["get"]
        assert (await file.metrics(max_age=timedelta(minutes=1))).requests["get"] == gets


async def test_the_parser_of_prometheus_reads_the_text_and_the_page_has_every_name(memory):
    async with await memory.open() as file:
        q = await worked(file)
        found = await file.metrics()
        text = found.prometheus()
    assert value(text, "bucketq_jobs", queue=q.name, state="done") == 2
    assert value(text, "bucketq_jobs", queue=q.name, state="scheduled") == 1
    assert value(text, "bucketq_wait_seconds_count") == 2
    assert value(text, "bucketq_wait_seconds_bucket", le="+Inf") == 2
    assert value(text, "bucketq_store_requests_total", kind="put") == found.requests["put"]
    assert value(text, "bucketq_cost_dollars_per_hour") == pytest.approx(found.cost_per_hour)
    rows = [
        line for line in (ROOT / "docs" / "watching.md").read_text().splitlines() if "| `bucketq_" in line
    ]
    table = {line.split("`")[1].removesuffix("_total"): line.split("|")[2].strip() for line in rows}
    assert table == {name: family.type for name, family in families(text).items()}
    # By Prometheus' conventions: base units, and _total on counters.
    for name, family in families(text).items():
        assert (f"# TYPE {name}_total counter" in text) == (family.type == "counter")
        assert not name.endswith(("_ms", "_kib", "_minutes"))


def fetch(url):
    with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def test_the_command_prints_them(command):
    command("enqueue", "emails", "hi")
    assert value(command("metrics"), "bucketq_jobs", queue="emails", state="ready") == 1
    assert value(command("metrics", command.environ["BUCKETQ_URL"]), "bucketq_jobs", state="ready") == 1
    (found,) = command.json("metrics")
    assert found["stats"]["queues"][0]["counts"]["ready"] == 1
    assert found["requests"]["get"] > 0


@pytest.mark.parametrize("before", [None, INTERRUPTING_NOTHING], ids=["", "interrupting nothing"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_serves_them_until_it_is_told_to_end(process, number, before):
    process("init")
    serving = process.start("metrics", "--listen", "127.0.0.1:0", "--json", before=before)
    try:
        url = json.loads(serving.stdout.readline())["url"]
        kind, text = fetch(url)
        assert kind.startswith("text/plain; version=0.0.4")
        assert "bucketq_commit_seq" in families(text)
        process("enqueue", "emails", "hi")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            fetch(url.replace("/metrics", "/"))
        serving.send_signal(number)
        out, err = serving.communicate(timeout=TIMEOUT)
        assert (out, err, serving.returncode) == ("", "", 0)
    finally:
        serving.kill()
        serving.communicate()


def test_a_store_that_fails_is_told_to_the_scraper():
    file = bucketq.open("memory://scraped")
    with Scraped(file, ":0") as scraped:
        assert "bucketq_commit_seq" in fetch(scraped.url)[1]
        file.close()
        with pytest.raises(urllib.error.HTTPError) as failed:
            fetch(scraped.url)
        assert failed.value.code == 503
        assert "closed" in failed.value.read().decode()
    with pytest.raises(urllib.error.URLError):
        fetch(scraped.url)


def test_an_address_says_where_to_listen():
    assert parse("127.0.0.1:9187") == ("127.0.0.1", 9187)
    assert parse(":9187") == parse("9187") == ("127.0.0.1", 9187)
    assert parse("[::1]:9187") == ("::1", 9187)
    assert parse("0.0.0.0:80") == ("0.0.0.0", 80)


@pytest.mark.parametrize("address", ["", "here", "127.0.0.1", "::1:99", "1.2.3.4:99999", "127.0.0.1:-1"])
def test_what_is_no_address_is_refused(command, address):
    command("init")
    assert "HOST:PORT" in command.fails("Invalid", "metrics", "--listen", address)


def test_an_address_in_use_is_refused(command):
    command("init")
    with bucketq.open("memory://in-use") as file, Scraped(file, ":0") as scraped:
        address = scraped.url.removeprefix("http://").removesuffix("/metrics")
        assert "choose another address" in command.fails("Invalid", "metrics", "--listen", address)


def test_a_worker_serves_its_own(process):
    (process.directory / "app.py").write_text(
        """
import os
from urllib.request import urlopen
from bucketq import Worker, open
worker = Worker(open())
@worker.handles("emails")
def send(job):
    return urlopen(job.data).read().decode().count("bucketq_jobs{")
"""
    )
    import socket

    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    (job,) = process.json("enqueue", "emails", json.dumps(f"http://127.0.0.1:{port}/metrics"))
    worked = process.json("worker", "app:worker", "--wait", "0", "--metrics", f"127.0.0.1:{port}")
    assert worked[0]["done"] == 1
    assert process.json("show", job["id"])[0]["result"] == 6


def lines(watching, count):
    return [watching.stdout.readline() for _ in range(count)]


def test_stats_are_watched_on_plain_lines_without_a_terminal(process):
    process("enqueue", "emails", "hi")
    watching = process.start("stats", "--watch", "--every", "0.1")
    try:
        (first,) = lines(watching, 1)
        assert "commit 2 · emails: 1 ready, waiting" in first
        process("enqueue", "emails", "hi")
        while "commit since the last update" in (line := lines(watching, 1)[0]):
            pass
        assert "emails: 2 ready" in line
        assert "1 commit · " in line
        assert "1.0 ops · " in line
        assert line.rstrip().endswith("each · by 1 writer")
    finally:
        watching.kill()
        watching.communicate()


def test_stats_are_watched_live_on_a_terminal(tmp_path):
    command = Command(str(tmp_path / "jobs"), tmp_path, on_a_terminal)
    command("enqueue", "emails", "hi")
    (tmp_path / "stop.py").write_text(
        """
import os, runpy, signal, sys, threading
threading.Timer(0, lambda: None)
import bucketq.cli._watch as watch
looked = watch.looked
def three(file, every):
    for number, look in enumerate(looked(file, every)):
        if number == 3:
            raise KeyboardInterrupt
        yield look
watch.looked = three
from bucketq.cli import main
sys.exit(main(["stats", "--watch", "--every", "0.1"]))
"""
    )
    import os
    import subprocess
    import sys

    leader, follower = os.openpty()
    with subprocess.Popen(
        [sys.executable, "stop.py"], cwd=tmp_path, env=command.environ, stdout=follower, stderr=follower
    ) as watching:
        os.close(follower)
        shown = b""
        try:
            while part := os.read(leader, 4096):
                shown += part
        except OSError:
            pass
        os.close(leader)
        assert watching.wait(TIMEOUT) == 130
    text = shown.decode()
    assert text.count("emails") >= 3
    assert "no commit since the last update" in text
    # The table is redrawn in place.
    assert "\x1b[1A" in text
