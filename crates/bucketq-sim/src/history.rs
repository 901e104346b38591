//! Every call with its reply and true times: the material of the checks.
//!
//! Written by the workload through the world, read by check.rs and replay.rs. It judges nothing itself.

use std::collections::{BTreeMap, BTreeSet};

use bucketq::error::{Error, Kind, Result};
use bucketq::job::JobId;
use bucketq::lease::Token;
use bucketq::op::{Op, Outcome};

use crate::bucket::Who;
use crate::expired_archives::ExpiredArchives;
use crate::ops::names;

/// The conclusion that a reply allows its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The op is in the chain.
    Applied,
    /// It is not, and never will be.
    NotApplied,
    /// Unknown: no reply, the caller died, or the reply says that it is unknown.
    Either,
}

/// The reply to an op.
#[derive(Clone, Debug)]
pub struct Reply {
    /// When it came.
    pub at_ms: u64,
    /// `commit_seq` of the bucket at that moment.
    pub bucket_seq: u64,
    /// The commit, its time, and the outcome.
    pub result: Result<(u64, i64, Outcome)>,
}

/// One op sent by one caller.
#[derive(Clone, Debug)]
pub struct Call {
    /// Its caller.
    pub who: Who,
    /// When.
    pub at_ms: u64,
    /// The op.
    pub op: Op,
    /// The same op (same ids) has been sent before.
    pub again: bool,
    /// For ops on a held job: the fence of the claim, and when the worker must stop.
    pub held: Option<(u64, u64)>,
    /// The reply, if one came.
    pub reply: Option<Reply>,
}

/// The conclusion that an error allows its caller.
pub fn verdict_of(error: &Error) -> Verdict {
    match error.kind() {
        Kind::Unknown | Kind::Corrupt => Verdict::Either,
        _ => Verdict::NotApplied,
    }
}

impl Call {
    /// The conclusion that the reply allows its caller.
    pub fn verdict(&self) -> Verdict {
        match self.reply.as_ref().map(|r| &r.result) {
            None => Verdict::Either,
            Some(Ok(_)) => Verdict::Applied,
            Some(Err(error)) => verdict_of(error),
        }
    }

    /// The commit in the reply, if the op was applied.
    pub fn commit(&self) -> Option<(u64, i64, &Outcome)> {
        match self.reply.as_ref().map(|r| &r.result) {
            Some(Ok((seq, ms, outcome))) => Some((*seq, *ms, outcome)),
            _ => None,
        }
    }
}

/// One claim request.
#[derive(Clone, Debug)]
pub struct ClaimCall {
    /// The caller.
    pub who: Who,
    /// When.
    pub at_ms: u64,
    /// How long it was willing to wait for jobs.
    pub wait_ms: u64,
    /// When the reply came, and the number of jobs in it.
    pub reply: Option<(u64, Result<usize>)>,
    /// The caller dropped it.
    pub dropped: bool,
}

/// A job that a worker holds.
#[derive(Clone, Debug)]
pub struct Hold {
    /// The holder.
    pub who: Who,
    /// The job.
    pub job: JobId,
    /// Its run.
    pub run: u32,
    /// Its attempt.
    pub attempt: u32,
    /// The token that proves it.
    pub token: Token,
    /// `commit_seq` of the claim.
    pub fence: u64,
    /// When it was handed out.
    pub from_ms: u64,
    /// When the holder must stop; each acknowledged extension moves it.
    pub until_ms: u64,
    /// When the holder stopped by itself: it sent the ack, or died.
    pub stopped_ms: Option<u64>,
}

/// A read of the queue file's newest commit.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// The reader.
    pub who: Who,
    /// `commit_seq` of the bucket when the read was sent ...
    pub before: u64,
    /// ... and when its reply came.
    pub after: u64,
    /// The commit that the reader saw.
    pub seen: u64,
    /// The reader wanted the newest state.
    pub fresh: bool,
}

/// Everything that happened.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Ops, in the order they were sent.
    pub calls: Vec<Call>,
    /// Claims, in the order they were sent.
    pub claims: Vec<ClaimCall>,
    /// Jobs handed out, in order.
    pub holds: Vec<Hold>,
    /// Reads, in the order of their replies.
    pub looks: Vec<Look>,
    /// Jobs that readers have seen: id, run and position in the order of enqueues.
    pub seen: BTreeSet<(JobId, u32, u64)>,
    /// Number of errors returned to callers, by code.
    pub errors: BTreeMap<&'static str, u64>,
    /// Error codes returned to each life.
    pub told: BTreeSet<(Who, &'static str)>,
    /// Jobs that are in the archive at the end.
    pub left: BTreeSet<JobId>,
    /// Expired archive objects.
    pub expired: ExpiredArchives,
    /// Calls that took too long, and other faults noticed during the run.
    pub odd: Vec<String>,
}

impl History {
    /// Records an error that a caller of this life got.
    pub fn told_error(&mut self, who: Who, error: &Error) {
        self.told.insert((who, error.code().as_str()));
        *self.errors.entry(error.code().as_str()).or_insert(0) += 1;
    }

    /// Number of ops reported as done, by name; the parts of an atomic count as well.
    pub fn done(&self) -> BTreeMap<&'static str, u64> {
        let mut done = BTreeMap::new();
        let mut count = |name| *done.entry(name).or_insert(0) += 1;
        for call in self.calls.iter().filter(|c| c.commit().is_some()) {
            names(&call.op).into_iter().for_each(&mut count);
        }
        self.holds.iter().for_each(|_| count("claim"));
        done
    }

    /// The holder of hold number `n` stops working on its job.
    pub fn stop(&mut self, n: usize, at_ms: u64) {
        let hold = &mut self.holds[n];
        hold.stopped_ms.get_or_insert(at_ms);
    }

    /// All holders of this life have stopped.
    pub fn died(&mut self, who: Who, at_ms: u64) {
        for hold in self.holds.iter_mut().filter(|h| h.who == who) {
            hold.stopped_ms.get_or_insert(at_ms);
        }
    }
}
