//! What happens to jobs and to the queue file, as values. Each is told after the commit that made it true. No I/O.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::job::{JobId, State};

/// Something that has happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// The commit that made it true; for what concerns no commit, the newest one known.
    pub commit_seq: u64,
    /// The time of that commit.
    pub commit_ms: i64,
    /// What it is.
    #[serde(flatten)]
    pub what: Happened,
}

/// A job at one point of its life.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct At {
    /// Its queue.
    pub queue: Arc<str>,
    /// The job.
    pub id: JobId,
    /// Which life of it.
    pub run: u32,
    /// Claims in this life so far.
    pub attempt: u32,
}

/// What has happened. The list only grows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "event")]
#[non_exhaustive]
pub enum Happened {
    /// A job is in line.
    Enqueued(At),
    /// An enqueue met a job with the same dedup key; this is that one.
    Deduplicated {
        /// The queue.
        queue: Arc<str>,
        /// The job that was there.
        id: JobId,
    },
    /// Somebody has the job.
    Claimed {
        /// The job.
        #[serde(flatten)]
        job: At,
        /// Who.
        worker: Arc<str>,
        /// From when it could run until now.
        wait_ms: i64,
    },
    /// A claim got nothing.
    ClaimedNothing,
    /// A lease ran out: the job is in line again, or dead.
    Expired(At),
    /// A lease was made longer.
    Extended {
        /// The job.
        #[serde(flatten)]
        job: At,
        /// When it runs out now.
        expires_ms: i64,
    },
    /// A lease is no longer its holder's, by what this process knows: an op of the holder was refused, or the lease of
    /// a kept job ran out before it could be extended.
    LeaseLost {
        /// The job.
        #[serde(flatten)]
        job: At,
        /// How.
        reason: Loss,
    },
    /// A job is done.
    Acked {
        /// The job.
        #[serde(flatten)]
        job: At,
        /// From its claim until now.
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
    /// A job was given back unharmed.
    Released(At),
    /// A job is dead, here or on its way to the dead-letter queue.
    Dead(At),
    /// A job was taken back.
    Cancelled(At),
    /// A job was cancelled to make room for newer ones.
    Dropped(At),
    /// A job has a fresh life; this is the new one.
    Requeued(At),
    /// Jobs were deleted.
    Purged {
        /// The queue.
        queue: Arc<str>,
        /// How many.
        count: u64,
    },
    /// Jobs have left for the archive.
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
        /// How long that took, from its first op at work to the answer of the store.
        took_ms: u64,
    },
    /// Another writer's commit took the place of ours; its ops run again.
    Conflict {
        /// What the store had said to ours.
        cause: Cause,
    },
    /// A commit whose answer was lost is sent again as it was.
    Resent,
    /// Local commits are published.
    Synced {
        /// How many.
        commits: u64,
        /// Ops in them.
        ops: u64,
    },
    /// What others had published was taken over.
    Snapshot,
    /// A full image was written, and HEAD refers to it.
    Checkpoint {
        /// Its size.
        bytes: u64,
    },
}

/// How a lease was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Loss {
    /// It was not extended in time. The job may still be nobody else's, but that is not certain any more.
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

/// How a commit was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The store said that HEAD had changed.
    Race,
    /// The store did not say what became of it.
    Unanswered,
}

impl Happened {
    /// Its name.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Enqueued(_) => "enqueued",
            Self::Deduplicated { .. } => "deduplicated",
            Self::Claimed { .. } => "claimed",
            Self::ClaimedNothing => "claimed_nothing",
            Self::Expired(_) => "expired",
            Self::Extended { .. } => "extended",
            Self::LeaseLost { .. } => "lease_lost",
            Self::Acked { .. } => "acked",
            Self::Nacked { .. } => "nacked",
            Self::Released(_) => "released",
            Self::Dead(_) => "dead",
            Self::Cancelled(_) => "cancelled",
            Self::Dropped(_) => "dropped",
            Self::Requeued(_) => "requeued",
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
