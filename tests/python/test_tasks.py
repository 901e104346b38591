"""Tasks: calls that are enqueued, their arguments, results and failures; chains and groups."""

import asyncio
import time
from datetime import UTC, datetime
from decimal import Decimal

import pydantic
import pytest

import bucketq
from boxes import memory_url
from bucketq import PREVIOUS, App, Invalid, TaskFailed, Worked, _native, testing
from patience import PATIENCE


@pytest.fixture
def app():
    with App(memory_url()) as app:
        yield app
        app.close()


def work(app, **options):
    return app.worker(**options).run(wait=0, signals=False)


def dead(app, id):
    return app.file.get(id).last_error


def test_making_an_app_and_its_tasks_does_no_io(tmp_path):
    app = App(tmp_path / "jobs")

    @app.task
    def add(a, b=2):
        return a + b

    assert add(1) == 3
    assert list(tmp_path.iterdir()) == []
    result = add.enqueue(1, b=5)
    assert work(app) == Worked(done=1)
    assert result.result(timeout=PATIENCE) == 6
    app.close()


async def test_coroutines_are_tasks_too_and_every_call_has_an_awaitable_twin(app):
    @app.task(queue="waits")
    async def shout(text: str) -> str:
        await asyncio.sleep(0)
        return text.upper()

    assert await shout("ada") == "ADA"
    result = await shout.aenqueue("ada")
    second = await shout.options(priority=-1).aenqueue(text="eve")
    chain = await app.achain(shout.job("bob"), shout.job(PREVIOUS))
    group = await app.agroup([shout.job("x"), shout.job("y")])
    await asyncio.to_thread(work, app)
    assert await result.aresult(timeout=PATIENCE) == "ADA"
    assert await second.aresult(timeout=PATIENCE) == "EVE"
    assert await chain.aresult(timeout=PATIENCE) == "BOB"
    assert await group.aresult(timeout=PATIENCE) == ["X", "Y"]


def test_arguments_that_do_not_fit_are_refused_at_the_call(app):
    @app.task
    def send(to, *, subject="hello"):
        return to

    for args, kwargs, words in [
        ((), {}, "missing a required argument: 'to'"),
        (("a", "b"), {}, "too many positional"),
        (("a",), {"subjects": "x"}, "unexpected keyword argument 'subjects'"),
    ]:
        with pytest.raises(TypeError, match=words):
            send.enqueue(*args, **kwargs)
    with pytest.raises(Invalid, match="cannot be stored"):
        send.enqueue(object())
    with pytest.raises(TypeError, match="did you mean delay"):
        send.options(dely=3)
    with pytest.raises(Invalid, match="PREVIOUS"):
        send.enqueue(PREVIOUS)
    assert app.file.queues() == []


def test_options_of_the_task_and_of_the_call_reach_the_job(app):
    @app.task(queue="emails", max_attempts=7, priority=3)
    def send(to):
        return to

    first = send.options(delay=60, dedup="welcome", headers={"a": "b"}).enqueue("ada")
    again = send.options(dedup="welcome").enqueue("eve")
    other = send.options(queue="other", priority=1).enqueue("bob")
    job = app.file.get(first.id)
    assert (job.queue, job.max_attempts, job.priority, job.state) == ("emails", 7, 3, "scheduled")
    assert job.headers == {"a": "b"}
    assert (again.id, again.deduplicated, first.deduplicated) == (first.id, True, False)
    assert (app.file.get(other.id).queue, app.file.get(other.id).priority) == ("other", 1)


def test_a_task_that_hangs_fails_after_its_time_and_one_that_waits_too_long_expires(app):
    @app.task(max_run=0.3, max_attempts=1)
    async def hang():
        await asyncio.sleep(PATIENCE)

    @app.task(queue="later", expires="1ms")
    def late():
        raise AssertionError("nobody wants it any more")

    hangs, waits = hang.enqueue(), late.enqueue()
    time.sleep(0.005)
    assert work(app) == Worked(failed=1)
    assert dead(app, hangs.id) == "timed out"
    assert dead(app, waits.id).startswith("expired")


