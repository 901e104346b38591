"""Names that stand in several places are the same in all of them, and blocking and asyncio differ in nothing else."""

import doctest
import errno
import functools
import importlib
import inspect
import os
import pkgutil
import pydoc
import re
import subprocess
import sys
from importlib import metadata

import pytest

import bucketq
from bucketq import _convert, _native, aio, errors, types
from servers import ROOT
from typed import awaitable, blocking

CLASSES = [name for name in aio.__all__ if inspect.isclass(getattr(aio, name))]
FUNCTIONS = [name for name in aio.__all__ if name not in CLASSES]
PARITY = {
    "__enter__": "__aenter__",
    "__exit__": "__aexit__",
    "__iter__": "__aiter__",
    "__next__": "__anext__",
}


def members(cls):
    """Its names in order, dunder ones by their blocking names."""
    blocking_name = {waiting: plain for plain, waiting in PARITY.items()}
    # Python adds annotations when a program first asks for them.
    hidden = {
        "__annotations__",
        "__module__",
        "__doc__",
        "__slots__",
        "__orig_bases__",
        "__parameters__",
        "__qualname__",
    }
    return [blocking_name.get(name, name) for name in vars(cls) if name not in hidden]


@pytest.mark.parametrize("name", CLASSES)
def test_blocking_and_asyncio_have_the_same_names_in_the_same_order(name):
    assert members(getattr(bucketq, name)) == members(getattr(aio, name))


@pytest.mark.parametrize("name", CLASSES)
def test_blocking_and_asyncio_take_the_same_arguments(name):
    one, other = vars(getattr(bucketq, name)), vars(getattr(aio, name))
    for member, plain in one.items():
        # How they are made does not concern users.
        if inspect.isfunction(plain) and member != "__init__":
            twin = other.get(PARITY.get(member, member)) or other[member]
            parameters = [list(inspect.signature(f).parameters.values()) for f in (plain, twin)]
            assert parameters[0] == parameters[1], member


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_take_the_same_arguments_on_both_faces(name):
    plain, twin = (inspect.signature(getattr(face, name)) for face in (bucketq, aio))
    assert list(plain.parameters.values()) == list(twin.parameters.values())


@pytest.mark.parametrize(
    ("call", "names"),
    [
        *((call, types.Extras) for call in ("Queue.enqueue", "Atomic.enqueue", "New")),
        *((call, types.Changes) for call in ("Queue.configure", "Atomic.configure")),
        *((call, types.Settings) for call in FUNCTIONS),
    ],
)
def test_help_lists_every_argument(call, names):
    for face in (bucketq, aio) if call != "New" else (bucketq,):
        text = pydoc.plain(pydoc.render_doc(functools.reduce(getattr, call.split("."), face)))
        assert all(f" {name}: " in text for name in names.__annotations__), text
        assert "Unpack" not in text


def test_help_lists_no_argument_that_is_refused():
    for face in (bucketq, aio):
        for call in (face.Queue.schedule, face.Atomic.schedule):
            names = list(inspect.signature(call).parameters)
            assert {"cron", "priority", "max_attempts"} < set(names)
            assert not {"delay", "at", "id", "extras"} & set(names)
            assert names == list(dict.fromkeys(names))


def test_every_name_of_asyncio_is_also_blocking():
    assert set(aio.__all__) <= set(bucketq.__all__)
    assert sorted(bucketq.__all__, key=lambda name: (not name.isupper(), name)) == bucketq.__all__


AFTER_IMPORT = """
import sys, bucketq
print(bucketq.__version__)
print(sorted({"bucketq.aio", "bucketq.testing"} & set(sys.modules)))
print(bucketq.aio.open.__module__, bucketq.testing.eager.__module__, bucketq.fit.__name__)
print(hasattr(bucketq, "nonsense"))
"""


def test_the_version_and_the_modules_are_there_after_the_import_alone():
    out = subprocess.check_output([sys.executable, "-c", AFTER_IMPORT], text=True)
    version, loaded, modules, nonsense = out.splitlines()
    assert version == metadata.version("bucketq") == bucketq.__version__
    assert loaded == "[]"
    assert modules == "bucketq.aio.file bucketq.testing bucketq.fit"
    assert nonsense == "False"
    assert {"__version__", "aio", "testing", "App"} <= set(dir(bucketq))


def test_the_errors_are_those_of_the_engine():
    table = {python: next_step for _, next_step, python, _, _ in _native.kinds()}
    assert set(table) == set(errors.__all__) - {"Error", "table"}
    assert [name for name, _, _ in errors.table()] == list(table)
    for name in table:
        assert issubclass(getattr(bucketq, name), bucketq.Error)
    assert issubclass(bucketq.Invalid, ValueError)
    assert issubclass(bucketq.NotFound, LookupError)


def test_every_code_leads_to_its_exception():
    page = (ROOT / "docs" / "errors.md").read_text().partition("## Codes")[2]
    for code, python, says, advice in _native.codes():
        error = getattr(bucketq, python)("a message", code)
        assert error.advice == advice
        assert f"| {says} | {advice} |" in page.partition(f"\n| `{code}` ")[2].partition("\n")[0]


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (
            f"cannot write jobs.head: {os.strerror(errno.EROFS)} (os error {errno.EROFS})",
            "Mount the directory",
        ),
        ("there are no credentials for S3: none in the chain", "AWS_PROFILE"),
        ("cannot write jobs.head: Permission denied", "check its permissions"),
    ],
)
def test_a_refusal_gets_the_advice_for_its_cause(message, says):
    error = bucketq.Unavailable(message, "denied")
    assert says in error.advice
    (general,) = (advice for code, _, _, advice in _native.codes() if code == "denied")
    error.add_note(f"advice: {general}")
    error.add_note("because: it is so")
    assert error.__notes__ == [f"advice: {error.advice}", "because: it is so"]


def test_settings_and_extras_are_named_once_everywhere():
    assert set(_convert.SETTINGS) == set(types.Settings.__annotations__)
    assert set(_convert.EXTRAS) == set(types.Extras.__annotations__)


NATIVE = {
    "_atomic",
    "_convert",
    "_job",
    "_lease",
    "_listening",
    "_op",
    "aio/file",
    "aio/operate",
    "aio/queue",
    "errors",
    "file",
    "fit",
    "operate",
    "otel",
    "queue",
    "settings",
    "spark/_enqueue",
    "spark/_place",
    "testing",
}
"""The modules that may talk to the engine; docs/architecture.md lists them."""


def test_only_some_modules_talk_to_the_engine():
    home = ROOT / "python" / "bucketq"
    found = {
        path.relative_to(home).with_suffix("").as_posix()
        for path in home.rglob("*.py")
        if re.search(
            r"^\s*from bucketq(\._native import| import .*\b_native\b)", path.read_text(), re.MULTILINE
        )
    }
    assert found == NATIVE


def test_examples_in_docstrings_run():
    modules = ["bucketq"] + [f"bucketq.{m.name}" for m in pkgutil.iter_modules(bucketq.__path__)]
    ran = 0
    for name in modules:
        result = doctest.testmod(importlib.import_module(name))
        assert result.failed == 0, name
        ran += result.attempted
    assert ran >= 8


def test_what_the_type_checker_has_seen_runs():
    assert blocking("memory://typed") == ["ada@example.org", "eve@example.org", "bob@example.org", "state"]


async def test_what_the_type_checker_has_seen_of_asyncio_runs():
    assert await awaitable("memory://typed-aio") == ["ada"]
