"""Every public call, on both APIs and every store; and on a file that is closed. Add each new call here."""

import inspect
from datetime import UTC, datetime

import pytest

import bucketq
from both import CHECK, FIX_TIME, MEASURE, OPEN, PROBE, RESTORE, SET_MAX_SKEW
from bucketq import New, aio
from patience import PATIENCE


class World:
    """A queue file with a finished job, two claimed ones, one that is ready, and handles on all of it."""

    def __init__(self, box, tmp_path):
        self.box = box
        self.path = tmp_path / "image.sqlite"
        self.face = box.face

    async def fill(self):
        self.file = await self.box.open()
        self.q = self.file.queue("q")
        receipts = await self.q.enqueue_many(["done", "held", "other", "ready"])
        self.done, self.held, self.other, self.ready = (receipt.id for receipt in receipts)
        self.finished = await self.q.claim_one()
        await self.finished.ack(result={"n": 1})
        self.batch = await self.q.claim(2)
        self.job = self.batch[0]
        self.atomic = self.file.atomic()
        return self

    async def state(self, id):
        return (await self.file.get(id)).state

    async def counts(self):
        return {state: n for state, n in (await self.q.counts()).counts.items() if n}


async def opens(w):
    async with await OPEN[w.face](w.box.url, **w.box.settings) as file:
        assert file.url == w.box.url


async def probes(w):
    assert (await PROBE[w.face](w.box.url, thorough=False, **w.box.settings)).rounds > 0


async def measures(w):
    steps = []
    found = await MEASURE[w.face](
        w.box.url, samples=1, progress=lambda *step: steps.append(step), **w.box.settings
    )
    assert found.sizes
    assert steps


async def checks(w):
    assert (await CHECK[w.face](w.box.url, **w.box.settings)).clean


async def restores(w):
    exported = await w.file.export(w.path)
    told = await RESTORE[w.face](w.box.url, w.path, **w.box.settings)
    assert told.commit_seq > exported.commit_seq


async def fixes_time(w):
    told = await FIX_TIME[w.face](w.box.url, only_look=True, **w.box.settings)
    assert (told.ahead, told.commit_seq) == (False, None)
    assert told.was <= told.now


async def sets_max_skew(w):
    with pytest.raises(bucketq.Invalid, match="workers hold 2 jobs"):
        await SET_MAX_SKEW[w.face](w.box.url, 7, **w.box.settings)


async def file_queue(w):
    assert w.file.queue("other").name == "other"


async def file_queues(w):
    assert [one.name for one in await w.file.queues(max_age=60)] == ["q"]


async def file_create_queue(w):
    assert [await w.file.create_queue("new"), await w.file.create_queue("new")] == [True, False]


async def file_delete_queue(w):
    assert [await w.file.delete_queue("q"), await w.file.delete_queue("q")] == [4, None]


async def file_strict_queues(w):
    await w.file.strict_queues()
    with pytest.raises(bucketq.NotFound, match="strict_queues"):
        await w.file.queue("new").enqueue(1)
    await w.file.strict_queues(False)


async def file_claim(w):
    assert [job.id for job in await w.file.claim(5, queues=["q"])] == [w.ready]


async def file_ack(w):
    await w.file.ack(w.held, w.job.token, result=1)
    await w.file.ack_late(w.ready)
    assert [await w.state(id) for id in (w.held, w.ready)] == ["done"] * 2


async def file_nack(w):
    assert await w.file.nack(w.held, w.job.token, "no", delay=60) == "scheduled"


async def file_release(w):
    other = w.batch[1]
    await w.file.release(w.held, w.job.token)
    await w.file.extend(other.id, other.token, 300)
    await w.file.reject(other.id, other.token, "never")
    assert [await w.state(id) for id in (w.held, other.id)] == ["ready", "dead"]


async def file_sync(w):
    assert (await w.file.sync()).commits == 0


async def file_snapshot(w):
    assert await w.file.snapshot(discard=True) == (await w.file.stats()).commit_seq


async def file_dirty(w):
    assert not w.file.dirty


async def file_atomic(w):
    async with w.file.atomic() as tx:
        tx.pause("q")
    assert tx.results == (None,)


async def file_get(w):
    assert (await w.file.get(w.done)).result == {"n": 1}