def test_a_failure_for_good_raises_with_the_remote_traceback(app):
    @app.task(max_attempts=1)
    def broken(value):
        raise ValueError(f"no {value}")

    result = broken.enqueue("ada")
    with pytest.raises(TimeoutError, match=result.id):
        result.result(timeout=0)
    assert work(app) == Worked(failed=1)
    with pytest.raises(TaskFailed) as failed:
        result.result(timeout=PATIENCE)
    assert (failed.value.state, failed.value.error) == ("dead", "ValueError: no ada")
    assert 'raise ValueError(f"no {value}")' in failed.value.traceback
    assert "execute.py" not in failed.value.traceback
    assert "test_tasks.py" in str(failed.value)


def test_a_long_traceback_keeps_its_end(app):
    @app.task(max_attempts=1)
    def deep(left):
        if left == 0:
            raise KeyError("bottom" * 20)
        (lambda: deep(left - 1))()

    result = deep.enqueue(40)
    work(app)
    with pytest.raises(TaskFailed) as failed:
        result.result(timeout=PATIENCE)
    assert failed.value.traceback.rstrip().endswith("bottom'")
    assert len(dead(app, result.id).encode()) <= 4096


def test_only_the_exceptions_of_retry_on_lead_to_another_attempt(app):
    tries = []

    @app.task(retry_on=(ConnectionError,), backoff=bucketq.Backoff.none())
    def flaky(kind):
        tries.append(kind)
        if kind == "network" and tries.count(kind) == 1:
            raise ConnectionResetError("again")
        if kind == "bad":
            raise ValueError("never")
        return len(tries)

    bad, network = flaky.enqueue("bad"), flaky.enqueue("network")
    assert work(app) == Worked(done=1, failed=1, rejected=1)
    assert (tries.count("bad"), tries.count("network")) == (1, 2)
    assert network.result(timeout=PATIENCE)
    with pytest.raises(TaskFailed, match="ValueError: never"):
        bad.result(timeout=PATIENCE)


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt, SystemExit, GeneratorExit, BaseException, StopIteration]
)
def test_no_exception_of_a_task_ends_the_worker(app, error):
    @app.task(max_attempts=1)
    def bad():
        raise error("oh")

    @app.task
    def good():
        return 1

    first, second = bad.enqueue(), good.enqueue()
    work(app)
    assert second.result(timeout=PATIENCE) == 1
    with pytest.raises(TaskFailed, match=error.__name__):
        first.result(timeout=PATIENCE)


def test_an_unknown_task_and_a_changed_signature_are_dead_with_a_sentence(app):
    @app.task(name="old")
    def old(a):
        return a

    @app.task(name="changing")
    def changing(a):
        return a

    gone, changed = old.enqueue(1), changing.enqueue(1)
    strange = app.file.queue("default").enqueue("hello")
    other = App()
    other.use(app.file)

    @other.task(name="changing")
    def newer(a, b):
        return a

    assert work(other) == Worked(rejected=3)
    assert "no task 'old': it was renamed or removed; it has changing" in dead(app, gone.id)
    assert "the signature of changing has changed" in dead(app, changed.id)
    assert "missing a required argument: 'b'" in dead(app, changed.id)
    assert "not a call of a task" in dead(app, strange.id)


def test_the_current_job_is_known_in_the_task_and_nowhere_else(app):
    @app.task
    def plain():
        job = bucketq.current_job()
        return [job.id, job.attempt, job.task, job.ended]

    @app.task
    async def waits():
        return bucketq.current_job().id

    one, two = plain.enqueue(), waits.enqueue()
    work(app)
    assert one.result() == [one.id, 1, plain.name, False]
    assert two.result() == two.id
    with pytest.raises(Invalid, match="no task runs here"):
        bucketq.current_job()


def test_a_codec_of_your_own_stores_arguments_and_results():
    import pickle

    class Pickle:
        content_type = "application/x-pickle"
        dumps = staticmethod(pickle.dumps)
        loads = staticmethod(pickle.loads)

    with App(memory_url(), codec=Pickle()) as app:

        @app.task
        def union(a, b):
            return a | b

        result = union.enqueue({1}, {2})
        chain = app.chain(union.job({1}, {3}), union.job(PREVIOUS, {4}))
        group = app.group([union.job({n}, {n + 1}) for n in range(3)], then=union.job({9}, b={8}))
        work(app)
        assert result.result() == {1, 2}
        assert chain.result() == {1, 3, 4}
        assert group.result() == [{0, 1}, {1, 2}, {2, 3}]
        assert group.then.result() == {8, 9}
        assert app.file.get(result.id).content_type == "application/x-pickle"
        app.close()


