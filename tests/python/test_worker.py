"""Workers on both APIs: functions and coroutines, results, failures, drain and stop."""

import asyncio
import threading
from datetime import timedelta

import pytest

import bucketq
from both import Lifted
from boxes import Box, memory_url
from bucketq import Backoff, Closed, Corrupt, Invalid, New, Reject, Worked, aio
from patience import PATIENCE

LIMIT = PATIENCE


def worker_on(file, **options):
    """Return a worker of the file's API."""
    return (
        Lifted(bucketq.Worker(file.blocking, **options))
        if isinstance(file, Lifted)
        else aio.Worker(file, **options)
    )


@pytest.fixture(params=["function", "coroutine"])
def handled(request):
    """Register a function as it is, or as a coroutine that does the same."""

    def register(worker, *queues):
        def decorate(function):
            async def coroutine(job):
                return function(job)

            worker.handles(*queues)(function if request.param == "function" else coroutine)
            return function

        return decorate

    return register


async def test_what_a_handler_returns_is_the_result(box, handled):
    async with await box.open() as file:
        worker = worker_on(file, concurrency=3)
        handled(worker, "sums")(lambda job: sum(job.data))
        handled(worker, "texts", "more")(lambda job: job.text.upper())
        first = await file.queue("sums").enqueue([1, 2])
        second = await file.queue("more").enqueue("ada")
        assert await worker.run(wait=0) == Worked(done=2)
        assert (await file.get(first.id)).result == 3
        assert (await file.get(second.id)).result == "ADA"
        assert (await file.get(first.id)).worker is not None


async def test_a_handler_without_a_result_leaves_none(memory, handled):
    async with await memory.open() as file:
        worker = worker_on(file)
        handled(worker, "q")(lambda job: None)
        receipt = await file.queue("q").enqueue(1)
        await worker.run(wait=0)
        detail = await file.get(receipt.id)
        assert (detail.state, detail.result) == ("done", None)


async def test_an_exception_is_a_failed_attempt_and_the_policy_decides(memory, handled):
    async with await memory.open() as file:
        worker = worker_on(file)

        @handled(worker, "q")
        def fragile(job):
            if job.attempt < 3:
                raise ConnectionError(f"attempt {job.attempt}")
            return job.attempt

        receipt = await file.queue("q").enqueue(1, backoff=Backoff(base=0))
        last = await file.queue("q").enqueue(2, backoff=Backoff(base=0), max_attempts=1)
        assert await worker.run(wait=0) == Worked(done=1, failed=3)
        assert (await file.get(receipt.id)).result == 3
        dead = await file.get(last.id)
        assert (dead.state, dead.last_error) == ("dead", "ConnectionError: attempt 1")


async def test_the_policy_of_the_queue_decides_how_often_how_many_and_how_long(box, handled):
    async with await box.open() as file:
        q = file.queue("q")
        await q.configure(max_attempts=2, backoff=Backoff.none(), concurrency=1, lease=300)
        worker, held = worker_on(file, concurrency=4), []

        @handled(worker, "q")
        def fragile(job):
            held.append((job.attempt, job.remaining > 200))
            raise ConnectionError

        await q.enqueue_many([1, 2])
        assert await worker.run(wait=0) == Worked(failed=4)
        assert held == [(1, True), (2, True), (1, True), (2, True)]
        assert (await q.counts()).counts["dead"] == 2


async def test_a_worker_gets_nothing_from_a_drained_queue_until_it_is_resumed(box):
    async with await box.open() as file:
        q = file.queue("q")
        await q.enqueue(1)
        assert await q.drain() == 0
        for state in ("drained", "resumed"):
            worker = worker_on(file)
            worker.handles("q")(lambda job: job.data)
            assert await worker.run(wait=0) == Worked(done=int(state == "resumed"))
            await q.resume()


