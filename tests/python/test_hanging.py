"""A test that hangs fails alone, with one stack, and the others run: pytest on tests that hang in every way."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from patience import PATIENCE
from servers import ROOT

HANGING = """
import ctypes, subprocess, sys, threading, time
import pytest

def locked_twice(libc):
    mutex = ctypes.create_string_buffer(64)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)

def test_in_python():
    while True:
        time.sleep(0.01)

def test_swallowing_what_ends_it():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    with open("child", "w") as file:
        print(child.pid, file=file)
    while True:
        try:
            time.sleep(1000)
        except BaseException:
            pass

def test_in_native_code_with_the_gil():
    locked_twice(ctypes.PyDLL(None))

def test_in_native_code_without_the_gil():
    locked_twice(ctypes.CDLL(None))

def test_in_a_thread_at_the_end():
    threading.Thread(target=time.sleep, args=(1000,), name="stays").start()

def test_that_crashes():
    ctypes.string_at(0)

def test_that_pytest_cannot_report(request):
    # In place of a report, an error of pytest's own.
    request.node.repr_failure = lambda excinfo: 1 / 0
    raise ValueError

async def test_in_a_coroutine():
    import asyncio
    await asyncio.Event().wait()

@pytest.mark.limit(100)
@pytest.mark.parametrize("n", range(8))
def test_good(n):
    with open(f"good-{n}", "x"):
        pass
"""


def test_a_test_that_hangs_fails_alone_with_one_stack_and_the_others_run(tmp_path):
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["limits", "progress", "coroutines"]\n')
    (tmp_path / "pytest.ini").write_text("[pytest]\nlimit = 3\nlimit_grace = 2\n")
    (tmp_path / "test_hangs.py").write_text(HANGING)
    options = ["-q", "-n", "2", "--dist", "worksteal", "-p", "no:cacheprovider", "--max-worker-restart", "20"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", "pytest.ini", *options],
        cwd=tmp_path,
        # With CI set, pytest repeats whole messages in its summary, and the counts below would differ.
        env={name: text for name, text in os.environ.items() if name not in ("CI", "BUILD_NUMBER")}
        | {"PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    out = done.stdout
    assert done.returncode == 1, out + done.stderr
    assert "8 failed, 8 passed" in out.splitlines()[-1], out
    assert len(list(tmp_path.glob("good-*"))) == 8
    # Each is named at once, and once more at the end with the line where it hung.
    failed = re.findall(r"^ *\d+ s  FAILED  test_hangs.py::(\S+)$", out, re.MULTILINE)
    assert sorted(failed) == sorted(name for name in re.findall(r"def (test_\w+)\((?:request)?\)", HANGING))
    for line in (
        "in test_that_crashes",
        "Internal error of pytest",
        "await asyncio.Event().wait()",
        "time.sleep(0.01)",
        "in test_swallowing_what_ends_it",
        "left a thread that does not end, stays",
    ):
        assert line in out, out
    assert out.count("in locked_twice") == 2, out
    assert "100 %  test_hangs.py" in out
    # The stacks stay short enough to read, and no child of a test survives.
    assert len((out + done.stderr).splitlines()) < 8 * 30
    assert not lives(int((tmp_path / "child").read_text()))


LIKE_LIBTEST = """
import subprocess, sys, time
tests = {"a::hangs": None, "b::fails": "FAILED", "c::ends": "ok", "d::is_left": "ok"}
names = [one for one in sys.argv[1:] if one in tests] or list(tests)
if "--list" in sys.argv:
    print(*(f"{name}: test" for name in names), "", sep="\\n")
    raise SystemExit
print(f"\\nrunning {len(names)} tests", flush=True)
if "a::hangs" in names:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    open("child", "w").write(str(child.pid))
    print("test b::fails ... FAILED", "test c::ends ... ok", sep="\\n")
    print("test a::hangs has been running for over 60 seconds", flush=True)
    time.sleep(1000)
for name in names:
    print(f"test {name} ... {tests[name]}")
print("why b::fails failed" * ("b::fails" in names))
failed = sum(tests[name] == "FAILED" for name in names)
print(f"test result: {'FAILED' if failed else 'ok'}. {len(names) - failed} passed; {failed} failed; 0 ignored;")
sys.exit(101 if failed else 0)
"""


def limited(tmp_path: Path, *arguments: str) -> tuple[int, str]:
    program = tmp_path / "tests"
    program.write_text(f"#!{sys.executable}\n{LIKE_LIBTEST}")
    program.chmod(0o755)
    done = subprocess.run(
        [sys.executable, str(ROOT / ".ci" / "limited"), str(program), *arguments],
        cwd=tmp_path,
        env=os.environ | {"BUCKETQ_TEST_LIMIT": "61"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    return done.returncode, done.stdout


def test_a_rust_test_that_hangs_fails_alone_and_those_that_are_left_run(tmp_path):
    code, out = limited(tmp_path)
    assert code == 101, out
    assert "test a::hangs ... FAILED: not over within 61 s" in out
    assert "running 2 tests" in out
    assert "why b::fails failed" in out
    assert "test result: FAILED. 2 failed, 1 of them by their limit: a::hangs b::fails" in out
    assert "c::ends" not in out
    assert not lives(int((tmp_path / "child").read_text()))


def test_what_ends_in_time_keeps_its_status(tmp_path):
    assert limited(tmp_path, "c::ends", "d::is_left")[0] == 0
    code, out = limited(tmp_path, "b::fails", "c::ends")
    assert (code, out.count("b::fails ... FAILED")) == (101, 1)


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie has ended, but its new parent has not waited for it yet.
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(") ")[2][0] != "Z"
