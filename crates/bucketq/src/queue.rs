//! [`Queue`]: the handle on one named line of jobs in a queue file.

use crate::claim::ClaimRequest;
use crate::error::{Code, Error, Result};
use crate::file::QueueFile;
use crate::job::{New, Payload, State};
use crate::op::{Enqueued, Op, Outcome, Queues};
use crate::query::{Cursor, Filter, Page};

/// A named queue; costs nothing to make.
#[derive(Clone, Debug)]
pub struct Queue {
    file: QueueFile,
    name: String,
}

impl Queue {
    pub(crate) fn new(file: QueueFile, name: &str) -> Self {
        Self { file, name: name.to_owned() }
    }

    /// The queue file it is in.
    pub fn file(&self) -> &QueueFile {
        &self.file
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Enqueue a payload with every default.
    pub async fn enqueue(&self, payload: Payload) -> Result<Enqueued> {
        self.enqueue_job(self.new_job(payload)?).await
    }

    /// A job with a fresh id and every default, to be changed and enqueued.
    pub fn new_job(&self, payload: Payload) -> Result<New> {
        self.file.new_job(payload)
    }

    /// Enqueue one job. Enqueueing the same id again changes nothing.
    pub async fn enqueue_job(&self, job: New) -> Result<Enqueued> {
        let mut all = self.enqueue_many(vec![job]).await?;
        all.pop().ok_or_else(|| Error::new(Code::Internal, "an enqueue without an answer"))
    }

    /// Enqueue jobs in one commit, all or none; one answer a job, in order.
    pub async fn enqueue_many(&self, jobs: Vec<New>) -> Result<Vec<Enqueued>> {
        match self.file.call(Op::Enqueue { queue: self.name.clone(), jobs }).await?.outcome {
            Outcome::Enqueued(all) => Ok(all),
            _ => Err(Error::new(Code::Internal, "another outcome than asked for")),
        }
    }

    /// Ask for up to `max` jobs of this queue; `.await` the request.
    pub fn claim(&self, max: u32) -> ClaimRequest {
        self.file.claim(max).queues(Queues::Named(vec![self.name.clone()]))
    }

    /// A page of this queue's jobs, in these states; none named means all.
    pub async fn list(&self, states: &[State], after: Option<Cursor>, limit: u32) -> Result<Page> {
        let filter = Filter { queue: Some(self.name.clone()), states: states.to_vec(), ..Filter::default() };
        self.file.list(filter, after, limit).await
    }

    /// Delete the jobs in these states. Answers how many there were.
    pub async fn purge(&self, states: &[State]) -> Result<u64> {
        match self.file.call(Op::Purge { queue: self.name.clone(), states: states.to_vec() }).await?.outcome {
            Outcome::Purged { count } => Ok(count),
            _ => Err(Error::new(Code::Internal, "another outcome than asked for")),
        }
    }

    /// Claims get nothing from this queue until it is resumed.
    pub async fn pause(&self) -> Result<()> {
        self.file.call(Op::Pause { queue: self.name.clone() }).await.map(|_| ())
    }

    /// Claims get jobs again.
    pub async fn resume(&self) -> Result<()> {
        self.file.call(Op::Resume { queue: self.name.clone() }).await.map(|_| ())
    }
}
