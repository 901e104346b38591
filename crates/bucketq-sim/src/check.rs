//! G1 to G9 over the history of one seed and the final state of its queue file.
//!
//! Called by run.rs when everything is quiet. Pure: it reads the recorded history and returns the faults, citing the
//! promise. bucket.rs compares each HEAD with the one before as it arrives.

use std::collections::{BTreeMap, BTreeSet};

use bucketq::error::Code;
use bucketq::job::{Job, JobId, Reason, State};
use bucketq::op::Outcome;

use crate::archive::LETTERS;
use crate::bucket::Bucket;
use crate::history::{Call, History, Verdict, verdict_of};
use crate::leases::{Purged, lost_leases, overlaps};
use crate::loss;
use crate::ops::{Effect, effect, enqueued, finishes, parts};
use crate::plan::{Plan, Wrong};
use crate::policies::{self, RETAINED};
use crate::workload::SOONEST_EXPIRY_MS;

/// The jobs left at the end, by id.
pub type Jobs = BTreeMap<JobId, Job>;

/// Checks that hold in every seed, whatever the operator did. When the operator puts an old HEAD back, commit numbers
/// occur twice and jobs may be claimed again. Then the checks judge only whether processes that know the lost commits
/// stop writing.
pub fn always(plan: &Plan, history: &History, bucket: &Bucket) -> Vec<String> {
    let mut bad = history.odd.clone();
    bad.extend(bucket.broken.iter().cloned());
    bad.extend(loss::goes_on(history, bucket));
    let limit = plan.options.deadline.as_millis() as u64 + 2_000;
    for call in &history.calls {
        if let Some(reply) = &call.reply
            && reply.at_ms - call.at_ms > limit
        {
            bad.push(format!(
                "{} waits {} ms for the answer to {}",
                call.who,
                reply.at_ms - call.at_ms,
                call.op.name()
            ));
        }
    }
    for claim in &history.claims {
        if let Some((at_ms, _)) = claim.reply
            && at_ms - claim.at_ms > limit + claim.wait_ms
        {
            bad.push(format!("{} waits {} ms for the answer to a claim", claim.who, at_ms - claim.at_ms));
        }
    }
    bad
}

/// Checks of a seed whose bucket the operator did not touch.
pub fn all(plan: &Plan, history: &History, bucket: &Bucket, last: &Jobs) -> Vec<String> {
    let mut bad = always(plan, history, bucket);
    let purged = Purged::new(history);
    bad.extend(overlaps(&history.holds));
    bad.extend(lost_leases(history, &purged));
    bad.extend(errors(plan, history, bucket.betrayal.is_some()));
    bad.extend(replies(history, bucket));
    bad.extend(looks(history, last, &purged));
    bad.extend(jobs(history, last, &purged));
    bad.extend(policies::windows(history));
    bad
}

/// Error codes that nothing in this plan explains.
fn errors(plan: &Plan, history: &History, betrayed: bool) -> Vec<String> {
    let never =
        [Code::RolledBack, Code::HeadMissing, Code::StoreBroken, Code::Internal, Code::Foreign, Code::TooNew];
    let mut bad = Vec::new();
    for (code, count) in &history.errors {
        let excused = match *code {
            c if c == Code::Corrupt.as_str() || c == Code::Foreign.as_str() || c == Code::TooNew.as_str() => {
                plan.damaged
            }
            c if c == Code::ClockSkew.as_str() => plan.wrong != Wrong::None,
            // loss.rs judges which callers may get these.
            c if c == Code::RolledBack.as_str() || c == Code::StoreBroken.as_str() => betrayed,
            c => never.iter().all(|n| n.as_str() != c),
        };
        if !excused {
            bad.push(format!("{count} callers are told {code}, and nothing explains it"));
        }
    }
    bad
}

/// G1: what a reply reports is in the bucket when the reply comes. G6: and it was done once.
fn replies(history: &History, bucket: &Bucket) -> Vec<String> {
    let times: BTreeMap<u64, i64> =
        bucket.landed.iter().map(|l| (l.head.commit_seq, l.head.commit_ms)).collect();
    let mut bad = Vec::new();
    for call in &history.calls {
        let Some((seq, ms, _)) = call.commit() else { continue };
        let name = call.op.name();
        let bucket_seq = call.reply.as_ref().map_or(0, |r| r.bucket_seq);
        if seq > bucket_seq {
            bad.push(format!("G1: {name} gets commit {seq} while the bucket is at {bucket_seq}"));
        }
        if times.get(&seq) != Some(&ms) {
            bad.push(format!("G1: {name} gets commit {seq} at {ms}; the chain has {:?}", times.get(&seq)));
        }
        if !call.again {
            for (id, told) in enqueued(call) {
                if let Some((true, at)) = told
                    && at != seq
                {
                    bad.push(format!("G6: {id} is enqueued in commit {at} and again in {seq}"));
                }
            }
        }
    }
    bad
}

