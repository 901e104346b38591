"""A program for tests that kill it: a stream from files into a queue, or from the history into Parquet."""

from __future__ import annotations

import json
import sys

from bucketq.spark import session


def main() -> None:
    asked = json.loads(sys.argv[1])
    spark = session(
        **{
            "spark.master": "local[1]",
            "spark.driver.memory": "600m",
            "spark.driver.extraJavaOptions": asked["java"],
        }
    )
    if asked["stream"] == "into":
        rows = spark.readStream.schema("n bigint").option("maxFilesPerTrigger", 2).json(asked["from"])
        out = rows.selectExpr("struct(n) AS payload").writeStream.format("bucketq")
        out = out.options(**asked["options"], queue="mail", chunk="7")
    else:
        rows = spark.readStream.format("bucketq").options(**asked["options"], **asked["limits"]).load()
        out = rows.writeStream.format("parquet").option("path", asked["to"])
    out = out.option("checkpointLocation", asked["checkpoint"]).trigger(availableNow=True)
    out.start().awaitTermination()
    spark.stop()
    print(json.dumps("done"))


main()
