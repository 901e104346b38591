//! Reads and tasks on their way to the leader. They may be repeated, so they need no session.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::oneshot;

use super::Forwarder;
use crate::door::{
    ArchiveStep, Await, Collection, Done, Mail, Question, QueuedTask, ReplyTo, Slot, Synced, Task, TaskResult,
};
use crate::host::stream::Connection;
use crate::link::message::{RepeatableTask, Request, decode, encode};
use crate::noun::env::Env;
use crate::noun::error::{Error, Result};
use crate::noun::op::Outcome;
use crate::noun::query::Collected;

/// A request for a read or a task, with its caller.
pub(super) enum SentRequest {
    Query(Question),
    Job(Await),
    Fence(Slot),
    Archive(oneshot::Sender<Result<ArchiveStep>>),
    Collect(Duration, oneshot::Sender<Result<Collected>>),
    Refresh(QueuedTask),
}

impl Forwarder {
    pub(super) fn task(&mut self, queued: QueuedTask, connection: &mut Connection) -> Result<()> {
        let told = match &queued.task {
            Task::Snapshot { .. } => return self.ask(SentRequest::Refresh(queued), connection),
            Task::Sync => {
                Ok(TaskResult::Synced(Synced { commits: 0, ops: 0, commit_seq: self.shared.newest() }))
            }
            Task::Export { .. } => {
                Err(Error::invalid("nothing is ever pending in Durable mode: there is nothing to export"))
            }
        };
        let _ = queued.reply.send(told);
        Ok(())
    }

    pub(super) fn ask(&mut self, asked: SentRequest, connection: &mut Connection) -> Result<()> {
        let id = self.next_id;
        self.next_id += 1;
        let request = self.request(id, &asked)?;
        self.asked.insert(id, asked);
        connection.send(&request)
    }

    pub(super) fn request(&self, id: u64, asked: &SentRequest) -> Result<Request> {
        let run = |task| Request::Run { id, task };
        Ok(match asked {
            SentRequest::Query(question) => Request::Ask {
                id,
                query: encode(&question.query)?,
                max_age_ms: question.max_age.map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX)),
                seen: self.shared.newest(),
            },
            SentRequest::Job(job) => Request::Await { id, job: job.id },
            SentRequest::Fence(_) => run(RepeatableTask::Settle),
            SentRequest::Archive(_) => run(RepeatableTask::Archive),
            SentRequest::Collect(grace, _) => run(RepeatableTask::Collect {
                grace_ms: u64::try_from(grace.as_millis()).unwrap_or(u64::MAX),
            }),
            SentRequest::Refresh(_) => run(RepeatableTask::Refresh),
        })
    }

    pub(super) fn answer(asked: SentRequest, result: Result<Bytes>) {
        fn send<T: for<'a> serde::Deserialize<'a>>(to: oneshot::Sender<Result<T>>, result: Result<Bytes>) {
            let _ = to.send(result.and_then(|bytes| decode(&bytes)));
        }
        match asked {
            SentRequest::Query(question) => send(question.reply, result),
            SentRequest::Job(job) => send(job.reply, result),
            SentRequest::Archive(reply) => send(reply, result),
            SentRequest::Collect(_, reply) => send(reply, result),
            SentRequest::Refresh(queued) => {
                let at = result.and_then(|bytes| decode(&bytes)).map(TaskResult::At);
                let _ = queued.reply.send(at);
            }
            SentRequest::Fence(slot) => {
                let done = result.and_then(|bytes| decode(&bytes)).map(|(commit_seq, commit_ms)| Done {
                    outcome: Outcome::Atomic(vec![]),
                    commit_seq,
                    commit_ms,
                    began: slot.arrived,
                });
                if let ReplyTo::Caller(caller) = slot.reply {
                    let _ = caller.send(done);
                }
            }
        }
    }
}

impl SentRequest {
    /// Returns whether the caller has left.
    pub(super) fn is_left(&self) -> bool {
        match self {
            Self::Query(question) => question.reply.is_closed(),
            Self::Job(job) => job.reply.is_closed(),
            Self::Fence(slot) => slot.is_gone(),
            Self::Archive(reply) => reply.is_closed(),
            Self::Collect(_, reply) => reply.is_closed(),
            Self::Refresh(queued) => queued.stage.is_gone() || queued.reply.is_closed(),
        }
    }

    /// Returns the request as mail to a writer of this process.
    pub(super) fn into_mail(self, env: &Env) -> Mail {
        match self {
            Self::Query(question) => Mail::Ask(question),
            Self::Job(job) => Mail::Await(job),
            Self::Fence(slot) => Mail::Op(slot),
            Self::Archive(reply) => Mail::Archive(reply),
            Self::Refresh(queued) => Mail::Task(queued),
            Self::Collect(grace, reply) => {
                // Its caller knows that it has begun.
                let (begun, _) = oneshot::channel();
                let arrived = env.monotonic();
                Mail::Collect(Collection { grace, tidy: false, stage: Arc::default(), arrived, begun, reply })
            }
        }
    }
}
