//! What a writer tells those who watch, after the commit that made it true: events to listeners, times to histograms.
//!
//! Called by turn, push, local and sync. Nothing waits for a listener, and without one nothing is put together.

use tokio::time::Instant;

use super::{Outcomes, Writer};
use crate::db::Told;
use crate::event::{Cause, Event, Happened};
use crate::job::Claimed;
use crate::metrics::Counters;
use crate::op::Outcome;

impl Writer {
    /// What a batch did, now that it is committed.
    pub(super) fn tell_batch(&self, told: Told, commit: (u64, i64)) {
        let observed = &self.shared.observed;
        let length = |ms: &i64| u64::try_from(*ms).unwrap_or(0);
        told.waits_ms.iter().map(length).for_each(|ms| observed.wait_ms.observe(ms));
        told.runs_ms.iter().map(length).for_each(|ms| observed.run_ms.observe(ms));
        self.tell_all(told.into_facts(), commit);
    }

    /// A commit of these ops is stored, which began then.
    pub(super) fn tell_commit(&self, ops: u32, began: Instant, commit: (u64, i64)) {
        let took = self.env.monotonic().saturating_duration_since(began);
        let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        self.shared.observed.commit_ms.observe(took_ms);
        self.shared.observed.commit_ops.observe(ops.into());
        if self.shared.watchers.any() {
            let record = self.chain.head.tail.iter().find(|r| r.seq == commit.0);
            let bytes = record.map_or(0, |r| r.encoded_len() as u64);
            self.tell_all(vec![Happened::Committed { ops, bytes, took_ms }], commit);
        }
    }

    /// A commit lost its place.
    pub(super) fn tell_conflict(&self, cause: Cause) {
        let counters = &self.shared.counters;
        Counters::add(&counters.conflicts, 1);
        Counters::add(&counters.conflicts_unanswered, u64::from(cause == Cause::Unanswered));
        self.tell(|| Happened::Conflict { cause });
    }

    /// Claims that are answered with nothing.
    pub(super) fn tell_empty(&self, outcomes: &Outcomes, commit: (u64, i64)) {
        if self.shared.watchers.any() {
            let nothing = |o: &crate::error::Result<Outcome>| matches!(o, Ok(Outcome::Claimed(jobs)) if <[Claimed]>::is_empty(jobs));
            let claims = outcomes.iter().filter(|o| nothing(o)).map(|_| Happened::ClaimedNothing).collect();
            self.tell_all(claims, commit);
        }
    }

    /// Something that concerns no commit of its own.
    pub(super) fn tell(&self, what: impl FnOnce() -> Happened) {
        if self.shared.watchers.any() {
            self.tell_all(vec![what()], (self.chain.head.commit_seq, self.chain.head.commit_ms));
        }
    }

    fn tell_all(&self, facts: Vec<Happened>, (commit_seq, commit_ms): (u64, i64)) {
        if facts.is_empty() {
            return;
        }
        let events: Vec<Event> =
            facts.into_iter().map(|what| Event { commit_seq, commit_ms, what }).collect();
        let missed = self.shared.watchers.tell(&events);
        Counters::add(&self.shared.counters.events_missed, missed);
    }
}