def test_a_chain_hands_on_results_and_ends_where_one_fails(app):
    @app.task(max_attempts=1)
    def add(a, b):
        if b == 0:
            raise ValueError("nothing to add")
        return a + b

    good = app.chain(add.job(1, 2), add.job(PREVIOUS, 3), add.options(priority=5).job(a=PREVIOUS, b=4))
    bad = app.chain(add.job(1, 2), add.job(PREVIOUS, 0), add.job(PREVIOUS, 1))
    assert work(app) == Worked(done=4, failed=1)
    assert good.result(timeout=PATIENCE) == 10
    with pytest.raises(TaskFailed, match="nothing to add"):
        bad.result(timeout=PATIENCE)


def test_a_step_that_is_requeued_does_not_repeat_what_follows(app):
    runs = []

    @app.task
    def step(name):
        runs.append(name)
        return len(runs)

    chain = app.chain(step.job("a"), step.job("b"))
    work(app)
    first = next(job.id for job in app.file.list(["done"]).jobs if job.id != chain.id)
    app.file.queue("default").requeue(first)
    assert work(app) == Worked(done=1)
    assert runs == ["a", "b", "a"]


@pytest.mark.parametrize("concurrency", [1, 8])
@pytest.mark.parametrize("count", [1, 2, 30])
def test_what_follows_a_group_runs_once_after_all_its_calls(app, concurrency, count):
    ran = []

    @app.task
    def double(n):
        ran.append(n)
        return 2 * n

    @app.task(queue="sums")
    def total(values, *, more):
        ran.append("total")
        return sum(values) + more

    group = app.group([double.job(n) for n in range(count)], then=total.job(PREVIOUS, more=1))
    work(app, concurrency=concurrency)
    assert group.result(timeout=PATIENCE) == [2 * n for n in range(count)]
    assert group.then.result(timeout=PATIENCE) == count * (count - 1) + 1
    assert ran[-1] == "total"
    assert len(ran) == count + 1
    assert all(
        one.counts[state] == 0 for one in app.file.queues() for state in ("ready", "scheduled", "leased")
    )


def test_the_results_of_a_group_are_read_side_by_side():
    request_us, count = 20_000, 50
    with bucketq.QueueFile(_native.open_test({}, None, request_us).wait(), "slow") as file:
        app = bucketq.App()
        app.use(file)

        @app.task
        def double(n):
            return 2 * n

        group = app.group([double.job(n) for n in range(count)], then=double.job(PREVIOUS))
        work(app)
        before = file.metrics().requests["get"]
        assert group.result(timeout=PATIENCE) == [2 * n for n in range(count)]
        assert group.then.result(timeout=PATIENCE) == [2 * n for n in range(count)] * 2
        # One after the other, each would be read from the store by itself.
        assert file.metrics().requests["get"] - before < count / 2

        async def inside_a_loop():
            return group.result(timeout=PATIENCE)

        assert len(asyncio.run(inside_a_loop())) == count


def test_a_result_is_waited_for_before_its_job_is_enqueued(app):
    @app.task
    def slow(n):
        time.sleep(0.05)
        return n + 1

    chain = app.chain(slow.job(1), slow.job(PREVIOUS), slow.job(PREVIOUS))
    group = app.group([slow.job(n) for n in range(3)], then=slow.options(max_attempts=1).job(0))
    with app.worker(concurrency=1):
        assert group.then.result(timeout=PATIENCE) == 1
        assert chain.result(timeout=PATIENCE) == 4
    again = app.chain(slow.job(1), slow.job(PREVIOUS))
    with pytest.raises(TimeoutError):
        again.result(timeout=0.2)


def test_a_dead_call_holds_what_follows_until_it_is_requeued(app):
    broken = [True]

    @app.task(max_attempts=1)
    def call(n):
        if n == 1 and broken:
            raise ValueError("not yet")
        return n

    group = app.group([call.job(n) for n in range(3)], then=call.job(PREVIOUS))
    work(app)
    with pytest.raises(TaskFailed, match="not yet"):
        group.then.result(timeout=PATIENCE)
    broken.clear()
    app.file.queue("default").requeue(group.results[1].id)
    work(app)
    assert group.then.result(timeout=PATIENCE) == [0, 1, 2]


