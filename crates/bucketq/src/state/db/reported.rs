//! Events and times of a transaction: collected while it runs, taken once it is committed.
//!
//! Called by every op. Without a listener nothing is collected, except the two times for metrics and the ids of
//! finished jobs, for callers that wait for one.

use std::sync::Arc;

use super::Tx;
use super::job_row::{JobRow, attempt};
use crate::noun::event::{At, Happened};
use crate::noun::job::JobId;

/// The report of one transaction.
#[derive(Clone, Debug, Default)]
pub struct Reported {
    /// In order; none when there is no listener.
    facts: Option<Vec<Happened>>,
    /// How long claimed jobs had waited.
    pub waits_ms: Vec<i64>,
    /// How long acked jobs had been worked on.
    pub runs_ms: Vec<i64>,
    /// Jobs that were finished.
    pub ended: Vec<JobId>,
    /// Jobs were deleted that may not have been finished.
    pub deleted: bool,
}

impl Reported {
    /// Returns an empty report.
    pub fn new(watched: bool) -> Self {
        Self { facts: watched.then(Vec::new), ..Self::default() }
    }

    /// Returns the events in order.
    pub fn into_facts(self) -> Vec<Happened> {
        self.facts.unwrap_or_default()
    }

    /// Returns the current length of each list, for [`Reported::back_to`].
    pub(super) fn mark(&self) -> [usize; 4] {
        [self.facts.as_ref().map_or(0, Vec::len), self.waits_ms.len(), self.runs_ms.len(), self.ended.len()]
    }

    /// Takes out the events and times since the mark.
    pub(super) fn take_since(&mut self, mark: [usize; 4]) -> (Vec<Happened>, Vec<i64>, Vec<i64>) {
        let [facts, waits, runs, _] = mark;
        let events = self.facts.as_mut().map_or_else(Vec::new, |all| all.split_off(facts.min(all.len())));
        let times = |all: &mut Vec<i64>, from: usize| all.split_off(from.min(all.len()));
        (events, times(&mut self.waits_ms, waits), times(&mut self.runs_ms, runs))
    }

    /// Drops everything since the mark. Lost leases stay: they are true even if the ops are undone.
    pub(super) fn back_to(&mut self, [facts, waits, runs, ended]: [usize; 4]) {
        if let Some(all) = &mut self.facts {
            let undone = all.split_off(facts);
            all.extend(undone.into_iter().filter(|fact| matches!(fact, Happened::LeaseLost { .. })));
        }
        self.waits_ms.truncate(waits);
        self.runs_ms.truncate(runs);
        self.ended.truncate(ended);
    }
}

impl Tx<'_> {
    /// Returns whether there is a listener, so that events are worth building.
    pub const fn watched(&self) -> bool {
        self.cache.reported.facts.is_some()
    }

    /// Reports an event.
    pub fn report(&mut self, what: Happened) {
        if let Some(facts) = &mut self.cache.reported.facts {
            facts.push(what);
        }
    }

    /// Reports an event of a job.
    pub fn report_job(&mut self, job_row: &JobRow, what: impl FnOnce(At) -> Happened) {
        if self.watched() {
            let at = self.at(job_row);
            self.report(what(at));
        }
    }

    fn at(&self, job_row: &JobRow) -> At {
        At {
            queue: Arc::clone(&self.line(job_row.line).name),
            id: JobId(uuid::Uuid::from_bytes(job_row.id)),
            run: job_row.run,
            attempt: attempt(job_row.tries).unwrap_or(0),
        }
    }
}
