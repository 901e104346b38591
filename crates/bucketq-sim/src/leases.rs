//! G3 and G4 over the history: which worker held which job when, and what its token allowed.
//!
//! Called by check.rs. Pure.

use std::collections::{BTreeMap, BTreeSet};

use bucketq::error::Kind;
use bucketq::job::JobId;

use crate::history::{History, Hold, Verdict};
use crate::ops::{Effect, effect, parts};

/// Jobs that may be gone: all of a queue for which a purge was sent and not surely refused, deleted jobs, and archived
/// ones.
pub struct Purged {
    queues_of: BTreeMap<JobId, BTreeSet<String>>,
    queues: BTreeSet<String>,
    left: BTreeSet<JobId>,
}

impl Purged {
    /// Reads them from the calls.
    pub fn new(history: &History) -> Self {
        let mut out =
            Self { queues_of: BTreeMap::new(), queues: BTreeSet::new(), left: history.left.clone() };
        for call in &history.calls {
            for (op, _) in parts(call) {
                match effect(op) {
                    Effect::Enqueues(queue, jobs) => {
                        for job in jobs {
                            out.queues_of.entry(job.id).or_default().insert(queue.to_owned());
                        }
                    }
                    Effect::Moves(id, to) => {
                        out.queues_of.entry(id).or_default().insert(to.to_owned());
                    }
                    Effect::Removes(id) if call.verdict() != Verdict::NotApplied => {
                        out.left.insert(id);
                    }
                    Effect::Deletes(queue, _) if call.verdict() != Verdict::NotApplied => {
                        out.queues.insert(queue.to_owned());
                    }
                    _ => {}
                }
            }
        }
        out
    }

    /// Whether this job may have been deleted.
    pub fn may(&self, id: JobId) -> bool {
        let purged = |queues: &BTreeSet<String>| !queues.is_disjoint(&self.queues);
        self.left.contains(&id) || self.queues_of.get(&id).is_some_and(purged)
    }
}

/// G4: the times in which two holders may work on one job never overlap.
pub fn overlaps(holds: &[Hold]) -> Vec<String> {
    let mut by_job: BTreeMap<(JobId, u32), Vec<&Hold>> = BTreeMap::new();
    for hold in holds {
        by_job.entry((hold.job, hold.run)).or_default().push(hold);
    }
    let end = |h: &Hold| h.stopped_ms.map_or(h.until_ms, |stopped| stopped.min(h.until_ms));
    let mut bad = Vec::new();
    for ((id, _), mut holds) in by_job {
        holds.sort_by_key(|h| (h.from_ms, h.fence));
        for pair in holds.windows(2) {
            let (a, b) = (pair[0], pair[1]);
            if b.from_ms < end(a) && b.from_ms < end(b) {
                bad.push(format!(
                    "G4: {id} is held by {} (commit {}) until {} ms and by {} (commit {}) from {} ms",
                    a.who,
                    a.fence,
                    end(a),
                    b.who,
                    b.fence,
                    b.from_ms
                ));
            }
            if a.fence == b.fence {
                bad.push(format!("G4: {id} is handed out twice in commit {}", a.fence));
            }
        }
    }
    bad
}

/// G3: a stale token changes nothing; a live one is never called stale, and its job is never called unknown.
pub fn lost_leases(history: &History, purged: &Purged) -> Vec<String> {
    let mut cancelled: BTreeSet<JobId> = BTreeSet::new();
    for (op, _) in history.calls.iter().flat_map(parts) {
        if let Effect::Cancels(id, true) | Effect::Completes(id) = effect(op) {
            cancelled.insert(id);
        }
    }
    let mut claims: BTreeMap<JobId, Vec<u64>> = BTreeMap::new();
    for hold in &history.holds {
        claims.entry(hold.job).or_default().push(hold.fence);
    }
    let mut bad = Vec::new();
    for call in history.calls.iter().filter(|c| !c.again) {
        let (Some((fence, until)), Some(reply)) = (call.held, &call.reply) else { continue };
        let Some(held) = call.op.held() else { continue };
        let (name, who, id) = (call.op.name(), call.who, held.id);
        match &reply.result {
            Ok((seq, ..)) => {
                let newer = claims.get(&id).and_then(|all| all.iter().find(|f| **f > fence && **f < *seq));
                if let Some(newer) = newer {
                    bad.push(format!("G3: {name} of {id} with the token of commit {fence} works in commit {seq} although commit {newer} claimed it"));
                }
            }
            Err(e) if e.kind() == Kind::LeaseLost && reply.at_ms < until && !cancelled.contains(&id) => {
                bad.push(format!(
                    "G5: {who} loses its live lease on {id} (until {until} ms) at {} ms",
                    reply.at_ms
                ));
            }
            Err(e) if e.kind() == Kind::NotFound && !purged.may(id) => {
                bad.push(format!("G1: {who} gets the reply that {id}, which it holds, does not exist"));
            }
            Err(_) => {}
        }
    }
    bad
}
