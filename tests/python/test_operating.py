"""Operation of a queue file as a whole, on both APIs and every store."""

import sqlite3

import pytest

import bucketq
from both import CHECK, RESTORE
from bucketq import Tally


def rows(path):
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
        assert database.execute("pragma integrity_check").fetchone() == ("ok",)
        return database.execute("select count(*) from jobs").fetchone()[0]


async def test_an_export_opens_in_sqlite3(box, tmp_path):
    path = tmp_path / "image.sqlite"
    async with await box.open() as file:
        await file.queue("q").enqueue_many(range(7))
        told = await file.export(path)
        stats = await file.stats()
        assert (told.commit_seq, told.commit_time) == (stats.commit_seq, stats.commit_time)
        assert told.bytes == path.stat().st_size == stats.pages * 4096
        assert rows(path) == 7
        with pytest.raises(bucketq.Invalid) as there:
            await file.export(path)
        assert there.value.code == "file_exists"
        await file.queue("q").enqueue(8)
        await file.export(str(path), replace=True)
        assert rows(path) == 8


async def test_the_history_is_the_newest_commits_first(box):
    async with await box.open() as file:
        for n in range(4):
            await file.queue("q").enqueue(n)
        first, second = await file.history(limit=2)
        stats = await file.stats()
        assert (first.commit_seq, first.commit_time) == (stats.commit_seq, stats.commit_time)
        assert second.commit_seq == first.commit_seq - 1
        assert (first.ops, first.pages) == (1, stats.pages)
        assert first.commit_time.tzinfo is not None
        with pytest.raises(bucketq.Invalid, match="limit"):
            await file.history(limit=0)


async def test_a_sound_file_is_clean(box, face):
    async with await box.open() as file:
        await file.queue("q").enqueue_many(range(3))
        report = await CHECK[face](box.url, **box.settings)
        assert report.clean
        assert report.problems == ()
        assert (report.name, report.jobs) == (box.url.rpartition("/")[2], 3)
        assert report.commit_seq == (await file.stats()).commit_seq
        assert report.referenced.count >= 1
        assert report.foreign == Tally(0, 0)


@pytest.mark.own_writer("there is no queue file yet")
async def test_a_check_of_nothing_is_not_found(box, face):
    with pytest.raises(bucketq.NotFound):
        await CHECK[face](box.url, **box.settings)


@pytest.mark.own_writer("a process that opens the file reads the damaged HEAD")
@pytest.mark.parametrize("box", ["file"], indirect=True)
async def test_damage_is_named(box, face, tmp_path):
    async with await box.open() as file:
        await file.queue("q").enqueue_many(range(3))
    head = tmp_path / "jobs.head"
    body = bytearray(head.read_bytes())
    body[len(body) // 2] ^= 1
    head.write_bytes(body)
    report = await CHECK[face](box.url)
    assert not report.clean
    assert report.problems[0].object == "jobs.head"
    with pytest.raises(bucketq.Corrupt):
        await box.open()


async def test_a_restore_brings_the_image_back(box, face, tmp_path):
    image = tmp_path / "image.sqlite"
    file = await box.open()
    await file.queue("q").enqueue("kept")
    exported = await file.export(image)
    await file.queue("q").enqueue("undone")
    newest = (await file.stats()).commit_seq
    told = await RESTORE[face](box.url, image, **box.settings)
    assert (told.jobs, told.replaced) == (1, newest)
    assert told.commit_seq > newest > exported.commit_seq
    with pytest.raises(bucketq.Corrupt) as halted:
        await file.stats()
    assert halted.value.code == "rolled_back"
    await file.close()
    async with await box.open() as again:
        (job,) = (await again.list()).jobs
        assert (await again.get(job.id)).data == "kept"


async def test_what_is_no_image_is_not_restored(memory, face, tmp_path):
    path = tmp_path / "image.sqlite"
    for content, error, code in [
        (None, bucketq.Unavailable, "local_file"),
        (b"nothing of the kind", bucketq.Invalid, "image"),
    ]:
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(error) as refused:
            await RESTORE[face](memory.url, path)
        assert refused.value.code == code


@pytest.mark.parametrize("box", ["file", "s3"], indirect=True)
async def test_a_collection_leaves_what_is_in_use(box, face):
    async with await box.open(base_after=4096, tail=1024) as file:
        for n in range(60):
            await file.queue("q").enqueue_many([str(n) * 500] * 20)
        first = await CHECK[face](box.url, **box.settings)
        assert first.unreferenced.count > 0
        told = await file.collect(grace=3600)
        assert told.objects == 0
        told = await file.collect(grace=0)
        assert told.objects > 0
        after = await CHECK[face](box.url, **box.settings)
        assert after.clean
        assert after.unreferenced == Tally(told.left, told.left_bytes)


async def test_who_only_looks_changes_nothing(box):
    async with await box.open() as file:
        await file.queue("q").enqueue(1)
        async with await box.open(read_only=True) as looking:
            assert (await looking.queue("q").counts()).counts["ready"] == 1
            assert (await looking.history(limit=1))[0].ops == 1
            for change in (looking.queue("q").enqueue(2), looking.queue("q").claim_one()):
                with pytest.raises(bucketq.Invalid) as refused:
                    await change
                assert refused.value.code == "read_only"
