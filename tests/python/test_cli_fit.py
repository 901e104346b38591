"""The commands ``probe`` and ``fit``: a store is measured, a workload judged, and the page shows the same figures."""

import json
import math
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from dataclasses import asdict
from pathlib import Path
from time import monotonic

import pytest

import bucketq
from bucketq.cli import fit as fit_command
from bucketq.cli._app import run
from bucketq.fit import Inputs, evaluate
from command import EXITS, TIMEOUT
from servers import BUCKET, ROOT, require, running

CASES = json.loads((ROOT / "fit-calculator" / "cases.json").read_text())["cases"]


def on_s3(command, server, place):
    settings = {f"BUCKETQ_{name.upper()}": str(value) for name, value in server.settings.items()}
    command.environ |= settings | {"BUCKETQ_URL": f"s3://{BUCKET}/{place}/jobs"}


def objects(server, place):
    listed = server.client().list_objects_v2(Bucket=BUCKET, Prefix=f"{place}/")
    return [one["Key"] for one in listed.get("Contents", [])]


def test_a_probe_measures_a_store_and_fit_reads_it(command, server):
    on_s3(command, server, "measured")
    text = command("probe", "--samples", "10", "-o", "store.json")
    assert max(map(len, text.splitlines())) <= 80
    assert "holds" in text
    found = json.loads((command.directory / "store.json").read_text())
    assert found["compare_and_swap"]["holds"]
    assert [one["bytes"] for one in found["sizes"]] == [1024, 16384, 131072, 1048576]
    assert abs(found["clock"]["offset_ms"]) <= 1000
    assert objects(server, "measured") == []
    (told,) = command.json("fit", "--probe", "store.json", "--arrival", "7")
    assert told["inputs"] == asdict(Inputs(arrival=7, **found["inputs"]))


def test_a_probe_says_at_once_what_it_cannot_write(command):
    assert "no directory" in command.fails("NotFound", "probe", "-o", "nowhere/store.json")
    assert "once" in command.fails("Invalid", "probe", "memory://a", "--url", "memory://b")


def test_a_probe_leaves_nothing_in_a_directory(command):
    (found,) = command.json("probe", str(command.directory / "place" / "jobs"), "--samples", "5")
    assert found["clock"] is None
    assert found["inputs"]["writes_per_s"] == 0
    assert list((command.directory / "place").iterdir()) == []


@pytest.mark.parametrize("looks", [1, 20], ids=["races", "measures"])
def test_a_probe_stopped_by_ctrl_c_leaves_nothing(process, server, looks):
    on_s3(process, server, f"stopped-{looks}")
    probing = process.start("probe", "--samples", "10000")
    try:
        until = monotonic() + TIMEOUT
        # The measurement writes to a single key for a long time; the races before it use many keys in turn.
        seen = []
        while seen[-looks:] != seen[-1:] * looks or not seen[-1:] or seen[-1] == []:
            seen.append(objects(server, f"stopped-{looks}"))
            assert monotonic() < until
        probing.send_signal(signal.SIGINT)
        _, err = probing.communicate(timeout=TIMEOUT)
        assert probing.returncode == 130, err
    finally:
        probing.kill()
        probing.communicate()
    assert objects(server, f"stopped-{looks}") == []


def test_a_probe_refuses_a_store_without_compare_and_swap(command):
    arguments = ["--directory", str(command.directory), "--silent", "--configure-bucket", BUCKET]
    with running(
        "s3rver", lambda port: [*arguments, "--address", "127.0.0.1", "--port", str(port)]
    ) as server:
        keys = {"access_key": "S3RVER", "secret_key": "S3RVER"}
        for name, value in (server.settings | keys).items():
            command.environ[f"BUCKETQ_{name.upper()}"] = str(value)
        command.environ["BUCKETQ_URL"] = f"s3://{BUCKET}/refused/jobs"
        text = command("probe", "--samples", "5", "-o", "store.json", exits=EXITS["Unavailable"])
    assert "does not hold" in text
    assert "wrote twice" in command.err
    assert not json.loads((command.directory / "store.json").read_text())["compare_and_swap"]["holds"]


def test_progress_that_raises_ends_a_measurement_with_that(tmp_path):
    def progress(what, done, of):
        assert what == "PUT"
        assert 0 < done <= of
        raise InterruptedError("enough")

    with pytest.raises(InterruptedError, match="enough"):
        bucketq.measure(tmp_path / "jobs", samples=3, progress=progress)
    assert list(tmp_path.iterdir()) == []


async def test_a_measurement_can_be_awaited(tmp_path):
    steps = []
    found = await bucketq.aio.measure(tmp_path / "jobs", samples=2, progress=lambda *step: steps.append(step))
    assert [one.put.samples for one in found.sizes] == [1, 2, 1, 1]
    assert [done for _, done, _ in steps] == list(range(1, steps[0][2] + 1))
    evaluate(**found.inputs)


def test_fit_says_what_the_model_says(command):
    text = command("fit")
    assert max(map(len, text.splitlines())) <= 80
    assert "Tradeoff" in text
    assert "bucketq probe measures yours" in text
    assert "the backlog grows whatever" in command("fit", "--arrival", "8")
    (told,) = command.json("fit", "--arrival", "100000", "--work-ms", "2")
    found = asdict(evaluate(arrival=100000, work_ms=2))
    assert told["engine"]["instead"] == found["engine"]["instead"]
    assert told["engine"]["dispatch_ms"] is None
    assert math.isinf(found["engine"]["dispatch_ms"])
    assert "Use something else" in command("fit", "--arrival", "100000", "--work-ms", "2")


