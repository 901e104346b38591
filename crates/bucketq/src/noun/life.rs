//! A finished run of a job: the data that is archived when it leaves the queue file. No I/O.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::noun::job::{JobId, State};

/// An archive object as the queue file lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Archived {
    /// Its key in the store.
    pub key: String,
    /// The queue whose runs it has.
    pub queue: Arc<str>,
    /// The beginning of the file id in its key.
    pub file: [u8; 4],
    /// The commit its rows were read at.
    pub seq: u64,
    /// The random part of its key.
    pub rand: [u8; 8],
    /// Its size.
    pub bytes: u64,
    /// XXH3-128 of it.
    pub hash: [u8; 16],
    /// Runs in it.
    pub jobs: u64,
    /// The smallest [`Life::finish_seq`] in it ...
    pub first_seq: u64,
    /// ... and the largest.
    pub last_seq: u64,
    /// When the first of them finished ...
    pub first_ms: i64,
    /// ... and the last.
    pub last_ms: i64,
    /// The commit that listed it.
    pub listed_seq: u64,
    /// The time of that commit.
    pub listed_ms: i64,
}

/// The kinds of finished runs; each kind leaves the queue file in its own order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LifeKind {
    /// Jobs that are done, by `finish_seq`.
    Done,
    /// Dead jobs, by `finish_seq`.
    Dead,
    /// Cancelled jobs, by `finish_seq`.
    Cancelled,
    /// Earlier runs of jobs that were requeued, by `seq` of the next run.
    Past,
}

/// The runs of one kind that leave, from the oldest to this place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The kind.
    pub kind: LifeKind,
    /// The place of the last one.
    pub until: u64,
    /// How many there are.
    pub jobs: u64,
}

/// An uploaded object that is about to be listed, and the jobs in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// `queues.id`.
    pub queue: i64,
    /// The object; `listed_seq` and `listed_ms` are not known yet.
    pub object: Archived,
    /// The parts that its jobs come from.
    pub parts: Vec<Part>,
}

/// One run, (id, run), from its enqueue to its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Life {
    /// Its place in the order in which jobs finish: grows with the commits and is unique.
    pub finish_seq: u64,
    /// The job.
    pub id: JobId,
    /// The number of the run.
    pub run: u32,
    /// Its queue.
    pub queue: Arc<str>,
    /// Its group.
    pub group: Option<Arc<str>>,
    /// How it ended: done, dead or cancelled.
    pub state: State,
    /// Lower ran first.
    pub priority: i32,
    /// Claims in this run.
    pub attempts: u32,
    /// Claims it was allowed.
    pub max_attempts: u32,
    /// The worker that claimed it last.
    pub worker: Option<Arc<str>>,
    /// When it was enqueued, or requeued for this run.
    pub enqueued_ms: i64,
    /// When it could first run.
    pub run_at_ms: i64,
    /// When it was first claimed.
    pub first_claimed_ms: Option<i64>,
    /// When it was last claimed.
    pub claimed_ms: Option<i64>,
    /// When it ended.
    pub finished_ms: i64,
    /// Its place in the order of enqueues.
    pub seq: u64,
    /// `commit_seq` of its last claim.
    pub fence: Option<u64>,
    /// Bytes of its payload, whether the payload is included or not.
    pub payload_len: u64,
    /// Its payload, if payloads are archived.
    pub payload: Option<Bytes>,
    /// The payload's content type; present with the payload.
    pub payload_type: Option<Arc<str>>,
    /// Its result.
    pub result: Option<Bytes>,
    /// The result's content type.
    pub result_type: Option<Arc<str>>,
    /// The error text of its newest failure that had one.
    pub last_error: Option<String>,
}

impl Life {
    /// Returns the time from when it could run until it was first claimed; none if it never was.
    pub fn wait_ms(&self) -> Option<i64> {
        Some((self.first_claimed_ms? - self.run_at_ms.max(self.enqueued_ms)).max(0))
    }

    /// Returns the time from its last claim to its end; none if it was never claimed.
    pub fn run_ms(&self) -> Option<i64> {
        Some((self.finished_ms - self.claimed_ms?).max(0))
    }

    /// Returns the `commit_seq` of its enqueue.
    pub const fn enqueue_commit(&self) -> u64 {
        self.seq >> 24
    }

    /// Returns the `commit_seq` of its end.
    pub const fn finish_commit(&self) -> u64 {
        self.finish_seq >> 24
    }

    /// Returns about how many bytes it takes at most.
    pub fn size(&self) -> usize {
        let bytes = |b: &Option<Bytes>| b.as_ref().map_or(0, Bytes::len);
        let text = |t: Option<usize>| t.unwrap_or(0);
        160 + bytes(&self.payload) + bytes(&self.result) + text(self.last_error.as_ref().map(String::len))
    }
}
