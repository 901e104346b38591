"""The commands for queues as a whole: policies, schedules, drain, many dead jobs at once, the archive."""

import json

import pytest

import bucketq
from bucketq import Backoff, Block, Policy, Rate
from bucketq.cli import _words as words
from bucketq.cli.policies import DEFAULTS
from command import EXITS, on_a_terminal


@pytest.fixture
def q(command):
    """The command, with an existing queue file."""
    command("init")
    return command


def policy(q):
    with bucketq.open(q.environ["BUCKETQ_URL"]) as file:
        return file.queue("q").policy()


def test_a_policy_is_set_shown_and_lifted(q):
    q(
        *("configure", "q", "--max-attempts", "3", "--backoff", "5s,1min", "--lease", "1h30min"),
        *("--dead-letter", "failed", "--dedup-content", "yes", "--dedup-window", "unfinished"),
        *("--max-pending", "1,000", "--overflow", "block 30s", "--group-concurrency", "2"),
        *("--concurrency", "9", "--rate", "100/min burst 5", "--keep", "7", "--keep-for", "30d"),
        *("--archive", "yes", "--archive-for", "365d", "--archive-payloads", "no"),
    )
    told = policy(q)
    assert told.backoff == Backoff.list([5.0, 60.0])
    assert told.lease.total_seconds() == 5400
    assert (told.max_pending, told.overflow, told.rate) == (1000, Block(30.0), Rate(100, 60.0, 5))
    shown = q("policy", "q")
    lines = {line.split()[0]: line.split(maxsplit=1)[1].strip() for line in shown.splitlines()}
    assert set(lines) == {name.replace("_", "-") for name in Policy.__slots__}
    assert lines["backoff"] == "5s,1min"
    assert (lines["lease"], lines["dedup-window"], lines["archive"]) == ("90min", "unfinished", "yes")
    assert (lines["overflow"], lines["rate"], lines["keep-for"]) == ("block 30s", "100/min burst 5", "30d")
    limits = ("lease", "dead-letter", "max-pending", "concurrency", "rate", "keep-for", "archive-for")
    lifted = [word for name in limits for word in (f"--{name}", "none")]
    (answer,) = q.json("configure", "q", "--overflow", "raise", *lifted)
    assert {answer[name.replace("-", "_")] for name in limits} == {None}
    assert q.json("policy", "q") == [answer]


def test_the_command_knows_what_the_engine_takes_for_granted(q):
    assert q.json("policy", "q") == [DEFAULTS]


@pytest.mark.parametrize(
    "text",
    ["none", "fixed 30s", "linear 5s 10min", "exponential 1s 1h 50%", "exponential 250ms 2d 0%", "1s,5s,1h"],
)
def test_a_backoff_is_shown_as_it_is_typed(text):
    assert words.backoff_words(words.backoff(text, "--backoff")) == text


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("1.5", 1.5), ("250ms", 0.25), ("5m", 300), ("1h 30min", 5400), ("2d", 172800)],
)
def test_a_duration_is_typed_with_or_without_a_unit(text, seconds):
    assert words.seconds(text, "--lease") == seconds


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--lease", "5x", "1h30min"),
        ("--lease", "", "is empty"),
        ("--lease", "5 6", "1h30min"),
        ("--lease", "-1", "1h30min"),
        ("--backoff", "fixd 3", "'fixed 30s'"),
        ("--backoff", "", "'fixed 30s'"),
        ("--backoff", "fixed", "'fixed 30s'"),
        ("--backoff", "exponential 1s 1h x%", "'fixed 30s'"),
        ("--backoff", "exponential 1s 1h 150%", "between 0 and 1"),
        ("--rate", "fast", "100/min"),
        ("--max-pending", "many", "none for no limit"),
        ("--overflow", "wait", "drop_oldest"),
        ("--overflow", "drop-oldest", "overflow needs max_pending"),
        ("--dead-letter", "q", "in a circle"),
        ("--archive", "maybe", "yes"),
        ("--max-attempt", "3", "--max-attempts"),
    ],
)
def test_what_cannot_be_configured_says_what_would_be_right(q, option, value, says):
    assert says in q.fails("Invalid", "configure", "q", option, value)
    assert policy(q).max_attempts == 10


def test_naming_nothing_to_change_says_how(q):
    said = q.fails("Invalid", "configure", "q")
    assert "bucketq policy q" in said
    assert "--max-attempts 5" in said


