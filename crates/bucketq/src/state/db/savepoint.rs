//! Work that may be refused halfway: then all of it is undone, in the pages and in the cache.
//!
//! Called by atomics, and by enqueues of several jobs.

use std::collections::HashSet;

use super::fault::{Fault, Try};
use super::{Tx, left_ids};
use crate::noun::job::JobId;
use crate::noun::op::{Op, Outcome};

/// Returns the jobs that these ops enqueue.
pub(super) fn enqueued(ops: &[Op]) -> HashSet<JobId> {
    ops.iter().flat_map(Op::jobs).map(|job| job.id).collect()
}

impl Tx<'_> {
    /// Applies several ops, all or none.
    pub fn atomic(&mut self, ops: &[Op]) -> Try<Outcome> {
        self.all_or_nothing(|tx| {
            let mut outcomes = Vec::with_capacity(ops.len());
            for (i, op) in ops.iter().enumerate() {
                let done = tx.apply(op, &ops[i + 1..]);
                outcomes.push(done.map_err(|fault| match fault {
                    Fault::Refused(e) => {
                        Fault::Refused(e.during(format_args!("op {i} of the atomic, {}", op.name())))
                    }
                    broken @ Fault::Broken(_) => broken,
                })?);
            }
            Ok(Outcome::Atomic(outcomes))
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
                self.cache.left = left_ids::LeftIdsBounds::default();
                self.cache.places.rolled_back();
            }
            Err(Fault::Broken(_)) => {}
        }
        done
    }
}
