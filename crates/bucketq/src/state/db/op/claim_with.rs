//! A claim with more to do in its commit: the end of another job before it, only certain jobs, or their end at once.
//!
//! The end of a job and the claim after it are one effect: a repeat by the same holder returns the jobs that the first
//! time claimed, as far as they are still held, and claims no others.

use rusqlite::{OptionalExtension, params};

use crate::noun::error::Code;
use crate::noun::job::{Claimed, JobId, State};
use crate::noun::lease::{FOREVER_MS, Token};
use crate::noun::op::{Claim, ClaimWith, Held, Outcome};
use crate::state::db::Tx;
use crate::state::db::columns::sql;
use crate::state::db::fault::{Fault, Try};
use crate::state::db::job_row::{JobRow, WholeJobColumns};

/// A job by its place in the order of enqueues.
pub(in crate::state::db) const PLACED: &str =
    sql!("SELECT ", WholeJobColumns::COLUMNS, " FROM jobs WHERE seq = ?1");

impl ClaimWith {
    /// Returns the outcome with these jobs.
    pub(in crate::state::db) fn outcome(&self) -> fn(Vec<Claimed>) -> Outcome {
        if self.ends.is_some() { Outcome::ClaimedNext } else { Outcome::Claimed }
    }
}

impl Tx<'_> {
    pub fn claim_with(&mut self, with: &ClaimWith) -> Try<Vec<Claimed>> {
        let ClaimWith { claim, ids, ends, done } = with;
        if let Some(op) = ends {
            let is_first = op.held().map_or(Ok(false), |held| self.is_leased_to(&held))?;
            if !is_first {
                let lines = self.claimable_lines(&claim.queues)?;
                let mine = self.held_by(&lines, claim.token)?;
                if mine.is_empty() {
                    // Refused, unless it is a repeat.
                    self.apply(op, &[])?;
                }
                return Ok(mine);
            }
            self.apply(op, &[])?;
        }
        let at_once;
        let claim = if *done {
            at_once = Claim { lease_ms: Some(FOREVER_MS), ..claim.clone() };
            &at_once
        } else {
            claim
        };
        let mut jobs = if ids.is_empty() {
            self.claim(claim)?
        } else {
            let lines = self.claimable_lines(&claim.queues)?;
            self.claim_ids(&lines, ids, claim)?
        };
        if *done {
            for claimed in &mut jobs {
                self.ack(&Held { id: claimed.job.id, token: claim.token }, None)?;
                claimed.job.state = State::Done;
                claimed.job.finished_ms = Some(self.now_ms);
            }
        }
        Ok(jobs)
    }

    fn is_leased_to(&mut self, held: &Held) -> Try<bool> {
        Ok(self.find(&held.id)?.is_some_and(|job| job.state == State::Leased && job.token == held.token.0))
    }

    fn find(&mut self, id: &JobId) -> Try<Option<JobRow>> {
        match self.job_row(id) {
            Err(Fault::Refused(e)) if e.code() == Code::NoSuchJob => Ok(None),
            job_row => job_row.map(Some),
        }
    }

    /// Leases those of these jobs that are in one of these queues and can be claimed now.
    fn claim_ids(&mut self, lines: &[usize], ids: &[JobId], claim: &Claim) -> Try<Vec<Claimed>> {
        let mut taken = Vec::with_capacity(ids.len());
        for id in ids {
            let Some(mut job_row) = self.find(id)? else { continue };
            if job_row.state == State::Leased && job_row.token == claim.token.0 && claim.again {
                taken.extend(self.held_at(&[job_row.seq.cast_unsigned()], claim.token)?);
                continue;
            }
            if !lines.contains(&job_row.line) || job_row.blocked {
                continue;
            }
            if job_row.state == State::Leased && job_row.ends_ms <= self.now_ms {
                self.lapse(id, job_row.ends_ms)?;
                // It may be dead now, and may have left.
                let Some(found) = self.find(id)? else { continue };
                if found.blocked {
                    continue;
                }
                job_row = found;
            }
            if job_row.state == State::Scheduled && job_row.run_at_ms <= self.now_ms {
                self.conn
                    .prepare_cached("UPDATE jobs SET state = 3 WHERE seq = ?1")?
                    .execute([job_row.seq])?;
                self.marks(job_row.line).shift(State::Scheduled, State::Ready, 1);
                job_row.state = State::Ready;
            }
            if job_row.state != State::Ready || self.allowance(job_row.line) == 0 {
                continue;
            }
            let mut claimed = self.placed(job_row.seq)?;
            let worker = self.intern(&claim.worker)?;
            self.marks(job_row.line).withdraw();
            self.lease(&mut claimed, job_row.line, claim, worker)?;
            taken.push(claimed);
        }
        Ok(taken)
    }

    /// Returns the job at this place, not leased yet.
    pub fn placed(&mut self, seq: i64) -> Try<Claimed> {
        let mut stmt = self.conn.prepare_cached(PLACED)?;
        let mut rows = stmt.query([seq])?;
        let row = rows.next()?.ok_or_else(|| Fault::corrupt("a job is not where it was found"))?;
        self.candidate(WholeJobColumns::read(row)?)
    }

    /// Returns those of these jobs that a claim ended at once, as far as they have not left.
    pub fn done_at(&mut self, seqs: &[u64], token: Token) -> Try<Vec<Claimed>> {
        let sql = "SELECT 1 FROM jobs WHERE seq = ?1 AND token = ?2";
        let mut done = Vec::with_capacity(seqs.len());
        for seq in seqs {
            let found = self.conn.prepare_cached(sql)?.query_row(params![*seq as i64, token.0], |_| Ok(()));
            if found.optional()?.is_some() {
                let mut claimed = self.placed(*seq as i64)?;
                claimed.lease.token = token;
                claimed.lease.expires_ms = FOREVER_MS;
                done.push(claimed);
            }
        }
        Ok(done)
    }
}
