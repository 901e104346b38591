//! Requests to the writer that are neither ops nor queries: collections, archiving, exports, tasks.
//!
//! Called by file and sync.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{ArchiveStep, Await, Begun, Collection, Door, Export, Mail, MailboxPlace, Stage, Synced, gone};
use crate::noun::config::Mode;
use crate::noun::error::{Code, Error, Result};
use crate::noun::job::JobId;
use crate::noun::query::{Collected, Detail, Exported};

/// Work on the state as a whole.
#[derive(Debug)]
pub(crate) enum Task {
    Sync,
    Snapshot { discard: bool },
    Export { path: PathBuf },
}

/// The return value of a task.
#[derive(Debug)]
pub(crate) enum TaskResult {
    Synced(Synced),
    /// The number of the newest commit.
    At(u64),
    Exported,
}

/// A task on its way to the writer, and the channel for its reply.
#[derive(Debug)]
pub(crate) struct QueuedTask {
    pub task: Task,
    pub stage: Arc<Stage>,
    /// The deadline of its caller.
    pub until: Instant,
    pub reply: oneshot::Sender<Result<TaskResult>>,
}

impl Door {
    /// Runs a task. Once it has begun, it continues even if the caller leaves.
    pub async fn task(&self, task: Task) -> Result<TaskResult> {
        let (reply, told) = oneshot::channel();
        let stage = Arc::new(Stage::default());
        let until = self.env.monotonic() + self.options.deadline;
        // In Local mode the writer ends a task at the deadline itself, and knows what the task did.
        let patience = self.options.deadline * if self.options.mode == Mode::Local { 2 } else { 1 };
        let queued = QueuedTask { task, stage: Arc::clone(&stage), until, reply };
        self.tx.send(Mail::Task(queued)).map_err(|_| gone())?;
        tokio::select! {
            biased;
            told = told => told.map_err(|_| gone())?,
            () = self.env.sleep(patience) => Err(self.gave_up(&stage)),
        }
    }

    /// Deletes garbage. The deadline applies to raising the floor; the deletes take as long as they need, and continue
    /// if the caller leaves.
    pub async fn collect(self: &Arc<Self>, grace: Duration) -> Result<Collected> {
        self.refuse_if_read_only()?;
        let arrived = self.env.monotonic();
        let _place = MailboxPlace::take(self)?;
        let stage = Arc::new(Stage::default());
        let deadline = self.env.sleep(self.options.deadline);
        let mut under_way = self.shared.base_under_way.subscribe();
        let begin = async {
            let mut tidy = grace.is_zero();
            loop {
                // A base that is being written will make the old one garbage.
                let _ = under_way.wait_for(|under_way| !under_way).await;
                let ((begun, told), (reply, done)) = (oneshot::channel(), oneshot::channel());
                let order = Collection { grace, tidy, stage: Arc::clone(&stage), arrived, begun, reply };
                self.tx.send(Mail::Collect(order)).map_err(|_| gone())?;
                if told.await.map_err(|_| gone())?? == Begun::Deleting {
                    return Ok(done);
                }
                tidy = false;
            }
        };
        let done = tokio::select! {
            biased;
            done = begin => done?,
            () = deadline => return Err(self.gave_up(&stage)),
        };
        self.while_it_deletes(done, arrived + self.options.deadline).await
    }

    /// Waits for the end of a collection, as long as it makes progress.
    async fn while_it_deletes(
        &self,
        mut done: oneshot::Receiver<Result<Collected>>,
        deadline: Instant,
    ) -> Result<Collected> {
        let requests = || {
            let metrics = self.shared.counters.read();
            metrics.deletes + metrics.lists + metrics.gets + self.shared.progress.load(SeqCst)
        };
        let mut before = requests();
        loop {
            let left = deadline.saturating_duration_since(self.env.monotonic());
            let patience = left.max(self.options.deadline / 10);
            tokio::select! {
                biased;
                done = &mut done => return done.map_err(|_| gone())?,
                () = self.env.sleep(patience) => {}
            }
            let now = requests();
            if now == before {
                return Err(Error::new(
                    Code::OutcomeUnknown,
                    "the store does not reply, and unused objects may be deleted or not: collect again",
                ));
            }
            before = now;
        }
    }

    /// Archives every due job. Returns how many were archived; other writers may have archived more. Fails when no
    /// object gets on the list within the deadline.
    pub async fn archive(self: &Arc<Self>) -> Result<u64> {
        self.refuse_if_read_only()?;
        let _place = MailboxPlace::take(self)?;
        let mut jobs = 0;
        let mut since = self.env.monotonic();
        loop {
            let (tx, rx) = oneshot::channel();
            self.tx.send(Mail::Archive(tx)).map_err(|_| gone())?;
            let limit = self.options.deadline.saturating_sub(self.env.monotonic() - since);
            let pass = tokio::select! {
                biased;
                pass = rx => pass.map_err(|_| gone())??,
                () = self.env.sleep(limit) => {
                    let told = self.gave_up(&Stage::sent());
                    return Err(told.during("jobs may have been archived: call archive() again, which continues from there"));
                }
            };
            match pass {
                ArchiveStep::Nothing => return Ok(jobs),
                ArchiveStep::Again => {}
                ArchiveStep::Listed(n) => {
                    jobs += n;
                    since = self.env.monotonic();
                }
            }
        }
    }

    /// Writes the newest settled state to a file.
    pub async fn export(self: &Arc<Self>, path: PathBuf, replace: bool) -> Result<Exported> {
        let _place = MailboxPlace::take(self)?;
        let (tx, rx) = oneshot::channel();
        let arrived = self.env.monotonic();
        self.tx.send(Mail::Export(Export { path, replace, arrived, reply: tx })).map_err(|_| gone())?;
        let exporting = tokio::select! {
            biased;
            exporting = rx => exporting.map_err(|_| gone())??,
            () = self.env.sleep(self.options.deadline) => return Err(self.gave_up(&Stage::default())),
        };
        exporting.await.unwrap_or_else(|e| Err(Error::bug("an export ended early").because(e)))
    }

    /// Returns a receiver for this job once it is finished, or an error once it is gone. Dropping it ends the wait.
    pub fn await_finish(&self, id: JobId) -> Result<oneshot::Receiver<Result<Detail>>> {
        let (reply, told) = oneshot::channel();
        self.tx.send(Mail::Await(Await { id, reply })).map_err(|_| gone())?;
        Ok(told)
    }

    /// Waits until everything sent before has a reply.
    pub async fn flush(&self) {
        let (tx, rx) = oneshot::channel();
        if self.tx.send(Mail::Flush(tx)).is_ok() {
            let _ = rx.await;
        }
    }
}