@pytest.mark.parametrize(("lease", "worked"), [(60, Worked(released=1)), (None, Worked(failed=1))])
async def test_a_stop_hands_out_again_what_was_begun_unless_that_is_never_to_happen(memory, lease, worked):
    async with await memory.open() as file:
        worker, began = worker_on(file, lease=lease), asyncio.Event()
        loop = asyncio.get_running_loop()

        @worker.handles("q")
        async def endless(job):
            loop.call_soon_threadsafe(began.set)
            await asyncio.sleep(LIMIT)

        receipt = await file.queue("q").enqueue(1)
        async with worker:
            async with asyncio.timeout(LIMIT):
                await began.wait()
            await worker.close(timeout=0)
        assert worker.worked == worked
        assert (await file.get(receipt.id)).state == ("dead" if lease is None else "ready")


async def test_reject_ends_the_job_at_once(memory, handled):
    async with await memory.open() as file:
        worker = worker_on(file)

        @handled(worker, "q")
        def refuse(job):
            raise Reject("no such customer")

        receipt = await file.queue("q").enqueue(1)
        assert await worker.run(wait=0) == Worked(rejected=1)
        detail = await file.get(receipt.id)
        assert (detail.state, detail.last_error, detail.attempt) == ("dead", "no such customer", 1)


@pytest.mark.parametrize("error", [StopIteration("odd"), SystemExit(3), asyncio.CancelledError("odd")])
async def test_odd_exceptions_are_failed_attempts_too(memory, handled, error):
    async with await memory.open() as file:
        worker = worker_on(file)

        @handled(worker, "q")
        def odd(job):
            raise error

        await file.queue("q").enqueue(1, max_attempts=1)
        assert await worker.run(wait=0) == Worked(failed=1)


async def test_a_result_that_cannot_be_kept_is_a_failed_attempt(memory, handled):
    async with await memory.open() as file:
        worker = worker_on(file)
        handled(worker, "q")(lambda job: object())
        receipt = await file.queue("q").enqueue(1, max_attempts=1)
        assert await worker.run(wait=0) == Worked(failed=1)
        assert "JSON" in (await file.get(receipt.id)).last_error


async def test_a_handler_may_end_its_job_itself(memory):
    async with await memory.open() as file:
        worker = worker_on(file)

        @worker.handles("function")
        def function(job):
            job.ack(result="own", then=[New("coroutine", 1)])
            return "ignored"

        @worker.handles("coroutine")
        async def coroutine(job):
            await job.reject("own")

        receipt = await file.queue("function").enqueue(1)
        assert await worker.run(wait=0) == Worked(done=2)
        assert (await file.get(receipt.id)).result == "own"
        assert (await file.queue("coroutine").counts()).counts["dead"] == 1


async def test_as_many_at_a_time_as_asked_for_and_no_more(memory):
    async with await memory.open() as file:
        worker = worker_on(file, concurrency=4)
        together = threading.Barrier(4)
        running, most = [], []

        @worker.handles("q")
        def meet(job):
            running.append(job.id)
            together.wait(LIMIT)  # Fails unless four run at once.
            most.append(len(running))
            together.wait(LIMIT)
            running.remove(job.id)

        await file.queue("q").enqueue_many(range(8))
        assert await worker.run(wait=0) == Worked(done=8)
        assert max(most) == 4


async def test_coroutines_run_at_the_same_time(memory):
    async with await memory.open() as file:
        worker = worker_on(file, concurrency=3)
        here, all_here = [], asyncio.Event()

        @worker.handles("q")
        async def meet(job):
            here.append(job)
            if len(here) == 3:
                all_here.set()
            await all_here.wait()

        await file.queue("q").enqueue_many(range(3))
        assert await asyncio.wait_for(worker.run(wait=0), LIMIT) == Worked(done=3)


async def test_only_the_queues_asked_for(memory, handled):
    async with await memory.open() as file:
        worker = worker_on(file, queues=["b"])
        handled(worker, "a", "b")(lambda job: None)
        await file.queue("a").enqueue(1)
        await file.queue("b").enqueue(1)
        assert await worker.run(wait=0) == Worked(done=1)
        assert (await file.queue("a").counts()).counts["ready"] == 1