async def file_get_many(w):
    (one,) = await w.file.get_many([w.done])
    assert one.result == {"n": 1}


async def file_list(w):
    assert [job.id for job in (await w.file.list(["done"], queue="q")).jobs] == [w.done]


async def file_requeue_all(w):
    assert await w.file.requeue_all(["done"], queue="q") == 1


async def file_schedules(w):
    assert await w.file.schedules() == []


async def file_archive(w):
    await w.q.configure(archive=True, keep=0)
    assert await w.file.archive() == 1


async def file_archives(w):
    assert (await w.file.archives(queue="q", after=0)).objects == ()


async def file_lives(w):
    assert [life.id for life in (await w.file.lives(queue="q", limit=5)).lives] == [w.done]


async def file_stats(w):
    assert (await w.file.stats(max_age=0)).queues[0].counts["leased"] == 2


async def file_history(w):
    assert (await w.file.history(limit=1))[0].commit_seq == (await w.file.stats()).commit_seq


async def file_workload(w):
    assert (await w.file.workload()).jobs == 4


async def file_settle(w):
    before = (await w.file.stats()).commit_seq
    assert await w.file.settle() > before


async def file_export(w):
    assert (await w.file.export(w.path)).bytes == w.path.stat().st_size


async def file_export_pending(w):
    with pytest.raises(bucketq.Invalid, match="Durable mode"):
        await w.file.export_pending(w.path)


async def file_collect(w):
    assert (await w.file.collect(grace=3600)).objects == 0


async def file_directory(w):
    assert w.file.directory is None


async def file_host_role(w):
    assert w.file.host_role.role in {"leads", "joined", "alone"}


async def file_metrics(w):
    found = await w.file.metrics(max_age=5)
    # They are counted in the process that writes.
    assert (found.requests["put"] > 0) == (w.file.host_role.role != "joined")


async def file_on_event(w):
    told = []
    end = w.file.on_event(told.append)
    await w.q.pause()
    await w.q.cancel(w.ready)
    await w.file.close()
    assert "cancelled" in [event.name for event in told]
    ended = end()
    if ended is not None:
        await ended


async def file_close(w):
    await w.file.close()
    await w.file.close()


async def queue_enqueue(w):
    assert not (await w.q.enqueue(b"\0", priority=-1)).deduplicated


async def queue_enqueue_many(w):
    assert len(await w.q.enqueue_many([New(1, delay=5), "2"], chunk=1)) == 2


async def queue_jobs(w):
    async for job in w.q.jobs(wait=0):
        async with job:
            assert job.id == w.ready
    assert await w.state(w.ready) == "done"


async def queue_claim(w):
    async with await w.q.claim(3, lease=30, worker="me") as batch:
        assert [job.id for job in batch] == [w.ready]
    assert await w.state(w.ready) == "ready"


async def queue_claim_one(w):
    assert (await w.q.claim_one()).text == "ready"


async def queue_get(w):
    assert (await w.q.get(w.ready)).text == "ready"


async def queue_list(w):
    assert [job.id for job in (await w.q.list(["leased"])).jobs] == [w.held, w.other]


async def queue_counts(w):
    assert await w.counts() == {"done": 1, "leased": 2, "ready": 1}


async def queue_wait(w):
    assert (await w.q.wait(w.done, timeout=PATIENCE)).state == "done"


async def queue_cancel(w):
    assert await w.q.cancel(w.ready) == "ready"
    assert await w.q.cancel(w.held, leased=True) == "leased"


async def queue_requeue(w):
    assert await w.q.requeue(w.done, run=0) == 1


async def queue_redrive(w):
    await w.q.configure(dead_letter="dead")
    await w.job.reject("never")
    assert await w.file.queue("dead").redrive(rate="1000/s") == 1
    assert (await w.file.get(w.held)).queue == "q"


async def queue_move(w):
    assert await w.q.move(w.ready, "other", run=0) == 1
    assert (await w.file.get(w.ready)).queue == "other"


async def queue_move_all(w):
    assert await w.q.move_all("other") == 1


async def queue_delete(w):
    assert await w.q.delete(w.ready) == "ready"
    assert await w.q.delete(w.held, leased=True) == "leased"
    assert await w.q.delete(w.ready) is None


