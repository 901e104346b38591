"""Random calls against a model of a queue, on both APIs."""

from __future__ import annotations

import asyncio
import itertools
import tempfile

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import bucketq
from both import OPEN
from bucketq import Backoff
from patience import PATIENCE

NUMBERS = itertools.count()


class Model(RuleBasedStateMachine):
    """One queue. The model and the queue must agree on each job."""

    face = "blocking"

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.url = f"memory://model{next(NUMBERS)}"
        self.open()
        self.states: dict[str, str] = {}
        self.order: dict[str, tuple[int, int]] = {}
        self.attempts: dict[str, int] = {}
        self.held: dict[str, object] = {}
        self.line = itertools.count()

    def open(self) -> None:
        self.file = self.run(OPEN[self.face](self.url))
        self.q = self.file.queue("q")

    def run(self, coroutine):
        return self.loop.run_until_complete(asyncio.wait_for(coroutine, PATIENCE))

    def teardown(self) -> None:
        self.held.clear()
        self.run(self.file.close())
        self.run(self.loop.shutdown_default_executor())
        self.loop.close()

    @rule(priorities=st.lists(st.integers(-2, 2), min_size=1, max_size=4))
    def enqueue(self, priorities):
        jobs = [bucketq.New(p, priority=p, max_attempts=2, backoff=Backoff(base=0)) for p in priorities]
        for receipt, priority in zip(self.run(self.q.enqueue_many(jobs)), priorities, strict=True):
            self.states[receipt.id] = "ready"
            self.attempts[receipt.id] = 0
            self.order[receipt.id] = (priority, next(self.line))

    @rule(most=st.integers(1, 4))
    def claim(self, most):
        ready = sorted((id for id, s in self.states.items() if s == "ready"), key=self.order.__getitem__)
        batch = self.run(self.q.claim(most))
        assert [job.id for job in batch] == ready[:most]
        for job in batch:
            self.states[job.id] = "leased"
            self.attempts[job.id] += 1
            assert job.attempt == self.attempts[job.id]
            assert job.data == self.order[job.id][0]
            self.held[job.id] = job

    def one_of(self, data, ids):
        # In the order of the model: ids are random, but the same choice must be the same job in every run.
        return data.draw(st.sampled_from(sorted(ids, key=self.order.__getitem__)))

    def take(self, data):
        return self.held.pop(self.one_of(data, self.held))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), result=st.none() | st.integers())
    def ack(self, data, result):
        job = self.take(data)
        self.run(job.ack(result=result))
        self.states[job.id] = "done"
        assert self.run(self.q.get(job.id)).result == result

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def nack(self, data):
        job = self.take(data)
        state = self.run(job.nack("no"))
        self.states[job.id] = "dead" if self.attempts[job.id] == 2 else "ready"
        assert state == self.states[job.id]

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data):
        job = self.take(data)
        self.run(job.release())
        self.states[job.id] = "ready"
        self.attempts[job.id] -= 1

    @precondition(lambda self: self.held)
    @rule(data=st.data(), leased=st.booleans())
    def cancel(self, data, leased):
        job = self.held[self.one_of(data, self.held)]
        if leased:
            assert self.run(self.q.cancel(job.id, leased=True)) == "leased"
            self.states[job.id] = "cancelled"
            del self.held[job.id]
            with pytest.raises(bucketq.LeaseLost):
                self.run(job.ack())
        else:
            with pytest.raises(bucketq.Invalid):
                self.run(self.q.cancel(job.id))

    @precondition(lambda self: any(s in ("done", "dead", "cancelled") for s in self.states.values()))
    @rule(data=st.data())
    def requeue(self, data):
        finished = [id for id, s in self.states.items() if s in ("done", "dead", "cancelled")]
        id = self.one_of(data, finished)
        self.run(self.q.requeue(id))
        self.states[id] = "ready"
        self.attempts[id] = 0
        self.order[id] = (self.order[id][0], next(self.line))

    @precondition(lambda self: self.order)
    @rule(states=st.sets(st.sampled_from(["ready", "done", "dead", "cancelled"]), min_size=1))
    def purge(self, states):
        gone = [id for id, state in self.states.items() if state in states]
        assert self.run(self.q.purge(sorted(states))) == len(gone)
        for id in gone:
            del self.states[id]

    @invariant()
    def the_counts_agree(self):
        counts = self.run(self.q.counts(max_age=60)).counts
        for state in counts:
            assert counts[state] == sum(s == state for s in self.states.values()), state


class AioModel(Model):
    face = "aio"


class LocalModel(Model):
    """The same in Local mode. Others see the state that was last published, and a discard goes back to it."""

    def __init__(self) -> None:
        self.directory = tempfile.TemporaryDirectory()
        super().__init__()
        self.others = self.run(OPEN[self.face](self.url, read_only=True))
        self.publish()

    def open(self) -> None:
        self.file = self.run(OPEN[self.face](self.url, mode="local", cache=self.directory.name))
        self.q = self.file.queue("q")

    def teardown(self) -> None:
        self.run(self.others.close())
        super().teardown()
        self.directory.cleanup()

    def publish(self) -> None:
        self.published = (dict(self.states), dict(self.order), dict(self.attempts))

    @rule()
    def sync(self):
        pending = self.file.dirty
        synced = self.run(self.file.sync())
        assert (synced.commits, synced.ops) == (pending.commits, pending.ops)
        self.publish()

    @precondition(lambda self: not self.held and "leased" not in self.published[0].values())
    @rule()
    def discard(self):
        self.run(self.file.snapshot(discard=True))
        self.states, self.order, self.attempts = map(dict, self.published)

    @precondition(lambda self: not self.held)
    @rule()
    def reopen(self):
        pending = self.file.dirty
        self.run(self.file.close())
        self.open()
        assert self.file.dirty == pending

    @invariant()
    def others_see_what_was_published(self):
        counts = self.run(self.others.queue("q").counts()).counts
        for state in counts:
            assert counts[state] == sum(s == state for s in self.published[0].values()), state


class LocalAioModel(LocalModel):
    face = "aio"


QUICK = settings(
    max_examples=25,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
)
TestBlocking = Model.TestCase
TestBlocking.settings = QUICK
TestAio = AioModel.TestCase
TestAio.settings = QUICK
TestLocal = LocalModel.TestCase
TestLocal.settings = QUICK
TestLocalAio = LocalAioModel.TestCase
TestLocalAio.settings = QUICK
