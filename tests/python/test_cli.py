"""The command, driven as a process: its output, its JSON, and its exit codes."""

import json
import signal
import subprocess
import sys

import pytest

import bucketq
from command import EXITS, TIMEOUT
from servers import BUCKET

LONG = "a-queue-with-quite-a-name-that-hardly-fits"
COMMANDS = [
    *(
        "init",
        "stats",
        "metrics",
        "pause",
        "resume",
        "completion",
        "enqueue",
        "ls",
        "show",
        "requeue",
        "cancel",
        "purge",
        "redrive",
        "move",
        "delete",
        "create-queue",
        "delete-queue",
        "strict-queues",
    ),
    *("claim", "ack", "nack", "extend", "worker", "doctor", "probe", "fit"),
    *("sync", "snapshot", "export", "check", "restore", "fix-time", "set-max-skew", "collect", "history"),
    *("policy", "configure", "drain", "schedule", "unschedule", "schedules", "lives", "archive", "archives"),
]


def test_every_command_has_a_help_with_an_example(command):
    every = command("--help")
    assert all(f" {name} " in every for name in COMMANDS)
    for name in COMMANDS:
        text = command(name, "--help")
        assert "Example:" in text, name
        assert "--json" in text, name
        assert max(map(len, text.splitlines())) <= 80


def test_it_says_its_version(command):
    assert command("--version") == f"bucketq {bucketq.__version__}\n"


def test_the_queue_file_may_be_named_before_the_command(command):
    url = command.environ.pop("BUCKETQ_URL")
    command("--url", url, "enqueue", "q", "1")
    for words in (["--url", url, "stats"], ["stats", "--url", url], ["stats", url]):
        (stats,) = command.json(*words)
        assert [queue["name"] for queue in stats["queues"]] == ["q"]
    assert command.json("--url", url, "stats", url)[0]["queues"] == []  # A queue may have such a name.
    assert "no_such_file" in command.fails("NotFound", "-u", url, "stats", "--url", f"{url}-other")
    assert "BUCKETQ_URL" in command.fails("Invalid", "stats")
    # Each command takes it: none acts on the queue file of the environment instead.
    command.environ["BUCKETQ_URL"] = f"{url}-other"
    command("init")
    assert command.json("--url", url, "check")[0]["commits"] != command.json("check")[0]["commits"]
    assert "1 queue, 1 job" in command("--url", url, "doctor", "--read-only")
    command("--url", url, "export", "jobs.sqlite")
    command("--url", f"{url}-third", "restore", "jobs.sqlite", "--yes")
    assert command.json("ls", "q", "--url", f"{url}-third") == command.json("ls", "q", "--url", url)
    assert command.json("ls") == []
    command("--mode", "local", "--cache", "state", "enqueue", "q", "2")
    assert command.json("ls") == []
    command("--cache", "state", "sync")
    assert len(command.json("ls")) == 1
    assert "completion takes no --url" in command.fails("Invalid", "--url", url, "completion", "bash")
    assert "doctor takes no --mode" in command.fails("Invalid", "--mode", "local", "doctor")


def test_a_job_from_enqueue_to_its_result(process):
    process("init")
    id = process("enqueue", "emails", '{"to": "ada"}').strip()
    (listed,) = process.json("ls", "emails")
    assert (listed["id"], listed["state"]) == (id, "ready")
    (claimed,) = process.json("claim", "emails", "--lease", "60", "--worker", "me")
    assert (claimed["id"], claimed["payload"], claimed["attempt"]) == (id, {"to": "ada"}, 1)
    process("extend", id, claimed["token"], "120")
    assert process("ack", id, claimed["token"], "--result", '{"sent": true}') == f"{id} is done\n"
    (shown,) = process.json("show", id)
    assert (shown["state"], shown["result"], shown["worker"]) == ("done", {"sent": True}, "me")
    assert process("show", id, "--payload") == '{"to":"ada"}'
    assert "ada" in process("show", id)