async def test_a_worker_without_work_or_handler_says_so(memory):
    async with await memory.open() as file:
        with pytest.raises(Invalid, match=r"register a handler"):
            await worker_on(file).run()
        worker = worker_on(file, queues=["emials"])
        worker.handles("emails")(lambda job: None)
        with pytest.raises(Invalid, match="did you mean emails"):
            await worker.run()
        with pytest.raises(Invalid, match="already has a handler"):
            worker.handles("emails")(lambda job: None)
        with pytest.raises(Invalid, match="name the queues"):
            worker.handles(lambda job: None)
        with pytest.raises(Invalid, match="concurrency"):
            worker_on(file, concurrency=0)


async def test_a_handler_drains_its_worker_and_no_more_is_taken(memory, handled):
    async with await memory.open() as file:
        worker = worker_on(file, concurrency=1)
        handled(worker, "q")(lambda job: worker.drain())
        await file.queue("q").enqueue_many(range(3))
        assert await worker.run() == Worked(done=1)
        assert worker.drained
        counts = (await file.queue("q").counts()).counts
        assert (counts["done"], counts["ready"]) == (1, 2)
        with pytest.raises(Closed, match="make a new one"):
            await worker.run()


async def test_an_idle_worker_is_drained_while_it_waits(box):
    async with await box.open() as file:
        worker = worker_on(file)
        worked = threading.Event()

        @worker.handles("q")
        def work(job):
            worked.set()

        run = asyncio.create_task(worker.run())
        await file.queue("q").enqueue(1)
        assert await asyncio.to_thread(worked.wait, LIMIT)
        worker.drain()
        assert await asyncio.wait_for(run, LIMIT) == Worked(done=1)


async def test_in_the_background_until_the_block_is_left(memory, handled):
    async with await memory.open() as file:
        worker = worker_on(file)
        handled(worker, "q")(lambda job: job.data + 1)
        async with worker:
            receipt = await file.queue("q").enqueue(1)
            assert (await file.queue("q").wait(receipt.id, timeout=LIMIT)).result == 2
            with pytest.raises(Invalid, match="is already running"):
                await worker.run()
        assert worker.drained
        assert worker.worked == Worked(done=1)


async def test_close_gives_back_what_is_not_finished_in_time(memory):
    async with await memory.open() as file:
        worker = worker_on(file)
        begun, release, jobs = threading.Semaphore(0), threading.Event(), []

        @worker.handles("function")
        def function(job):
            jobs.append(job)
            begun.release()
            release.wait(LIMIT)
            return "too late"

        @worker.handles("coroutine")
        async def coroutine(job):
            jobs.append(job)
            begun.release()
            await asyncio.Event().wait()

        receipts = [await file.queue(name).enqueue(1) for name in ("function", "coroutine")]
        async with worker:
            assert await asyncio.to_thread(
                lambda: begun.acquire(timeout=LIMIT) and begun.acquire(timeout=LIMIT)
            )
            await worker.close(0.01)
        assert worker.worked == Worked(released=2)
        assert all(job.ended for job in jobs)
        release.set()
        for receipt in receipts:
            detail = await file.get(receipt.id)
            assert (detail.state, detail.attempt) == ("ready", 0)


async def test_a_handler_cannot_close_its_own_worker(memory):
    async with await memory.open() as file:
        worker = worker_on(file)

        @worker.handles("q")
        def own(job):
            worker.blocking.close()

        @worker.handles("r")
        async def other(job):
            await worker.close()

        await file.queue("q" if isinstance(worker, Lifted) else "r").enqueue(1, max_attempts=1)
        assert await worker.run(wait=0) == Worked(failed=1)
        page = await file.list(["dead"])
        assert "worker.drain()" in page.jobs[0].last_error