def test_fit_refuses_nonsense_by_name(command):
    assert "arrival: 0 to 1,000,000" in command.fails("Invalid", "fit", "--arrival", "-1")
    assert "latency_min_ms" in command.fails("Invalid", "fit", "--latency-min-ms", "100")
    assert "store.json cannot be read" in command.fails("NotFound", "fit", "--probe", "store.json")
    for text in ("{}", "[]", "nothing", '{"inputs": 3}'):
        (command.directory / "store.json").write_text(text)
        assert "is not a file of `bucketq probe" in command.fails("Invalid", "fit", "--probe", "store.json")
    (command.directory / "store.json").write_text('{"inputs": {"latency_ms": "fast"}}')
    assert "latency_ms: give a number" in command.fails("Invalid", "fit", "--probe", "store.json")
    assert "no_such_file" in command.fails("NotFound", "fit", "--from", "nowhere")


def test_fit_judges_the_workload_of_a_queue_file(command):
    url = command.environ["BUCKETQ_URL"]
    with bucketq.open(url) as file:
        queue = file.queue("mail")
        for _ in range(24):
            queue.enqueue(b"x" * 300)
            for job in queue.claim(worker="ada"):
                job.ack()
        (held,) = [queue.enqueue(b"x" * 300) and queue.claim(lease=120)[0]]
        told = file.workload()
        held.ack()
    assert (told.jobs, told.complete, told.inputs["payload"], told.inputs["writers"]) == (25, True, 300, 1)
    assert told.inputs["mutations"] == pytest.approx(3, abs=0.1)
    assert told.inputs["lease_ms"] == 120_000
    assert (told.work.samples, told.dispatch.samples) == (24, 25)
    (judged,) = command.json("fit", "--from", url, "--work-ms", "500")
    assert judged["inputs"]["payload"] == 300
    assert judged["inputs"]["work_ms"] == 500
    assert judged["workload"]["jobs"] == 25
    text = command("fit", "--from", url)
    assert "25 jobs" in text
    assert max(map(len, text.splitlines())) <= 80


def test_fit_of_an_empty_file_is_that_of_the_example(command):
    command("init")
    assert "too few jobs to tell" in command("fit", "--from", command.environ["BUCKETQ_URL"])


async def test_both_faces_tell_the_workload(memory):
    async with await memory.open() as file:
        await file.queue("q").enqueue(1)
        told = await file.workload()
    assert (told.jobs, told.work, told.inputs["payload"]) == (1, None, 1)


@pytest.fixture
def opened(monkeypatch, tmp_path):
    """Record the addresses that the command opens in a browser."""
    page, addresses = tmp_path / "fit.html", []
    page.write_text("the page")
    monkeypatch.setattr(fit_command, "PAGE", page)
    monkeypatch.setattr(fit_command.webbrowser, "open", addresses.append)
    return addresses


def test_the_page_is_opened_with_what_was_given(command, opened):
    text = command("fit", "--arrival", "20", "--latency-ms", "71.5", "--open")
    address = f"{fit_command.PAGE.as_uri()}#arrival=20&latency_ms=71.5"
    assert address in text
    (leads,) = opened
    path = Path(leads.removeprefix("file://"))
    try:
        assert address.replace("&", "&amp;") in path.read_text()
    finally:
        path.unlink()


def test_a_checkout_without_the_page_says_what_is_missing(command, opened):
    fit_command.PAGE.unlink()
    assert "make fit-page" in command.fails("NotFound", "fit", "--open")


def test_the_command_that_the_page_copies_is_understood(capsys):
    node = require(shutil.which("node"), "node is not installed")
    program = """
        import { asCommand, fromHash, toHash } from "./src/state.js";
        import { complete } from "./src/model.js";
        const states = JSON.parse(process.argv[1]);
        const hashes = JSON.parse(process.argv[2]);
        const commands = states.map((inputs) => asCommand(complete(inputs)));
        console.log(JSON.stringify([commands, hashes.map((hash) => fromHash(hash).inputs)]));
    """
    given = [case["inputs"] for case in CASES]
    hashes = ["#" + fit_command.state(Inputs(**inputs)) for inputs in given]
    ran = subprocess.run(
        [node, "--input-type=module", "-e", program, json.dumps(given), json.dumps(hashes)],
        cwd=ROOT / "fit-calculator",
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert ran.returncode == 0, ran.stderr
    commands, states = json.loads(ran.stdout)
    assert len(commands) == len(CASES)
    for line, inputs, state in zip(commands, given, states, strict=True):
        name, *words = shlex.split(line)
        assert name == "bucketq"
        assert run([*words, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["inputs"] == asdict(Inputs(**inputs)) == state


def test_nonsense_is_invalid_in_the_api():
    with pytest.raises(bucketq.Invalid, match="arrival: 0 to 1,000,000"):
        evaluate(arrival=-1)
    assert sys.modules["bucketq.fit"].Invalid is bucketq.Invalid


def test_wheels_carry_the_page_that_the_command_opens():
    rules = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["maturin"]["include"]
    assert {"path": str(fit_command.PAGE.relative_to(ROOT)), "format": ["sdist", "wheel"]} in rules
    assert str(fit_command.PAGE.relative_to(ROOT)).encode() in (ROOT / ".ci" / "page").read_bytes()