def test_ending_a_claimed_job_in_every_other_way(command):
    ids = [command("enqueue", "q", str(n), "--attempts", "2").strip() for n in range(3)]
    endings = [
        (["--error", "no answer", "--delay", "60"], "scheduled"),
        (["--reject"], "dead"),
        (["--release"], "ready"),
    ]
    for id, (options, state) in zip(ids, endings, strict=True):
        (claimed,) = command.json("claim", "q")
        assert claimed["id"] == id
        assert command.json("nack", id, claimed["token"], *options) == [{"id": id, "state": state}]
    assert "no answer" in command("show", ids[0])


def test_an_ack_may_claim_the_next_job(command):
    command("enqueue", "q", "--lines", "-", given="1\n2\n3\n")
    (job,) = command.json("claim", "q")
    (second,) = command.json("ack", job["id"], job["token"], "--next")
    assert (second["payload"], second["attempt"]) == (2, 1)
    third = command("ack", second["id"], second["token"], "--next")
    assert "attempt" in third
    assert [job["state"] for job in command.json("ls", "q")] == ["done", "done", "leased"]
    id, token = (line.split()[1] for line in third.splitlines()[:2])
    assert command("ack", id, token, "--next", exits=EXITS["NotFound"]) == ""
    assert "no other job" in command.err
    assert [job["state"] for job in command.json("ls", "q")] == ["done"] * 3


def test_a_wrong_token_is_a_lost_lease(command):
    id = command("enqueue", "q", "1").strip()
    command("claim", "q")
    error = json.loads(command.fails("LeaseLost", "ack", id, "1" * 32, "--json"))
    assert error["error"] == "LeaseLost"
    assert "32 hexadecimal" in command.fails("Invalid", "ack", id, "xyz")


def test_exit_codes_are_those_of_the_error_table(command):
    assert "no_such_file" in command.fails("NotFound", "ls")
    command("init")
    assert "there is no job" in command.fails("NotFound", "show", "01" * 16)
    assert command("claim", "q", exits=EXITS["NotFound"]) == ""
    assert "give the data" in command.fails("Invalid", "enqueue", "q")
    assert "Missing argument" in command.fails("Invalid", "show")
    assert "No such command" in command.fails("Invalid", "shows")
    assert "did you mean done" in command.fails("Invalid", "purge", "q", "-s", "dones")
    assert "bucket" in command.fails("Invalid", "ls", "--url", "s3:nothing")
    command.environ["BUCKETQ_URL"] = ""
    assert "BUCKETQ_URL" in command.fails("Invalid", "ls")


def test_many_jobs_from_lines(command):
    lines = "".join(f'{{"n": {n}}}\n' for n in range(2500)) + "\n"
    (command.directory / "jobs.jsonl").write_text(lines)
    assert command("enqueue", "q", "--lines", "jobs.jsonl") == "2,500 jobs in q\n"
    assert command.json("enqueue", "q", "--lines", "-", given="1\n2\n") == [{"enqueued": 2}]
    assert len(command.json("ls", "q", "-n", "2000")) == 2000
    secret = '{"password": "hunter2"\n'
    assert "hunter2" not in command.fails("Invalid", "enqueue", "q", "--lines", "-", given=secret)
    assert "line 1 of -" in command.err


def test_data_are_json_or_text_or_bytes(command):
    for words, given, expected in [
        (["plain words"], "", {"payload": "plain words", "payload_type": "text/plain"}),
        (["[1, 2]"], "", {"payload": [1, 2], "payload_type": "application/json"}),
        (["-"], "from a pipe", {"payload": "from a pipe", "payload_type": "text/plain"}),
        (["<x/>", "--content-type", "text/xml"], "", {"payload": "<x/>", "payload_type": "text/xml"}),
    ]:
        command("enqueue", "q", *words, given=given)
        (claimed,) = command.json("claim", "q")
        assert claimed | expected == claimed


