//! What an op is about, for the checks: which jobs it enqueues, which one it finishes, what its parts are.
//!
//! Called by the checks and replay.rs. Knows ops and their outcomes, nothing of stores or time.

use bucketq::job::{JobId, State};
use bucketq::op::{Held, Op, Outcome};

use crate::history::Call;

/// Jobs an op enqueues, with what became of each: `None` when unknown, else whether it was added, and in which commit.
pub fn enqueued(call: &Call) -> Vec<(JobId, Option<(bool, u64)>)> {
    let mut out = Vec::new();
    for (op, outcome) in parts(call) {
        let Op::Enqueue { jobs, .. } = op else { continue };
        match outcome {
            Some(Outcome::Enqueued(told)) => {
                out.extend(jobs.iter().zip(told).map(|(j, t)| (j.id, Some((!t.deduplicated, t.commit_seq)))));
            }
            _ => out.extend(jobs.iter().map(|j| (j.id, None))),
        }
    }
    out
}

/// The single ops of a call, each with what it did if that is known: an atomic is its parts.
pub fn parts(call: &Call) -> Vec<(&Op, Option<&Outcome>)> {
    let mut out = Vec::new();
    collect(&call.op, call.commit().map(|(.., outcome)| outcome), &mut out);
    out
}

fn collect<'a>(op: &'a Op, outcome: Option<&'a Outcome>, into: &mut Vec<(&'a Op, Option<&'a Outcome>)>) {
    match (op, outcome) {
        (Op::Atomic(ops), Some(Outcome::Atomic(told))) => {
            ops.iter().zip(told).for_each(|(op, outcome)| collect(op, Some(outcome), into));
        }
        (Op::Atomic(ops), _) => ops.iter().for_each(|op| collect(op, None, into)),
        _ => into.push((op, outcome)),
    }
}

/// Whether `what` is true of the op, or of a part of it.
pub fn any(op: &Op, what: &impl Fn(&Op) -> bool) -> bool {
    if let Op::Atomic(ops) = op { ops.iter().any(|op| any(op, what)) } else { what(op) }
}

/// The job this op needs to hold, and the proof.
pub fn proof(op: &Op) -> Option<Held> {
    match op {
        Op::Ack { held, .. }
        | Op::Nack { held, .. }
        | Op::Release { held }
        | Op::Reject { held, .. }
        | Op::Extend { held, .. } => Some(*held),
        Op::Atomic(ops) => ops.iter().find_map(proof),
        _ => None,
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

/// Whether the op takes this job away from whoever holds it: cancelled, requeued, or given up.
pub fn takes_away(op: &Op, id: JobId) -> bool {
    any(op, &|op| match op {
        Op::Cancel { id: about, .. } | Op::Requeue { id: about, .. } => *about == id,
        op => finishes(op).is_some_and(|(held, _)| held.id == id),
    })
}

/// Whether the op deletes jobs of this queue; of this state, if one is given.
pub fn purges(op: &Op, queue: &str, state: Option<State>) -> bool {
    any(
        op,
        &|op| matches!(op, Op::Purge { queue: about, states } if about == queue && state.is_none_or(|s| states.contains(&s))),
    )
}
