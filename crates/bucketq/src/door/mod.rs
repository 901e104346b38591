//! The mailbox between handles and the writer. Only data crosses it (op.rs, query.rs), so a writer in another process
//! would only need another door.
//!
//! Called by file and queue (send) and the writer (receive). Ensures that every call returns within its deadline, and
//! that claimed jobs are handed back when their caller is gone.

mod events;
mod load;
mod session;
mod shared;
mod slot;
mod tasks;

pub use events::Events;
use events::Watchers;
pub(crate) use load::{Load, Loaded};
pub(crate) use session::{
    DeliveryResult, ExecutionEnd, OpFacts, SessionClock, SessionOp, SessionReplies, millis, perhaps_elsewhere,
};
pub(crate) use shared::{HostPart, Shared};
pub(crate) use slot::{ReplyTo, Slot, Stage};
pub(crate) use tasks::{QueuedTask, Task, TaskResult};

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::task::{Context, Poll};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::noun::config::Options;
use crate::noun::env::Env;
use crate::noun::error::{Code, Error, Kind, Result};
use crate::noun::job::JobId;
use crate::noun::life::Listing;
use crate::noun::op::{Held, Op, Outcome};
use crate::noun::query::{Answer, Collected, Detail, Exported, Query};

/// The outcome of an op, and its commit.
#[derive(Clone, Debug, PartialEq)]
pub struct Done {
    /// The return value of the op.
    pub outcome: Outcome,
    /// The commit that contains the op; for an op that changed nothing, the commit that it was decided on.
    pub commit_seq: u64,
    /// The time of that commit.
    pub commit_ms: i64,
    /// On this process's clock, just before the body with this op was first sent (P26): leases count from it. For a
    /// repeated claim whose caller already holds the jobs, the time when the first of them was claimed.
    pub began: Instant,
}

/// The commits that a sync published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Synced {
    /// Local commits that are in the chain and were not known to be there before.
    pub commits: u64,
    /// Ops in them.
    pub ops: u64,
    /// The newest commit; everything published is in it or before it.
    pub commit_seq: u64,
}

/// The pending changes: local commits that are not published yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unsynced {
    /// Local commits.
    pub commits: u64,
    /// Ops in them.
    pub ops: u64,
    /// Bytes they take in the local log.
    pub bytes: u64,
}

/// How long a claim waits for a job, or an enqueue for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    No,
    /// Until this time.
    Until(Instant),
    /// Until there is a job, or room.
    Forever,
}

/// One piece of work for the writer.
#[derive(Debug)]
pub(crate) enum Work {
    Op(Op),
    /// An empty commit, which settles every PUT before it (P9).
    Fence,
    /// List an archive object and remove its jobs; without one, only expire archive objects that are too old. This
    /// changes few pages and frees many: a `tidy` commit returns them itself, otherwise later commits do.
    Archive {
        listing: Option<Arc<Listing>>,
        tidy: bool,
    },
}

/// How often a call whose handle is closing checks whether its op waits for room.
const TICK: Duration = Duration::from_millis(20);

/// A query on its way to the writer, and the channel for its reply.
#[derive(Debug)]
pub(crate) struct Question {
    pub query: Query,
    pub max_age: Option<Duration>,
    /// The newest commit that its caller has seen: no older state is a reply (P35).
    pub seen: u64,
    pub arrived: Instant,
    pub reply: oneshot::Sender<Result<Answer>>,
}

/// A caller that waits until a job is finished, and then receives it.
#[derive(Debug)]
pub(crate) struct Await {
    pub id: JobId,
    pub reply: oneshot::Sender<Result<Detail>>,
}

/// The first reply to a request to collect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begun {
    /// The floor is set; garbage below it is being deleted.
    Deleting,
    /// A smaller base is being written first: ask again when it is written.
    Base,
}

/// A requested collection, with two channels: one for the reply when it has begun, one for the reply when it is done.
#[derive(Debug)]
pub(crate) struct Collection {
    pub grace: Duration,
    /// Whether a base may be written first, if that leaves less.
    pub tidy: bool,
    pub stage: Arc<Stage>,
    pub arrived: Instant,
    pub begun: oneshot::Sender<Result<Begun>>,
    pub reply: oneshot::Sender<Result<Collected>>,
}

/// The outcome of one step of archiving.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ArchiveStep {
    /// An object with this number of jobs is on the list.
    Listed(u64),
    /// Another writer was faster: look again.
    Again,
    /// No job is due.
    Nothing,
}

/// A request to write a settled image to a file of this machine.
#[derive(Debug)]
pub(crate) struct Export {
    pub path: PathBuf,
    /// Whether to replace an existing file.
    pub replace: bool,
    pub arrived: Instant,
    /// Gets its reply when the image is taken: a task that ends when the file is written, however long that takes.
    pub reply: oneshot::Sender<Result<JoinHandle<Result<Exported>>>>,
}

