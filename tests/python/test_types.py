"""The package's types in pyright's strict mode: each marked line of these programs is an error, and no other line."""

import json
import subprocess
import sys

import pytest

from patience import PATIENCE
from servers import ROOT

TASKS = """
import bucketq
from typing import assert_type

app = bucketq.App()

@app.task(queue="emails", retry_on=(ConnectionError,))
def send(to: str, *, subject: str = "hello") -> dict[str, int]:
    return {}

@app.task
async def wait(seconds: float) -> int:
    return 1

@app.every("0 2 * * *", timezone="Europe/Oslo")
def nightly() -> None: ...

assert_type(send.enqueue("ada").result(), dict[str, int])
assert_type(send("ada"), dict[str, int])
assert_type(wait.enqueue(1.5).result(), int)
assert_type(app.chain(send.job("x"), wait.job(bucketq.PREVIOUS)).result(), int)
nightly.enqueue()

async def main() -> None:
    assert_type(await (await wait.aenqueue(2)).aresult(), int)
    assert_type(await wait(2), int)

send.enqueue(1)  # wrong
send.enqueue("a", "b")  # wrong
send.enqueue(to="a", subjects="b")  # wrong
send.options(delay=1).enqueue()  # wrong
send.options(dely=1)  # wrong
send.job(None)  # wrong
wait.enqueue("x")  # wrong
nightly.enqueue(1)  # wrong
app.chain()  # wrong
"""

HANDLERS = """
import asyncio
import bucketq
from bucketq import aio

def register(worker: bucketq.Worker | aio.Worker) -> None:
    @worker.handles("sums")
    def add(job: bucketq.Job) -> dict[str, int]:
        return {"sum": sum(job.data)}

    @worker.handles("one", "two", max_run=60)
    async def later(job: aio.Job) -> str:
        await asyncio.sleep(1)
        return job.text

    @worker.handles("nothing")
    def nothing(job: bucketq.Job) -> None: ...

    @worker.handles("a")  # wrong
    async def blocks(job: bucketq.Job) -> str:
        return job.text

    @worker.handles("b")  # wrong
    def waits_for_none(job: aio.Job) -> str:
        return job.text

    @worker.handles("c")  # wrong
    def returns_no_result(job: bucketq.Job) -> set[int]:
        return {1}

    @worker.handles("d")  # wrong
    def takes_two(job: bucketq.Job, more: int) -> None: ...
"""


@pytest.mark.parametrize("program", [TASKS, HANDLERS], ids=["tasks", "handlers"])
def test_a_wrong_line_is_an_error_of_the_type_checker(tmp_path, program):
    (tmp_path / "program.py").write_text(program)
    (tmp_path / "pyrightconfig.json").write_text(
        '{"typeCheckingMode": "strict", "pythonVersion": "3.11", "extraPaths": ["%s"]}' % (ROOT / "python")
    )
    command = [ROOT / ".venv/bin/pyright", "--pythonpath", sys.executable, "--outputjson"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
    errors = {
        one["range"]["start"]["line"]
        for one in json.loads(done.stdout)["generalDiagnostics"]
        if one["severity"] == "error"
    }
    assert errors == {n for n, line in enumerate(program.splitlines()) if line.endswith("# wrong")}, (
        done.stdout
    )