async def queue_purge(w):
    assert await w.q.purge(["ready", "done"]) == 2


async def queue_pause(w):
    await w.q.pause()
    assert (await w.q.counts()).paused


async def queue_resume(w):
    await w.q.pause()
    await w.q.resume()
    assert not (await w.q.counts()).paused


async def queue_requeue_all(w):
    await w.job.reject("never")
    assert await w.q.requeue_all(error="ever") == 1


async def queue_drain(w):
    assert await w.q.drain(timeout=0) == 2


async def queue_configure(w):
    assert (await w.q.configure(max_attempts=3)).max_attempts == 3


async def queue_policy(w):
    assert (await w.q.policy()).max_attempts == 10


async def queue_schedule(w):
    assert await w.q.schedule("hourly", 1, cron="@hourly") > datetime.now(UTC)


async def queue_unschedule(w):
    assert not await w.q.unschedule("hourly")


async def queue_schedules(w):
    await w.q.schedule("hourly", 1, every=3600)
    assert [one.name for one in await w.q.schedules()] == ["hourly"]


async def job_ack(w):
    await w.job.ack(result=1, then=[New("next")])
    assert await w.counts() == {"done": 2, "leased": 1, "ready": 2}


async def job_nack(w):
    assert await w.job.nack("no", delay=60) == "scheduled"


async def job_release(w):
    await w.job.release()
    assert await w.state(w.held) == "ready"


async def job_reject(w):
    await w.job.reject("never")
    assert (await w.file.get(w.held)).last_error == "never"


async def job_extend(w):
    await w.job.extend(300)
    assert w.job.remaining > 200


async def jobs_close(w):
    jobs = w.q.jobs(wait=0, prefetch=2)
    await w.q.enqueue("more")
    async for _ in jobs:
        break
    await jobs.close()
    assert (await w.counts())["ready"] == 1


async def atomic_all(w):
    async with w.file.atomic() as tx:
        tx.ack(w.job, result="ok")
        tx.nack(w.batch[1], "no", delay=5)
        tx.enqueue("q", "new")
        tx.cancel(w.ready)
        tx.requeue(w.done)
        tx.pause("q")
        tx.resume("q")
    assert await w.counts() == {"cancelled": 1, "done": 1, "ready": 2, "scheduled": 1}
    assert tx.results[1] == "scheduled"


async def atomic_rest(w):
    async with w.file.atomic() as tx:
        tx.release(w.job)
        tx.reject(w.batch[1], "never")
        tx.purge("q", ["done"])
    assert await w.counts() == {"dead": 1, "ready": 2}


async def atomic_moves(w):
    async with w.file.atomic() as tx:
        tx.move(w.ready, "other")
        tx.delete(w.done)
        tx.ack_late(w.held)
    assert tx.results == (1, "done", None)


async def atomic_repeat(w):
    tx = w.file.atomic()
    tx.enqueue("q", "new")
    await tx.repeat()
    assert not tx.results[0].existing


async def atomic_policy(w):
    async with w.file.atomic() as tx:
        tx.configure("q", max_attempts=3)
        tx.schedule("q", "hourly", 1, every=3600)
        tx.unschedule("q", "hourly")
        tx.drain("q")
    policy, at, was_there, leased = tx.results
    assert (policy, was_there, leased) == (await w.q.policy(), True, 2)
    assert (policy.max_attempts, at > datetime.now(UTC)) == (3, True)