#[derive(Debug)]
pub(crate) enum Mail {
    Op(Slot),
    Ask(Question),
    Await(Await),
    Collect(Collection),
    Export(Export),
    HandBack(Vec<Held>),
    Task(QueuedTask),
    /// Archive the due jobs now. Gets its reply after one object.
    Archive(oneshot::Sender<Result<ArchiveStep>>),
    /// A background task is done.
    Wake,
    /// A caller has left without its reply.
    Left,
    /// Another process of this host has taken over: stop writing, and send it everything.
    Resign,
    /// Gets its reply once everything before it has one.
    Flush(oneshot::Sender<()>),
}

/// The receiving end of a mailbox, with mail that comes before all other.
pub(crate) struct Inbox {
    pub rx: mpsc::UnboundedReceiver<Mail>,
    pub mail: VecDeque<Mail>,
}

impl Inbox {
    /// Drops ops whose callers have left.
    pub fn drop_gone(&mut self) {
        self.mail.extend(std::iter::from_fn(|| self.rx.try_recv().ok()));
        self.mail.retain_mut(|mail| match mail {
            Mail::Op(slot) => !slot.is_to_drop(),
            _ => true,
        });
    }
}

impl Mail {
    /// Fails the caller, if there is one, with this error.
    pub fn refuse(self, error: &Error) {
        let error = error.clone();
        match self {
            Self::Op(Slot { reply: ReplyTo::Caller(reply), session, .. }) => {
                let error = if session.is_some() { perhaps_elsewhere(Some(error)) } else { error };
                drop(reply.send(Err(error)));
            }
            Self::Ask(Question { reply, .. }) => drop(reply.send(Err(error))),
            Self::Await(Await { reply, .. }) => drop(reply.send(Err(error))),
            Self::Collect(Collection { begun, reply, .. }) => {
                drop(begun.send(Err(error.clone())));
                drop(reply.send(Err(error)));
            }
            Self::Export(Export { reply, .. }) => drop(reply.send(Err(error))),
            Self::Task(QueuedTask { reply, .. }) => drop(reply.send(Err(error))),
            Self::Archive(reply) => drop(reply.send(Err(error))),
            Self::Flush(done) => drop(done.send(())),
            Self::Op(_) | Self::HandBack(_) | Self::Wake | Self::Left | Self::Resign => {}
        }
    }
}

/// Facts about the queue file that handles get when it is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// The file id, drawn at creation.
    pub file_id: [u8; 16],
    /// Largest difference between two writers' clocks that the queue file allows.
    pub max_skew_ms: u32,
    /// Its directory on this machine, in Local mode or with a cache.
    pub directory: Option<PathBuf>,
}

/// The sending side, shared by all handles of a process on one queue file.
pub(crate) struct Door {
    pub tx: mpsc::UnboundedSender<Mail>,
    pub shared: Arc<Shared>,
    pub options: Arc<Options>,
    pub env: Env,
    pub info: Info,
    /// When the writer was opened.
    pub began: Instant,
    /// Becomes true when the writer has ended.
    pub ended: watch::Receiver<bool>,
    /// Dropped with the door: then no handle of this process is left.
    #[allow(dead_code, reason = "its receivers notice when it is dropped")]
    pub handles: watch::Sender<()>,
}

impl fmt::Debug for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Door").field("info", &self.info).finish_non_exhaustive()
    }
}

impl Door {
    /// Sends an op and waits for the reply: at most `wait` plus the deadline.
    pub async fn call(self: &Arc<Self>, work: Work, wait: Wait) -> Result<Done> {
        self.call_until(None, work, wait).await
    }

    /// Does the same, but an op that waits for room fails once the handle is closing.
    pub async fn call_until(
        self: &Arc<Self>,
        mut closing: Option<watch::Receiver<bool>>,
        work: Work,
        wait: Wait,
    ) -> Result<Done> {
        self.refuse_if_read_only()?;
        let arrived = self.env.monotonic();
        let is_closing = |c: &Option<watch::Receiver<bool>>| c.as_ref().is_some_and(|c| *c.borrow());
        let give_up = match wait {
            Wait::No => Some(arrived + self.options.deadline),
            Wait::Until(at) => Some(at.max(arrived) + self.options.deadline),
            Wait::Forever => None,
        };
        let place = MailboxPlace::take(self)?;
        let room = load::Room::take(self, &work)?;
        let load = Load::new(work, room);
        let (tx, rx) = oneshot::channel();
        let stage = Arc::new(Stage::default());
        let slot = Slot {
            load: load.clone(),
            wait,
            arrived,
            stage: Arc::clone(&stage),
            session: None,
            reply: ReplyTo::Caller(tx),
        };
        self.tx.send(Mail::Op(slot)).map_err(|_| gone())?;
        let mut pending = AwaitedReply { rx, replied: false, load, door: Arc::clone(self) };
        let answer = match give_up {
            None => (&mut pending).await,
            Some(mut at) => loop {
                let time = at.saturating_duration_since(self.env.monotonic());
                // Once the handle is closing, `closing` cannot change again: check the stage every tick.
                let was_closing = is_closing(&closing);
                let tick = if was_closing { time.min(TICK) } else { time };
                tokio::select! {
                    biased;
                    answer = &mut pending => break answer,
                    () = until_true(&mut closing), if !was_closing => {}
                    () = self.env.sleep(tick) => {}
                }
                if stage.is_parked() {
                    if is_closing(&closing) && stage.give_up() {
                        return Err(Error::new(
                            Code::Closed,
                            "the handle was closed while an enqueue waited for room",
                        ));
                    }
                    at = self.env.monotonic() + self.options.deadline;
                } else if self.env.monotonic() >= at {
                    return Err(self.gave_up(&stage));
                }
            },
        };
        drop(place);
        answer
    }

