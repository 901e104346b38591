//! The effects of an op, for the checks: [`effect`] has a row for each op, and the checks read nothing else of it.
//!
//! Called by the checks and replay.rs. It knows ops and their outcomes, but neither stores nor time.

use bucketq::job::{JobId, New, State};
use bucketq::op::{Enqueued, Held, Op, Outcome};

use crate::history::Call;

/// The effect of a single op on jobs.
#[derive(Clone, Copy, Debug)]
pub enum Effect<'a> {
    /// It enqueues these jobs.
    Enqueues(&'a str, &'a [New]),
    /// It ends the attempt of this job, which then has this state if that is certain.
    Finishes(Held, Option<State>),
    /// It extends the lease of this job.
    Extends,
    /// It ends this job as done, also a leased one.
    Completes(JobId),
    /// It cancels this job, also a leased one if true.
    Cancels(JobId, bool),
    /// It requeues this job.
    Requeues(JobId),
    /// It moves this job to this queue.
    Moves(JobId, &'a str),
    /// It deletes this job.
    Removes(JobId),
    /// It deletes the jobs of this queue that are in these states.
    Deletes(&'a str, &'a [State]),
    /// It opens this queue.
    Opens(&'a str),
    /// It changes no job of its own accord: the rules of a queue, or schedules.
    Rules,
    /// No check knows it, so no client sends it: [`NOT_SENT`].
    Unknown,
}

/// The ops that no client of the simulation sends by itself, and the tests that they have instead.
pub const NOT_SENT: [(&str, &str); 9] = [
    ("requeue_many", "tests/db/lives.rs"),
    ("drain", "tests/db/backpressure.rs"),
    ("purge_some", "tests/db/left_ids.rs"),
    ("configure_some", "tests/db/backpressure.rs"),
    ("move_some", "tests/db/moves.rs"),
    ("create_queue", "tests/db/queues.rs"),
    ("delete_queue", "tests/db/queues.rs"),
    ("strict_queues", "tests/db/queues.rs"),
    ("ack_late", "tests/sim/variants.rs"),
];

/// Returns the effect of a single op.
pub fn effect(op: &Op) -> Effect<'_> {
    match op {
        Op::Enqueue { queue, jobs } => Effect::Enqueues(queue, jobs),
        Op::Ack { held, .. } => Effect::Finishes(*held, Some(State::Done)),
        Op::Reject { held, .. } => Effect::Finishes(*held, Some(State::Dead)),
        Op::Nack { held, .. } | Op::Release { held } => Effect::Finishes(*held, None),
        Op::Extend { .. } => Effect::Extends,
        Op::AckLate { id, .. } => Effect::Completes(*id),
        Op::Cancel { id, leased } => Effect::Cancels(*id, *leased),
        Op::Requeue { id, .. } => Effect::Requeues(*id),
        Op::Move { id, to, .. } => Effect::Moves(*id, to),
        Op::Delete { id, .. } => Effect::Removes(*id),
        Op::Purge { queue, states } => Effect::Deletes(queue, states),
        Op::Resume { queue } => Effect::Opens(queue),
        Op::Pause { .. } | Op::Configure { .. } | Op::Schedule { .. } | Op::Unschedule { .. } => {
            Effect::Rules
        }
        Op::ClaimWith(with) => with.ends.as_deref().map_or(Effect::Unknown, effect),
        // Claims are calls of their own, and an atomic is its parts.
        Op::Claim(_)
        | Op::Atomic(_)
        | Op::RequeueMany { .. }
        | Op::Drain { .. }
        | Op::PurgeSome { .. }
        | Op::MoveSome { .. }
        | Op::CreateQueue { .. }
        | Op::DeleteQueue { .. }
        | Op::StrictQueues { .. }
        | Op::ConfigureSome { .. } => Effect::Unknown,
    }
}

