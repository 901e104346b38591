"""The sources of settings, which source wins, and that no secret is printed."""

import os
import re

import pytest

import bucketq
from bucketq import Invalid, aio, settings
from servers import ROOT

SECRET = "hush-hush"


@pytest.fixture
def variables(monkeypatch):
    """The environment, without BUCKETQ_*; a test sets what it needs."""
    for name in [name for name in os.environ if name.startswith("BUCKETQ_")]:
        monkeypatch.delenv(name)
    return monkeypatch.setenv


def test_an_earlier_place_wins(variables, tmp_path):
    file = tmp_path / "bucketq.toml"
    file.write_text("mailbox = 3\ntail = 3000\nmax_head = 300000\ndeadline = 3\n")
    variables("BUCKETQ_SETTINGS", str(file))
    for name in ("MAILBOX", "TAIL", "MAX_HEAD", "DEADLINE", "POLL_MAX"):
        variables(f"BUCKETQ_{name}", "40000")
    found = settings.load({"mailbox": 2, "tail": 2000}, mailbox=1)
    # The environment of a machine changes what the file says for all machines.
    assert found == {"deadline": 40000, "mailbox": 1, "tail": 2000, "max_head": 40000, "poll_max": 40000.0}
    assert settings.load(file) == settings.load(file, environ=os.environ | {"BUCKETQ_SETTINGS": ""})
    assert settings.load(file, environ={}) == {
        "deadline": 3,
        "mailbox": 3,
        "tail": 3000,
        "max_head": 300000,
    }


def test_a_file_given_takes_the_place_of_the_one_in_the_environment(variables, tmp_path):
    (tmp_path / "one.toml").write_text("mailbox = 1")
    (tmp_path / "two.yaml").write_text("mailbox: 2\n")
    variables("BUCKETQ_SETTINGS", str(tmp_path / "one.toml"))
    assert settings.load() == {"mailbox": 1}
    assert settings.load(tmp_path / "two.yaml") == {"mailbox": 2}


async def test_open_takes_them_all(variables, face, tmp_path):
    file = tmp_path / "bucketq.toml"
    file.write_text(f'url = "{tmp_path / "jobs"}"\nmax_payload = 10\n')
    opener = bucketq if face == "blocking" else aio
    opened = opener.open(settings=file)
    file = opened if face == "blocking" else await opened
    try:
        assert file.url == str(tmp_path / "jobs")
        with pytest.raises(Invalid, match="max_payload allows 10") as refused:
            call = file.queue("q").enqueue("x" * 11)
            _ = call if face == "blocking" else await call
        assert refused.value.code == "payload_too_large"
    finally:
        call = file.close()
        _ = call if face == "blocking" else await call


def test_values_in_the_environment_are_what_they_mean(variables):
    for name, text in {
        "create": "no",
        "mailbox": "7",
        "deadline": "2.5",
        "region": "eu",
        "checksum": "none",
        "mode": "local",
        "fsync": "0.5",
    }.items():
        variables(f"BUCKETQ_{name.upper()}", text)
    variables("BUCKETQ_TAIL", "")
    assert settings.load() == {
        "create": False,
        "mailbox": 7,
        "deadline": 2.5,
        "region": "eu",
        "checksum": "none",
        "mode": "local",
        "fsync": 0.5,
    }
    variables("BUCKETQ_FSYNC", "never")
    assert settings.load()["fsync"] == "never"


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("CREATE", "perhaps", "BUCKETQ_CREATE: create takes true or false"),
        ("MAILBOX", "-1", "BUCKETQ_MAILBOX: mailbox takes a whole number"),
        ("DEADLINE", "soon", "BUCKETQ_DEADLINE: deadline takes a number of seconds"),
        ("CHECKSUM", "md5", "one of crc32, sha256, none"),
        ("FSYNC", "often", "fsync takes each_commit, never or a number of seconds"),
        ("DEADLNIE", "1", "did you mean BUCKETQ_DEADLINE"),
    ],
)
def test_what_the_environment_cannot_mean_is_refused(variables, name, text, words):
    variables(f"BUCKETQ_{name}", text)
    with pytest.raises(Invalid, match=words):
        settings.load()


def test_variables_of_others_are_left_alone(variables):
    variables("BUCKETQ_REQUIRE_SERVERS", "1")
    assert settings.load() == {}


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.toml", "mailbux = 1", "a.toml: there is no setting 'mailbux': did you mean mailbox"),
        ("a.toml", f"secret_key = {SECRET}", "a.toml cannot be parsed"),
        ("a.yaml", f"secret_key: [{SECRET}", "a.yaml cannot be parsed: not YAML, line"),
        ("a.yaml", "- mailbox", "holds no settings"),
        ("a.ini", "mailbox = 1", "settings are .toml or .yaml"),
        ("none.toml", None, "cannot be read"),
    ],
)
def test_what_a_file_cannot_mean_is_refused(variables, tmp_path, name, text, words):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(Invalid, match=words) as refused:
        settings.load(tmp_path / name)
    assert SECRET not in str(refused.value)
    assert SECRET not in str(refused.value.__cause__)


@pytest.mark.parametrize(
    "given",
    [{"create": "yes"}, {"mailbox": "many"}, {"secret_key": 5}, {"checksum": "md5"}, {"endpoint": True}],
)
def test_values_of_another_kind_are_refused_by_name(given):
    with pytest.raises(Invalid, match=f"{next(iter(given))} takes "):
        bucketq.open("memory://kinds", **given)


def test_nothing_named_is_nothing_opened(variables):
    with pytest.raises(Invalid, match="BUCKETQ_URL"):
        bucketq.open()


@pytest.mark.parametrize(
    "given", [{"secret_key": SECRET}, {"access_key": "a", "secret_key": SECRET, "deadline": 0}]
)
def test_a_secret_is_not_in_an_error(given):
    with pytest.raises(Invalid) as refused:
        bucketq.open("s3://bucket/jobs", **given)
    assert SECRET not in repr(refused.value) + str(refused.value)


def test_a_secret_is_not_in_a_repr(server):
    from servers import BUCKET

    with bucketq.open(f"s3://{BUCKET}/settings/jobs", **server.settings) as file:
        shown = repr(file) + repr(file.queue("q")) + repr(file.stats())
    assert server.settings["secret_key"] not in shown


def test_a_secret_is_not_in_what_travels_to_spark():
    from bucketq.spark._place import Place

    place = Place.of("s3://bucket/jobs", {"access_key": "a", "secret_key": SECRET})
    assert SECRET in str(place.settings)
    assert SECRET not in repr(place)


def shown(kind, default):
    """A default as the page has it."""
    match default:
        case None:
            return ""
        case bool():
            return "`true`" if default else "`false`"
        case float():
            return f"`{default:g}`"
        case _:
            return f"`{default}`"


def rows():
    kinds = {
        "switch": "true or false",
        "count": "number",
        "seconds": "seconds",
        "text": "text",
        "secret": "text, secret",
    }
    for name, kind, default, says in settings.table():
        takes = kinds.get(kind, kind.replace(" ", ", "))
        yield f"| `{name}` | {takes} | {shown(kind, default)} | {says} |"


def test_the_table_in_the_docs_is_that_of_the_engine():
    page = (ROOT / "docs" / "settings.md").read_text()
    table = re.search(r"\| setting \|.*?\n\|---.*?\n(.*?)\n\n", page, re.DOTALL)
    assert table is not None
    assert table[1].splitlines() == list(rows()), "copy this into docs/settings.md:\n" + "\n".join(rows())
