"""The command ``bucketq`` under test: as a process, on a terminal, or in this process, which is faster."""

import json
import os
import subprocess
import sys
from contextlib import suppress

from bucketq import errors
from patience import PATIENCE

EXITS = {name: code for name, _, code in errors.table()}
TIMEOUT = PATIENCE


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
        """Run it, and return its message when it fails with this kind of error."""
        self(*words, given=given, exits=EXITS[kind])
        return self.err

    def start(self, *words, before=None):
        program = [sys.executable, "-m", "bucketq", *words]
        if before is not None:
            program[1:3] = ["-c", f"{before}\nimport runpy; runpy.run_module('bucketq', run_name='__main__')"]
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

# The system gives a signal to any thread that does not block it: no system call of the main thread is interrupted. The
# same happens to a signal between the main thread's last check and its system call, which no test can time.
INTERRUPTING_NOTHING = """
import signal, threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
"""


def on_a_terminal(command, words, given, before=""):
    """Return the exit code and the output when a person replies as soon as the question appears."""
    leader, follower = os.openpty()
    # Each line is sent once its question appears.
    answers = given.splitlines(keepends=True)
    program = [sys.executable, "-c", before + ON_ITS_TERMINAL, *words]
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
        shown, asked = b"", 0
        try:
            with suppress(OSError):  # Linux reports the end like this.
                while part := os.read(leader, 4096):
                    shown += part
                    if shown.count(b"[y/N]:") > asked and answers:
                        os.write(leader, answers.pop(0).encode())
                        asked += 1
            # Closing the terminal earlier would send a hangup to the process while it still ends.
            code = process.wait(TIMEOUT)
        finally:
            process.kill()
            os.close(leader)
    return code, shown.decode().replace("\r\n", "\n"), ""