def test_chains_and_groups_refuse_what_cannot_work(app):
    @app.task
    def step(n=0):
        return n

    for call, words in [
        (lambda: app.chain(), "at least one"),
        (lambda: app.group([]), "at least one"),
        (lambda: app.chain(step), "task.job"),
        (lambda: app.chain(step.job(PREVIOUS)), "PREVIOUS"),
        (lambda: app.chain(step.options(dedup="x").job(), step.job()), "dedup"),
    ]:
        with pytest.raises(Invalid, match=words):
            call()


def test_two_functions_cannot_have_the_same_name(app):
    app.task(name="same")(lambda: 1)

    def other():
        return 2

    with pytest.raises(Invalid, match="taken by another task"):
        app.task(name="same")(other)


def test_a_worker_can_run_again_and_ends_after_max_jobs(app):
    @app.task
    def one():
        return 1

    worker = app.worker(concurrency=1)
    for _ in range(2):
        one.enqueue()
        assert worker.run(wait=0, signals=False) == Worked(done=1)
    for _ in range(5):
        one.enqueue()
    assert work(app, concurrency=1, max_jobs=3).done == 3
    with app.worker() as background:
        assert one.enqueue().result(timeout=PATIENCE) == 1
    assert background.drained or background.worked.done


def test_periodic_tasks_become_schedules_when_a_worker_starts(app, caplog):
    @app.every("0 2 * * *", timezone="Europe/Oslo")
    def nightly():
        return 1

    @app.every("1min")
    @app.task(queue="minutes")
    def often():
        return 2

    for _ in range(2):
        work(app)
        night, minute = sorted(app.file.schedules(), key=lambda one: one.queue)
        assert (night.cron, night.timezone, night.queue) == ("0 2 * * *", "Europe/Oslo", "default")
        assert (minute.every.total_seconds(), minute.queue) == (60, "minutes")
    assert "not in this app" not in caplog.text
    app.periodic = [one for one in app.periodic if one.task.name == often.name]
    work(app)
    assert f"bucketq unschedule default '{night.name}'" in caplog.text
    with pytest.raises(Invalid, match="periodically"):
        app.every(5)(lambda needed: needed)


def test_the_job_of_a_schedule_runs_the_task():
    clock, app = testing.Clock(), App()

    @app.every("0 * * * *")
    def hourly():
        return "done"

    with testing.use(app, clock=clock) as file:
        app.worker().run(wait=0, signals=False)
        clock.advance(3600)
        assert app.worker().run(wait=0, signals=False) == Worked(done=1)
        testing.assert_enqueued(file, "default", state="done")


def test_eager_tasks_run_where_they_are_enqueued():
    app = App("s3://there/is/none")

    @app.task
    def add(a, b):
        if b < 0:
            raise ValueError("negative")
        return a + b

    @app.task
    async def total(values):
        return sum(values)

    with testing.eager(app):
        assert add.enqueue(1, 2).result() == 3
        assert total.enqueue([1, 2]).result() == 3
        assert app.chain(add.job(1, 2), add.job(PREVIOUS, 3)).result() == 6
        group = app.group([add.job(n, n) for n in range(3)], then=total.job(PREVIOUS))
        assert (group.result(), group.then.result()) == ([0, 2, 4], 6)
        with pytest.raises(TaskFailed, match="negative") as failed:
            add.enqueue(1, -1).result()
        assert isinstance(failed.value.__cause__, ValueError)
        with pytest.raises(Invalid, match="cannot be stored"):
            add.enqueue(object(), 1)
    assert app.eager is None


def test_with_pydantic_arguments_are_checked_by_their_annotations_and_keep_their_types(app):
    class Address(pydantic.BaseModel):
        street: str

    @app.task
    def send(when: datetime, to: Address, *prices: Decimal, **more: set[int]) -> Address:
        assert (type(when), type(to), type(prices[0]), more) == (datetime, Address, Decimal, {"ids": {1, 2}})
        return Address(street=to.street.upper())

    now = datetime.now(UTC)
    call = send.job(now, Address(street="here"), Decimal("1.5"), ids={1, 2})
    result = call.enqueue()
    chain = app.chain(call, send.job(now, PREVIOUS, Decimal(2), ids={1, 2}))
    assert work(app) == Worked(done=3)
    assert result.result() == chain.result() == Address(street="HERE")
    assert app.file.get(result.id).data["args"][1:] == [{"street": "here"}, "1.5"]
    with pytest.raises(ValueError, match="valid datetime"):
        send.enqueue("soon", Address(street="x"))
