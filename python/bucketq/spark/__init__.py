"""Queue files on Spark: read and write them as DataFrames and streams, run jobs on executors, analyse them.

``bucketq.spark.register(spark)`` adds ``format("bucketq")`` to a session. Needs ``pip install "bucketq[spark]"`` and
Java 17. See docs/spark.md.
"""

# pyright: basic
from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING

from bucketq.errors import Invalid

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Analysed", "Dead", "Processed", "pipeline", "process", "register", "session"]

try:
    import pyarrow  # noqa: F401
    import pyspark
except ImportError as error:
    raise ImportError(
        f'bucketq.spark needs an extra ({error.name} is missing): pip install "bucketq[spark]"'
    ) from None

if tuple(int(part) for part in pyspark.__version__.split(".")[:2]) < (4, 2):
    raise ImportError(f"bucketq.spark needs PySpark 4.2 or newer, and this is {pyspark.__version__}")

from bucketq.spark._pipeline import Analysed, pipeline
from bucketq.spark._work import Dead, Processed, process


def register(spark: SparkSession) -> None:
    """Add ``format("bucketq")`` to this session.

    With a local master, executors then use this program's Python, unless PYSPARK_PYTHON names another.
    """
    from bucketq.spark.source import Source

    context = spark.sparkContext
    if "PYSPARK_PYTHON" not in os.environ and (context.master or "").startswith("local"):
        # Otherwise Spark uses the first python3 on the PATH, which may have another bucketq or none.
        context.pythonExec = sys.executable
    spark.dataSource.register(Source)


def session(**settings: str) -> SparkSession:
    """Return a session with ``format("bucketq")``, local by default; ``settings`` are settings of Spark."""
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        raise Invalid(
            "Spark needs Java 17: install it (Debian: apt install openjdk-17-jre-headless)", "option"
        )
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("bucketq").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.session.timeZone", "UTC")
    for name, value in ({"spark.master": "local[*]"} | settings).items():
        builder = builder.config(name, value)
    if "PYSPARK_PYTHON" not in os.environ:
        os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = builder.getOrCreate()
    register(spark)
    return spark
