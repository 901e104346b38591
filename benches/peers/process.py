"""A caller process: gets its orders at the start, and replies with a line of JSON to each line of input."""

from __future__ import annotations

import json
import os
import select
import subprocess
import tempfile
import time
from typing import Any


class Process:
    """One caller process."""

    def __init__(self, command: list[str], orders: dict[str, Any], env: dict[str, str] | None = None) -> None:
        pipe = subprocess.PIPE
        self.log = tempfile.TemporaryFile()  # noqa: SIM115, it ends with the process
        self.process = subprocess.Popen(
            [*command, json.dumps(orders)], stdin=pipe, stdout=pipe, stderr=self.log, env=env
        )

    def say(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{line}\n".encode())
        self.process.stdin.flush()

    def hear(self, seconds: float) -> Any:
        assert self.process.stdout
        until, text = time.monotonic() + seconds, b""
        while not text.endswith(b"\n"):
            left = until - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], (), (), left)[0]:
                raise TimeoutError(f"nothing within {seconds} s")
            if not (part := os.read(self.process.stdout.fileno(), 1 << 20)):
                raise EOFError(f"it ended by itself: {self.said()}")
            text += part
        return json.loads(text)

    def said(self) -> str:
        """Return the last line of its standard error."""
        self.log.seek(0)
        lines = self.log.read().decode(errors="replace").strip().splitlines()
        return lines[-1][:200] if lines else "it said nothing"

    def end(self) -> None:
        if self.process.stdin:
            self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()