/// P11: a reader sees the chain, never an older state than before, never a commit that does not exist.
fn looks(history: &History, last: &Jobs, purged: &Purged) -> Vec<String> {
    let mut bad = Vec::new();
    let mut newest = BTreeMap::new();
    for look in &history.looks {
        let who = look.who;
        if look.seen > look.after {
            bad.push(format!(
                "P11: {who} is shown commit {} while the bucket is at {}",
                look.seen, look.after
            ));
        }
        if look.fresh && look.seen < look.before {
            bad.push(format!("P11: {who} asks at commit {} and is shown {}", look.before, look.seen));
        }
        let before = newest.insert(who, look.seen).unwrap_or(0);
        if look.seen < before {
            bad.push(format!("P11: {who} is shown commit {before}, then {}", look.seen));
        }
    }
    let requeued: BTreeSet<JobId> =
        history.calls.iter().flat_map(parts).filter_map(|(op, _)| requeue_of(effect(op))).collect();
    for (id, run, seq) in &history.seen {
        let there = match last.get(id) {
            None => purged.may(*id),
            Some(j) => {
                (j.run, j.seq) == (*run, *seq)
                    || ((requeued.contains(id) || j.queue == LETTERS) && j.run > *run)
                    // The run that was seen is purged, and an earlier one is in the archive.
                    || (j.run < *run && purged.may(*id))
            }
        };
        if !there {
            bad.push(format!("P11: a reader saw {id} in commit {}, which has no such job", seq >> 24));
        }
    }
    bad
}

fn requeue_of(effect: Effect<'_>) -> Option<JobId> {
    if let Effect::Requeues(id) | Effect::Moves(id, _) = effect { Some(id) } else { None }
}

/// The history of one job, gathered from the calls on it.
#[derive(Default)]
struct Fate<'a> {
    added: Option<(u64, &'a Call)>,
    perhaps_added: bool,
    not_added: bool,
    finished: Vec<(State, &'a Call)>,
    /// A late ack may have ended it; true if one surely did.
    late_ack: Option<bool>,
    requeued: bool,
    cancelled: Vec<(&'a Call, Option<&'a Outcome>)>,
}

/// G1, G2, G5, G6: every job is in the state that the replies reported.
fn jobs(history: &History, last: &Jobs, purged: &Purged) -> Vec<String> {
    let mut fates: BTreeMap<JobId, Fate<'_>> = BTreeMap::new();
    for call in &history.calls {
        gather(call, &mut fates);
    }
    let mut bad = Vec::new();
    let fired = |id: &JobId| last.get(id).and_then(policies::due_of).is_some();
    for id in last.keys().filter(|id| !fates.contains_key(id) && !fired(id)) {
        bad.push(format!("G1: nobody enqueued {id}"));
    }
    for (id, fate) in &fates {
        match (last.get(id), fate.added) {
            (None, Some((seq, call))) if !purged.may(*id) => {
                bad.push(format!("G1: {id}, enqueued by {} in commit {seq}, is gone", call.who));
            }
            (Some(_), None) if !fate.perhaps_added && fate.not_added => {
                bad.push(format!("G6: {id} is there although every enqueue of it was surely not applied"));
            }
            (Some(job), added) => {
                if let Some((seq, _)) = added
                    && !fate.requeued
                    && job.queue != LETTERS
                    && job.commit_seq() != seq
                {
                    bad.push(format!(
                        "G6: {id} was told commit {seq} and stands in commit {}",
                        job.commit_seq()
                    ));
                }
                bad.extend(finish(*id, fate, job));
            }
            (None, _) => {}
        }
    }
    bad
}

fn gather<'a>(call: &'a Call, fates: &mut BTreeMap<JobId, Fate<'a>>) {
    for (id, told) in enqueued(call) {
        let fate = fates.entry(id).or_default();
        match (told, call.verdict()) {
            (Some((true, seq)), _) => fate.added = fate.added.or(Some((seq, call))),
            (Some((false, _)), _) | (None, Verdict::NotApplied) => fate.not_added = true,
            (None, _) => fate.perhaps_added = true,
        }
    }
    if let Some((held, Some(state))) = finishes(&call.op)
        && call.verdict() != Verdict::NotApplied
    {
        fates.entry(held.id).or_default().finished.push((state, call));
    }
    if call.verdict() != Verdict::NotApplied {
        for (op, told) in parts(call) {
            match effect(op) {
                // An earlier run of a deleted job may be left.
                Effect::Requeues(id) | Effect::Moves(id, _) | Effect::Removes(id) => {
                    fates.entry(id).or_default().requeued = true;
                }
                Effect::Completes(id) => {
                    let late_ack = &mut fates.entry(id).or_default().late_ack;
                    *late_ack = Some(*late_ack == Some(true) || told.is_some());
                }
                Effect::Cancels(id, _) => fates.entry(id).or_default().cancelled.push((call, told)),
                _ => {}
            }
        }
    }
}

