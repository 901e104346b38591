"""A program that writes to a queue with a task so slow that Spark runs it a second time."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bucketq.spark import session


def main() -> None:
    asked = json.loads(sys.argv[1])
    started = asked["started"]
    Path(started).mkdir()

    def slow(frames: Iterator[Any]) -> Iterator[Any]:
        from pathlib import Path
        from time import sleep

        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        if context.partitionId() == 3:
            (Path(started) / f"3-{context.attemptNumber()}").touch()
            # The first attempt continues when there is a second one, so both have rows.
            while len(list(Path(started).iterdir())) < 2:
                sleep(0.05)
        yield from frames

    spark = session(
        **{
            "spark.master": asked["master"],
            "spark.driver.memory": "600m",
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.driver.extraJavaOptions": asked["java"],
            "spark.executor.extraJavaOptions": asked["java"],
            "spark.driver.host": "127.0.0.1",
            "spark.speculation": "true",
            "spark.speculation.interval": "100ms",
            "spark.speculation.multiplier": "1.1",
            "spark.speculation.quantile": "0.5",
        }
    )
    rows = spark.range(0, 40, 1, 4).mapInPandas(slow, "id bigint").selectExpr("struct(id AS n) AS payload")
    rows.write.format("bucketq").mode("append").options(**asked["options"], chunk="15").save()
    print(json.dumps(sorted(path.name for path in Path(started).iterdir())))
    spark.stop()


main()
