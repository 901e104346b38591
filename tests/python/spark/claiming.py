"""A worker in its own process: claims and acks until a number of jobs of a queue are done, and prints which it had."""

from __future__ import annotations

import json
import sys

import bucketq

asked = json.loads(sys.argv[1])
had: list[int] = []
with bucketq.open(asked["url"], **asked["settings"]) as file:
    queue = file.queue("mail")
    while queue.counts(max_age=0).counts["done"] < asked["jobs"]:
        with queue.claim(5, wait=0.5) as batch:
            for job in batch:
                had.append(job.data["n"])
                job.ack()
print(json.dumps(had))
