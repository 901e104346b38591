"""The commands for this machine and for the queue file as a whole."""

import json
import re
import sqlite3

import pytest

import bucketq
from command import EXITS, INTERRUPTING_NOTHING, Command, on_a_terminal


@pytest.fixture
def terminal(process):
    return Command(process.environ["BUCKETQ_URL"], process.directory, on_a_terminal)


def jobs_in(path):
    with sqlite3.connect(path) as database:
        return database.execute("select count(*) from jobs").fetchone()[0]


def test_changes_in_local_mode_are_published_by_sync(command, caplog):
    local = ["--mode", "local", "--cache", "state"]
    command("init")
    before = command.json("stats")[0]["commit_seq"]
    id = command("enqueue", "q", "1", *local).strip()
    assert "1 local commit is not published" in caplog.text
    assert "there is no job" in command.fails("NotFound", "show", id)
    assert command.json("show", id, *local)[0]["payload"] == 1
    refused = json.loads(command.fails("Invalid", "snapshot", "--cache", "state", "--json").splitlines()[-1])
    assert refused["code"] == "unsynced"
    said = command("sync", "--cache", "state")
    assert said == f"1 change of 1 local commit published in commit {before + 1}\n"
    assert command.json("show", id)[0]["payload"] == 1
    assert command.json("sync", "--cache", "state") == [{"commits": 0, "ops": 0, "commit_seq": before + 1}]
    command("enqueue", "q", "2")
    assert command("snapshot", "--cache", "state") == f"at commit {before + 2}\n"


def test_a_sync_that_lost_the_race_says_what_to_do(command):
    command.environ |= {"BUCKETQ_CACHE": "state"}
    command("init")
    command("enqueue", "q", "mine", "--mode", "local")
    command("enqueue", "q", "theirs", "--mode", "durable")
    assert "snapshot" in command.fails("Diverged", "sync")
    command("export", "mine.sqlite", "--pending", "--mode", "local")
    assert jobs_in(command.directory / "mine.sqlite") == 1
    (line,) = (command.directory / "mine.sqlite.jsonl").read_text().splitlines()
    assert json.loads(line)["payload"] == "mine"
    assert "1 local commit dropped" in command("snapshot", "--discard")
    assert [job["state"] for job in command.json("ls", "--mode", "local")] == ["ready"]


def test_an_export_is_restored(command):
    for n in range(3):
        command("enqueue", "q", str(n))
    assert re.match(r"jobs\.sqlite contains commit 4, \d+ KiB\n", command("export", "jobs.sqlite"))
    assert jobs_in(command.directory / "jobs.sqlite") == 3
    assert "file_exists" in command.fails("Invalid", "export", "jobs.sqlite")
    command("export", "jobs.sqlite", "--replace")
    command("purge", "q", "-s", "ready", "--yes")
    assert "confirm with --yes" in command.fails("Invalid", "restore", "jobs.sqlite")
    (told,) = command.json("restore", "jobs.sqlite", "--yes")
    assert (told["jobs"], told["replaced"]) == (3, 5)
    assert len(command.json("ls")) == 3
    assert "local_file" in command.fails("Unavailable", "restore", "none.sqlite", "--yes")


def test_a_time_that_is_right_needs_no_fixing(command):
    command("enqueue", "q", "1")
    assert command("fix-time").startswith("nothing to do: the newest commit is of 2")
    (told,) = command.json("fix-time", "--yes")
    assert (told["ahead"], told["commit_seq"]) == (False, None)


def test_a_check_answers_by_its_exit_code(command):
    command("enqueue", "q", "1")
    assert "the queue file is sound" in command("check")
    assert command.json("check")[0]["problems"] == []
    head = command.directory / "jobs.head"
    body = bytearray(head.read_bytes())
    body[len(body) // 2] ^= 1
    head.write_bytes(body)
    said = command("check", exits=EXITS["Corrupt"])
    assert "jobs.head" in said
    assert max(map(len, said.splitlines())) <= 80
    (report,) = command.json("check", exits=EXITS["Corrupt"])
    assert report["problems"][0]["object"] == "jobs.head"


def test_collecting_and_the_history(command):
    for n in range(3):
        command("enqueue", "q", str(n))
    (told,) = command.json("collect", "--grace", "0")
    assert set(told) == {"objects", "bytes", "left", "left_bytes", "floor"}
    assert re.match(r"\d+ objects?, .* deleted", command("collect"))
    commits = command.json("history", "-n", "2")
    assert len(commits) == 2
    assert commits[0]["commit_seq"] == commits[1]["commit_seq"] + 1
    lines = command("history").splitlines()
    assert lines[0].split() == ["commit", "time", "writer", "changes", "bytes", "pages"]
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("given", "exits", "left"), [("n\n", 1, 2), ("\x03", 130, 2), ("y\n", 0, 0)], ids=["no", "ctrl-c", "yes"]
)
def test_a_person_is_asked_before_jobs_are_deleted(terminal, process, given, exits, left):
    for _ in range(2):
        process("enqueue", "q", "1")
    said = terminal("purge", "q", "-s", "ready", given=given, exits=exits)
    assert "Delete 2 jobs of q: ready?" in said
    assert len(process.json("ls")) == left


