//! The mailbox between handles and the writer. Only data crosses it (op.rs, query.rs), so a writer in another process
//! would only need another door.
//!
//! Called by file and queue (send) and the writer (receive). Ensures that every call returns within its deadline, and
//! that claimed jobs are handed back when their caller is gone.

mod events;
mod load;
mod tasks;

pub use events::Events;
pub(crate) use load::{Load, Loaded};
pub(crate) use tasks::{QueuedTask, Task, TaskResult};

use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::bytes::metrics::{Counters, Observed};
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

/// How far an op has come. When its caller gives up, it decides between "surely not applied" and "unknown" (P7).
#[derive(Debug, Default)]
pub(crate) struct Stage(AtomicU8);

const QUEUED: u8 = 0;
const SENT: u8 = 1;
const GONE: u8 = 2;
const PARKED: u8 = 3;

impl Stage {
    /// Returns the stage of an op that may have been sent.
    pub fn sent() -> Self {
        Self(AtomicU8::new(SENT))
    }

    /// Marks the op as sent, before its body is. Returns false if the caller has given up: do not send the body.
    pub fn send(&self) -> bool {
        let send = |now| (now != GONE).then_some(SENT);
        self.0.fetch_update(SeqCst, SeqCst, send).is_ok()
    }

    /// Marks the op as not sent: its body was surely not applied.
    pub fn unsend(&self) {
        let _ = self.0.compare_exchange(SENT, QUEUED, SeqCst, SeqCst);
    }

    /// Marks the op as parked: it was surely not applied and is tried again until the writer ends it, not the deadline.
    pub fn park(&self) {
        let _ = self.0.fetch_update(SeqCst, SeqCst, |now| (now != GONE).then_some(PARKED));
    }

    fn is_parked(&self) -> bool {
        self.0.load(SeqCst) == PARKED
    }

    /// Marks the caller as gone. Returns true if the op is surely not applied.
    fn give_up(&self) -> bool {
        matches!(self.0.swap(GONE, SeqCst), QUEUED | PARKED)
    }

    pub fn is_gone(&self) -> bool {
        self.0.load(SeqCst) == GONE
    }
}

/// An op on its way through the writer, and the channel for its reply.
#[derive(Debug)]
pub(crate) struct Slot {
    pub load: Load,
    pub wait: Wait,
    pub arrived: Instant,
    pub stage: Arc<Stage>,
    pub reply: Option<oneshot::Sender<Result<Done>>>,
}

impl Slot {
    /// Returns the work; `None` once the caller has left.
    pub fn work(&self) -> Option<Arc<Loaded>> {
        self.load.get()
    }

    /// Returns whether there is work of this kind.
    pub fn is(&self, kind: impl Fn(&Work) -> bool) -> bool {
        self.work().is_some_and(|loaded| kind(&loaded.work))
    }

    /// Returns whether the caller no longer waits. False for a slot that hands back jobs, which has no caller.
    pub fn is_gone(&self) -> bool {
        self.stage.is_gone() || self.reply.as_ref().is_some_and(oneshot::Sender::is_closed)
    }

    /// Returns a slot for an empty commit.
    pub fn fence(now: Instant, stage: Arc<Stage>, reply: Option<oneshot::Sender<Result<Done>>>) -> Self {
        Self { load: Load::new(Work::Fence, None), wait: Wait::No, arrived: now, stage, reply }
    }

    pub fn release(held: Held, now: Instant) -> Self {
        Self {
            load: Load::new(Work::Op(Op::Release { held }), None),
            wait: Wait::No,
            arrived: now,
            stage: Arc::default(),
            reply: None,
        }
    }
}

/// How often a call whose handle is closing checks whether its op waits for room.
const TICK: Duration = Duration::from_millis(20);

/// A query on its way to the writer, and the channel for its reply.
#[derive(Debug)]
pub(crate) struct Question {
    pub query: Query,
    pub max_age: Option<Duration>,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// Gets its reply once everything before it has one.
    Flush(oneshot::Sender<()>),
}

/// State that the writer and the handles share, apart from mail.
#[derive(Debug)]
pub(crate) struct Shared {
    pub counters: Arc<Counters>,
    pub observed: Observed,
    pub watchers: events::Watchers,
    waiting: AtomicUsize,
    /// Bytes of payload in the waiting ops.
    waiting_bytes: AtomicUsize,
    trouble: Mutex<Option<Error>>,
    /// The writer has permanently stopped writing: opening the queue file again starts a new one.
    dead: AtomicBool,
    unsynced: Mutex<Unsynced>,
    /// True while a base is being written.
    pub base_under_way: watch::Sender<bool>,
}

impl Shared {
    pub fn new(counters: Arc<Counters>) -> Self {
        Self {
            counters,
            observed: Observed::default(),
            watchers: events::Watchers::default(),
            waiting: AtomicUsize::new(0),
            waiting_bytes: AtomicUsize::new(0),
            trouble: Mutex::new(None),
            dead: AtomicBool::new(false),
            unsynced: Mutex::default(),
            base_under_way: watch::Sender::new(false),
        }
    }

    pub fn is_dead(&self) -> bool {
        self.dead.load(SeqCst)
    }

    pub fn die(&self) {
        self.dead.store(true, SeqCst);
    }

    /// Sets what is pending, before the writer replies to any caller.
    pub fn set_unsynced(&self, commits: u64, ops: u64, bytes: u64) {
        *self.unsynced.lock().unwrap_or_else(PoisonError::into_inner) = Unsynced { commits, ops, bytes };
    }

    pub fn unsynced(&self) -> Unsynced {
        *self.unsynced.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the last error of the store, for callers whose deadline passes; `None` once the store works again.
    pub fn trouble(&self, error: Option<Error>) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = error;
    }

    fn last_trouble(&self) -> Option<Error> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
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
        let slot = Slot { load: load.clone(), wait, arrived, stage: Arc::clone(&stage), reply: Some(tx) };
        self.tx.send(Mail::Op(slot)).map_err(|_| gone())?;
        let mut pending = AwaitedReply { rx, load, door: Arc::clone(self) };
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
        let because = trouble.as_ref().map(|e| format!("; the store's last answer: {e}")).unwrap_or_default();
        let error = if stage.give_up() {
            let surely_not = |code: &Code| matches!(code.kind(), Kind::Unavailable | Kind::Contended);
            let code = trouble.as_ref().map(Error::code).filter(surely_not).unwrap_or(Code::Timeout);
            Error::new(code, format!("not applied within {seconds} s{because}"))
        } else {
            Error::new(
                Code::OutcomeUnknown,
                format!("no final answer within {seconds} s: it may have been applied{because}"),
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
        self.tx.send(Mail::Ask(Question { query, max_age, arrived, reply: tx })).map_err(|_| gone())?;
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
    load: Load,
    door: Arc<Door>,
}

impl Future for AwaitedReply {
    type Output = Result<Done>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.rx).poll(cx).map(|r| r.unwrap_or_else(|_| Err(gone())))
    }
}

impl Drop for AwaitedReply {
    fn drop(&mut self) {
        self.rx.close();
        self.load.clear();
        if let Ok(Ok(Done { outcome: Outcome::Claimed(jobs), .. })) = self.rx.try_recv()
            && !jobs.is_empty()
        {
            self.door.hand_back(jobs.iter().map(|c| Held { id: c.job.id, token: c.lease.token }).collect());
        }
    }
}
