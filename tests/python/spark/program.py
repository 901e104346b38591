"""Separate programs on Spark, for tests that kill them or need another kind of cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from patience import PATIENCE
from servers import free_port

LIMIT = 2 * PATIENCE
"""Seconds for one program, which takes ten on an idle machine; such tests have a longer limit too."""
HERE = Path(__file__).parent
# Compile less: such programs live for seconds.
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class Program:
    """One of the scripts beside this file, in its own session, so that all of its processes can be found."""

    def __init__(self, script: str, scratch: Path, asked: dict[str, Any]) -> None:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("BUCKETQ_")}
        environ |= {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_DIRS": str(scratch)}
        self.said = scratch / "said.txt"
        with self.said.open("ab") as said:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / script), json.dumps(asked | {"java": JAVA})],
                cwd=scratch,
                env=environ,
                stdout=subprocess.PIPE,
                stderr=said,
                start_new_session=True,
            )

    def pids(self) -> list[int]:
        """Return the program, its JVMs and their Pythons: Spark's daemons have their own groups, but not sessions."""
        found: list[int] = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError, ValueError):
                state, _, _, session = path.read_text().rsplit(")", 1)[1].split()[:4]
                if int(session) == self.process.pid and state != "Z":
                    found.append(int(path.parent.name))
        return found

    def until(self, event: threading.Event) -> None:
        """Wait for an event that the program causes."""
        for _ in range(LIMIT * 10):
            if event.wait(0.1):
                return
            assert self.process.poll() is None, self.said.read_text()[-6000:]
        raise AssertionError(f"it never came about\n{self.said.read_text()[-6000:]}")

    def kill(self) -> None:
        """Kill all its processes at once, as if the machine had died."""
        while pids := self.pids():
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(0.01)
        self.process.wait(LIMIT)

    def answer(self, limit: int = LIMIT) -> Any:
        """Return the last thing it prints."""
        out, _ = self.process.communicate(timeout=limit)
        assert self.process.returncode == 0, self.said.read_text()[-6000:]
        return json.loads(out.splitlines()[-1])


@contextmanager
def program(script: str, scratch: Path, **asked: Any) -> Iterator[Program]:
    """Run a program, and end it with the block in any case."""
    scratch.mkdir(exist_ok=True)
    started = Program(script, scratch, asked)
    try:
        yield started
    finally:
        started.kill()
        if started.process.stdout is not None:
            started.process.stdout.close()


@contextmanager
def standalone(scratch: Path) -> Iterator[str]:
    """Run a cluster of a master and two workers with one core each, on different hosts. Yields the master's URL.

    Spark runs no task twice on one host, and all executors of ``local-cluster`` have the same host.
    """
    import pyspark

    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    home = Path(pyspark.__file__).parent
    deploy = "org.apache.spark.deploy"
    parts = [[f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]]
    for host in ("127.0.0.1", "127.0.0.2"):
        worker = [f"{deploy}.worker.Worker", "--host", host, "--cores", "1", "--memory", "1g"]
        parts.append([*worker, "--webui-port", "0", "--work-dir", str(scratch / host), url])
    environ = os.environ | {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_HOME": str(home),
        "SPARK_DAEMON_MEMORY": "200m",
        "SPARK_DAEMON_JAVA_OPTS": JAVA,
    }
    with (scratch / "cluster.txt").open("wb") as said:
        running = [
            subprocess.Popen(
                [str(home / "bin" / "spark-class"), *part], env=environ, cwd=scratch, stdout=said, stderr=said
            )
            for part in parts
        ]
        try:
            yield url
        finally:
            for one in reversed(running):
                one.terminate()
            for one in running:
                one.wait(LIMIT)
