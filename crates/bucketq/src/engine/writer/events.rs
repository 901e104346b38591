//! Sends events to listeners and adds times to histograms, after the commit that made them true.
//!
//! Nothing waits for a listener, and without one no events are built.

use tokio::time::Instant;

use super::{Actor, Home, Outcomes};
use crate::bytes::metrics::Counters;
use crate::door::Slot;
use crate::noun::event::{Cause, Event, Happened};
use crate::noun::job::Claimed;
use crate::noun::op::Outcome;
use crate::state::db::Reported;

impl<H: Home> Actor<H> {
    /// Emits the events and times of a committed batch.
    pub(super) fn emit_batch(&mut self, reported: Reported, commit: (u64, i64)) {
        self.waiting.awaited.committed(&reported);
        let observed = &self.shared.observed;
        let length = |ms: &i64| u64::try_from(*ms).unwrap_or(0);
        reported.waits_ms.iter().map(length).for_each(|ms| observed.wait_ms.observe(ms));
        reported.runs_ms.iter().map(length).for_each(|ms| observed.run_ms.observe(ms));
        self.emit_all(reported.into_facts(), commit);
    }

    /// Emits that a commit of these ops is stored, which began at `began`.
    pub(super) fn emit_commit(&self, ops: u32, began: Instant, commit: (u64, i64)) {
        let took = self.env.monotonic().saturating_duration_since(began);
        let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        self.shared.observed.commit_ms.observe(took_ms);
        self.shared.observed.commit_ops.observe(ops.into());
        if self.shared.watchers.any() {
            let record = self.chain.head().tail.iter().find(|r| r.seq == commit.0);
            let bytes = record.map_or(0, |r| r.encoded_len() as u64);
            self.emit_all(vec![Happened::Committed { ops, bytes, took_ms }], commit);
        }
    }

    /// Counts and emits a lost race.
    pub(super) fn emit_conflict(&self, cause: Cause) {
        let counters = &self.shared.counters;
        Counters::add(&counters.conflicts, 1);
        Counters::add(&counters.conflicts_unanswered, u64::from(cause == Cause::Unanswered));
        self.emit(|| Happened::Conflict { cause });
    }

    /// Emits the claims of this process that return no jobs; those of others are in the reports to them.
    pub(super) fn emit_empty(&self, batch: &[Slot], outcomes: &Outcomes, commit: (u64, i64)) {
        if self.shared.watchers.any() {
            let nothing = |o: &crate::noun::error::Result<Outcome>| matches!(o, Ok(Outcome::Claimed(jobs)) if <[Claimed]>::is_empty(jobs));
            let own = |slot: &Slot| !slot.session.as_ref().is_some_and(|op| op.is_of_another_process());
            let claims = batch.iter().zip(outcomes).filter(|(slot, o)| own(slot) && nothing(o));
            let claims = claims.map(|_| Happened::ClaimedNothing).collect();
            self.emit_all(claims, commit);
        }
    }

    /// Emits an event that belongs to no commit of its own.
    pub(super) fn emit(&self, what: impl FnOnce() -> Happened) {
        if self.shared.watchers.any() {
            self.emit_all(vec![what()], self.chain.newest());
        }
    }

    fn emit_all(&self, facts: Vec<Happened>, (commit_seq, commit_ms): (u64, i64)) {
        if facts.is_empty() {
            return;
        }
        let events: Vec<Event> =
            facts.into_iter().map(|what| Event { commit_seq, commit_ms, what }).collect();
        let missed = self.shared.watchers.emit(&events);
        Counters::add(&self.shared.counters.events_missed, missed);
    }
}
