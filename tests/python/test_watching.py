"""Events: in order, after the commit, on both APIs. A callback cannot harm the queue."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import threading
from datetime import timedelta

import pytest

import bucketq
from boxes import Box
from bucketq import _listening, events, testing
from servers import ROOT
from watched import LIMIT, names, program, until


def test_there_is_a_class_for_every_event_of_the_table():
    page = (ROOT / "docs" / "watching.md").read_text().split("\n## Metrics\n")[0]
    rows = [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")]
    assert set(events.KINDS) - {"missed"} == set(rows)
    assert all(kind.__name__ in events.__all__ for kind in events.KINDS.values())


async def test_a_refused_enqueue_is_an_event(box):
    told = []
    async with await box.open(on_event=told.append) as file:
        q = file.queue("q")
        await q.configure(max_pending=1)
        await q.enqueue_many([1])
        with pytest.raises(bucketq.QueueFull):
            await q.enqueue_many([2, 3])
    (event,) = [event for event in told if isinstance(event, events.Refused)]
    assert (event.queue, event.jobs, event.code) == ("q", 2, "queue_full")


async def test_every_change_of_a_job_is_told_with_its_commit(box):
    told = []
    async with await box.open(on_event=told.append) as file:
        q = file.queue("q")
        await q.configure(max_attempts=2, max_pending=9, overflow="drop_oldest")
        first = await q.enqueue("a", dedup="k")
        await q.enqueue("b", dedup="k")
        job = await q.claim_one(worker="w")
        await job.extend(300)
        await job.release()
        await (await q.claim_one()).nack("bad", delay=0)
        await (await q.claim_one()).nack("bad")
        await q.requeue(first.id)
        await (await q.claim_one()).ack()
        await q.cancel((await q.enqueue("c")).id)
        await q.claim()
        await q.enqueue_many(range(10), chunk=5)
        await q.purge(["done"])
    before = [
        *("enqueued", "deduplicated", "claimed", "extended", "released", "claimed", "nacked", "claimed"),
        *("nacked", "dead", "requeued", "claimed", "acked", "enqueued", "cancelled", "claimed_nothing"),
    ]
    assert names(told)[: len(before)] == before
    assert sorted(names(told)[len(before) :]) == ["dropped", *["enqueued"] * 10, "purged"]
    enqueued = next(event for event in told if event.name == "enqueued")
    assert enqueued == events.Enqueued(
        commit_seq=first.commit_seq,
        commit_time=enqueued.commit_time,
        queue="q",
        id=first.id,
        run=0,
        attempt=0,
    )
    assert enqueued.commit_time.tzinfo is not None
    claimed, acked = (next(e for e in told if isinstance(e, kind)) for kind in (events.Claimed, events.Acked))
    assert (claimed.worker, claimed.attempt) == ("w", 1)
    assert claimed.waited >= timedelta()
    assert (acked.run, acked.attempt) == (1, 1)
    assert [e.state for e in told if isinstance(e, events.Nacked)] == ["ready", "dead"]
    seqs = [event.commit_seq for event in told]
    assert seqs == sorted(seqs)


async def test_local_commits_syncs_and_snapshots_are_told(face, tmp_path):
    told = []
    box = Box(face, str(tmp_path / "jobs"), {"mode": "local", "cache": tmp_path / "here"})
    async with await box.open(on_event=told.append) as file:
        await file.queue("q").enqueue(1)
        await file.sync()
        await file.snapshot()
    assert names(told)[0] == "enqueued"
    assert {"synced", "snapshot"} <= set(names(told))
    synced = next(event for event in told if isinstance(event, events.Synced))
    assert (synced.commits, synced.ops) == (1, 1)


def test_leases_that_expire_archives_and_bases_are_told():
    told, clock = [], testing.Clock()
    with testing.open(clock=clock, on_event=told.append, base_after=4096, tail=1024) as file:
        q = file.queue("q")
        q.configure(archive=True, keep=0)
        q.enqueue("x")
        held = q.claim_one(lease=60)
        clock.advance(61)
        q.claim_one().ack()
        assert held.lost
        for _ in range(30):
            q.cancel(q.enqueue(b"7" * 900).id)
        file.archive()
    expired = next(event for event in told if isinstance(event, events.Expired))
    assert (expired.queue, expired.attempt) == ("q", 1)
    archived = [event for event in told if isinstance(event, events.Archived)]
    assert sum(event.count for event in archived) == 31
    assert all(event.bytes > 0 for event in told if isinstance(event, events.Checkpoint))
    assert "checkpoint" in names(told)


def test_an_event_of_a_kind_that_is_not_known_is_told_bare():
    native = {"commit_seq": 7, "commit_ms": 0, "event": "invented", "colour": "blue"}
    event = events.event_of(native)
    assert (type(event), event.commit_seq, event.name) == (events.Event, 7, "")
    resent = events.event_of({"commit_seq": 7, "commit_ms": 0, "event": "resent"})
    assert resent == events.Resent(commit_seq=7, commit_time=event.commit_time)


async def test_a_lost_race_is_told(face, tmp_path):
    told = []
    url = str(tmp_path / "jobs")
    elsewhere = f"import bucketq; bucketq.open({url!r}, share=False).queue('q').enqueue(1)"
    async with await Box(face, url, {}).open(on_event=told.append) as file:
        assert program(elsewhere) == ("", "", 0)
        await file.queue("q").enqueue(2)
        assert (await file.metrics()).conflicts == {"race": 1, "unanswered": 0}
    assert names(told) == ["conflict", "enqueued"]
    assert told[0].cause == "race"


async def test_a_coroutine_function_is_told_on_both_faces_one_event_after_the_other(memory):
    told, busy = [], []

    async def tell(event):
        assert not busy
        busy.append(1)
        await asyncio.sleep(0)
        told.append(event)
        busy.clear()

    async with await memory.open(on_event=tell) as file:
        await file.queue("q").enqueue_many([1, 2, 3])
    assert names(told) == ["enqueued"] * 3


async def test_a_callback_that_raises_harms_nobody_and_is_logged_once_and_counted(memory, caplog):
    def tell(event):
        raise SystemExit(f"no {event.name}") if event.name == "committed" else ValueError("a bug")

    caplog.set_level(logging.ERROR, "bucketq")
    if memory.face == "aio":
        # asyncio ends its loop on SystemExit.
        tell = raises
    async with await memory.open(on_event=tell) as file:
        await file.queue("q").enqueue_many([1, 2])
        await file.queue("q").enqueue(3)
        while (await file.metrics()).events_failed < 3 + 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert len(await file.queue("q").claim(9)) == 3
        assert (await file.metrics()).events_missed == 0
    (record,) = caplog.records
    assert "further failures are only counted" in record.getMessage()
    assert record.exc_info is not None


def raises(event):
    raise ValueError("a bug")


async def test_a_slow_callback_stalls_no_commit_and_is_told_what_it_missed(memory, monkeypatch, caplog):
    monkeypatch.setattr(_listening, "ROOM", 10)
    told, go_on = [], threading.Event()

    async def slow_in_the_loop(event):
        await asyncio.to_thread(go_on.wait)
        told.append(event)

    def slow(event):
        go_on.wait()
        told.append(event)

    async with await memory.open(on_event=slow if memory.face == "blocking" else slow_in_the_loop) as file:
        q = file.queue("q")
        for number in range(30):
            await q.enqueue(number)
        assert (await q.counts()).counts["ready"] == 30
        missed = (await file.metrics()).events_missed
        assert missed >= 60 - 10 - _listening.ROOM - 2
        go_on.set()
        await until(lambda: any(isinstance(event, events.Missed) for event in told))
        await q.enqueue("later")
    assert sum(event.count for event in told if isinstance(event, events.Missed)) == missed
    assert told[-2].name == "enqueued"
    assert f"{missed} events are missed" in caplog.text


async def test_closing_waits_for_what_happened_before_and_not_for_ever(memory, monkeypatch, caplog):
    monkeypatch.setattr(_listening, "LINGER", 0.05)
    go_on = threading.Event()

    async def hang_in_the_loop(event):
        await asyncio.to_thread(go_on.wait)

    hang = (lambda event: go_on.wait()) if memory.face == "blocking" else hang_in_the_loop
    async with await memory.open(on_event=hang) as file:
        await file.queue("q").enqueue(1)
    assert "still busy" in caplog.text
    go_on.set()
    await until(lambda: not [t for t in threading.enumerate() if t.name == "bucketq-events"])


async def test_a_callback_may_use_the_file_and_close_it(memory, caplog):
    told, opened = [], []

    async def in_the_loop(event):
        told.append(event.name)
        if event.name == "acked":
            await opened[0].close()
        elif event.name == "enqueued":
            await (await opened[0].queue("q").claim_one()).ack()

    def on_a_thread(event):
        told.append(event.name)
        if event.name == "acked":
            opened[0].blocking.close()
        elif event.name == "enqueued":
            opened[0].blocking.queue("q").claim_one().ack()

    file = await memory.open(on_event=on_a_thread if memory.face == "blocking" else in_the_loop)
    opened.append(file)
    await file.queue("q").enqueue(1)
    await until(lambda: "acked" in told)
    await file.close()
    with pytest.raises(bucketq.Closed):
        await file.stats()
    assert caplog.records == []


def test_a_file_that_nobody_refers_to_any_more_ends_its_thread():
    def threads():
        return [t for t in threading.enumerate() if t.name == "bucketq-events"]

    file = bucketq.open("memory://forgotten", on_event=lambda event: None)
    file.queue("q").enqueue(1)
    assert len(threads()) == 1
    del file
    gc.collect()
    for thread in threads():
        thread.join(LIMIT)
    assert threads() == []


async def test_what_happened_before_closing_is_told_when_it_returns(memory, monkeypatch):
    told, closing = [], threading.Event()
    stop = _listening.Listening.stop

    def stop_and_go_on(listening):
        stop(listening)
        closing.set()

    monkeypatch.setattr(_listening.Listening, "stop", stop_and_go_on)

    async def in_the_loop(event):
        await asyncio.to_thread(closing.wait)
        told.append(event)

    def on_a_thread(event):
        closing.wait()
        told.append(event)

    async with await memory.open(on_event=on_a_thread if memory.face == "blocking" else in_the_loop) as file:
        await file.queue("q").enqueue_many(range(500))
    assert names(told) == ["enqueued"] * 500


def test_events_are_told_although_the_program_ends_without_closing():
    code = """
