//! What every caller sent and was told, with true times: the material of the checks.
//!
//! Written by the workload through the world, read by check.rs and replay.rs. Judges nothing itself.

use std::collections::{BTreeMap, BTreeSet};

use bucketq::error::{Error, Kind, Result};
use bucketq::job::JobId;
use bucketq::lease::Token;
use bucketq::op::{Op, Outcome};

use crate::bucket::Who;
use crate::given_up::GivenUp;
use crate::ops::parts;

/// What a caller may conclude from an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is in the chain.
    Applied,
    /// It is not, and never will be.
    NotApplied,
    /// Nobody knows: no answer, the caller died, or the answer says so.
    Either,
}

/// The answer to an op.
#[derive(Clone, Debug)]
pub struct Reply {
    /// When it came.
    pub at_ms: u64,
    /// `commit_seq` of the bucket at that moment.
    pub bucket_seq: u64,
    /// Commit, its time, and what it did.
    pub result: Result<(u64, i64, Outcome)>,
}

/// One op sent by one caller.
#[derive(Clone, Debug)]
pub struct Call {
    /// Who sent it.
    pub who: Who,
    /// When.
    pub at_ms: u64,
    /// The op.
    pub op: Op,
    /// The same op (same ids) has been sent before.
    pub again: bool,
    /// For ops on a held job: the fence of the claim, and when the worker must have stopped.
    pub held: Option<(u64, u64)>,
    /// What came back, if anything.
    pub reply: Option<Reply>,
}

/// What an error allows its caller to conclude.
pub fn verdict_of(error: &Error) -> Verdict {
    match error.kind() {
        Kind::Unknown | Kind::Corrupt => Verdict::Either,
        _ => Verdict::NotApplied,
    }
}

impl Call {
    /// What its caller may conclude.
    pub fn verdict(&self) -> Verdict {
        match self.reply.as_ref().map(|r| &r.result) {
            None => Verdict::Either,
            Some(Ok(_)) => Verdict::Applied,
            Some(Err(error)) => verdict_of(error),
        }
    }

    /// The commit it was told, if it was applied.
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
    /// Who asked.
    pub who: Who,
    /// When.
    pub at_ms: u64,
    /// How long it was willing to wait for jobs.
    pub wait_ms: u64,
    /// When it was answered, and how many jobs it got.
    pub reply: Option<(u64, Result<usize>)>,
    /// The caller dropped it.
    pub dropped: bool,
}

/// A job in somebody's hands.
#[derive(Clone, Debug)]
pub struct Hold {
    /// Whose.
    pub who: Who,
    /// The job.
    pub job: JobId,
    /// Its life.
    pub run: u32,
    /// Its attempt.
    pub attempt: u32,
    /// The proof.
    pub token: Token,
    /// `commit_seq` of the claim.
    pub fence: u64,
    /// When it was handed out.
    pub from_ms: u64,
    /// When the holder must have stopped; moves with each extension that was told.
    pub until_ms: u64,
    /// When the holder stopped by itself: it sent the ack, or died.
    pub stopped_ms: Option<u64>,
}

/// A read of the queue file's newest commit.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// Who looked.
    pub who: Who,
    /// `commit_seq` of the bucket when the question was asked ...
    pub before: u64,
    /// ... and when the answer came.
    pub after: u64,
    /// What the reader was shown.
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
    /// Reads, in the order of their answers.
    pub looks: Vec<Look>,
    /// Jobs readers have seen: id, life and position in the order of enqueues.
    pub seen: BTreeSet<(JobId, u32, u64)>,
    /// Every error told, by code.
    pub errors: BTreeMap<&'static str, u64>,
    /// Codes told to each life.
    pub told: BTreeSet<(Who, &'static str)>,
    /// Jobs that are in the archive at the end.
    pub left: BTreeSet<JobId>,
    /// Archive objects that were given up.
    pub given_up: GivenUp,
    /// Calls that took longer than they may, and other things noticed on the way.
    pub odd: Vec<String>,
}

impl History {
    /// A caller of this life was told of this error.
    pub fn told_error(&mut self, who: Who, error: &Error) {
        self.told.insert((who, error.code().as_str()));
        *self.errors.entry(error.code().as_str()).or_insert(0) += 1;
    }

    /// Ops told as done, by name; the parts of an atomic count as well.
    pub fn done(&self) -> BTreeMap<&'static str, u64> {
        let mut done = BTreeMap::new();
        let mut count = |name| *done.entry(name).or_insert(0) += 1;
        for call in self.calls.iter().filter(|c| c.commit().is_some()) {
            if let Op::Atomic(_) = call.op {
                count(call.op.name());
            }
            for (op, _) in parts(call) {
                count(op.name());
            }
        }
        self.holds.iter().for_each(|_| count("claim"));
        done
    }

    /// The holder of hold number `n` stops working on it.
    pub fn stop(&mut self, n: usize, at_ms: u64) {
        let hold = &mut self.holds[n];
        hold.stopped_ms.get_or_insert(at_ms);
    }

    /// Everybody who lived this life has stopped.
    pub fn died(&mut self, who: Who, at_ms: u64) {
        for hold in self.holds.iter_mut().filter(|h| h.who == who) {
            hold.stopped_ms.get_or_insert(at_ms);
        }
    }
}
