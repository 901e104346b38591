//! What a transaction did to jobs, for those who watch: collected while it runs, taken once it is committed.
//!
//! Called by every op. Nothing is collected for nobody, except the two times that metrics are made of.

use std::sync::Arc;

use super::Turn;
use super::row::{Slot, attempt};
use crate::event::{At, Happened};
use crate::job::JobId;

/// What one transaction did.
#[derive(Clone, Debug, Default)]
pub struct Told {
    /// In order; none when nobody watches.
    facts: Option<Vec<Happened>>,
    /// How long jobs that were claimed had waited.
    pub waits_ms: Vec<i64>,
    /// How long jobs that were acked had been worked on.
    pub runs_ms: Vec<i64>,
}

impl Told {
    /// Nothing yet.
    pub fn new(watched: bool) -> Self {
        Self { facts: watched.then(Vec::new), ..Self::default() }
    }

    /// What happened, in order.
    pub fn into_facts(self) -> Vec<Happened> {
        self.facts.unwrap_or_default()
    }

    /// How much there is, to go back to.
    pub(super) fn mark(&self) -> [usize; 3] {
        [self.facts.as_ref().map_or(0, Vec::len), self.waits_ms.len(), self.runs_ms.len()]
    }

    /// What came after the mark did not happen; only that a lease was found lost is true all the same.
    pub(super) fn back_to(&mut self, [facts, waits, runs]: [usize; 3]) {
        if let Some(all) = &mut self.facts {
            let undone = all.split_off(facts);
            all.extend(undone.into_iter().filter(|fact| matches!(fact, Happened::LeaseLost { .. })));
        }
        self.waits_ms.truncate(waits);
        self.runs_ms.truncate(runs);
    }
}

impl Turn<'_> {
    /// Somebody watches: facts are worth putting together.
    pub const fn watched(&self) -> bool {
        self.cache.told.facts.is_some()
    }

    /// This has happened.
    pub fn tell(&mut self, what: Happened) {
        if let Some(facts) = &mut self.cache.told.facts {
            facts.push(what);
        }
    }

    /// This has happened to a job.
    pub fn tell_of(&mut self, slot: &Slot, what: impl FnOnce(At) -> Happened) {
        if self.watched() {
            let at = self.at(slot);
            self.tell(what(at));
        }
    }

    fn at(&self, slot: &Slot) -> At {
        At {
            queue: Arc::clone(&self.line(slot.line).name),
            id: JobId(uuid::Uuid::from_bytes(slot.id)),
            run: slot.run,
            attempt: attempt(slot.tries).unwrap_or(0),
        }
    }
}
