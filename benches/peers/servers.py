"""The servers of the comparison, all on 127.0.0.1: an S3 server, a counting proxy, and toxiproxy before both."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BUCKET = "bucketq-peers"
USER, SECRET = "bucketq", "bucketq-secret"
START_TIMEOUT = 60.0


def tool(name: str) -> str | None:
    """Return the path of a program that `make tools` installs."""
    return shutil.which(name, path=os.environ.get("BUCKETQ_TOOLS") or str(ROOT / ".tools" / "bin"))


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def until(what: str, works: Any) -> None:
    end = time.monotonic() + START_TIMEOUT
    while not works():
        if time.monotonic() > end:
            raise SystemExit(f"{what} does not start")
        time.sleep(0.05)


class Started:
    """Processes and directories that end with the run."""

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[Any]] = []
        self.folders: list[Path] = []

    def start(self, *command: str, user: str | None = None, **env: str) -> subprocess.Popen[bytes]:
        quiet = subprocess.DEVNULL
        process = subprocess.Popen(
            command, stdin=quiet, stdout=quiet, stderr=quiet, user=user, env=os.environ | env
        )
        self.processes.append(process)
        return process

    def folder(self) -> Path:
        self.folders.append(Path(tempfile.mkdtemp(prefix="bucketq-peers-")))
        return self.folders[-1]

    def close(self) -> None:
        for process in reversed(self.processes):
            process.kill()
            process.wait()
        for folder in self.folders:
            shutil.rmtree(folder, ignore_errors=True)


class Counting:
    """A running program `counting` before a server."""

    def __init__(self, store: Store) -> None:
        pipe = subprocess.PIPE
        assert store.counting
        command = [store.counting, store.here]
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1)
        store.processes.append(self.process)
        assert self.process.stdout
        self.address = self.process.stdout.readline().strip()
        self.endpoint = f"http://{self.address}"

    def counts(self) -> dict[str, Any]:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write("\n")
        return dict(json.loads(self.process.stdout.readline()))


class Store(Started):
    """A real S3 server, counted and slowed from outside."""

    def __init__(self, name: str, counting: Path | None) -> None:
        """Start it, and the program `counting` before it, if there is one."""
        super().__init__()
        self.name = name
        program, toxiproxy = tool(name), tool("toxiproxy")
        if program is None or toxiproxy is None:
            raise SystemExit(f"missing: {name} or toxiproxy in .tools/bin: run `make tools`")
        data, port = self.folder(), free_port()
        (data / BUCKET).mkdir()
        here = f"127.0.0.1:{port}"
        if name == "minio":
            keys = {"MINIO_ROOT_USER": USER, "MINIO_ROOT_PASSWORD": SECRET, "MINIO_BROWSER": "off"}
            console = f"127.0.0.1:{free_port()}"
            arguments = ["server", str(data), "--address", here, "--console-address", console]
            self.start(program, *arguments, MINIO_UPDATE="off", **keys)
        else:
            keys = {"ROOT_ACCESS_KEY": USER, "ROOT_SECRET_KEY": SECRET}
            self.start(program, "--port", here, "--region", "us-east-1", "posix", str(data), **keys)
        until(name, lambda: answers(f"http://{here}/{BUCKET}/none"))
        self.here, self.counting = here, counting
        self.counter = Counting(self) if counting else None
        self.api = free_port()
        self.start(toxiproxy, "-host", "127.0.0.1", "-port", str(self.api))
        until("toxiproxy", lambda: answers(f"http://127.0.0.1:{self.api}/version"))
        upstream = self.counter.address if self.counter else here
        proxy = {"name": "store", "listen": "127.0.0.1:0", "upstream": upstream, "enabled": True}
        self.endpoint = f"http://{self._call('/proxies', proxy)['listen']}"
        for stream in ("upstream", "downstream"):
            toxic = {"name": stream, "type": "latency", "stream": stream, "attributes": {"latency": 0}}
            self._call("/proxies/store/toxics", toxic)

    def slow(self, milliseconds: int) -> None:
        """Make a round trip this much longer, half of it each way."""
        ways = {"upstream": milliseconds // 2, "downstream": milliseconds - milliseconds // 2}
        for stream, latency in ways.items():
            self._call(f"/proxies/store/toxics/{stream}", {"attributes": {"latency": latency}})

    def counts(self) -> dict[str, Any]:
        assert self.counter
        return self.counter.counts()

    def lane(self) -> Counting:
        """Return an address of the server that is counted separately, and not slowed."""
        return Counting(self)

    def _call(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        request = urllib.request.Request(f"http://127.0.0.1:{self.api}{path}", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=10) as answer:
            return dict(json.loads(answer.read()))


class Redis(Started):
    """A Redis that syncs its log to the disk: each write, or with `everysec` once a second."""

    def __init__(self, program: str, sync: str = "always") -> None:
        super().__init__()
        self.port = free_port()
        durable = ["--appendonly", "yes", "--appendfsync", sync, "--save", ""]
        where = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder())]
        self.start(program, *where, *durable)
        until("redis-server", lambda: listens(self.port))


class Postgres(Started):
    """A Postgres with its defaults. It refuses to run as root: then it runs as nobody."""

    def __init__(self, programs: Path) -> None:
        super().__init__()
        self.port, data = free_port(), self.folder()
        user = "nobody" if os.geteuid() == 0 else None
        if user:
            shutil.chown(data, user)
        where = ["-D", str(data), "-U", "bench", "-A", "trust", "-E", "UTF8"]
        made = subprocess.run(
            [str(programs / "initdb"), *where],
            user=user,
            cwd=data,
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode:
            self.close()
            raise OSError(f"initdb: {made.stderr.strip()[-200:]}")
        options = ["-D", str(data), "-k", str(data), "-h", "127.0.0.1", "-p", str(self.port)]
        self.start(str(programs / "postgres"), *options, user=user)
        until("postgres", lambda: (data / "postmaster.pid").exists() and listens(self.port))
        self.dsn = f"postgresql://bench@127.0.0.1:{self.port}/postgres"

    def close(self) -> None:
        # A postgres that is killed leaves shared memory behind.
        for process in self.processes:
            process.send_signal(signal.SIGINT)
            process.wait(START_TIMEOUT)
        super().close()


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=2)
    except urllib.error.HTTPError as error:
        return error.code < 500
    except OSError:
        return False
    return True
