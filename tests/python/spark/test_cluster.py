"""Executors in separate processes: one is killed, and speculative execution runs tasks twice."""

from __future__ import annotations

import json

import pytest
from kit import archive
from program import program, standalone

import bucketq

# These tests run separate programs, each of which starts a Spark.
pytestmark = pytest.mark.limit(900)

JOBS = 120


def test_the_jobs_of_a_killed_executor_come_back_and_all_finish_with_one_result_each(place, tmp_path):
    with place.open() as file:
        archive(file, "mail", keep=JOBS)
        q = file.queue("mail")
        ids = [job.id for job in q.enqueue_many([bucketq.New({"n": n}) for n in range(JOBS)])]
        asked = {"url": place.url, "settings": place.settings, "lease": 4}
        with program("on_cluster.py", tmp_path / "scratch", **asked) as driver:
            told = driver.answer()
        assert q.counts().counts["done"] == JOBS
        again = {job.id for job in file.list(queue="mail", limit=JOBS).jobs if job.attempt > 1}
    assert ids[13] in again
    assert len(again) <= 20, "what the executor had not acked of its batch came back, and no other job"
    assert sorted(id for id, _, _ in told["rows"]) == sorted(ids), "each result once"
    results = {id: result["n"] for id, _, result in told["rows"]}
    assert results == {id: n for n, id in enumerate(ids)}
    # The counts of a killed executor are lost.
    assert JOBS - 20 < told["acked"] <= JOBS
    assert told["lost"] == 0


def test_tasks_that_run_twice_to_be_quicker_enqueue_their_rows_once(place, spark, tmp_path):
    with place.open() as file, standalone(tmp_path) as master:
        asked = {
            "master": master,
            "options": place.options(queue="mail"),
            "started": str(tmp_path / "started"),
        }
        with program("speculating.py", tmp_path / "scratch", **asked) as driver:
            told = driver.answer()
            said = driver.said.read_text()
        jobs = file.list(queue="mail", limit=1000).jobs
        found = sorted(json.loads(file.get(job.id).payload)["n"] for job in jobs)
    assert told == ["3-0", "3-1"], "the slow task ran twice"
    assert found == list(range(40))
    assert "40 jobs in 3 commits, each whole and once" in said, "who wrote is told that it was not one commit"
