//! The one door: handles put mail into it, the writer takes it out. What crosses is data (op.rs, query.rs); a writer
//! elsewhere would only need another door.
//!
//! Called by file and queue (send) and writer (receive). Keeps the promise that every caller gets an answer within its
//! deadline, and that claimed jobs whose caller has gone are handed back.

mod errands;
mod events;

pub use events::Events;

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

use crate::config::Options;
use crate::env::Env;
use crate::error::{Code, Error, Kind, Result};
use crate::life::Listing;
use crate::metrics::{Counters, Observed};
use crate::op::{Held, Op, Outcome};
use crate::query::{Answer, Collected, Exported, Query};

/// What an op did, in which commit.
#[derive(Clone, Debug, PartialEq)]
pub struct Done {
    /// What it did.
    pub outcome: Outcome,
    /// The commit it is in; for an op that changed nothing, the commit it was decided on.
    pub commit_seq: u64,
    /// The time of that commit.
    pub commit_ms: i64,
    /// On this process's clock: a moment before the body with this op was first sent (P26).
    pub began: Instant,
}

/// What a sync published.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Synced {
    /// Local commits that are in the chain now and were not known to be before.
    pub commits: u64,
    /// Ops in them.
    pub ops: u64,
    /// The commit that everything published stands in.
    pub commit_seq: u64,
}

/// What is not published yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unsynced {
    /// Local commits.
    pub commits: u64,
    /// Ops in them.
    pub ops: u64,
    /// Bytes they take in the local log.
    pub bytes: u64,
}

/// Something about the state as a whole.
#[derive(Debug)]
pub(crate) enum Task {
    Sync,
    Snapshot { discard: bool },
    Export { path: PathBuf },
}

/// What came of a task.
#[derive(Debug)]
pub(crate) enum Told {
    Synced(Synced),
    /// The number of the newest commit.
    At(u64),
    Exported,
}

/// How long a claim that finds nothing waits, or an enqueue that finds no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    No,
    /// Until then.
    Until(Instant),
    /// Until there is something.
    Forever,
}

/// One thing for the writer to do.
#[derive(Debug)]
pub(crate) enum Work {
    Op(Op),
    /// A commit that changes nothing, to settle what is before it (P9).
    Fence,
    /// An archive object is listed and its jobs leave; without one, only what is too old leaves the list. It changes few
    /// pages and frees many: unless it is `tidy`, those are given back by the commits that follow.
    Archive {
        listing: Option<Arc<Listing>>,
        tidy: bool,
    },
}

/// Where an op stands; decides between "surely not applied" and "unknown" when its caller gives up (P7).
#[derive(Debug, Default)]
pub(crate) struct Stage(AtomicU8);

const QUEUED: u8 = 0;
const SENT: u8 = 1;
const GONE: u8 = 2;
const PARKED: u8 = 3;

impl Stage {
    /// A body with this op is about to be sent. False if the caller was told "surely not": it must not be.
    pub fn send(&self) -> bool {
        let send = |now| (now != GONE).then_some(SENT);
        self.0.fetch_update(SeqCst, SeqCst, send).is_ok()
    }

    /// The body is surely not applied.
    pub fn unsend(&self) {
        let _ = self.0.compare_exchange(SENT, QUEUED, SeqCst, SeqCst);
    }

    /// It surely was not applied and is tried again: the writer says when that ends, not the deadline.
    pub fn park(&self) {
        let _ = self.0.fetch_update(SeqCst, SeqCst, |now| (now != GONE).then_some(PARKED));
    }

    fn is_parked(&self) -> bool {
        self.0.load(SeqCst) == PARKED
    }

    /// The caller gives up. True if it may be told "surely not applied".
    fn give_up(&self) -> bool {
        matches!(self.0.swap(GONE, SeqCst), QUEUED | PARKED)
    }

    pub fn is_gone(&self) -> bool {
        self.0.load(SeqCst) == GONE
    }
}

/// An op on its way through the writer, with where the answer goes.
#[derive(Debug)]
pub(crate) struct Slot {
    pub work: Work,
    pub wait: Wait,
    pub arrived: Instant,
    pub stage: Arc<Stage>,
    pub reply: Option<oneshot::Sender<Result<Done>>>,
}

impl Slot {
    /// The caller no longer waits. What hands back jobs on behalf of a caller that has gone is nobody's.
    pub fn is_gone(&self) -> bool {
        self.stage.is_gone() || self.reply.as_ref().is_some_and(oneshot::Sender::is_closed)
    }

    /// A commit that changes nothing.
    pub fn fence(now: Instant, stage: Arc<Stage>, reply: Option<oneshot::Sender<Result<Done>>>) -> Self {
        Self { work: Work::Fence, wait: Wait::No, arrived: now, stage, reply }
    }

    pub fn release(held: Held, now: Instant) -> Self {
        Self {
            work: Work::Op(Op::Release { held }),
            wait: Wait::No,
            arrived: now,
            stage: Arc::default(),
            reply: None,
        }
    }
}

/// How soon it is noticed that an op waits for room while its handle is being closed.
const TICK: Duration = Duration::from_millis(20);

/// A query on its way, with where the answer goes.
#[derive(Debug)]
pub(crate) struct Question {
    pub query: Query,
    pub max_age: Option<Duration>,
    pub arrived: Instant,
    pub reply: oneshot::Sender<Result<Answer>>,
}

/// What became of a request to collect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begun {
    /// The floor stands; what is below it is being deleted.
    Deleting,
    /// A smaller base is being written first: ask again when it is there.
    Base,
}

