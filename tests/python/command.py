"""The command ``bucketq`` under test: as a process, on a terminal, or in this process, which is faster."""

import json
import os
import subprocess
import sys
from contextlib import suppress

from bucketq import errors

EXITS = {name: code for name, _, code in errors.table()}
TIMEOUT = 60


class Command:
    """Runs ``bucketq`` on one queue file, in one directory: as a process, or here, which is faster."""

    def __init__(self, url, directory, run):
        self.directory = directory
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("BUCKETQ_")}
        self.environ = inherited | {"BUCKETQ_URL": url, "COLUMNS": "80", "NO_COLOR": "1"}
        self.run = run

    def __call__(self, *words, given="", exits=0):
        code, out, self.err = self.run(self, words, given)
        assert code == exits, self.err
        return out

    def json(self, *words, given="", exits=0):
        return [json.loads(line) for line in self(*words, "--json", given=given, exits=exits).splitlines()]

    def fails(self, kind, *words, given=""):
        """What it complains about when it fails like this."""
        self(*words, given=given, exits=EXITS[kind])
        return self.err

    def start(self, *words):
        program = [sys.executable, "-m", "bucketq", *words]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        return subprocess.Popen(program, cwd=self.directory, env=self.environ, text=True, **pipes)


def as_process(command, words, given):
    process = command.start(*words)
    out, err = process.communicate(given, timeout=TIMEOUT)
    return process.returncode, out, err


ON_ITS_TERMINAL = """
import fcntl, runpy, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # Ctrl-C comes from the terminal of a session.
runpy.run_module("bucketq", run_name="__main__")
"""


def on_a_terminal(command, words, given):
    """The exit code and what it shows when a person answers its question."""
    leader, follower = os.openpty()
    program = [sys.executable, "-c", ON_ITS_TERMINAL, *words]
    with subprocess.Popen(
        program,
        cwd=command.directory,
        env=command.environ,
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
    ) as process:
        os.close(follower)
        shown = b""
        with suppress(OSError):  # Linux says so at the end.
            while part := os.read(leader, 4096):
                shown += part
                # The last space is written by whoever reads the answer: a Ctrl-C before that may wake up nobody.
                if b"[y/N]: " in shown and given:
                    os.write(leader, given.encode())
                    given = ""
        # A terminal that goes while the process still ends would hang up on it.
        code = process.wait(TIMEOUT)
        os.close(leader)
    return code, shown.decode().replace("\r\n", "\n"), ""
