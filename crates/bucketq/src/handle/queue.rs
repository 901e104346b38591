//! [`Queue`]: the handle on one named queue in a queue file.

use crate::handle::claim::ClaimRequest;
use crate::handle::file::QueueFile;
use crate::noun::error::{Error, Result, only};
use crate::noun::job::{New, Payload, State};
use crate::noun::op::{Enqueued, Op, Outcome, Queues};
use crate::noun::query::{Cursor, Filter, Page};

/// A named queue; costs nothing to create.
#[derive(Clone, Debug)]
pub struct Queue {
    file: QueueFile,
    name: String,
}

impl Queue {
    pub(crate) fn new(file: QueueFile, name: &str) -> Self {
        Self { file, name: name.to_owned() }
    }

    /// Returns the queue file that it is in.
    pub fn file(&self) -> &QueueFile {
        &self.file
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Enqueues a payload with every default.
    pub async fn enqueue(&self, payload: Payload) -> Result<Enqueued> {
        self.enqueue_job(self.new_job(payload)?).await
    }

    /// Returns a job with a fresh id and every default, to be changed and enqueued.
    pub fn new_job(&self, payload: Payload) -> Result<New> {
        self.file.new_job(payload)
    }

    /// Enqueues one job. Enqueueing the same id again changes nothing.
    pub async fn enqueue_job(&self, job: New) -> Result<Enqueued> {
        let mut all = self.enqueue_many(vec![job]).await?;
        all.pop().ok_or_else(|| Error::bug("an enqueue without a receipt"))
    }

    /// Enqueues jobs in one commit, all or none. Returns one entry a job, in the same order.
    pub async fn enqueue_many(&self, jobs: Vec<New>) -> Result<Vec<Enqueued>> {
        let op = Op::Enqueue { queue: self.name.clone(), jobs };
        only!(self.file.call(op).await?.outcome, Outcome::Enqueued(all) => all)
    }

    /// Builds a claim of up to `max` jobs of this queue; `.await` the request.
    pub fn claim(&self, max: u32) -> ClaimRequest {
        self.file.claim(max).queues(Queues::Named(vec![self.name.clone()]))
    }

    /// Returns a page of this queue's jobs in these states; with no states, in all.
    pub async fn list(&self, states: &[State], after: Option<Cursor>, limit: u32) -> Result<Page> {
        let filter = Filter { queue: Some(self.name.clone()), states: states.to_vec(), ..Filter::default() };
        self.file.list(filter, after, limit).await
    }

    /// Deletes the jobs that are in these states now, some in each commit. Returns how many.
    pub async fn purge(&self, states: &[State]) -> Result<u64> {
        self.file.purge_all(&self.name, states).await
    }

    /// Pauses the queue: claims get no jobs from it until it is resumed.
    pub async fn pause(&self) -> Result<()> {
        only!(self.file.call(Op::Pause { queue: self.name.clone() }).await?.outcome, Outcome::Paused => ())
    }

    /// Resumes the queue: claims get its jobs again.
    pub async fn resume(&self) -> Result<()> {
        only!(self.file.call(Op::Resume { queue: self.name.clone() }).await?.outcome, Outcome::Resumed => ())
    }
}
