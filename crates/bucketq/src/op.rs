//! Every change to a queue file as data: an [`Op`] goes in, an [`Outcome`] comes out.
//!
//! These cross the door, so they are serialisable and their enums only ever grow at the end. Ids and tokens that
//! make a repeated op recognisable (job id, claim token) are drawn by the caller before the first send (P9).

use serde::{Deserialize, Serialize};

use crate::job::{Claimed, JobId, New, Payload, State};
use crate::lease::Token;
use crate::policy::{Changes, Policy};
use crate::query::Filter;
use crate::schedule::Schedule;

/// Version of what crosses the door; raised when an op changes its meaning.
pub const OP_VERSION: u16 = 1;

/// Which queues a claim looks at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Queues {
    /// Every queue of the file.
    Any,
    /// These queues, in no order of preference: priority, then age decide.
    Named(Vec<String>),
}

/// Ask for jobs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// Where to look.
    pub queues: Queues,
    /// At most this many jobs, at least 1.
    pub max: u32,
    /// How long the lease lasts; none for what the policy of each queue says, [`FOREVER`](crate::lease::FOREVER_MS)
    /// for one that never runs out.
    #[serde(default)]
    pub lease_ms: Option<i64>,
    /// Who asks; shown to people, at most 200 bytes.
    pub worker: String,
    /// The proof every job of this claim gets; drawn anew for each claim.
    pub token: Token,
    /// Sent before with this token, outcome unknown: the jobs that the token holds are the answer, if it holds any.
    #[serde(default)]
    pub again: bool,
}

/// Holding a job: its id and the proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Held {
    /// The job.
    pub id: JobId,
    /// The token of the claim that got it.
    pub token: Token,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Op {
    /// Put jobs into a queue; all or none.
    Enqueue {
        /// The queue; made when it does not exist.
        queue: String,
        /// The jobs, at least one.
        jobs: Vec<New>,
    },
    /// Take jobs out for work.
    Claim(Claim),
    /// The job is done.
    Ack {
        /// The job and the proof.
        held: Held,
        /// What came of it.
        result: Option<Payload>,
    },
    /// The attempt failed: try again later, or dead when no attempt is left.
    Nack {
        /// The job and the proof.
        held: Held,
        /// Wait this long instead of what the job's back-off says.
        delay_ms: Option<i64>,
        /// What went wrong.
        error: Option<String>,
    },
    /// Give back unharmed: the attempt does not count and there is no back-off.
    Release {
        /// The job and the proof.
        held: Held,
    },
    /// The job can never succeed: dead at once.
    Reject {
        /// The job and the proof.
        held: Held,
        /// Why.
        error: Option<String>,
    },
    /// Hold the job for longer: the lease runs `lease_ms` from this commit.
    Extend {
        /// The job and the proof.
        held: Held,
        /// The new length of the lease, from now.
        lease_ms: i64,
    },
    /// Take a job back before it is finished.
    Cancel {
        /// The job.
        id: JobId,
        /// Also when somebody works on it: its lease is void.
        leased: bool,
    },
    /// Give a finished job a fresh life at the end of the line.
    Requeue {
        /// The job.
        id: JobId,
        /// Only if this is its present life, so that a repeated requeue is harmless.
        run: Option<u32>,
    },
    /// Delete the jobs of a queue.
    Purge {
        /// The queue.
        queue: String,
        /// Only those in these states.
        states: Vec<State>,
    },
    /// Claims no longer get jobs of this queue.
    Pause {
        /// The queue.
        queue: String,
    },
    /// Claims get jobs again.
    Resume {
        /// The queue.
        queue: String,
    },
    /// All of these or none; no claims and no atomics among them.
    Atomic(Vec<Op>),
    /// Change the policy of a queue; made when it does not exist.
    Configure {
        /// The queue.
        queue: String,
        /// What changes.
        changes: Box<Changes>,
    },
    /// Give finished jobs fresh lives, oldest first.
    RequeueMany {
        /// Which; of the finished states it names, or else the dead ones.
        filter: Filter,
        /// At most so many.
        limit: u32,
    },
    /// No more jobs go in or out of this queue until it is resumed.
    Drain {
        /// The queue.
        queue: String,
    },
    /// Enqueue a job again and again; takes the place of a schedule of the same name.
    Schedule {
        /// The queue; made when it does not exist.
        queue: String,
        /// The schedule's name in it.
        name: String,
        /// When, and what.
        schedule: Box<Schedule>,
    },
    /// Take a schedule away. What it has enqueued stays.
    Unschedule {
        /// The queue.
        queue: String,
        /// The schedule's name in it.
        name: String,
    },
}

impl Op {
    /// The name in traces and metrics.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Enqueue { .. } => "enqueue",
            Self::Claim(_) => "claim",
            Self::Ack { .. } => "ack",
            Self::Nack { .. } => "nack",
            Self::Release { .. } => "release",
            Self::Reject { .. } => "reject",
            Self::Extend { .. } => "extend",
            Self::Cancel { .. } => "cancel",
            Self::Requeue { .. } => "requeue",
            Self::Purge { .. } => "purge",
            Self::Pause { .. } => "pause",
            Self::Resume { .. } => "resume",
            Self::Atomic(_) => "atomic",
            Self::Configure { .. } => "configure",
            Self::RequeueMany { .. } => "requeue_many",
            Self::Drain { .. } => "drain",
            Self::Schedule { .. } => "schedule",
            Self::Unschedule { .. } => "unschedule",
        }
    }
}

/// What became of one enqueued job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enqueued {
    /// The job now in the queue: the new one, or the one that was there already.
    pub id: JobId,
    /// A job with the same dedup key was there already; the new one was not added.
    pub deduplicated: bool,
    /// `commit_seq` of the commit that enqueued the job named by `id`.
    pub commit_seq: u64,
    /// Jobs cancelled to make room, told with the first job of the op.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dropped: Vec<JobId>,
}

/// What an op did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Outcome {
    /// One entry a job, in the order given.
    Enqueued(Vec<Enqueued>),
    /// The jobs, best first; empty when there was nothing to claim.
    Claimed(Vec<Claimed>),
    /// Done; also when the same holder had already acked it.
    Acked,
    /// Back in line, or dead.
    Nacked {
        /// Ready, scheduled or dead.
        state: State,
        /// When it may run again.
        run_at_ms: i64,
    },
    /// Back in line.
    Released,
    /// Dead.
    Rejected,
    /// Held for longer.
    Extended {
        /// When the lease runs out, in commit time.
        expires_ms: i64,
    },
    /// Taken back, or was cancelled before.
    Cancelled {
        /// The state it was in.
        was: State,
    },
    /// In line again.
    Requeued {
        /// The new life.
        run: u32,
    },
    /// Gone.
    Purged {
        /// How many.
        count: u64,
    },
    /// Claims get nothing.
    Paused,
    /// Claims get jobs.
    Resumed,
    /// One outcome an op, in order.
    Atomic(Vec<Outcome>),
    /// The policy as it is now.
    Configured(Box<Policy>),
    /// In line again.
    RequeuedMany {
        /// How many.
        count: u64,
        /// There may be more: the limit was reached.
        more: bool,
    },
    /// Nothing goes in or out.
    Draining {
        /// Jobs that are still being worked on.
        leased: u64,
    },
    /// It is kept in the file.
    Scheduled {
        /// When it enqueues next.
        next_ms: i64,
    },
    /// It is gone, or was never there.
    Unscheduled {
        /// It was there.
        was_there: bool,
    },
}