@pytest.mark.parametrize("text", ["[1, 2", '{"to": "ada",}', '"half', '{"a": 1} {"b": 2}'])
def test_data_that_resemble_json_and_are_not_get_a_warning(command, text):
    command("enqueue", "q", text)
    assert "not JSON" in command.err
    (claimed,) = command.json("claim", "q")
    assert (claimed["payload"], claimed["payload_type"]) == (text, "text/plain")
    command("enqueue", "q", text, "--content-type", "text/plain")
    assert command.err == ""
    command("enqueue", "q", "plain words")
    assert command.err == ""


@pytest.mark.parametrize("text", ["NaN", '{"a": [1, -Infinity]}', "1e999"])
def test_a_number_that_json_cannot_hold_is_refused(command, text):
    assert "JSON" in command.fails("Invalid", "enqueue", "q", text)
    assert "JSON" in command.fails("Invalid", "enqueue", "q", "--lines", "-", given=f"1\n{text}\n")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["shows"], "No such command 'shows'"),
        (["show"], "Missing argument"),
        (["stats", "--wach"], "--watch"),
        (["ls", "-n", "many"], "many"),
        (["--mode", "nowhere", "ls"], "nowhere"),
        (["show", "xyz"], "UUID"),
        (["claim", "q", "--wait", "soon"], "5min"),
    ],
)
def test_a_usage_error_has_the_exit_code_of_a_wrong_call_and_is_json_if_wanted(command, words, says):
    command("init")
    assert says in command.fails("Invalid", *words)
    error = json.loads(command.fails("Invalid", *words, "--json"))
    assert (error["error"], error["code"]) == ("Invalid", "argument")
    assert says in error["message"]


def test_looking_after_jobs(command):
    first, second = (command("enqueue", "q", "1").strip() for _ in range(2))
    assert command.json("cancel", first) == [{"id": first, "was": "ready"}]
    assert command.json("requeue", first) == [{"id": first, "run": 1}]
    command("cancel", second)
    assert "confirm with --yes" in command.fails("Invalid", "purge", "q", "-s", "cancelled")
    assert command("purge", "q", "-s", "cancelled", "--yes") == "1 job deleted\n"
    command("pause", "q")
    assert "paused" in command("stats")
    command("claim", "q", exits=EXITS["NotFound"])
    command("resume", "q")
    (stats,) = command.json("stats")
    assert stats["queues"][0]["counts"]["ready"] == 1
    assert not stats["queues"][0]["paused"]


def test_dead_letters_say_where_they_died_and_go_back(command):
    command("init")
    command("configure", "q", "--dead-letter", "dead")
    id = command("enqueue", "q", "1").strip()
    (claimed,) = command.json("claim", "q")
    command("nack", id, claimed["token"], "--reject", "--error", "no route")
    (letter,) = command.json("ls", "dead")
    assert letter["died"]["queue"] == "q"
    assert (letter["died"]["reason"], letter["died"]["error"]) == ("rejected", "no route")
    assert "died in q: no route" in command("ls", "dead")
    assert "in q, rejected after 1 attempt" in command("show", id)
    assert command("requeue", "--queue", "dead") == "0 jobs ready again\n"
    assert "bucketq redrive dead sends them back" in command.err
    assert command("redrive", "dead", "--rate", "10/s") == "1 dead letter sent back\n"
    assert command.json("redrive", "dead") == [{"queue": "dead", "redriven": 0}]
    assert command.json("show", id)[0]["queue"] == "q"


def test_jobs_move_and_go_one_by_one_or_together(command):
    ids = [command("enqueue", "q", str(n)).strip() for n in range(3)]
    assert command("move", ids[0], "--to", "p") == f"{ids[0]} is in p, run 1\n"
    assert command("move", "--from", "q", "--to", "p") == "2 jobs moved to p\n"
    assert "--to" in command.fails("Invalid", "move", ids[0])
    assert "leave the other" in command.fails("Invalid", "move", ids[0], "--to", "p", "--from", "q")
    assert "--from" in command.fails("Invalid", "move", "--to", "p")
    assert command("delete", ids[0]) == f"{ids[0]} is deleted, it was ready\n"
    assert command.json("delete", ids[0]) == [{"id": ids[0], "was": None}]