/// Returns the jobs an op enqueues, with their outcome: `None` when unknown, else whether the job was added, by this
/// call or by an earlier one with the same id, and in which commit. No reply contains that commit once the job has
/// left.
pub fn enqueued(call: &Call) -> Vec<(JobId, Option<(bool, u64)>)> {
    let mut out = Vec::new();
    for (op, outcome) in parts(call) {
        let Effect::Enqueues(_, jobs) = effect(op) else { continue };
        let Some(outcome) = outcome else {
            out.extend(jobs.iter().map(|j| (j.id, None)));
            continue;
        };
        let known =
            |t: &Enqueued| (t.commit_seq > 0 || !t.existing).then_some((!t.deduplicated, t.commit_seq));
        out.extend(jobs.iter().zip(receipts(outcome)).map(|(j, t)| (j.id, known(t))));
    }
    out
}

fn receipts(outcome: &Outcome) -> &[Enqueued] {
    let Outcome::Enqueued(told) = outcome else { panic!("the outcome of an enqueue is {outcome:?}") };
    told
}

/// Returns the end of a job that a claim brings along.
pub fn ends_before(op: &Op) -> Option<&Op> {
    if let Op::ClaimWith(with) = op { with.ends.as_deref() } else { None }
}

/// Returns the single ops of a call, each with its outcome if known: an atomic is its parts.
pub fn parts(call: &Call) -> Vec<(&Op, Option<&Outcome>)> {
    let mut out = Vec::new();
    collect(&call.op, call.commit().map(|(.., outcome)| outcome), &mut out);
    out
}

fn collect<'a>(op: &'a Op, outcome: Option<&'a Outcome>, into: &mut Vec<(&'a Op, Option<&'a Outcome>)>) {
    if let Some(ends) = ends_before(op) {
        // Only an ack is certain to have the outcome that its caller expects.
        return collect(ends, outcome.and(matches!(ends, Op::Ack { .. }).then_some(&Outcome::Acked)), into);
    }
    let Op::Atomic(ops) = op else { return into.push((op, outcome)) };
    let told = outcome.map(|outcome| {
        let Outcome::Atomic(told) = outcome else { panic!("the outcome of an atomic is {outcome:?}") };
        told
    });
    let outcome_of = |i: usize| told.and_then(|told| told.get(i));
    ops.iter().enumerate().for_each(|(i, op)| collect(op, outcome_of(i), into));
}

/// The name of an op, and those of its parts.
pub fn names(op: &Op) -> Vec<&'static str> {
    let parts = if let Op::Atomic(ops) = op {
        &ops[..]
    } else {
        ends_before(op).map_or(&[][..], std::slice::from_ref)
    };
    std::iter::once(op.name()).chain(parts.iter().flat_map(names)).collect()
}

/// The effects of the single changes of an op.
pub fn effects(op: &Op) -> Vec<Effect<'_>> {
    if let Op::Atomic(ops) = op { ops.iter().flat_map(effects).collect() } else { vec![effect(op)] }
}

/// The job that this op finishes with its token, and the state it then has.
pub fn finishes(op: &Op) -> Option<(Held, Option<State>)> {
    let of = |effect| if let Effect::Finishes(held, state) = effect { Some((held, state)) } else { None };
    effects(op).into_iter().find_map(of)
}

/// Whether the op takes this job away from its worker: a late ack, a cancel, a requeue, a move, a deletion, or the holder's own finish or release.
pub fn takes_away(op: &Op, id: JobId) -> bool {
    effects(op).into_iter().any(|effect| match effect {
        Effect::Completes(about)
        | Effect::Cancels(about, _)
        | Effect::Requeues(about)
        | Effect::Moves(about, _)
        | Effect::Removes(about) => about == id,
        Effect::Finishes(held, _) => held.id == id,
        _ => false,
    })
}

/// Whether the op deletes jobs of this queue; of this state, if one is given.
pub fn purges(op: &Op, queue: &str, state: Option<State>) -> bool {
    effects(op).into_iter().any(|effect| {
        let Effect::Deletes(about, states) = effect else { return false };
        about == queue && state.is_none_or(|s| states.contains(&s))
    })
}