async def test_the_lease_is_kept_while_the_handler_works(memory):
    async with await memory.open() as file:
        # Longer than a busy machine delays a process.
        worker = worker_on(file, lease=timedelta(seconds=3))

        @worker.handles("q")
        async def slow(job):
            first = seen = job.info.expires_at
            while (seen - first).total_seconds() < 3:
                seen = (await file.get(job.id)).expires_at
            return job.remaining

        receipt = await file.queue("q").enqueue(1)
        assert await asyncio.wait_for(worker.run(wait=0), LIMIT) == Worked(done=1)
        assert 0 < (await file.get(receipt.id)).result <= 3


async def test_a_job_taken_away_meanwhile_is_lost(memory, caplog):
    async with await memory.open() as file:
        worker = worker_on(file)

        @worker.handles("q")
        async def robbed(job):
            await file.queue("q").cancel(job.id, leased=True)

        await file.queue("q").enqueue(1)
        assert await worker.run(wait=0) == Worked(lost=1)
        assert "lease is lost" in caplog.text


async def test_a_queue_file_that_is_gone_ends_the_worker(tmp_path, face):
    async with await Box(face, str(tmp_path / "jobs"), {"poll_min": 0.01, "poll_max": 0.01}).open() as file:
        worker = worker_on(file)
        worker.handles("q")(lambda job: None)
        await file.queue("r").enqueue(1)
        (tmp_path / "jobs.head").unlink()
        with pytest.raises(Corrupt) as failed:
            await asyncio.wait_for(worker.run(), LIMIT)
        assert failed.value.code == "head_missing"
        assert worker.drained


@pytest.mark.parametrize("drains", [True, False])
async def test_a_queue_file_that_goes_while_a_job_is_worked_on_ends_the_worker(
    tmp_path, face, handled, drains
):
    async with await Box(face, str(tmp_path / "jobs"), {"poll_min": 0.01, "poll_max": 0.01}).open() as file:
        worker = worker_on(file)

        @handled(worker, "q")
        def last(job):
            (tmp_path / "jobs.head").unlink()
            if drains:
                worker.drain()

        await file.queue("q").enqueue(1)
        with pytest.raises(Corrupt) as failed:
            await asyncio.wait_for(worker.run(), LIMIT)
        assert failed.value.code == "head_missing"
        assert (worker.drained, worker.worked) == (True, Worked())


async def test_leaving_the_block_of_a_worker_tells_what_ended_it(tmp_path, face, handled):
    async with await Box(face, str(tmp_path / "jobs"), {"poll_min": 0.01, "poll_max": 0.01}).open() as file:
        worker, begun = worker_on(file), threading.Event()

        @handled(worker, "q")
        def last(job):
            (tmp_path / "jobs.head").unlink()
            begun.set()
            worker.drain()

        await file.queue("q").enqueue(1)
        with pytest.raises(Corrupt):
            async with worker:
                assert await asyncio.to_thread(begun.wait, LIMIT)


async def test_a_job_that_is_gone_meanwhile_costs_no_other_job(memory, caplog):
    async with await memory.open() as file:
        q, worker = file.queue("q"), worker_on(file, concurrency=1)

        @worker.handles("q")
        async def purged(job):
            if job.data == "gone":
                await q.cancel(job.id, leased=True)
                assert await q.purge(["cancelled"]) == 1
            return "result"

        await q.enqueue_many(["gone", "stays"])
        assert await worker.run(wait=0) == Worked(done=1, lost=1)
        assert "was purged while it ran" in caplog.text
        assert (await q.counts()).counts["leased"] == 0


async def test_a_cancelled_run_gives_its_jobs_back():
    async with await aio.open(memory_url()) as file:
        worker = aio.Worker(file)
        begun = asyncio.Event()

        @worker.handles("q")
        async def endless(job):
            begun.set()
            await asyncio.Event().wait()

        receipt = await file.queue("q").enqueue(1)
        run = asyncio.create_task(worker.run())
        await begun.wait()
        run.cancel()
        assert isinstance(
            (await asyncio.wait_for(asyncio.gather(run, return_exceptions=True), LIMIT))[0],
            asyncio.CancelledError,
        )
        assert (await file.get(receipt.id)).state == "ready"