def test_what_is_not_there_is_not_made_by_looking_after_it(command):
    for words_ in (
        ["configure", "q", "--keep", "5"],
        ["schedule", "q", "s", "1", "--every", "1h"],
        ["drain", "q"],
    ):
        assert "bucketq init" in command.fails("NotFound", *words_)


def test_a_queue_that_is_not_there_yet_may_be_misspelt(q):
    q("drain", "nightly")
    assert q.err == "", "the first queue of a file has nothing to be mistaken for"
    for words_ in (
        ["pause", "nights"],
        ["drain", "nightli"],
        ["policy", "nightlies"],
        ["configure", "nightl", "--keep", "5"],
        ["requeue", "--queue", "nighty"],
    ):
        q(*words_)
        assert "did you mean night" in q.err
    q("pause", "nightly")
    assert q.err == ""


def fail(q, *errors):
    """Make dead jobs, each with one of these errors."""
    q("configure", "q", "--max-attempts", "1")
    ids = []
    for error in errors:
        ids.append(q("enqueue", "q", "1").strip())
        (job,) = q.json("claim", "q", "--worker", "w")
        q("nack", job["id"], job["token"], "--error", error)
    return ids


def test_dead_jobs_live_again_by_their_error_or_all_together(q):
    first, second, third = fail(q, "no answer", "no address", "no answer")
    assert [job["id"] for job in q.json("ls", "q", "--error", "answer")] == [first, third]
    shown = q("show", first)
    assert "attempt 1   failed after" in shown
    assert "by w, " in shown
    (told,) = q.json("show", first)
    assert [(one["ended"], one["error"], one["worker"]) for one in told["attempts"]] == [
        ("failed", "no answer", "w")
    ]
    assert q("requeue", "--queue", "q", "--error", "answer") == "2 jobs ready again\n"
    assert q.json("requeue", "--all") == [{"requeued": 1}]
    assert q.json("show", second)[0]["run"] == 1
    q("cancel", second)
    assert q.json("requeue", "--queue", "q") == [{"requeued": 0}]
    assert q.json("requeue", "--queue", "q", "--state", "cancelled") == [{"requeued": 1}]
    assert "run 0, failed" in q("show", second)


def test_a_requeue_that_names_nothing_or_too_much_says_so(q):
    assert "--all for every dead job" in q.fails("Invalid", "requeue")
    assert "--all for every dead job" in q.fails("Invalid", "requeue", "--state", "dead")
    assert "give one of them" in q.fails("Invalid", "requeue", "--all", "--queue", "q")
    assert "an id names one job" in q.fails("Invalid", "requeue", "01" * 16, "--error", "x")
    assert "did you mean dead" in q.fails("Invalid", "requeue", "--all", "--state", "deat")
    assert "finished" in q.fails("Invalid", "requeue", "--all", "--state", "ready")


def test_a_drained_queue_says_how_to_go_on(q):
    q("enqueue", "q", "1")
    (job,) = q.json("claim", "q")
    assert q.json("drain", "q", "--timeout", "0", exits=1) == [{"queue": "q", "leased": 1}]
    assert "workers still hold 1 job" in (q("drain", "q", "--timeout", "10ms", exits=1), q.err)[1]
    said = q.fails("Closed", "enqueue", "q", "2")
    assert "bucketq resume" in said
    assert "draining q" in q("stats")
    q("ack", job["id"], job["token"])
    assert q("drain", "q") == "q is drained, until bucketq resume q\n"
    q("resume", "q")
    q("enqueue", "q", "2")


