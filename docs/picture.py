"""Draw docs/stats.svg, the picture in README: `bucketq stats --watch` beside producers and a worker that really run.

python docs/picture.py docs/stats.svg
"""

import logging
import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.text import Text

import bucketq

COLUMNS, LINES, UPDATES = 84, 14, 4
FRAME = re.compile(r"(?:\r?\x1b\[1A|\x1b\[2K)+")
HIDDEN = re.compile(r"\x1b\[\?25[lh]")
SHAPE = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{unique_id}">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; }}
{styles}
</style>
<defs>{lines}</defs>
<rect width="{width}" height="{height}" rx="8" fill="#1e1e28"/>
<g transform="translate({terminal_x}, {terminal_y})">
{backgrounds}
<g class="{unique_id}-matrix">{matrix}</g>
</g>
</svg>
"""


def work(url: str, over: threading.Event) -> None:
    """Enqueue and run jobs until the picture is taken; some fail, some wait."""
    with bucketq.open(url) as file:
        mails = file.queue("emails")
        with file.atomic() as tx:
            for number in range(40):
                tx.enqueue("reports", number, delay=3600)
        worker = bucketq.Worker(file, concurrency=8)

        @worker.handles("emails")
        def send(job: bucketq.Job) -> None:
            time.sleep(0.05)
            if job.data % 50 == 7:
                raise bucketq.Reject("no such address")

        with worker:
            number = 0
            while not over.wait(0.05):
                mails.enqueue_many(range(number, number + 8))
                number += 8


def watched(url: str) -> str:
    """Return the last update that the command drew on a terminal of this size."""
    program = [sys.executable, "-m", "bucketq", "stats", "--watch", "--every", "1", "--url", url]
    leader, follower = pty.openpty()
    environ = os.environ | {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(LINES)}
    with subprocess.Popen(program, stdin=follower, stdout=follower, stderr=follower, env=environ) as process:
        os.close(follower)
        shown, ended = b"", False
        with suppress(OSError):  # Linux reports the end of a terminal like this.
            while part := os.read(leader, 65536):
                shown += part
                if shown.count(b"per second") >= UPDATES and not ended:
                    process.send_signal(signal.SIGINT)
                    ended = True
    drawn = HIDDEN.sub("", shown.decode()).replace("\r\n", "\n")
    return next(frame for frame in reversed(FRAME.split(drawn)) if "per second" in frame)


def draw(frame: str, path: Path) -> None:
    """Write the frame as a picture that loads nothing from elsewhere."""
    lines = frame.strip("\n").split("\n")
    # Neither the processes of this machine nor the end of the command belong into it.
    shown = "\n".join(line for line in lines if "this host" not in line and "stopped" not in line).rstrip()
    with Path(os.devnull).open("w") as nowhere:
        console = Console(
            record=True, width=COLUMNS, file=nowhere, force_terminal=True, color_system="truecolor"
        )
        console.print(Text("$ bucketq stats --url shop --watch", style="bold"))
        console.print(Text.from_ansi(shown))
        path.write_text(console.export_svg(title="", code_format=SHAPE, unique_id="stats"))


def main(path: Path) -> None:
    """Run the work, look at it, and draw what was seen."""
    logging.getLogger("bucketq.worker").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as place:
        url, over = f"{place}/shop", threading.Event()
        bucketq.open(url).close()
        working = threading.Thread(target=work, args=(url, over))
        working.start()
        try:
            frame = watched(url)
        finally:
            over.set()
            working.join()
    # The queue file is in a directory, and the picture says so by its name.
    draw(frame.replace(f"{place}/", ""), path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
