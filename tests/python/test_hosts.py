"""Several processes of this host on one queue file: which one writes, in the API, the command and the metrics."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import FrozenInstanceError
from datetime import timedelta
from pathlib import Path

import pytest

import bucketq
import bucketq.aio
from both import OPEN
from command import TIMEOUT
from test_metrics import value

NEIGHBOUR = """
import sys
import bucketq
with bucketq.open(sys.argv[1]) as file:
    print(file.host_role.role, flush=True)
    sys.stdin.read()
"""


CLAIMS = """
import sys
import bucketq
with bucketq.open(sys.argv[1], on_event=lambda event: print(event.name, flush=True)) as file:
    print(file.host_role.role, flush=True)
    file.claim()
    file.queue("q").enqueue(1)
    sys.stdin.read()
"""


@contextmanager
def neighbour(url, environ=None, program=NEIGHBOUR):
    """Another process that has opened this queue file, with its role."""
    program = [sys.executable, "-c", program, url]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(program, env=environ, text=True, **pipes) as process:
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


@pytest.fixture
def url(tmp_path):
    return str(tmp_path / "jobs")


async def test_the_first_process_leads_and_the_next_one_joins_it(face, url):
    async with await OPEN[face](url) as file:
        alone = file.host_role
        assert (alone.role, alone.processes, alone.leader, alone.reason) == ("leads", 0, None, None)
        assert alone.since >= timedelta()
        assert alone.host_dir.is_dir()
        with neighbour(url) as (_, role):
            assert role == "joined"
            assert file.host_role.processes == 1
            found = await file.metrics()
            assert found.processes == 1
            assert value(found.prometheus(), "bucketq_host_processes") == 1


async def test_a_process_that_joined_knows_its_leader_from_the_first_moment(face, url):
    with neighbour(url) as (process, role):
        assert role == "leads"
        async with await OPEN[face](url) as file:
            found = file.host_role
            assert (found.role, found.leader) == ("joined", f"process {process.pid}")
            assert (found.processes, found.reason) == (None, None)
            assert found.since > timedelta()
            assert (await file.metrics()).processes == 0


async def test_when_the_leader_is_killed_this_process_leads(face, url):
    with neighbour(url) as (process, _):
        async with await OPEN[face](url) as file:
            await file.queue("q").enqueue("before")
            process.kill()
            process.wait(TIMEOUT)
            await file.queue("q").enqueue("after")
            assert file.host_role.role == "leads"
            assert [job.data for job in await file.queue("q").claim(5)] == ["before", "after"]


@pytest.mark.parametrize("settings", [{"share": False}, {"read_only": True}, {"mode": "local"}], ids=str)
async def test_settings_that_keep_a_process_apart_are_no_fault(face, url, tmp_path, settings):
    async with await OPEN[face](url, cache=str(tmp_path / "cache")):
        pass
    async with await OPEN[face](url, cache=str(tmp_path / "cache"), **settings) as file:
        assert file.host_role == bucketq.HostRole(role="alone")


async def test_a_process_that_cannot_meet_others_says_why(face, url):
    async with await OPEN[face](url, host_dir="/" + "x" * 120) as file:
        found = file.host_role
        assert (found.role, found.since, found.host_dir) == ("alone", None, None)
        assert "set `host_dir` to a shorter path" in found.reason


async def test_a_host_dir_is_where_they_meet(face, url, tmp_path):
    meeting = tmp_path / "meeting"
    async with await OPEN[face](url, host_dir=str(meeting)) as file:
        assert file.host_role.host_dir == meeting
        with neighbour(url) as (_, role):
            assert role == "leads", "it looks in another directory"
        with neighbour(url, os.environ | {"BUCKETQ_HOST_DIR": str(meeting)}) as (_, role):
            assert role == "joined"


async def test_the_events_of_a_process_are_delivered_to_it_and_to_no_other(face, url):
    led = []
    async with await OPEN[face](url, on_event=led.append) as leading:
        with neighbour(url, program=CLAIMS) as (process, role):
            assert role == "joined"
            joined = [process.stdout.readline().strip() for _ in range(2)]
        await leading.queue("q").enqueue("hello")
    assert joined == ["claimed_nothing", "enqueued"]
    told = [event.name for event in led]
    assert "enqueued" in told
    assert told.count("enqueued") == 1
    assert "claimed_nothing" not in told


def test_a_role_is_a_frozen_value():
    role = bucketq.HostRole(role="joined", leader="process 1", since=timedelta(seconds=1))
    with pytest.raises(FrozenInstanceError):
        role.leader = "process 2"
    assert role == bucketq.HostRole(role="joined", leader="process 1", since=timedelta(seconds=1))


def test_stats_say_which_process_writes(command):
    command("init")
    assert "this process writes for this host, for 0 other processes" in command("stats")
    with neighbour(command.environ["BUCKETQ_URL"]) as (process, _):
        assert f"process {process.pid} writes for this host" in command("stats")
        (found,) = command.json("stats")
        assert (found["host"]["role"], found["host"]["leader"]) == ("joined", f"process {process.pid}")
        assert found["host"]["since"] > 0
        assert Path(found["host"]["host_dir"]).is_dir()
    command.environ["BUCKETQ_SHARE"] = "false"
    assert "this process writes for itself only: as its settings or its store say" in command("stats")


def findings(command, *words):
    return {one["check"]: one for one in command.json("doctor", *words)}


def test_the_doctor_says_where_processes_meet_and_which_one_writes(command):
    command("init")
    with neighbour(command.environ["BUCKETQ_URL"]) as (process, _):
        found = findings(command, command.environ["BUCKETQ_URL"])
        assert f"process {process.pid} writes for this host" in found["host"]["says"]
        assert Path(found["host_dir"]["says"]).is_dir()
        assert found["version"]["says"].startswith("bucketq ")
        assert all(one["good"] for one in found.values())
    assert "takes no part" in findings(command, "--read-only")["host"]["says"]
    command.fails("Invalid", "doctor", "s3://a/b/c", "--url", "s3://a/b/d")


def test_the_doctor_advises_a_process_that_is_alone(command):
    command("init")
    command.environ["BUCKETQ_HOST_DIR"] = "/" + "x" * 120
    found = findings(command)
    assert (found["host"]["good"], "host_dir" in found) == (False, False)
    assert "set `host_dir` to a shorter path" in found["host"]["says"]
    assert "`share=false`" in found["host"]["advice"]
    assert found["commits"]["good"], "it can work all the same"


def test_a_handle_of_a_process_that_joined_closes_while_another_one_waits_for_a_job(url):
    with neighbour(url), bucketq.open(url) as file, ThreadPoolExecutor(1) as pool:
        other = bucketq.open(url)
        waiting = pool.submit(file.queue("q").claim_one, wait=None)
        # Commits after the claim was sent, so the claim waits by then.
        while file.stats().queues == () or not waiting.running():
            file.queue("beside").enqueue(1)
        other.close()
        assert not waiting.done()
        file.queue("q").enqueue("it")
        job = waiting.result(TIMEOUT)
        assert job.data == "it"
        job.ack()


def test_many_callers_that_wait_for_jobs_keep_no_other_call_back(url):
    many = 1_500
    with neighbour(url), bucketq.open(url) as file:
        queue = file.queue("q")
        ids = [receipt.id for receipt in queue.enqueue_many([bucketq.New(n) for n in range(many)])]

        async def wait_for_all():
            async with await bucketq.aio.open(url) as waiting:
                calls = [asyncio.ensure_future(waiting.queue("q").wait(id, timeout=TIMEOUT)) for id in ids]
                await asyncio.sleep(0)
                work = asyncio.get_running_loop().run_in_executor(None, finish_all)
                await work
                return await asyncio.gather(*calls)

        def finish_all():
            done = 0
            while done < many:
                with queue.claim(500) as jobs:
                    for job in jobs:
                        job.ack()
                        done += 1

        finished = asyncio.run(wait_for_all())
        assert {job.id for job in finished} == set(ids)