def test_queues_are_created_and_deleted_by_name(command):
    command("init")
    assert command("create-queue", "q") == "q is created\n"
    assert command("create-queue", "q") == "q exists already\n"
    command("strict-queues", "on")
    assert "there is no queue" in command.fails("NotFound", "enqueue", "other", "1")
    command("enqueue", "q", "1")
    assert "confirm with --yes" in command.fails("Invalid", "delete-queue", "q")
    assert command("delete-queue", "q", "--yes") == "q is deleted with 1 job\n"
    assert command.json("delete-queue", "q", "--yes") == [{"queue": "q", "deleted": None}]
    command("strict-queues", "off")
    command("enqueue", "other", "1")


def test_nothing_wraps_at_80_columns(command):
    ids = [command("enqueue", LONG, json.dumps("x" * 300)).strip() for _ in range(2)]
    for words in (["ls"], ["stats"], ["ls", LONG]):
        lines = command(*words).splitlines()
        assert max(map(len, lines)) <= 80, words
    assert all(any(line.startswith(id) for line in command("ls").splitlines()) for id in ids)


def test_stats_are_watched_until_ctrl_c(process):
    process("enqueue", "q", "1")
    watching = process.start("stats", "--watch", "--every", "0.1", "--json")
    try:
        first, second = (json.loads(watching.stdout.readline()) for _ in range(2))
        assert first["commit_seq"] == second["commit_seq"]
        watching.send_signal(signal.SIGINT)
        watching.communicate(timeout=TIMEOUT)
        assert watching.returncode == 130
    finally:
        watching.kill()
        watching.communicate()


WORKER = """
import bucketq
file = bucketq.open()
worker = bucketq.Worker(file)

@worker.handles("q")
def work(job):
    if job.data == "bad":
        raise RuntimeError("it is bad")
    return job.data

nothing = 1
"""


def test_a_worker_of_a_module_is_run(process):
    (process.directory / "myjobs.py").write_text(WORKER)
    good = process("enqueue", "q", "good").strip()
    process("enqueue", "q", "bad", "--attempts", "1")
    assert process.json("worker", "myjobs:worker", "--wait", "0") == [
        {"done": 1, "failed": 1, "rejected": 0, "released": 0, "lost": 0}
    ]
    assert "RuntimeError: it is bad" in process.err
    assert "Traceback" in process.err
    assert process("show", good, "--result") == "good"
    for name, words in [
        ("myjobs", "module:worker"),
        ("mine:w", "no module mine"),
        ("myjobs:nothing", "not a worker"),
    ]:
        assert words in process.fails("Invalid", "worker", name)


def test_a_worker_is_drained_by_sigterm(process):
    (process.directory / "myjobs.py").write_text(WORKER)
    process("init")
    worker = process.start("worker", "myjobs:worker")
    try:
        assert any("working on q" in line for line in worker.stderr)
        worker.terminate()
        worker.communicate(timeout=TIMEOUT)
        assert worker.returncode == 0
    finally:
        worker.kill()
        worker.communicate()


def test_the_doctor_finds_a_sound_file(command):
    command("init")
    found = command.json("doctor")
    opened = ["queue file", "host", "host_dir", "state"]
    assert [one["check"] for one in found] == ["version", "settings", "store", *opened, "commits", "clock"]
    assert all(one["good"] for one in found)
    assert [one["check"] for one in command.json("doctor", "--read-only")] == [
        "version",
        "settings",
        "queue file",
        "host",
        "state",
    ]
    assert command.json("stats")[0]["queues"] == [], "it leaves no queue behind"
    command("strict-queues", "on")
    assert command("doctor").splitlines()[-1] == "Everything works."
    assert command("doctor", "--read-only").splitlines()[-1] == "It can be read."


