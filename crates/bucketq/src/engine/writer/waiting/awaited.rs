//! Callers that wait until a job is finished, by the id of the job. They cost nothing until it may be finished: a
//! commit of this writer names the jobs it finished; after commits of others each job is looked up by its id, less
//! often when there are many. They share the poll of the store with waiting claims.
//!
//! Called by both modes, and by follow and events. Nothing here waits.

use std::collections::HashMap;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::door::{Await, Mail};
use crate::noun::error::{Error, Result};
use crate::noun::job::JobId;
use crate::noun::query::Detail;
use crate::state::db::Reported;

type Caller = oneshot::Sender<Result<Detail>>;

/// Pause per job between two lookups of all jobs: looking one up takes a few microseconds of it.
const GAP: Duration = Duration::from_micros(50);
/// Callers that may come before those that have left are dropped.
const LEAVE: usize = 64;

/// The waiting callers of each job.
pub(in crate::engine::writer) struct Awaited {
    jobs: HashMap<JobId, Vec<Caller>>,
    /// Callers, including those that have left and are not dropped yet.
    callers: usize,
    /// Callers that remained when those that had left were last dropped.
    stayed: usize,
    /// Jobs that may be finished or gone.
    ended: Vec<JobId>,
    /// Any job may be finished or gone: others have committed, or jobs were deleted.
    any: bool,
    /// When all jobs were last looked up.
    swept: Instant,
}

impl Awaited {
    pub fn new(now: Instant) -> Self {
        Self { jobs: HashMap::new(), callers: 0, stayed: 0, ended: vec![], any: false, swept: now }
    }

    /// Returns whether a caller waits, as far as is known.
    pub fn is_waited_for(&self) -> bool {
        !self.jobs.is_empty()
    }

    pub fn add(&mut self, Await { id, reply }: Await) {
        if self.callers >= 2 * self.stayed + LEAVE {
            self.drop_gone();
        }
        self.jobs.entry(id).or_default().push(reply);
        self.callers += 1;
        self.ended.push(id);
    }

    /// Drops callers that no longer wait.
    pub fn drop_gone(&mut self) {
        self.jobs.retain(|_, callers| {
            callers.retain(|caller| !caller.is_closed());
            !callers.is_empty()
        });
        self.callers = self.jobs.values().map(Vec::len).sum();
        self.stayed = self.callers;
    }

    /// Takes in the jobs that a commit of this writer finished or deleted.
    pub fn committed(&mut self, told: &Reported) {
        if self.jobs.is_empty() {
            return;
        }
        self.ended.extend(told.ended.iter().filter(|id| self.jobs.contains_key(id)));
        self.any |= told.deleted;
    }

    /// Notes commits of others, which may have finished any job.
    pub fn moved(&mut self) {
        self.any = !self.jobs.is_empty();
    }

    /// Returns when all jobs are to be looked up, if they are.
    pub fn due(&self) -> Option<Instant> {
        let gap = GAP * u32::try_from(self.jobs.len()).unwrap_or(u32::MAX);
        self.any.then(|| self.swept + gap.min(Duration::from_secs(5)))
    }

    /// Returns the jobs to be looked up now.
    pub fn due_by(&mut self, now: Instant) -> Vec<JobId> {
        if self.due().is_none_or(|due| due > now) {
            return std::mem::take(&mut self.ended);
        }
        self.ended.clear();
        (self.any, self.swept) = (false, now);
        self.jobs.keys().copied().collect()
    }

    /// Returns the waiting callers as mail.
    pub fn into_mail(self) -> impl Iterator<Item = Mail> {
        let callers =
            |(id, callers): (JobId, Vec<Caller>)| callers.into_iter().map(move |reply| Await { id, reply });
        self.jobs.into_iter().flat_map(callers).map(Mail::Await)
    }

    /// Takes the callers of this job out.
    pub fn take(&mut self, id: JobId) -> Vec<Caller> {
        let callers = self.jobs.remove(&id).unwrap_or_default();
        self.callers -= callers.len();
        callers
    }

    /// Fails all waiting callers with this error.
    pub fn refuse(&mut self, error: &Error) {
        for caller in self.jobs.drain().flat_map(|(_, callers)| callers) {
            let _ = caller.send(Err(error.clone()));
        }
        (self.callers, self.any) = (0, false);
        self.ended.clear();
    }
}