CALLS = {
    "open": opens,
    "probe": probes,
    "measure": measures,
    "check": checks,
    "restore": restores,
    "fix_time": fixes_time,
    "set_max_skew": sets_max_skew,
    "QueueFile.queue": file_queue,
    "QueueFile.queues": file_queues,
    "QueueFile.create_queue": file_create_queue,
    "QueueFile.delete_queue": file_delete_queue,
    "QueueFile.strict_queues": file_strict_queues,
    "QueueFile.claim": file_claim,
    "QueueFile.ack": file_ack,
    "QueueFile.nack": file_nack,
    "QueueFile.release": file_release,
    "QueueFile.sync": file_sync,
    "QueueFile.snapshot": file_snapshot,
    "QueueFile.dirty": file_dirty,
    "QueueFile.atomic": file_atomic,
    "QueueFile.get": file_get,
    "QueueFile.get_many": file_get_many,
    "QueueFile.list": file_list,
    "QueueFile.requeue_all": file_requeue_all,
    "QueueFile.schedules": file_schedules,
    "QueueFile.archive": file_archive,
    "QueueFile.archives": file_archives,
    "QueueFile.lives": file_lives,
    "QueueFile.stats": file_stats,
    "QueueFile.history": file_history,
    "QueueFile.workload": file_workload,
    "QueueFile.settle": file_settle,
    "QueueFile.export": file_export,
    "QueueFile.export_pending": file_export_pending,
    "QueueFile.collect": file_collect,
    "QueueFile.directory": file_directory,
    "QueueFile.host_role": file_host_role,
    "QueueFile.metrics": file_metrics,
    "QueueFile.on_event": file_on_event,
    "QueueFile.close": file_close,
    "Queue.enqueue": queue_enqueue,
    "Queue.enqueue_many": queue_enqueue_many,
    "Queue.jobs": queue_jobs,
    "Queue.claim": queue_claim,
    "Queue.claim_one": queue_claim_one,
    "Queue.get": queue_get,
    "Queue.list": queue_list,
    "Queue.counts": queue_counts,
    "Queue.wait": queue_wait,
    "Queue.cancel": queue_cancel,
    "Queue.requeue": queue_requeue,
    "Queue.redrive": queue_redrive,
    "Queue.move": queue_move,
    "Queue.move_all": queue_move_all,
    "Queue.delete": queue_delete,
    "Queue.purge": queue_purge,
    "Queue.pause": queue_pause,
    "Queue.resume": queue_resume,
    "Queue.requeue_all": queue_requeue_all,
    "Queue.drain": queue_drain,
    "Queue.configure": queue_configure,
    "Queue.policy": queue_policy,
    "Queue.schedule": queue_schedule,
    "Queue.unschedule": queue_unschedule,
    "Queue.schedules": queue_schedules,
    "Job.ack": job_ack,
    "Job.nack": job_nack,
    "Job.release": job_release,
    "Job.reject": job_reject,
    "Job.extend": job_extend,
    "Jobs.close": jobs_close,
    "Atomic.ack": atomic_all,
    "Atomic.release": atomic_rest,
    "Atomic.drain": atomic_policy,
    "Atomic.move": atomic_moves,
    "Atomic.repeat": atomic_repeat,
}
TOGETHER = {
    "QueueFile.ack": ("ack_late",),
    "QueueFile.release": ("extend", "reject"),
    "Atomic.move": ("delete", "ack_late"),
    "Atomic.ack": ("nack", "enqueue", "cancel", "requeue", "pause", "resume", "results"),
    "Atomic.release": ("reject", "purge"),
    "Atomic.drain": ("configure", "schedule", "unschedule"),
}
"""Changes of one atomic block are tested together."""
APART = {"Worker"}
"""Classes with their own tests."""
AFTER_CLOSE = {
    "open",
    "probe",
    "measure",
    "check",
    "set_max_skew",
    "restore",
    "fix_time",
    "QueueFile.queue",
    "QueueFile.close",
}
"""Calls that need no open handle."""


def public_calls():
    for name in aio.__all__:
        thing = getattr(aio, name)
        if not inspect.isclass(thing):
            yield name
        elif name not in APART:
            for member, value in inspect.getmembers(thing):
                calls = inspect.isfunction(value) or (isinstance(value, property) and name != "Job")
                if not member.startswith("_") and calls:
                    yield f"{name}.{member}"


def test_every_public_call_is_here():
    tried = set(CALLS) | {
        f"{call.split('.')[0]}.{name}" for call, names in TOGETHER.items() for name in names
    }
    assert set(public_calls()) == tried


@pytest.mark.parametrize("name", CALLS)
async def test_a_call(name, box, tmp_path):
    world = await World(box, tmp_path).fill()
    try:
        await CALLS[name](world)
    finally:
        await world.file.close()


@pytest.mark.parametrize("name", [name for name in CALLS if name not in AFTER_CLOSE])
async def test_a_call_after_close_says_so(name, memory, tmp_path):
    world = await World(memory, tmp_path).fill()
    await world.file.close()
    with pytest.raises(bucketq.Closed):
        await CALLS[name](world)
