"""Wrong arguments are rejected, each with its own error, before any request is sent."""

import pickle
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from datetime import datetime, timedelta

import pytest

import bucketq
from boxes import memory_url
from bucketq import Backoff, Block, New, Rate, settings
from patience import PATIENCE

MINUTE_AND_A_HALF = timedelta(seconds=90)


@pytest.fixture(scope="module")
def file():
    with bucketq.open("memory://arguments") as file:
        yield file


@pytest.mark.parametrize(
    ("extras", "says"),
    [
        ({"delay": -1}, "negative"),
        ({"delay": float("nan")}, "finite"),
        ({"delay": "soon"}, "5min"),
        ({"delay": [5]}, "timedelta"),
        ({"delay": True}, "timedelta"),
        ({"delay": timedelta.max}, "too long|hundred years|outside"),
        ({"delay": 1e300}, "too long"),
        ({"at": datetime(2030, 1, 1)}, "time zone"),
        ({"at": "2030-01-01"}, "aware datetime"),
        ({"at": datetime.now().astimezone(), "delay": 5}, "exclude"),
        ({"priority": 2**31}, "between"),
        ({"priority": 1.5}, "whole"),
        ({"max_attempts": 0}, "between"),
        ({"backoff": Backoff(jitter=2)}, "jitter"),
        ({"backoff": Backoff(base=-1)}, "negative"),
        ({"dedup": "x" * 201}, "200"),
        ({"dedup": 5}, "text"),
        ({"dedup_window": 5}, "key"),
        ({"dedup": "x", "dedup_window": "a while"}, "5min"),
        ({"expires": "10 parsecs"}, "5min"),
        ({"group": 5}, "text"),
        ({"headers": {"a": 1}}, "text to text"),
        ({"headers": 5}, "text to text"),
        ({"headers": {"a": "x" * 300_000}}, "header"),
        ({"id": "12"}, "UUID"),
        ({"content_type": "x" * 101}, "100"),
    ],
)
def test_what_a_job_cannot_have_is_refused(file, extras, says):
    with pytest.raises(bucketq.Invalid, match=says) as caught:
        file.queue("q").enqueue("text", **extras)
    assert caught.value.code == "argument"
    assert file.queue("q").counts().counts["ready"] == 0


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (object(), "JSON"),
        ({1, 2}, "JSON"),
        (float("inf"), "JSON"),
        ("\ud800", "UTF-8"),
        (b"x" * (1024 * 1024 + 1), "payload"),
    ],
)
def test_data_that_cannot_be_kept_are_refused(file, data, says):
    with pytest.raises(bucketq.Invalid, match=says):
        file.queue("q").enqueue(data)


def test_data_of_another_kind_than_their_content_type_are_refused(file):
    with pytest.raises(bucketq.Invalid, match="application/pdf"):
        file.queue("q").enqueue({"a": 1}, content_type="application/pdf")


@pytest.mark.parametrize("given", [90, 90.0, "90", "90s", "1.5min", "1min 30s", timedelta(seconds=90)])
def test_a_duration_is_seconds_a_timedelta_or_text_everywhere(given):
    with bucketq.open(memory_url(), deadline=given, poll_max=given) as file:
        q = file.queue("q")
        policy = q.configure(lease=given, keep_for=given, backoff=Backoff.fixed(given))
        assert (policy.lease, policy.keep_for) == (MINUTE_AND_A_HALF, MINUTE_AND_A_HALF)
        assert policy.backoff == Backoff.fixed(90.0)
        assert q.configure(max_pending=100, overflow=Block(given)).overflow == Block(90.0)
        assert q.configure(rate=Rate(5, per=given)).rate.per == 90
        q.configure(rate=None)
        id = q.enqueue("x", delay=given, expires=given, backoff=Backoff.list([given]), dedup="d").id
        waits = file.get(id)
        assert waits.run_at - waits.enqueued_at == MINUTE_AND_A_HALF
        assert q.enqueue("x", dedup="d", dedup_window=given).id == id
        q.enqueue("now")
        job = q.claim_one(lease=given, wait=given)
        job.extend(given)
        assert job.nack(delay=given) == "scheduled"
        q.schedule("often", 1, every=given)
        assert q.schedules()[0].every == MINUTE_AND_A_HALF
        assert q.counts(max_age=given).counts["scheduled"] == 2


@pytest.mark.parametrize("text", ["90", "90s", "1.5min"])
def test_a_duration_in_the_environment_and_in_a_file_may_have_a_unit(text, tmp_path):
    assert settings.load(environ={"BUCKETQ_DEADLINE": text}) == {"deadline": 90.0}
    (tmp_path / "bucketq.toml").write_text(f'deadline = "{text}"\nfsync = "each_commit"')
    url, says = memory_url(), "`deadline` is 90s there and 5s here"
    with bucketq.open(url, settings=tmp_path / "bucketq.toml"), pytest.raises(bucketq.Invalid, match=says):
        bucketq.open(url, deadline="5s", fsync="each_commit")


def test_misspelt_names_are_told_the_nearest_one(file):
    with pytest.raises(TypeError, match="did you mean delay"):
        file.queue("q").enqueue(1, dely=5)
    with pytest.raises(TypeError, match="did you mean priority"):
        New(1, priority_=5)
    with pytest.raises(bucketq.Invalid, match="did you mean deadline") as caught:
        bucketq.open("memory://x", deadlin=5)
    assert caught.value.code == "option"
    with pytest.raises(TypeError):
        New()
    with pytest.raises(TypeError):
        New(1, 2)


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"deadline": 0}, "option"),
        ({"mailbox": 0}, "option"),
        ({"mailbox_bytes": 0}, "option"),
        ({"access_key": "a"}, "option"),
        ({"checksum": "md5"}, "option"),
        ({"poll_min": 10, "poll_max": 1}, "option"),
        ({"deadline": "soon"}, "argument"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, code):
    with pytest.raises(bucketq.Invalid) as caught:
        bucketq.open("memory://settings", **settings)
    assert caught.value.code == code