def test_a_ctrl_c_that_interrupts_nothing_ends_the_question(process):
    process("enqueue", "q", "1")
    code, said, _ = on_a_terminal(process, ("purge", "q", "-s", "ready"), "\x03", INTERRUPTING_NOTHING)
    assert (code, "stopped" in said) == (130, True)
    assert len(process.json("ls")) == 1


def test_an_answer_that_is_none_is_asked_for_again(terminal, process):
    process("enqueue", "q", "1")
    said = terminal("purge", "q", "-s", "ready", given="perhaps\nYES\n")
    assert said.count("[y/N]:") == 2
    assert process.json("ls") == []
    process("enqueue", "q", "1")
    # Ctrl-D ends the input.
    assert "stopped" in terminal("purge", "q", "-s", "ready", given="\x04", exits=130)
    assert len(process.json("ls")) == 1


def test_a_person_is_asked_before_a_restore(terminal, process):
    process("enqueue", "q", "1")
    process("export", "jobs.sqlite")
    assert "nothing was changed" in terminal("restore", "jobs.sqlite", given="n\n", exits=1)
    assert "1 job restored" in terminal("restore", "jobs.sqlite", given="y\n")


def test_what_a_job_says_cannot_steer_the_terminal(terminal, process):
    """The payload, a header, the group, the worker or an error cannot."""
    title, clear = "\x1b]0;mine\x07", "\x1b[2J"
    with bucketq.open(process.environ["BUCKETQ_URL"]) as file:
        queue = file.queue("q")
        id = queue.enqueue(f"payload {title}", headers={"from": f"header {title}"}, group=f"group {clear}").id
        queue.claim_one(worker=f"worker {clear}").reject(f"error {title}")
    for words in (["show", id], ["ls", "q", "-s", "dead"]):
        said = terminal(*words)
        assert "error" in said
        assert [part for part in ("\x1b]0;", "\x07", clear) if part in said] == []


TITLE, CLEAR, SHORT = "\x1b]0;mine\x07", "\x1b[2J", "\x9b2J"
NAME = f"{SHORT}{CLEAR}{TITLE} [red]"
NAMING = {
    "stats": ["stats"],
    "metrics": ["metrics"],
    "pause": ["pause", NAME],
    "resume": ["resume", NAME],
    "enqueue": ["enqueue", NAME, "1", "--dedup", "here"],
    "enqueue --lines": ["enqueue", NAME, "--lines", "many"],
    "ls": ["ls"],
    "show": ["show", "ID"],
    "claim": ["claim", NAME],
    "requeue": ["requeue", "--queue", "mail"],
    "purge": ["purge", NAME, "-s", "ready"],
    "policy": ["policy", NAME],
    "policy of none": ["policy", "mail [red]"],
    "configure": ["configure", NAME, "--max-attempts", "3"],
    "drain": ["drain", NAME],
    "schedule": ["schedule", NAME, NAME, "1", "--every", "1h"],
    "schedules": ["schedules"],
    "unschedule": ["unschedule", NAME, NAME],
    "unschedule of none": ["unschedule", NAME, f"other{NAME}"],
    "lives": ["lives"],
    "archives": ["archives"],
    "check": ["check"],
    "doctor": ["doctor"],
    "doctor --json": ["doctor", "--json"],
    "ls --json": ["ls", "--json"],
}


@pytest.mark.parametrize("words", NAMING.values(), ids=NAMING)
def test_no_name_can_steer_the_terminal(terminal, process, words):
    """No name is taken for markup, either."""
    (process.directory / "many").write_text("1\n")
    with bucketq.open(process.environ["BUCKETQ_URL"]) as file:
        old = file.queue(f"old {NAME}")
        old.configure(archive=True, keep=0)
        old.enqueue("1")
        old.claim_one().ack()
        file.archive()
        queue = file.queue(NAME)
        queue.configure(dead_letter=f"dead {NAME}")
        queue.schedule(NAME, "1", cron="@daily")
        queue.enqueue("0")
        queue.claim_one().ack()
        id = queue.enqueue("1", dedup="here").id
    exits = {"unschedule of none": 3}.get(next(key for key, one in NAMING.items() if one is words), 0)
    if words[0] == "purge":
        exits = 1
    said = terminal(*(id if one == "ID" else one for one in words), given="n\n", exits=exits)
    assert [part for part in (TITLE[:4], "\x07", CLEAR, SHORT) if part in said] == []
    if words[0] in {"show", "policy", "pause", "drain", "schedule", "unschedule", "purge"}:
        assert "[red]" in said