def test_schedules_are_made_listed_and_taken_away(q):
    (made,) = q.json(
        "schedule", "q", "nightly", '{"n": 1}', "--cron", "30 2 * * *", "--timezone", "Europe/Berlin"
    )
    q(
        "schedule",
        "q",
        "hourly",
        "go",
        "--every",
        "1h",
        "--start",
        "2099-01-01T00:00+00:00",
        "--missed",
        "catch_up",
    )
    hourly, nightly = q.json("schedules")
    assert (hourly["every"], hourly["missed"], hourly["payload"]) == (3600, "catch_up", "go")
    assert hourly["next_at"] == "2099-01-01T00:00:00+00:00"
    assert (nightly["cron"], nightly["timezone"], nightly["payload"]) == (
        "30 2 * * *",
        "Europe/Berlin",
        {"n": 1},
    )
    assert nightly["next_at"] == made["next_at"]
    table = q("schedules", "q")
    assert "every 1h" in table
    assert "30 2 * * * Europe/Berlin" in table
    assert q("unschedule", "q", "nightly") == "nightly is deleted\n"
    q("unschedule", "q", "nightly", exits=EXITS["NotFound"])
    assert "bucketq schedules q" in q.err
    assert len(q.json("schedules")) == 1


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([], "--cron '30 2 * * *', or --every 1h"),
        (["--cron", "@daily", "--every", "1h"], "one of them"),
        (["--cron", "61 * * * *"], "between 0 and 59"),
        (["--cron", "@daily", "--timezone", "Mars"], "IANA"),
        (["--every", "1h", "--timezone", "UTC"], "--timezone goes with --cron"),
        (["--every", "1h", "--start", "tomorrow"], "2026-12-31T18:00"),
        (["--every", "often"], "90s"),
        (["--every", "1h", "--missed", "all"], "catch_up"),
    ],
)
def test_a_schedule_that_cannot_be_says_what_would_be_right(q, given, says):
    assert says in q.fails("Invalid", "schedule", "q", "s", "1", *given)
    assert q.json("schedules") == []


def test_finished_jobs_are_listed_and_leave_for_the_archive(q):
    q("configure", "q", "--keep", "1", "--archive", "yes")
    for n in range(2):
        id = q("enqueue", "q", json.dumps({"n": n})).strip()
        (job,) = q.json("claim", "q")
        q("ack", job["id"], job["token"], "--result", "[1]")
    assert q.json("archive") == [{"archived": 1}]
    (kept,) = q.json("lives", "q")
    assert (kept["id"], kept["payload"], kept["result"], kept["state"]) == (id, {"n": 1}, [1], "done")
    (there,) = q.json("archives")
    assert (there["jobs"], there["queue"]) == (1, "q")
    assert (q.directory / there["key"]).stat().st_size == there["bytes"]
    assert id in q("lives")
    assert "jobs.arch-" in q("archives")
    assert q.json("archives", "--after", str(there["last_seq"])) == []


def test_an_enqueue_says_what_it_made_room_for(q):
    q("configure", "q", "--max-pending", "1", "--overflow", "drop_oldest")
    first = q("enqueue", "q", "1", "--at", "2099-01-01", "--header", "a=b=c", "--backoff", "fixed 5s").strip()
    (told,) = q.json("show", first)
    assert (told["headers"], told["backoff"]["kind"], told["state"]) == ({"a": "b=c"}, "fixed", "scheduled")
    assert "dropped" not in q("stats")
    assert q.json("enqueue", "q", "2")[0]["dropped"] == [first]
    assert "dropped" in q("stats"), "a column of its own, once there is something to tell"
    own = "0192f0c1-0000-7000-8000-000000000000"
    assert q("enqueue", "q", "3", "--id", own).strip() == own
    assert "dropped" in q.err
    assert "name=text" in q.fails("Invalid", "enqueue", "q", "4", "--header", "a")


def test_a_claim_holds_as_long_as_the_policy_says_or_without_end(q):
    q("configure", "q", "--lease", "10min")
    for lease, expected in (([], 600), (["--lease", "30"], 30), (["--lease", "none"], None)):
        q("enqueue", "q", "1")
        (job,) = q.json("claim", "q", *lease)
        with bucketq.open(q.environ["BUCKETQ_URL"]) as file:
            told = file.get(job["id"])
        lasts = told.expires_at and (told.expires_at - told.claimed_at).total_seconds()
        assert lasts == expected


def test_a_restore_without_an_image_says_so_before_it_asks(q):
    assert "there is no file nowhere.sqlite" in q.fails("Unavailable", "restore", "nowhere.sqlite")
    q.run = on_a_terminal
    assert "[y/N]" not in q("restore", "nowhere.sqlite", given="n\n", exits=EXITS["Unavailable"])


def test_missing_credentials_are_not_to_be_tried_again(q, tmp_path):
    for name in [name for name in q.environ if name.startswith("AWS_")]:
        del q.environ[name]
    q.environ |= {"HOME": str(tmp_path), "AWS_EC2_METADATA_DISABLED": "true"}
    said = q.fails("Unavailable", "stats", "--url", "s3://nobody/x/jobs")
    assert "Set AWS_ACCESS_KEY_ID" in said
    assert "get, put, delete" not in said
    assert "retry" not in said
