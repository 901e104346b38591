"""The page about production: its unit, its containers and its hook run real workers; its alerts and its dashboard use
metrics that exist."""

import configparser
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

import bucketq
from patience import PATIENCE
from servers import ROOT, free_port

PAGE = (ROOT / "docs" / "production.md").read_text()
GRAFANA = ROOT / "docs" / "grafana"
BIN = Path(sys.executable).parent
OF_PROMETHEUS = {"instance", "job", "le"}
"""Labels that Prometheus and its histograms add."""


def fenced(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


def unit() -> configparser.ConfigParser:
    (text,) = fenced("ini")
    # A unit names Environment twice.
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str
    parser.read_string(text)
    return parser


def image() -> dict[str, list[str]]:
    """Return the instructions of the Dockerfile that are lists."""
    (text,) = fenced("dockerfile")
    return {
        word: json.loads(rest)
        for word, _, rest in (line.partition(" ") for line in text.splitlines())
        if rest.startswith("[")
    }


def pod() -> dict:
    deployment = yaml.safe_load(fenced("yaml")[0])
    assert deployment["spec"]["selector"]["matchLabels"].items() <= (
        deployment["spec"]["template"]["metadata"]["labels"].items()
    )
    return deployment["spec"]["template"]["spec"]


def of_the_unit() -> list[str]:
    return shlex.split(unit()["Service"]["ExecStart"])


def of_the_image() -> list[str]:
    return image()["ENTRYPOINT"] + image()["CMD"]


def of_the_pod() -> list[str]:
    return image()["ENTRYPOINT"] + pod()["containers"][0]["args"]


@contextmanager
def running(
    words: list[str], place: Path, extra: str = ""
) -> Iterator[tuple[subprocess.Popen, str, socket.socket]]:
    """Start the worker of the page on a queue file here. Yields it, the URL of its metrics and its notifications."""
    (program,) = fenced("python")
    module = place / re.match(r"# (\S+)\n", program)[1]
    module.parent.mkdir()
    module.write_text(program + extra)
    port = free_port()
    words = [str(BIN / Path(words[0]).name)] + [re.sub(r":9188$", f":{port}", word) for word in words[1:]]
    assert any(str(port) in word for word in words)
    bucketq.open(place / "jobs").close()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        notified.bind(str(place / "notify"))
        notified.settimeout(PATIENCE)
        told = {
            "BUCKETQ_URL": str(place / "jobs"),
            "BUCKETQ_CREATE": "false",
            "BUCKETQ_HOST_DIR": str(place / "run"),
        }
        (place / "run").mkdir(mode=0o700)
        environ = os.environ | told | {"NOTIFY_SOCKET": str(place / "notify")}
        with subprocess.Popen(words, cwd=place, env=environ, stderr=subprocess.PIPE, text=True) as worker:
            try:
                assert notified.recv(100) == b"READY=1", worker.stderr.read()
                yield worker, f"http://127.0.0.1:{port}/metrics", notified
            finally:
                worker.kill()


@pytest.mark.parametrize("words", [of_the_unit, of_the_image, of_the_pod])
def test_the_worker_gets_ready_works_is_scraped_and_ends_at_the_first_signal(words, tmp_path):
    with running(words(), tmp_path) as (worker, metrics, notified):
        app = bucketq.App(str(tmp_path / "jobs"), host_dir=str(tmp_path / "run"))
        send = app.task(queue="emails", name="myapp.jobs.send")(lambda to: None)
        assert send.enqueue("ada@example.org").result(timeout=PATIENCE) == "sent to ada@example.org"
        app.close()
        with urllib.request.urlopen(metrics, timeout=PATIENCE) as reply:
            assert 'bucketq_jobs{queue="emails",state="done"} 1' in reply.read().decode()
        worker.send_signal(signal.SIGTERM)
        assert notified.recv(100) == b"STOPPING=1"
        _, log = worker.communicate(timeout=PATIENCE)
        assert worker.returncode == 0, log


def test_the_unit_says_what_the_page_says():
    service = unit()["Service"]
    assert service["Type"] == "notify"
    assert service["KillMode"] == "mixed"
    assert f"/run/{service['RuntimeDirectory']}" in fenced("ini")[0]
    assert service["RuntimeDirectoryMode"] == "0700"


LONG = """
@app.task(queue="long")
def sleep() -> None:
    import time
    open("asleep", "w").close()
    time.sleep(600)
"""


def test_the_hook_of_the_pod_gives_long_jobs_back_before_the_end(tmp_path):
    (container,) = pod()["containers"]
    shell, option, script = container["lifecycle"]["preStop"]["exec"]["command"]
    seconds = [int(found) for found in re.findall(r"sleep (\d+)", script)]
    assert sum(seconds) < pod()["terminationGracePeriodSeconds"]
    os.mkfifo(tmp_path / "asleep")
    with (
        running([*of_the_pod(), "--processes", "1"], tmp_path, LONG) as (worker, _, _),
        bucketq.App(str(tmp_path / "jobs"), host_dir=str(tmp_path / "run")) as app,
    ):
        job = app.task(queue="long", name="myapp.jobs.sleep")(lambda: None).enqueue()
        # Opens once the task runs.
        (tmp_path / "asleep").read_text()
        # The worker here is not process 1 of a container, and the test waits for a second only.
        here = script.replace("TERM 1", f"TERM {worker.pid}")
        here = here.replace(f"sleep {seconds[0]}", "sleep 1").replace(f"sleep {seconds[1]}", ":")
        subprocess.run([shell, option, here], check=True, timeout=PATIENCE)
        _, log = worker.communicate(timeout=PATIENCE)
        assert worker.returncode == 1, log
        found = app.file.get(job.id)
        assert (found.state, found.attempt) == ("ready", 0)


def test_the_commands_before_the_first_worker_run(process, tmp_path):
    for line in fenced("sh")[0].splitlines():
        process(*shlex.split(line)[1:])
    assert (tmp_path / "jobs.head").exists()


@pytest.fixture(scope="module")
def families() -> dict[str, set[str]]:
    """The names that a scraper sees, each with its labels; and the states of jobs."""
    with bucketq.open("memory://production") as file:
        file.queue("emails").enqueue("hello")
        with file.queue("emails").claim_one():
            pass
        text = file.metrics().prometheus()
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def alerts() -> list[dict]:
    (group,) = yaml.safe_load((GRAFANA / "alerts.yml").read_text())["groups"]
    return group["rules"]


def dashboard() -> dict:
    return json.loads((GRAFANA / "bucketq.json").read_text())


def expressions() -> list[str]:
    panels = [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]
    queries = [one["definition"] for one in dashboard()["templating"]["list"] if one["type"] == "query"]
    return [rule["expr"] for rule in alerts()] + panels + queries


@pytest.mark.parametrize("expression", expressions())
def test_a_rule_or_panel_asks_for_metrics_and_labels_that_exist(expression, families):
    named = set(re.findall(r"bucketq_\w+", expression))
    assert named
    assert named <= set(families)
    known = set.union(*families.values()) | OF_PROMETHEUS
    for labels in re.findall(r"\b(?:by|without) \(([^)]*)\)", expression):
        assert {one.strip() for one in labels.split(",")} <= known
    for name, matchers in re.findall(r"(bucketq_\w+)\{([^}]*)\}", expression):
        for label, _, value in re.findall(r'(\w+)(=~|!=|!~|=)"([^"]*)"', matchers):
            assert label in families[name]
            assert label != "state" or value in bucketq.open("memory://states").queue("a").counts().counts
    for opening, closing in ("()", "{}", "[]"):
        assert expression.count(opening) == expression.count(closing)


def test_counters_are_rates_and_gauges_are_not():
    for expression in expressions():
        for name in re.findall(r"bucketq_\w+", expression):
            is_counter = name.endswith(("_total", "_bucket", "_sum", "_count"))
            in_range = re.search(rf"(rate|increase|delta)\({name}(\{{[^}}]*\}})?\[", expression)
            assert is_counter == (in_range is not None and in_range[1] != "delta"), expression


def test_the_dashboard_is_whole_and_the_page_has_every_alert():
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    cells = [
        (column, row)
        for place in (panel["gridPos"] for panel in panels)
        for column in range(place["x"], place["x"] + place["w"])
        for row in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(column for column, _ in cells) < 24
    assert re.findall(r"^\| `(Bucketq\w+)`", PAGE, re.MULTILINE) == [rule["alert"] for rule in alerts()]
    for rule in alerts():
        assert rule["annotations"]["summary"]
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        labels = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
        assert labels <= {
            one.strip() for by in re.findall(r"by \(([^)]*)\)", rule["expr"]) for one in by.split(",")
        }
    scraping = yaml.safe_load(fenced("yaml")[1])
    assert scraping["rule_files"] == ["alerts.yml"]
