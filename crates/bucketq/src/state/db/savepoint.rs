//! Work that may be refused halfway: then all of it is undone, in the pages and in the cache.
//!
//! Called by atomics, and by enqueues of several jobs.

use std::collections::HashSet;

use super::fault::{Fault, Try};
use super::{Tx, left_ids};
use crate::noun::error::{Code, Error};
use crate::noun::job::JobId;
use crate::noun::op::{Op, Outcome};

/// Returns the jobs that these ops enqueue.
pub(super) fn enqueued(ops: &[Op]) -> HashSet<JobId> {
    ops.iter().flat_map(Op::jobs).map(|job| job.id).collect()
}

/// Returns the run after which a job is requeued by these ops, if they say it.
pub(super) fn requeued_after(ops: &[Op], job: &JobId) -> Option<u32> {
    let of = |op: &Op| {
        if let Op::Requeue { id, run } | Op::Move { id, run, .. } = op {
            run.filter(|_| id == job)
        } else {
            None
        }
    };
    ops.iter().find_map(of)
}

/// Returns whether this outcome, with which rows have changed, must not come from the same call twice.
fn happens_once(outcome: &Outcome) -> bool {
    match outcome {
        // A repeated enqueue may delete ids and keys whose time is over.
        Outcome::Enqueued(jobs) => jobs.iter().any(|job| !job.existing && !job.deduplicated),
        Outcome::Cancelled { .. }
        | Outcome::Requeued { .. }
        | Outcome::RequeuedMany { .. }
        | Outcome::Purged { .. }
        | Outcome::PurgedSome { .. }
        | Outcome::Moved { .. }
        | Outcome::MovedSome { .. }
        | Outcome::Deleted { .. }
        | Outcome::QueueDeleted { .. } => true,
        // Settings have the requested value either way, and an extend counts from its commit.
        Outcome::Paused
        | Outcome::Resumed
        | Outcome::Draining { .. }
        | Outcome::Configured(_)
        | Outcome::ConfiguredSome { .. }
        | Outcome::Scheduled { .. }
        | Outcome::Unscheduled { .. }
        | Outcome::QueueCreated { .. }
        | Outcome::StrictQueuesSet
        | Outcome::Extended { .. }
        // These end a lease, or are no part of an atomic.
        | Outcome::Claimed(_)
        | Outcome::ClaimedNext(_)
        | Outcome::Acked
        | Outcome::Nacked { .. }
        | Outcome::Released
        | Outcome::Rejected
        | Outcome::Atomic(_) => false,
    }
}

impl Tx<'_> {
    /// Applies several ops, all or none. If all jobs that they end were ended before, by the same holder, this atomic was
    /// executed before, or at least its ends were: then it may change nothing more.
    pub fn atomic(&mut self, ops: &[Op]) -> Try<Outcome> {
        self.all_or_nothing(|tx| {
            let mut outcomes = Vec::with_capacity(ops.len());
            let (mut ends, mut repeated, mut adds) = (0, 0, None);
            for (i, op) in ops.iter().enumerate() {
                let before = tx.conn.total_changes();
                let done = tx.apply(op, &ops[i + 1..]);
                let outcome = done.map_err(|fault| match fault {
                    Fault::Refused(e) => {
                        Fault::Refused(e.during(format_args!("op {i} of the atomic, {}", op.name())))
                    }
                    broken @ Fault::Broken(_) => broken,
                })?;
                let changed = tx.conn.total_changes() > before;
                if op.ends_lease() {
                    ends += 1;
                    repeated += u32::from(!changed);
                } else if adds.is_none() && changed && happens_once(&outcome) {
                    adds = Some(op.name());
                }
                outcomes.push(outcome);
            }
            match (adds, ops.iter().find_map(Op::held)) {
                (Some(what), Some(held)) if ends > 0 && repeated == ends => Err(Error::new(
                    Code::LeaseLost,
                    format!(
                        "job {} was ended by an earlier call, perhaps by this one: the {what} in this atomic would happen a second time, so nothing is changed",
                        held.id
                    ),
                )
                .into()),
                _ => Ok(Outcome::Atomic(outcomes)),
            }
        })
    }

    /// Runs work that may be refused halfway: then all of it is undone. A savepoint costs more than most ops, so other
    /// ops refuse before they write.
    pub fn all_or_nothing<T>(&mut self, work: impl FnOnce(&mut Self) -> Try<T>) -> Try<T> {
        let run = |sql: &str| self.conn.prepare_cached(sql)?.execute([]).map(drop);
        run("SAVEPOINT whole")?;
        let (ordinal, told) = (self.cache.ordinal, self.cache.reported.mark());
        self.cache.lines.open_undo();
        let done = work(self);
        let run = |sql: &str| self.conn.prepare_cached(sql)?.execute([]).map(drop);
        match &done {
            Ok(_) => {
                run("RELEASE whole")?;
                self.cache.lines.close_undo(true);
            }
            Err(Fault::Refused(_)) => {
                run("ROLLBACK TO whole")?;
                run("RELEASE whole")?;
                self.cache.lines.close_undo(false);
                self.cache.ordinal = ordinal;
                self.cache.reported.back_to(told);
                // Texts stored since are gone, and swept rows are back.
                self.cache.names.clear();
                self.cache.pass = None;
                self.cache.sweep_ms = i64::MIN;
                self.cache.expiry_ms = i64::MIN;
                self.cache.left = left_ids::LeftIdsBounds::default();
                self.cache.places.rolled_back();
            }
            Err(Fault::Broken(_)) => {}
        }
        done
    }
}