/// Whether this run of the job died because no worker claimed it in time. A run in the archive has only the text. A dead
/// letter says how it died before it came here.
fn has_expired(job: &Job) -> bool {
    let text = job.last_error.as_deref().unwrap_or_default();
    job.died.as_ref().map_or(text.starts_with("expired: "), |died| {
        died.reason == Reason::Expired && died.queue == job.queue && Some(died.at_ms) == job.finished_ms
    })
}

fn finish(id: JobId, fate: &Fate<'_>, job: &Job) -> Vec<String> {
    let mut bad = Vec::new();
    let by = |state| fate.finished.iter().any(|(s, _)| *s == state);
    match job.state {
        State::Done if !by(State::Done) && fate.late_ack.is_none() => {
            bad.push(format!("G5: {id} is done and nobody acked it"));
        }
        State::Dead if has_expired(job) => {
            let age_ms = job.finished_ms.unwrap_or(0) - job.enqueued_ms;
            // It may have come from there.
            let may_be_claimed = job.queue == RETAINED || fate.requeued;
            if (job.attempt > 0 && !may_be_claimed) || age_ms < SOONEST_EXPIRY_MS {
                bad.push(format!("G5: {id} has expired after {} attempts and {age_ms} ms", job.attempt));
            }
        }
        State::Dead if !by(State::Dead) && job.attempt < job.max_attempts => {
            bad.push(format!("G5: {id} is dead after {} of {} attempts", job.attempt, job.max_attempts));
        }
        State::Cancelled if fate.cancelled.is_empty() => {
            bad.push(format!("G5: {id} is cancelled and nobody did it"));
        }
        State::Done | State::Dead | State::Cancelled => {}
        state => bad.push(format!("G5: {id} is still {} at the end", state.as_str())),
    }
    // A job that was moved to the dead-letter queue starts another run, like a requeued one.
    if fate.requeued || job.queue == LETTERS {
        return bad;
    }
    if fate.late_ack == Some(true) && job.state != State::Done {
        bad.push(format!("G1: {id} was acked late and is {}", job.state.as_str()));
    }
    for (state, call) in &fate.finished {
        let Some((seq, ms, _)) = call.commit() else { continue };
        if job.state != *state {
            bad.push(format!(
                "G1: {id} was {} in commit {seq} and is {}",
                state.as_str(),
                job.state.as_str()
            ));
        }
        if !call.again && job.finished_ms != Some(ms) {
            bad.push(format!("G6: {id} was finished in commit {seq} at {ms} and says {:?}", job.finished_ms));
        }
    }
    for (call, told) in &fate.cancelled {
        if let (Some((seq, ..)), Some(Outcome::Cancelled { was })) = (call.commit(), told) {
            let twice = *was == State::Cancelled && !call.again && fate.cancelled.len() == 1;
            if twice || job.state != State::Cancelled {
                bad.push(format!(
                    "G6: {id} was cancelled in commit {seq} (was {was:?}) and is {:?}",
                    job.state
                ));
            }
        }
    }
    bad
}

/// Whether a claim may have happened although its reply does not say so.
pub fn claim_open(reply: Option<&(u64, bucketq::Result<usize>)>) -> bool {
    match reply {
        None => true,
        Some((_, Ok(_))) => false,
        Some((_, Err(error))) => verdict_of(error) == Verdict::Either,
    }
}