def test_settings_of_another_type_are_refused():
    with pytest.raises(bucketq.Invalid, match="max_payload takes a whole number"):
        bucketq.open("memory://settings", max_payload="big")


def test_a_url_that_makes_no_sense_is_refused():
    with pytest.raises(bucketq.Invalid) as caught:
        bucketq.open("http://example.org/x")
    assert caught.value.code == "url"


def test_one_process_opens_a_queue_file_with_one_set_of_options(file):
    with pytest.raises(bucketq.Invalid) as caught:
        bucketq.open("memory://arguments", deadline=5)
    assert caught.value.code == "options_differ"
    assert "`deadline` is 30s there and 5s here" in caught.value.message
    assert caught.value.__notes__[-1] == f"advice: {caught.value.advice}"


def test_secrets_that_differ_are_named_and_not_shown():
    keys = {"access_key": "one", "secret_key": "hidden"}
    with bucketq.open("memory://secrets", **keys), pytest.raises(bucketq.Invalid) as caught:
        bucketq.open("memory://secrets", **keys | {"secret_key": "other"})
    assert "`secret_key` differs" in caught.value.message
    assert not {"hidden", "other "} & set(caught.value.message.split())


def test_errors_of_size_name_what_to_change():
    with bucketq.open("memory://sizes", max_file=256 * 1024, max_payload=100_000) as file:
        with pytest.raises(bucketq.Invalid, match="max_payload allows 100000") as caught:
            file.queue("q").enqueue(b"x" * 100_001)
        assert caught.value.code == "payload_too_large"
        with pytest.raises(bucketq.QueueFull, match=r"purge.*keep.*max_file") as full:
            for _ in range(4):
                file.queue("q").enqueue(b"x" * 99_000)
        assert full.value.code == "file_full"


def test_a_queue_file_that_is_not_there_is_not_made_when_told_so(tmp_path):
    with pytest.raises(bucketq.NotFound) as caught:
        bucketq.open(tmp_path / "none", create=False)
    assert caught.value.code == "no_such_file"


@pytest.mark.parametrize(
    "call",
    [
        lambda q: q.claim(0),
        lambda q: q.claim(10_001),
        lambda q: q.claim(lease=0),
        lambda q: q.claim(wait=-1),
        lambda q: q.claim(worker=5),
        lambda q: q.list(limit=0),
        lambda q: q.list(after=-1),
        lambda q: q.list(["nonsense"]),
        lambda q: q.get("x"),
        lambda q: q.cancel("x"),
        lambda q: q.requeue("x"),
        lambda q: q.wait("x"),
        lambda q: q.enqueue_many([1], chunk=0),
    ],
)
def test_calls_that_make_no_sense_are_refused(file, call):
    with pytest.raises(bucketq.Invalid):
        call(file.queue("q"))


def test_an_error_survives_pickling():

    error = pickle.loads(pickle.dumps(bucketq.LeaseLost("gone", "lease_lost")))
    assert (type(error), str(error), error.code) == (bucketq.LeaseLost, "gone [lease_lost]", "lease_lost")


def test_a_full_mailbox_says_so():
    with bucketq.open("memory://full", mailbox=1) as file, ThreadPoolExecutor() as pool:
        claims = [pool.submit(file.queue("q").claim, wait=None) for _ in range(2)]
        refused, waiting = wait(claims, timeout=PATIENCE, return_when=FIRST_COMPLETED)
        (error,) = [claim.exception() for claim in refused]
        assert isinstance(error, bucketq.QueueFull)
        assert (error.code, error.limit) == ("mailbox_full", 1)
        file.close()
        assert isinstance(waiting.pop().exception(60), bucketq.Closed)


def failed(call):
    with pytest.raises(bucketq.Error) as caught:
        call()
    return caught.value


def test_an_error_has_the_queue_the_job_and_the_limit_that_its_message_names():
    name = 'mail "to" \\ Zoë\n'
    with bucketq.open(memory_url(), max_file=256 * 1024, max_payload=100_000, mailbox_bytes=150_000) as file:
        q = file.queue(name)
        id = q.enqueue("x").id
        for call in (lambda: q.requeue(id), lambda: file.ack(id, "1" * 32)):
            error = failed(call)
            assert (error.id, error.queue, error.limit) == (id, None, None)
        error = failed(lambda: q.enqueue("y", id=id))
        assert (error.code, error.id, error.queue) == ("id_taken", id, name)
        error = failed(lambda: q.enqueue(b"x" * 100_001))
        assert (error.code, error.limit, error.queue) == ("payload_too_large", 100_000, None)
        q.configure(max_pending=1)
        error = failed(lambda: q.enqueue("x"))
        assert (error.code, error.queue, error.limit) == ("queue_full", name, 1)
        error = failed(lambda: q.enqueue_many(["x", "y"]))
        assert (error.code, error.queue, error.limit) == ("queue_full", name, 1)
        q.configure(overflow=Block(0))
        error = failed(lambda: q.enqueue("x"))
        assert (error.code, error.queue, error.limit) == ("blocked", name, 1)
        q.drain(timeout=0)
        error = failed(lambda: q.enqueue("x"))
        assert (error.code, error.queue) == ("draining", name)
        error = failed(lambda: [file.queue("large").enqueue(b"x" * 99_000) for _ in range(4)])
        assert (error.code, error.limit) == ("file_full", 256 * 1024)
        error = pickle.loads(pickle.dumps(error))
        assert (error.limit, error.queue, error.id) == (256 * 1024, None, None)
