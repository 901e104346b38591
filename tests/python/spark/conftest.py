"""One Spark session for all tests here, and queue files with an archive."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit import NUMBERS, Place
from program import JAVA

from patience import PATIENCE
from servers import BUCKET, Server, require


def java() -> str:
    """Return Java 17 or newer, or skip with the reason that it is missing."""
    home = os.environ.get("JAVA_HOME")
    program = shutil.which("java", path=f"{home}/bin" if home else None)
    reason = "Java 17 is not installed (Debian: apt install openjdk-17-jre-headless)"
    program = require(program, reason)
    told = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=PATIENCE).stderr
    version = re.search(r'version "(\d+)', told)
    return require(program if version and int(version[1]) >= 17 else None, reason)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    java()
    from bucketq.spark import session

    scratch = tmp_path_factory.mktemp("spark")
    made = session(
        **{
            "spark.master": "local[2,3]",
            "spark.sql.shuffle.partitions": "2",
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": f"-Dderby.system.home={scratch} {JAVA}",
            "spark.sql.warehouse.dir": str(scratch / "warehouse"),
            "spark.local.dir": str(scratch),
            "spark.sql.streaming.pollingDelay": "50ms",
        }
    )
    yield made
    made.stop()


@pytest.fixture(params=["file"])
def place(request: pytest.FixtureRequest, spark: Any, tmp_path: Path) -> Place:
    """A queue file in a directory; with ``s3`` as the parameter, on a real S3 server."""
    if request.param == "file":
        return Place(str(tmp_path / "jobs"), {}, spark)
    server: Server = request.getfixturevalue("server")
    return Place(f"s3://{BUCKET}/spark{next(NUMBERS)}", server.settings, spark, server)
