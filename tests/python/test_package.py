"""The installed package: the source distribution builds, and its wheel works in an empty environment elsewhere."""

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from servers import ROOT

LIMIT = 1000
# The build takes long on a busy machine.
pytestmark = pytest.mark.limit(1200)
TOOLS = Path(sys.executable).parent


def run(*command, **options):
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build a wheel from the source distribution. Reuses the compiled dependencies, but not the engine's own code."""
    place = tmp_path_factory.mktemp("package")
    environ = os.environ | {"CARGO_TARGET_DIR": os.environ.get("CARGO_TARGET_DIR", str(ROOT / "target"))}
    run(str(TOOLS / "maturin"), "sdist", "--out", str(place), cwd=ROOT, env=environ)
    (archive,) = place.glob("bucketq-*.tar.gz")
    with tarfile.open(archive) as source:
        source.extractall(place, filter="data")
    (unpacked,) = (path for path in place.iterdir() if path.is_dir())
    for path in unpacked.rglob("*.*"):
        path.touch()  # Newer than any build of the same code, so that cargo compiles it.
    run(str(TOOLS / "maturin"), "build", "--out", str(place), cwd=unpacked, env=environ)
    (wheel,) = place.glob("bucketq-*.whl")
    return wheel


class Elsewhere:
    """An environment with only the wheel and its dependencies."""

    def __init__(self, place, wheel):
        self.place = place
        self.bin = place / "venv" / ("Scripts" if os.name == "nt" else "bin")
        self.environ = {name: os.environ[name] for name in ("HOME", "PATH", "TMPDIR") if name in os.environ}
        self.environ |= {
            name: value for name, value in os.environ.items() if name.startswith(("UV_", "SSL_"))
        }
        uv = str(TOOLS / "uv")
        run(uv, "venv", "--quiet", "--python", sys.executable, str(place / "venv"))
        run(uv, "pip", "install", "--quiet", "--python", str(self.bin / "python"), str(wheel))

    def __call__(self, program, *words):
        return run(str(self.bin / program), *words, cwd=self.place, env=self.environ)


@pytest.fixture(scope="module")
def elsewhere(wheel, tmp_path_factory):
    return Elsewhere(tmp_path_factory.mktemp("elsewhere"), wheel)


def test_it_is_imported_from_there_and_works(elsewhere):
    shutil.copy(ROOT / "tests" / "python" / "typed.py", elsewhere.place)
    code = "import bucketq; print(bucketq.__file__)"
    assert Path(elsewhere("python", "-c", code).strip()).is_relative_to(elsewhere.place)
    assert "ada@example.org" in elsewhere("python", "typed.py")


def test_the_command_is_there(elsewhere):
    url = str(elsewhere.place / "jobs")
    id = elsewhere("bucketq", "enqueue", "q", "1", "--url", url).strip()
    assert id in elsewhere("bucketq", "ls", "--url", url)
    assert "Example:" in elsewhere("bucketq", "sync", "--help")


def test_its_types_are_there(elsewhere):
    shutil.copy(ROOT / "tests" / "python" / "typed.py", elsewhere.place)
    python = str(elsewhere.bin / "python")
    command = [str(TOOLS / "mypy"), "--strict", "--python-executable", python, "--cache-dir", os.devnull]
    assert "Success" in run(*command, "typed.py", cwd=elsewhere.place, env=elsewhere.environ)


def test_it_brings_nothing_heavy(elsewhere):
    names = run(str(TOOLS / "uv"), "pip", "list", "--quiet", "--python", str(elsewhere.bin / "python"))
    installed = {line.split()[0] for line in names.splitlines()[2:]}
    assert {"bucketq", "rich", "typer"} <= installed
    assert not {"pydantic", "click", "boto3"} & installed
