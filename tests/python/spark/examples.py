"""A program that runs the examples of a page and a notebook in its directory, and prints their output."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

from bucketq.spark import session


def run(code: str, name: str, names: dict[str, Any]) -> str:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(code, name, "exec"), names)
    return said.getvalue()


def main() -> None:
    asked = json.loads(sys.argv[1])
    # The examples find this session, which is configured for little data.
    made = session(
        **{
            "spark.master": "local[2]",
            "spark.sql.shuffle.partitions": "2",
            "spark.driver.extraJavaOptions": asked["java"],
        }
    )
    names: dict[str, Any] = {"__name__": "page"}
    page = [run(code, "spark.md", names) for code in asked["page"]]
    notebook = run(asked["notebook"], "shop.py", {"__name__": "shop"})
    print(
        json.dumps({"page": page, "notebook": notebook, "made": sorted(p.name for p in Path.cwd().iterdir())})
    )
    made.stop()


main()