    fn gave_up(&self, stage: &Stage) -> Error {
        let seconds = self.options.deadline.as_secs_f32();
        let trouble = self.shared.last_trouble();
        let because = trouble.as_ref().map(|e| format!("; the last trouble: {e}")).unwrap_or_default();
        let error = if stage.give_up() {
            let surely_not = |code: &Code| matches!(code.kind(), Kind::Unavailable | Kind::Contended);
            let code = trouble.as_ref().map(Error::code).filter(surely_not).unwrap_or(Code::Timeout);
            Error::new(code, format!("not applied within {seconds} s{because}"))
        } else {
            Error::new(
                Code::OutcomeUnknown,
                format!("nothing confirmed it within {seconds} s: it may have been applied{because}"),
            )
        };
        match trouble {
            Some(cause) => error.because(cause),
            None => error,
        }
    }

    fn refuse_if_read_only(&self) -> Result<()> {
        if !self.options.read_only {
            return Ok(());
        }
        Err(Error::new(
            Code::ReadOnly,
            "this handle only looks: open the queue file without the option read_only to change it",
        ))
    }

    /// Sends a query and waits for the reply.
    pub async fn ask(self: &Arc<Self>, query: Query, max_age: Option<Duration>) -> Result<Answer> {
        let arrived = self.env.monotonic();
        let _place = MailboxPlace::take(self)?;
        let (tx, rx) = oneshot::channel();
        self.tx
            .send(Mail::Ask(Question { query, max_age, seen: 0, arrived, reply: tx }))
            .map_err(|_| gone())?;
        tokio::select! {
            biased;
            answer = rx => answer.map_err(|_| gone())?,
            () = self.env.sleep(self.options.deadline) => Err(self.gave_up(&Stage::default())),
        }
    }

    /// Releases jobs that no worker will work on.
    pub fn hand_back(&self, jobs: Vec<Held>) {
        // If the writer is gone, the leases expire (G5).
        let _ = self.tx.send(Mail::HandBack(jobs));
    }
}

async fn until_true(told: &mut Option<watch::Receiver<bool>>) {
    match told {
        Some(told) => drop(told.wait_for(|told| *told).await.is_ok()),
        None => std::future::pending().await,
    }
}

pub(crate) fn gone() -> Error {
    Error::new(Code::Closed, "the queue file is closed")
}

/// A place in the bounded mailbox, given back when the call ends.
struct MailboxPlace<'a>(&'a Door);

impl<'a> MailboxPlace<'a> {
    fn take(door: &'a Door) -> Result<Self> {
        let most = door.options.mailbox;
        if door.shared.waiting.fetch_add(1, SeqCst) >= most {
            door.shared.waiting.fetch_sub(1, SeqCst);
            return Err(Error::new(
                Code::MailboxFull,
                format!("{most} operations wait already for this queue file in this process"),
            ));
        }
        Ok(Self(door))
    }
}

impl Drop for MailboxPlace<'_> {
    fn drop(&mut self) {
        self.0.shared.waiting.fetch_sub(1, SeqCst);
    }
}

/// The caller's end of a slot. Dropping it frees the slot's work, and hands back claimed jobs that nobody received.
struct AwaitedReply {
    rx: oneshot::Receiver<Result<Done>>,
    replied: bool,
    load: Load,
    door: Arc<Door>,
}

impl Future for AwaitedReply {
    type Output = Result<Done>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let replied = Pin::new(&mut self.rx).poll(cx);
        self.replied = replied.is_ready();
        replied.map(|r| r.unwrap_or_else(|_| Err(gone())))
    }
}

impl Drop for AwaitedReply {
    fn drop(&mut self) {
        self.rx.close();
        self.load.clear();
        match self.rx.try_recv() {
            Ok(Ok(Done { outcome: Outcome::Claimed(jobs), .. })) if !jobs.is_empty() => {
                let held = jobs.iter().map(|c| Held { id: c.job.id, token: c.lease.token });
                self.door.hand_back(held.collect());
            }
            // Without a reply, and none was taken out: another process may still hold the op.
            Err(_) if !self.replied && self.door.shared.is_joined() => {
                let _ = self.door.tx.send(Mail::Left);
            }
            Ok(_) | Err(_) => {}
        }
    }
}