def test_the_command_alone_shows_where_to_begin(command):
    lines = command().splitlines()
    shown = [line.split()[1] for line in lines if line.startswith("  bucketq ")]
    assert shown == ["doctor", "init", "enqueue", "worker", "stats"]
    assert "bucketq --help" in lines[-1]


def test_the_doctor_says_what_to_do(command):
    found = command.json("doctor", exits=EXITS["NotFound"])
    assert (found[-1]["check"], found[-1]["good"], found[-1]["advice"]) == (
        "queue file",
        False,
        "Check the URL or path; `bucketq init` or `create=True` makes a new one.",
    )


def test_the_doctor_on_s3_and_with_wrong_credentials(command, server):
    settings = {f"BUCKETQ_{name.upper()}": value for name, value in server.settings.items()}
    command.environ |= settings | {"BUCKETQ_URL": f"s3://{BUCKET}/doctor/jobs"}
    command("init")
    assert "compare-and-swap holds" in command("doctor")
    secret = server.settings["secret_key"]
    assert secret not in command("doctor", "--read-only") + command.err
    command.environ["BUCKETQ_ENDPOINT"] = "http://127.0.0.1:9"
    command.environ["BUCKETQ_DEADLINE"] = "2"
    command("doctor", exits=EXITS["Unavailable"])


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script_for_the_shell(command, shell):
    assert "_BUCKETQ_COMPLETE" in command("completion", shell)


def test_completion_completes(process):
    process.environ |= {"_BUCKETQ_COMPLETE": "complete_bash", "COMP_WORDS": "bucketq pau", "COMP_CWORD": "1"}
    assert process().split() == ["pause"]


def test_a_command_starts_without_pydantic(process):
    program = "import sys; from bucketq.cli import main; main(['init']); print('pydantic' in sys.modules)"
    found = subprocess.check_output([sys.executable, "-c", program], text=True, env=process.environ)
    assert found.splitlines()[-1] == "False"


def test_importing_the_package_loads_nothing_heavy():
    heavy = {"typer", "rich", "asyncio", "yaml", "tomllib", "pydantic"}
    program = f"import sys, bucketq; print(sorted({heavy!r} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "[]"


def test_the_api_sees_what_the_command_did(command):
    id = command("enqueue", "q", '{"n": 1}', "--priority", "-5", "--group", "g", "--dedup", "d").strip()
    assert command("enqueue", "q", '{"n": 2}', "--dedup", "d").strip() == f"{id}  already enqueued"
    with bucketq.open(command.environ["BUCKETQ_URL"]) as file:
        job = file.get(id)
        assert (job.data, job.priority, job.group, job.dedup) == ({"n": 1}, -5, "g", "d")


def test_every_duration_may_have_a_unit(command):
    id = command("enqueue", "q", "1", "--delay", "2h").strip()
    assert command.json("ls", "q")[0]["state"] == "scheduled"
    command("cancel", id)
    command("enqueue", "q", "2")
    (job,) = command.json("claim", "q", "--wait", "20s", "--lease", "5min")
    assert command.json("extend", job["id"], job["token"], "1h30min")[0]["lease"] == 5400
    assert command.json("nack", job["id"], job["token"], "--delay", "5min")[0]["state"] == "scheduled"
    command("collect", "--grace", "36h")
    assert "5min" in command.fails("Invalid", "enqueue", "q", "1", "--delay", "soon")
    assert "--every" in command.fails("Invalid", "stats", "--watch", "--every", "often")
    assert "1h30min" in command.fails("Invalid", "worker", "some.module", "--wait", "often")


def test_a_job_expires_when_nobody_claims_it(command):
    id = command("enqueue", "q", "1", "--expires", "1ms").strip()
    command("enqueue", "q", "2")
    assert command("claim", "q", "--json")
    (shown,) = command.json("show", id)
    assert (shown["state"], shown["died"]["reason"]) == ("dead", "expired")
    assert "5min" in command.fails("Invalid", "enqueue", "q", "1", "--expires", "soon")
