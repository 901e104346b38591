"""A program on a cluster whose executors are processes: they work on a queue, and one of them is killed."""

from __future__ import annotations

import json
import sys

from bucketq.spark import process, session


def main() -> None:
    asked = json.loads(sys.argv[1])

    def work(job: object) -> object:
        import os
        import signal
        from pathlib import Path

        # The ancestors of this process: the process of its task, the daemon of Python workers, and the executor.
        executor = os.getppid()
        for _ in range(2):
            executor = int(Path(f"/proc/{executor}/stat").read_text().rsplit(")", 1)[1].split()[1])
        n, attempt = job.data["n"], job.attempt  # type: ignore[attr-defined]
        if (n, attempt) == (13, 1):
            command = Path(f"/proc/{executor}/cmdline").read_text()
            assert "CoarseGrainedExecutorBackend" in command, command
            os.kill(executor, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        return {"n": n}

    spark = session(
        **{
            "spark.master": "local-cluster[2,1,1024]",
            "spark.driver.memory": "600m",
            "spark.executor.memory": "512m",
            "spark.driver.extraJavaOptions": asked["java"],
            "spark.executor.extraJavaOptions": asked["java"],
        }
    )
    done = process(
        spark, asked["url"], "mail", work, batch=20, lease=asked["lease"], settings=asked["settings"]
    )
    rows = done.results().select("id", "attempts", "result").collect()
    print(
        json.dumps(
            {
                "acked": done.acked,
                "lost": done.lost,
                "rows": [(row["id"], row["attempts"], json.loads(bytes(row["result"]))) for row in rows],
            }
        )
    )
    spark.stop()


main()
