//! The leader's side of reads and tasks of other processes: each becomes mail to the writer, and its reply an answer.
//!
//! These may be repeated without harm, so they need no session.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;

use super::serve::Leader;
use crate::door::{Await, Mail, Question, QueuedTask, ReplyTo, Slot, Stage, Task, TaskResult, gone};
use crate::link::message::{RepeatableTask, Reply, Request, WireError, decode, encode};
use crate::noun::error::{Error, Result};
use crate::noun::query::Query;

/// A request at work.
pub(super) struct OpenRequest {
    id: u64,
    task: AbortHandle,
    /// It waits for the end of a job, which may be far off.
    waits: bool,
}

/// The requests of a connection that have no reply yet. Dropping this ends them.
#[derive(Default)]
pub(super) struct OpenRequests {
    reads: HashMap<u64, AbortHandle>,
    waits: HashMap<u64, AbortHandle>,
}

impl OpenRequests {
    pub fn begin(&mut self, OpenRequest { id, task, waits }: OpenRequest) {
        (if waits { &mut self.waits } else { &mut self.reads }).insert(id, task);
    }

    /// Notes that a request has its reply.
    pub fn end(&mut self, id: u64) {
        if self.reads.remove(&id).is_none() {
            self.waits.remove(&id);
        }
    }

    /// Ends a request: its caller has left.
    pub fn leave(&mut self, id: u64) {
        if let Some(task) = self.reads.remove(&id).or_else(|| self.waits.remove(&id)) {
            task.abort();
        }
    }

    /// Returns how many reads and tasks have no reply yet.
    pub fn reads(&self) -> usize {
        self.reads.len()
    }

    /// Returns how many requests wait for the end of a job.
    pub fn waits(&self) -> usize {
        self.waits.len()
    }
}

impl Drop for OpenRequests {
    fn drop(&mut self) {
        for task in self.reads.values().chain(self.waits.values()) {
            task.abort();
        }
    }
}

/// Sends a request to the writer. The reply goes to `answers`.
pub(super) fn ask(
    request: Request,
    mail: mpsc::UnboundedSender<Mail>,
    leader: &Arc<Leader>,
    answers: mpsc::UnboundedSender<Reply>,
) -> Result<OpenRequest> {
    let arrived = leader.env.monotonic();
    let send = move |letter: Mail| mail.send(letter).map_err(|_| gone());
    match request {
        Request::Ask { id, query, max_age_ms, seen } => {
            let query: Query = decode(&query)?;
            let max_age = max_age_ms.map(Duration::from_millis);
            let (reply, told) = oneshot::channel();
            send(Mail::Ask(Question { query, max_age, seen, arrived, reply }))?;
            Ok(OpenRequest { id, task: answer(id, answers, told), waits: false })
        }
        Request::Await { id, job } => {
            let (reply, told) = oneshot::channel();
            send(Mail::Await(Await { id: job, reply }))?;
            Ok(OpenRequest { id, task: answer(id, answers, told), waits: true })
        }
        Request::Run { id, task } => {
            Ok(OpenRequest { id, task: run(id, task, send, leader, answers)?, waits: false })
        }
        Request::Op(_) | Request::Leave { .. } => Err(Error::bug("an op is no question")),
    }
}

fn run(
    id: u64,
    task: RepeatableTask,
    send: impl Fn(Mail) -> Result<()>,
    leader: &Arc<Leader>,
    answers: mpsc::UnboundedSender<Reply>,
) -> Result<AbortHandle> {
    let now = leader.env.monotonic();
    Ok(match task {
        RepeatableTask::Settle => {
            let (reply, told) = oneshot::channel();
            send(Mail::Op(Slot::fence(now, Arc::default(), ReplyTo::Caller(reply))))?;
            let settled = async { flat(told.await).map(|done| (done.commit_seq, done.commit_ms)) };
            spawn(id, answers, settled)
        }
        RepeatableTask::Refresh => {
            let (reply, told) = oneshot::channel();
            let until = now + leader.options.deadline;
            let task = Task::Snapshot { discard: false };
            send(Mail::Task(QueuedTask { task, stage: Arc::new(Stage::default()), until, reply }))?;
            let at = async {
                match flat(told.await)? {
                    TaskResult::At(seq) => Ok(seq),
                    TaskResult::Synced(_) | TaskResult::Exported => Err(Error::bug("not a snapshot")),
                }
            };
            spawn(id, answers, at)
        }
        RepeatableTask::Archive => {
            let (reply, told) = oneshot::channel();
            send(Mail::Archive(reply))?;
            answer(id, answers, told)
        }
        RepeatableTask::Collect { grace_ms } => {
            let door = leader.door();
            let collected =
                async move { door.ok_or_else(gone)?.collect(Duration::from_millis(grace_ms)).await };
            spawn(id, answers, collected)
        }
    })
}

fn flat<T>(told: std::result::Result<Result<T>, oneshot::error::RecvError>) -> Result<T> {
    told.map_err(|_| gone())?
}

fn answer<T: Serialize + Send + 'static>(
    id: u64,
    answers: mpsc::UnboundedSender<Reply>,
    told: oneshot::Receiver<Result<T>>,
) -> AbortHandle {
    spawn(id, answers, async { flat(told.await) })
}

fn spawn<T: Serialize>(
    id: u64,
    answers: mpsc::UnboundedSender<Reply>,
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> AbortHandle {
    let task = tokio::spawn(async move {
        let result: Result<Bytes> = work.await.and_then(|value| encode(&value));
        let _ = answers.send(Reply::Answer { id, result: result.map_err(|error| WireError::from(&error)) });
    });
    task.abort_handle()
}
