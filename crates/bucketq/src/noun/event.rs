//! Events of jobs and of the queue file, as values. Each event is emitted after its commit. No I/O.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::noun::error::Code;
use crate::noun::job::{JobId, State};

/// One event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// The commit that it belongs to; for an event of no commit, the newest known one.
    pub commit_seq: u64,
    /// The time of that commit.
    pub commit_ms: i64,
    /// Its kind and its data.
    #[serde(flatten)]
    pub what: Happened,
}

/// A job at one point in time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct At {
    /// Its queue.
    pub queue: Arc<str>,
    /// The job.
    pub id: JobId,
    /// Its run.
    pub run: u32,
    /// Claims in this run so far.
    pub attempt: u32,
}

/// The kinds of events, with their data. New ones may be added.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "event")]
#[non_exhaustive]
pub enum Happened {
    /// A job was enqueued.
    Enqueued(At),
    /// An enqueue met a job with the same dedup key; this is that existing job.
    Deduplicated {
        /// The queue.
        queue: Arc<str>,
        /// The existing job.
        id: JobId,
    },
    /// An enqueue was refused: the queue is full or draining, or nobody created it.
    Refused {
        /// The queue.
        queue: Arc<str>,
        /// How many jobs it brought.
        jobs: u64,
        /// Why: `queue_full`, `blocked`, `draining` or `no_such_queue`.
        code: Code,
    },
    /// A worker claimed the job.
    Claimed {
        /// The job.
        #[serde(flatten)]
        job: At,
        /// The worker's name.
        worker: Arc<str>,
        /// Time from when the job could run until now.
        wait_ms: i64,
    },
    /// A claim found no jobs.
    ClaimedNothing,
    /// A lease ran out: the job can be claimed again, or is dead.
    Expired(At),
    /// No worker claimed the job in time: it is dead, or deleted.
    Unclaimed {
        /// The job.
        #[serde(flatten)]
        job: At,
        /// It is deleted.
        removed: bool,
    },
    /// A lease was extended.
    Extended {
        /// The job.
        #[serde(flatten)]
        job: At,
        /// When it runs out now.
        expires_ms: i64,
    },
    /// A holder lost its lease, as far as this process knows: one of its ops was refused, or the lease of a watched job
    /// ran out before it could be extended.
    LeaseLost {
        /// The job.
        #[serde(flatten)]
        job: At,
        /// Why.
        reason: Loss,
    },
    /// A job is done.
    Acked {
        /// The job.
        #[serde(flatten)]
        job: At,
        /// Time from its claim until now.
        run_ms: i64,
    },
    /// An attempt failed.
    Nacked {
        /// The job.
        #[serde(flatten)]
        job: At,
        /// Ready, scheduled, or dead.
        state: State,
    },
    /// A job was released; the attempt does not count.
    Released(At),
    /// A job is dead, in its queue or on its way to the dead-letter queue.
    Dead(At),
    /// A job was cancelled.
    Cancelled(At),
    /// A job was cancelled to make room for newer ones.
    Dropped(At),
    /// A job was requeued; this is its new run.
    Requeued(At),
    /// A job was moved to another queue; this is its new run there.
    Moved {
        /// The job.
        #[serde(flatten)]
        job: At,
        /// The queue that it left.
        from: Arc<str>,
    },
    /// Jobs were deleted.
    Purged {
        /// The queue.
        queue: Arc<str>,
        /// How many.
        count: u64,
    },
    /// Jobs were moved to the archive.
    Archived {
        /// The queue.
        queue: Arc<str>,
        /// How many.
        count: u64,
    },
    /// A commit is in the bucket.
    Committed {
        /// Ops in it.
        ops: u32,
        /// Bytes it takes in the log.
        bytes: u64,
        /// Time from the start of its first op to the store's reply.
        took_ms: u64,
    },
    /// Another writer's commit won the race; our ops run again.
    Conflict {
        /// The store's reply to ours.
        cause: Cause,
    },
    /// A commit whose reply was lost is sent again unchanged.
    Resent,
    /// Local commits were published.
    Synced {
        /// How many.
        commits: u64,
        /// Ops in them.
        ops: u64,
    },
    /// A snapshot loaded what others had published.
    Snapshot,
    /// A base was written, and HEAD refers to it.
    Checkpoint {
        /// Its size.
        bytes: u64,
    },
}

/// How a lease was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Loss {
    /// It was not extended in time. Perhaps no other worker holds the job, but that is not certain any more.
    RanOut,
    /// The job was claimed again, finished, cancelled or deleted.
    Taken,
}

impl Loss {
    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::RanOut => "ran_out",
            Self::Taken => "taken",
        }
    }
}

/// How a commit lost its race.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The store replied that HEAD had changed.
    Race,
    /// The store did not reply.
    Unanswered,
}

impl Happened {
    /// Its name.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Enqueued(_) => "enqueued",
            Self::Deduplicated { .. } => "deduplicated",
            Self::Refused { .. } => "refused",
            Self::Claimed { .. } => "claimed",
            Self::ClaimedNothing => "claimed_nothing",
            Self::Expired(_) => "expired",
            Self::Unclaimed { .. } => "unclaimed",
            Self::Extended { .. } => "extended",
            Self::LeaseLost { .. } => "lease_lost",
            Self::Acked { .. } => "acked",
            Self::Nacked { .. } => "nacked",
            Self::Released(_) => "released",
            Self::Dead(_) => "dead",
            Self::Cancelled(_) => "cancelled",
            Self::Dropped(_) => "dropped",
            Self::Requeued(_) => "requeued",
            Self::Moved { .. } => "moved",
            Self::Purged { .. } => "purged",
            Self::Archived { .. } => "archived",
            Self::Committed { .. } => "committed",
            Self::Conflict { .. } => "conflict",
            Self::Resent => "resent",
            Self::Synced { .. } => "synced",
            Self::Snapshot => "snapshot",
            Self::Checkpoint { .. } => "checkpoint",
        }
    }
}