import atexit, bucketq, threading
ending = threading.Event()
told = []
def tell(event):
    ending.wait()
    told.append(event.name)
    if event.name == "committed":
        print(len(told), flush=True)
file = bucketq.open("memory://x", on_event=tell)
file.queue("q").enqueue_many(range(500))
atexit.register(ending.set)
"""
    assert program(code) == ("501\n", "", 0)


def test_ctrl_c_is_not_held_up_by_a_callback():
    code = """
import bucketq, os, signal, threading
def tell(event):
    if event.name == "enqueued":
        os.kill(os.getpid(), signal.SIGINT)
with bucketq.open("memory://x", on_event=tell) as file:
    try:
        file.queue("q").enqueue(1)
        threading.Event().wait(60)
    except KeyboardInterrupt:
        print("stopped")
"""
    assert program(code) == ("stopped\n", "", 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_is_told_nothing_and_ends_in_peace():
    code = """
import bucketq, os, sys, warnings
warnings.simplefilter("ignore", DeprecationWarning)
told = []
file = bucketq.open("memory://x", on_event=lambda event: told.append(event.name))
job = file.queue("q")
file.queue("q").enqueue(1)
job = file.queue("q").claim_one(on_lease_lost=print)
pid = os.fork()
if pid == 0:
    file.close()
    try:
        job.ack()
    except bucketq.Closed as error:
        print("child:", error.code, flush=True)
    sys.exit(0)
print("child ended", os.waitpid(pid, 0)[1], flush=True)
job.ack()
file.close()
print(told.count("acked"))
"""
    assert program(code) == ("child: closed\nchild ended 0\n1\n", "", 0)


async def settled(result):
    if result is not None:
        await result


async def test_listeners_come_and_go_on_an_open_file(memory):
    async with await memory.open() as file:
        q, first, second = file.queue("q"), [], []
        await q.enqueue(1)
        end_first = file.on_event(first.append)
        end_second = file.on_event(second.append)
        await q.enqueue(2)
        await settled(end_first())
        await settled(end_first())
        await q.enqueue(3)
    await settled(end_second())
    kinds = [[event.name for event in told].count("enqueued") for told in (first, second)]
    assert kinds == [1, 2]
