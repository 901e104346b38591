"""Local mode, on both APIs: a sync publishes, a snapshot follows, and no change is lost without an error."""

import json
import logging
import sqlite3
import stat
import subprocess
import sys

import pytest

import bucketq
from bucketq import Synced, Unsynced
from patience import PATIENCE

NOTHING = Unsynced(commits=0, ops=0, bytes=0)


@pytest.fixture
def local(tmp_path):
    """Return settings for Local mode in the test's own directory; the number stands for a machine."""

    def settings(machine=0, **more):
        return {"mode": "local", "cache": tmp_path / f"machine{machine}"} | more

    return settings


async def test_a_sync_publishes_what_gathered_in_one_commit(box, local):
    async with await box.open(**local()) as file:
        assert file.dirty == NOTHING
        assert not file.dirty
        before = await file.snapshot()
        q = file.queue("q")
        for n in range(5):
            await q.enqueue(n)
        assert file.dirty
        assert (file.dirty.commits, file.dirty.ops) == (5, 5)
        async with await box.open(read_only=True) as other:
            assert await other.queues() == []
            assert await file.sync() == Synced(commits=5, ops=5, commit_seq=before + 1)
            assert (await other.queue("q").counts()).counts["ready"] == 5
        assert file.dirty == NOTHING
        assert await file.sync() == Synced(commits=0, ops=0, commit_seq=before + 1)


async def test_what_is_not_published_survives_and_leaving_warns_of_it(box, local, caplog):
    async with await box.open(**local()) as file:
        receipt = await file.queue("q").enqueue("kept")
        where = file.directory
        assert where.is_dir()
    (said,) = [record for record in caplog.records if record.name == "bucketq"]
    assert said.levelno == logging.WARNING
    assert "1 local commit is not published" in said.getMessage()
    caplog.clear()
    async with await box.open(**local()) as file:
        assert file.directory == where
        assert file.dirty.commits == 1
        assert (await file.queue("q").get(receipt.id)).data == "kept"
        await file.sync()
    assert not caplog.records


async def test_a_snapshot_is_refused_while_something_is_unsynced(box, local):
    async with await box.open(**local()) as file:
        await file.queue("q").enqueue(1)
        with pytest.raises(bucketq.Invalid) as refused:
            await file.snapshot()
        assert refused.value.code == "unsynced"
        await file.snapshot(discard=True)
        assert file.dirty == NOTHING
        assert await file.queues() == []


RIVAL = """
import bucketq, json, sys
with bucketq.open(sys.argv[1], **json.loads(sys.argv[2])) as file:
    file.queue("theirs").enqueue(1)
"""


def elsewhere(box, code):
    """Run this in another process; a store in memory has only one."""
    command = [sys.executable, "-c", code, box.url, json.dumps(box.settings)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)


@pytest.mark.parametrize("box", ["file", "s3"], indirect=True)
async def test_who_loses_the_race_is_diverged_and_loses_nothing(box, local, tmp_path):
    async with await box.open(**local()) as file:
        await file.queue("q").enqueue("mine")
        rival = elsewhere(box, RIVAL)
        assert rival.returncode == 0, rival.stderr
        with pytest.raises(bucketq.Diverged) as lost:
            await file.sync()
        assert lost.value.code == "diverged"
        with pytest.raises(bucketq.Diverged):
            await file.queue("q").enqueue("more")
        assert (await file.queue("q").counts()).counts["ready"] == 1
        path = tmp_path / "mine.sqlite"
        await file.export_pending(path)
        (line,) = map(json.loads, path.with_suffix(".sqlite.jsonl").read_text().splitlines())
        assert (line["change"], line["payload"]) == ("added", "mine")
        with sqlite3.connect(path) as database:
            assert database.execute("select count(*) from jobs").fetchone() == (1,)
        await file.snapshot(discard=True)
        assert [job.queue for job in (await file.list()).jobs] == ["theirs"]


async def test_leases_work_as_ever_and_a_worker_runs(memory, local):
    async with await memory.open(**local()) as file:
        q = file.queue("q")
        receipt = await q.enqueue({"n": 1})
        async with await q.claim_one() as job:
            assert job.fence == file.dirty.commits + (await file.stats()).commit_seq - 1
        assert (await q.get(receipt.id)).state == "done"
        await file.sync()


@pytest.mark.parametrize("box", ["file"], indirect=True)
async def test_one_process_has_the_directory(box, local):
    async with await box.open(**local()) as file:
        box.settings = local() | {"cache": str(local()["cache"])}
        second = elsewhere(box, RIVAL)
        assert "bucketq.errors.Unavailable" in second.stderr
        assert "[in_use]" in second.stderr
        await file.sync()


@pytest.mark.parametrize("fsync", ["each_commit", "never", 0.05])
async def test_the_disk_may_have_it_at_once_or_later(memory, local, fsync):
    async with await memory.open(**local(fsync=fsync)) as file:
        await file.queue("q").enqueue(1)
        assert (await file.sync()).commits == 1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"mode": "remote"}, "mode takes one of durable, local"),
        ({"fsync": "soon"}, "fsync takes each_commit, never or a number of seconds"),
        ({"fsync": 0, "mode": "local"}, "more than zero"),
        ({"read_only": True, "mode": "local"}, "read_only needs Durable mode"),
    ],
)
async def test_settings_that_make_no_sense_are_refused(memory, settings, words):
    with pytest.raises(bucketq.Invalid, match=words) as refused:
        await memory.open(**settings)
    assert refused.value.code == "option"


async def test_in_durable_mode_there_is_nothing_to_sync(box):
    async with await box.open() as file:
        await file.queue("q").enqueue(1)
        seq = (await file.stats()).commit_seq
        assert file.dirty == NOTHING
        assert file.directory is None
        assert await file.sync() == Synced(commits=0, ops=0, commit_seq=seq)
        assert await file.snapshot() == seq
        with pytest.raises(bucketq.Invalid, match="nothing to export"):
            await file.export_pending("never.sqlite")


@pytest.mark.parametrize("box", ["s3"], indirect=True)
async def test_a_cache_holds_a_copy_for_sqlite3(box, tmp_path):
    async with await box.open(cache=tmp_path) as file:
        await file.queue("q").enqueue_many(range(3))
        where = file.directory
    with sqlite3.connect(f"file:{where}/jobs.sqlite?mode=ro", uri=True) as database:
        assert database.execute("select name, ready from queues").fetchall() == [("q", 3)]


async def test_after_close_all_of_it_says_closed(memory, local):
    file = await memory.open(**local())
    await file.close()
    await file.close()
    with pytest.raises(bucketq.Closed):
        _ = file.dirty
    with pytest.raises(bucketq.Closed):
        await file.sync()


@pytest.mark.skipif(sys.platform == "win32", reason="permissions of another kind")
@pytest.mark.parametrize("mode", ["local", "durable"])
async def test_the_directory_is_its_owners_alone(memory, local, mode):
    """Because it contains payloads."""
    async with await memory.open(**local() | {"mode": mode}) as file:
        await file.queue("q").enqueue("a secret of somebody")
        assert stat.S_IMODE(file.directory.stat().st_mode) == 0o700