/// A collection somebody asks for, with where the answers go: one when it has begun, one when all is done.
#[derive(Debug)]
pub(crate) struct Collection {
    pub grace: Duration,
    /// A base may be written first if that leaves less.
    pub tidy: bool,
    pub stage: Arc<Stage>,
    pub arrived: Instant,
    pub begun: oneshot::Sender<Result<Begun>>,
    pub reply: oneshot::Sender<Result<Collected>>,
}

/// What one step of archiving did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    /// An object with so many jobs is on the list.
    Listed(u64),
    /// Others were faster: look again.
    Again,
    /// No job is to leave.
    Nothing,
}

/// A settled image wanted as a file of this machine.
#[derive(Debug)]
pub(crate) struct Export {
    pub path: PathBuf,
    /// Over a file that is there.
    pub replace: bool,
    pub arrived: Instant,
    /// Answered when the image is taken; what it says ends when the file is written, however long that takes.
    pub reply: oneshot::Sender<Result<JoinHandle<Result<Exported>>>>,
}

#[derive(Debug)]
pub(crate) enum Mail {
    Op(Slot),
    Ask(Question),
    Collect(Collection),
    Export(Export),
    HandBack(Vec<Held>),
    Task(Task, oneshot::Sender<Result<Told>>),
    /// Jobs that may leave are to be archived now; answered after one object.
    Archive(oneshot::Sender<Result<Pass>>),
    /// Something that was done beside the writer is ready.
    Wake,
    /// Answered once everything before it is.
    Flush(oneshot::Sender<()>),
}

/// What writer and handles share beside the mail.
#[derive(Debug)]
pub(crate) struct Shared {
    pub counters: Arc<Counters>,
    pub observed: Observed,
    pub watchers: events::Watchers,
    waiting: AtomicUsize,
    trouble: Mutex<Option<Error>>,
    /// The writer has stopped writing for good: a new opening gets a new one.
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

    /// What is not published, told before anybody is answered.
    pub fn tell_pending(&self, commits: u64, ops: u64, bytes: u64) {
        *self.unsynced.lock().unwrap_or_else(PoisonError::into_inner) = Unsynced { commits, ops, bytes };
    }

    pub fn unsynced(&self) -> Unsynced {
        *self.unsynced.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What last went wrong with the store, for callers whose deadline passes meanwhile; none once it works again.
    pub fn trouble(&self, error: Option<Error>) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = error;
    }

    fn last_trouble(&self) -> Option<Error> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What the handles know of the queue file from its opening.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// Drawn at creation.
    pub file_id: [u8; 16],
    /// Largest difference between two writers' clocks that the file is made for.
    pub max_skew_ms: u32,
    /// Where its local state lies, if it has one.
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
    /// Send an op and wait for its answer, at most the deadline after what it may wait itself.
    pub async fn call(self: &Arc<Self>, work: Work, wait: Wait) -> Result<Done> {
        self.call_until(None, work, wait).await
    }

    /// The same, but an op that waits for room ends when the handle is being closed.
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
        let place = Place::take(self)?;
        let (tx, rx) = oneshot::channel();
        let stage = Arc::new(Stage::default());
        let slot = Slot { work, wait, arrived, stage: Arc::clone(&stage), reply: Some(tx) };
        self.tx.send(Mail::Op(slot)).map_err(|_| gone())?;
        let mut pending = Pending { rx, door: Arc::clone(self) };
        let answer = match give_up {
            None => (&mut pending).await,
            Some(mut at) => loop {
                let time = at.saturating_duration_since(self.env.monotonic());
                // Once the handle is being closed there is nothing to be told about it any more.
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

    /// Send a query and wait for its answer.
    pub async fn ask(self: &Arc<Self>, query: Query, max_age: Option<Duration>) -> Result<Answer> {
        let arrived = self.env.monotonic();
        let _place = Place::take(self)?;
        let (tx, rx) = oneshot::channel();
        self.tx.send(Mail::Ask(Question { query, max_age, arrived, reply: tx })).map_err(|_| gone())?;
        tokio::select! {
            biased;
            answer = rx => answer.map_err(|_| gone())?,
            () = self.env.sleep(self.options.deadline) => Err(self.gave_up(&Stage::default())),
        }
    }

    /// Give jobs back that nobody will work on.
    pub fn hand_back(&self, jobs: Vec<Held>) {
        // With the writer gone, the leases run out by themselves (G5).
        let _ = self.tx.send(Mail::HandBack(jobs));
    }
}

async fn until_true(told: &mut Option<watch::Receiver<bool>>) {
    match told {
        Some(told) => drop(told.wait_for(|told| *told).await.is_ok()),
        None => std::future::pending().await,
    }
}

fn gone() -> Error {
    Error::new(Code::Closed, "the queue file is closed")
}

/// A place in the bounded mailbox, given back when the call ends.
struct Place<'a>(&'a Door);

impl<'a> Place<'a> {
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

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.shared.waiting.fetch_sub(1, SeqCst);
    }
}

/// The caller's end of a slot. Dropped with an answer inside that nobody took, it hands the claimed jobs back.
struct Pending {
    rx: oneshot::Receiver<Result<Done>>,
    door: Arc<Door>,
}

impl Future for Pending {
    type Output = Result<Done>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.rx).poll(cx).map(|r| r.unwrap_or_else(|_| Err(gone())))
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.rx.close();
        if let Ok(Ok(Done { outcome: Outcome::Claimed(jobs), .. })) = self.rx.try_recv()
            && !jobs.is_empty()
        {
            self.door.hand_back(jobs.iter().map(|c| Held { id: c.job.id, token: c.lease.token }).collect());
        }
    }
}
