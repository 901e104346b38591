//! What an op is about, for the checks: which jobs it enqueues, which one it finishes.
//!
//! Called by check.rs and replay.rs. Knows ops and their outcomes, nothing of stores or time.

use bucketq::job::{JobId, State};
use bucketq::op::{Held, Op, Outcome};

use crate::history::Call;

/// Jobs an op enqueues, with what became of each: `None` when unknown, else whether it was added, and in which commit.
pub fn enqueued(call: &Call) -> Vec<(JobId, Option<(bool, u64)>)> {
    let outcome = call.commit().map(|(.., outcome)| outcome);
    let mut jobs = Vec::new();
    collect(&call.op, outcome, &mut jobs);
    jobs
}

fn collect(op: &Op, outcome: Option<&Outcome>, into: &mut Vec<(JobId, Option<(bool, u64)>)>) {
    match (op, outcome) {
        (Op::Enqueue { jobs, .. }, Some(Outcome::Enqueued(told))) => {
            into.extend(jobs.iter().zip(told).map(|(j, t)| (j.id, Some((!t.deduplicated, t.commit_seq)))));
        }
        (Op::Enqueue { jobs, .. }, _) => into.extend(jobs.iter().map(|j| (j.id, None))),
        (Op::Atomic(ops), Some(Outcome::Atomic(told))) => {
            ops.iter().zip(told).for_each(|(op, outcome)| collect(op, Some(outcome), into));
        }
        (Op::Atomic(ops), _) => ops.iter().for_each(|op| collect(op, None, into)),
        _ => {}
    }
}

/// The job this op finishes with proof of holding it, and the state it then has.
pub fn finishes(op: &Op) -> Option<(Held, Option<State>)> {
    match op {
        Op::Ack { held, .. } => Some((*held, Some(State::Done))),
        Op::Reject { held, .. } => Some((*held, Some(State::Dead))),
        Op::Nack { held, .. } | Op::Release { held } => Some((*held, None)),
        Op::Atomic(ops) => ops.iter().find_map(finishes),
        _ => None,
    }
}
