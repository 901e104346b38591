"""The demo's log shows everything that the demo promises."""

import subprocess
import sys

import bucketq
from patience import PATIENCE

TIMEOUT = PATIENCE


def test_one_job_fails_one_worker_is_killed_and_all_jobs_get_done(tmp_path):
    url = str(tmp_path / "jobs")
    program = [sys.executable, "-m", "bucketq.demo", "--url", url, "--jobs", "20"]
    told = subprocess.run(program, capture_output=True, text=True, timeout=TIMEOUT, check=True)
    assert told.stderr == ""
    for words in ("no reply from the printer", "was killed", "attempt 2", "40 of 40", "PUTs per job", url):
        assert words in told.stdout
    with bucketq.open(url, create=False) as file:
        info = file.queue("reports").counts()
        assert info.counts["done"] == 40
        assert sum(info.counts.values()) == 40
        assert sum(job.attempt > 1 for job in file.list(["done"]).jobs) >= 2
