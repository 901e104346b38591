"""Jobs that end the process they run in, time limits, and names of queues that nobody has created."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import pytest

import bucketq
from bucketq.spark import process
from bucketq.spark._child import supervise


def left(queue: Any) -> dict[str, int]:
    return {state: n for state, n in queue.counts(max_age=0).counts.items() if n}


def test_a_job_that_ends_its_process_takes_no_other_job_with_it_and_is_reported(place, spark):
    def work(job: Any) -> Any:
        if job.data["n"] == 7:
            os._exit(3)
        return job.data["n"]

    with place.open() as file:
        q = file.queue("mail")
        q.configure(max_attempts=3, backoff=bucketq.Backoff.none())
        ids = [job.id for job in q.enqueue_many([bucketq.New({"n": n}) for n in range(20)])]
        done = process(spark, place.url, "mail", work, tasks=1, settings=place.settings)
        assert left(q) == {"done": 19, "dead": 1}
        assert (done.acked, done.failed, done.crashed, done.lost, done.dead) == (19, 3, 3, 0, 1)
        assert [tuple(one) for one in done.died] == [
            (ids[7], "the process that ran it ended with exit code 3")
        ]
        # Others may have run twice, if they had ended but were not acked yet; no attempt of theirs counts.
        assert {file.get(id).attempt for id in ids if id != ids[7]} == {1}
        assert [one.ended for one in file.get(ids[7]).attempts] == ["failed"] * 3


def test_jobs_with_a_single_attempt_run_alone_and_only_the_one_that_is_killed_dies(place, spark):
    def work(job: Any) -> Any:
        if job.data["n"] == 2:
            os.kill(os.getpid(), 9)
        if job.data["n"] == 3:
            raise SystemExit("enough")

    with place.open() as file:
        q = file.queue("mail")
        q.configure(max_attempts=1)
        ids = [job.id for job in q.enqueue_many([bucketq.New({"n": n}) for n in range(6)])]
        done = process(spark, place.url, "mail", work, tasks=1, settings=place.settings)
        assert left(q) == {"done": 4, "dead": 2}
        assert (done.acked, done.failed, done.crashed, done.dead) == (4, 2, 1, 2)
        killed = "the process that ran it ended by SIGKILL, perhaps for lack of memory"
        assert dict(done.died) == {ids[2]: killed, ids[3]: "SystemExit: enough"}


def test_a_second_attempt_of_a_frame_runs_alone(place, spark):
    def work(frame: Any) -> Any:
        if any(data["n"] == 2 for data in frame["data"]):
            os._exit(1)
        return [len(frame)] * len(frame)

    with place.open() as file:
        q = file.queue("mail")
        q.configure(max_attempts=2, backoff=bucketq.Backoff.none())
        ids = [job.id for job in q.enqueue_many([bucketq.New({"n": n}) for n in range(5)])]
        done = process(spark, place.url, "mail", work, how="pandas", tasks=1, settings=place.settings)
        assert left(q) == {"done": 4, "dead": 1}
        assert [file.get(id).result for id in ids if id != ids[2]] == [1] * 4
        assert [one.id for one in done.died] == [ids[2]]


def test_after_its_seconds_no_job_is_begun_and_those_not_begun_keep_their_attempts(place, spark):
    def work(job: Any) -> None:
        threading.Event().wait(0.5)

    with place.open() as file:
        q = file.queue("mail")
        q.enqueue_many([bucketq.New({"n": n}) for n in range(50)])
        # Start the processes of Python first.
        spark.range(2).mapInPandas(lambda frames: frames, "id long").collect()
        begun = time.monotonic()
        # Five tasks run one after the other on two cores: the time is that of the call.
        done = process(spark, place.url, "mail", work, tasks=5, seconds=4, settings=place.settings)
        assert time.monotonic() - begun < 12
        assert 0 < done.acked < 20
        assert left(q) == {"done": done.acked, "ready": 50 - done.acked}
        assert {job.attempt for job in file.list(queue="mail", states=["ready"], limit=50).jobs} == {0}


def test_a_queue_that_does_not_exist_is_an_error_with_the_nearest_name(place, spark):
    with place.open() as file:
        file.queue("mail").enqueue({})
    with pytest.raises(bucketq.NotFound, match=r"no queue 'mailx'.*: did you mean mail\?") as found:
        process(spark, place.url, "mailx", print, settings=place.settings)
    assert found.value.code == "no_such_queue"
    with pytest.raises(bucketq.Invalid, match=r"did you mean pandas\?"):
        process(spark, place.url, "mail", print, how="panda", settings=place.settings)


def test_without_fork_the_work_runs_in_the_process_of_the_task(spark, monkeypatch):
    pids: list[int] = []

    def body(tell: Any, left: Any) -> None:
        assert left == []
        pids.append(os.getpid())
        tell("acked", 2)

    monkeypatch.delattr(os, "fork")
    assert supervise(body).acked == 2
    assert pids == [os.getpid()]


def test_a_child_that_dies_again_and_again_while_no_job_runs_is_an_error():
    with pytest.raises(RuntimeError, match="exit code 4, 3 times, and no job was running"):
        supervise(lambda tell, left: os._exit(4))
