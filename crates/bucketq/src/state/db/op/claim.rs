//! Claim: leases the best jobs of some queues to one holder.
//!
//! The order in a queue is priority, turn (see group.rs), then seq; across queues, the first jobs of each compare by
//! priority, then seq. One queue costs one read of the index of ready jobs. Several are merged by the bounds in the
//! writer's cache, so that a claim on a thousand queues reads only those that can win.

use rusqlite::params;

use crate::noun::event::{At, Happened};
use crate::noun::job::{Claimed, Job, State};
use crate::noun::lease::{FOREVER_MS, Lease, Token};
use crate::noun::op::{Claim, Queues};
use crate::state::db::Tx;
use crate::state::db::columns::{row, sql};
use crate::state::db::fault::Try;
use crate::state::db::job_row::{UNTRIED, WholeJobColumns};
use crate::state::db::queues::{Gate, JobRank, NOWHERE};

row! {
    struct ReadyColumns<'r> { whole: WholeJobColumns<'r> = WholeJobColumns::COLUMNS, turn: i64 }
}
/// Claimable jobs of a queue, best first.
pub(in crate::state::db) const READY: &str = sql!(
    "SELECT ",
    ReadyColumns::COLUMNS,
    " FROM jobs WHERE queue = ?1 AND state = 3 AND blocked = 0 ORDER BY priority, turn, seq LIMIT ?2"
);
/// Jobs of a queue that are leased to a token.
pub(in crate::state::db) const MINE: &str = sql!(
    "SELECT ",
    WholeJobColumns::COLUMNS,
    " FROM jobs WHERE queue = ?1 AND state = 4 AND ends_ms > ?2 AND token = ?3"
);
/// A job that is leased to a token.
pub(in crate::state::db) const AT: &str =
    sql!("SELECT ", WholeJobColumns::COLUMNS, " FROM jobs WHERE seq = ?1 AND state = 4 AND token = ?2");

impl Tx<'_> {
    pub fn claim(&mut self, claim: &Claim) -> Try<Vec<Claimed>> {
        let lines = self.claimable_lines(&claim.queues)?;
        if claim.again {
            let mine = self.held_by(&lines, claim.token)?;
            if !mine.is_empty() {
                return Ok(mine);
            }
        }
        self.claim_best(&lines, claim)
    }

    /// Leases the best jobs of these queues.
    pub fn claim_best(&mut self, lines: &[usize], claim: &Claim) -> Try<Vec<Claimed>> {
        let max = claim.max as usize;
        self.expire()?;
        let mut worker = None;
        let mut taken = Vec::new();
        for line in lines {
            self.fire(*line)?;
            self.revive(*line, max)?;
        }
        while taken.len() < max {
            let Some((line, until)) = self.best_line(lines) else { break };
            let from = taken.len();
            let most = self.allowance(line).min(max - from);
            self.add_ready(line, most, until, &mut taken)?;
            if taken.len() == from {
                // The name of a worker that gets nothing is not stored: that would need a commit.
                continue;
            }
            let worker = match worker {
                Some(id) => id,
                None => *worker.insert(self.intern(&claim.worker)?),
            };
            let mut at = from;
            while let Some(job) = taken.get_mut(at) {
                // When very many expire at once, some are still here.
                if self.expire_one(job.job.seq as i64)? {
                    taken.remove(at);
                    continue;
                }
                self.lease(job, line, claim, worker)?;
                at += 1;
            }
        }
        if lines.iter().any(|line| self.line(*line).policy.group_batch > 1) {
            self.lease_followers(&mut taken, claim)?;
        }
        Ok(taken)
    }

    /// Returns the indexes of the queues that a claim reads: those that exist and are open, each once.
    pub fn claimable_lines(&mut self, queues: &Queues) -> Try<Vec<usize>> {
        let mut lines = match queues {
            Queues::Any => self.all_lines()?.collect::<Vec<_>>(),
            Queues::Named(names) => {
                let mut lines = Vec::with_capacity(names.len());
                for name in names {
                    self.check_known(name)?;
                    lines.extend(self.find_line(name)?);
                }
                lines.sort_unstable();
                lines.dedup();
                lines
            }
        };
        lines.retain(|line| self.line(*line).marks.gate == Gate::Open);
        Ok(lines)
    }

    /// Returns the queue that may have the best job, and the rank at which another queue may have a better one.
    fn best_line(&self, lines: &[usize]) -> Option<(usize, JobRank)> {
        let (mut best, mut second) = ((NOWHERE, None), NOWHERE);
        for line in lines {
            let place = self.line(*line).marks.best;
            if place == NOWHERE || self.allowance(*line) == 0 {
                continue;
            }
            if place < best.0 {
                second = best.0;
                best = (place, Some(*line));
            } else {
                second = second.min(place);
            }
        }
        best.1.map(|line| (line, second))
    }

    /// Adds the best jobs of this queue, at most `limit` and none that ranks after `until`, and notes the rank of the
    /// next one.
    fn add_ready(&mut self, line: usize, limit: usize, until: JobRank, found: &mut Vec<Claimed>) -> Try<()> {
        let queue = self.line(line).id;
        let mut stmt = self.conn.prepare_cached(READY)?;
        let mut rows = stmt.query(params![queue, limit as i64])?;
        let (mut last, mut n, mut turn) = (NOWHERE, 0, 0);
        while let Some(row) = rows.next()? {
            let ReadyColumns { whole, turn: of } = ReadyColumns::read(row)?;
            let place: JobRank = (whole.job.priority, whole.job.seq);
            last = place;
            if place > until {
                n = 0;
                break;
            }
            turn = turn.max(of);
            found.push(self.candidate(whole)?);
            n += 1;
        }
        let marks = self.marks(line);
        if marks.takes_turns() {
            marks.saved.turn = marks.saved.turn.max(turn);
        }
        // After `limit` jobs the next one ranks after the last; with turns its seq may still be lower. If the reading
        // stopped at `until`, the next one is the last one read.
        marks.best = match n {
            n if n == limit && marks.takes_turns() => (last.0, i64::MIN),
            n if n == limit => last,
            0 => last,
            _ => NOWHERE,
        };
        Ok(())
    }

    pub fn candidate(&mut self, row: WholeJobColumns<'_>) -> Try<Claimed> {
        let mut job = self.job(row.job)?;
        let payload = self.payload(&row.payload)?;
        // Only a job that was claimed before, or has had a run before, can have failed.
        if job.attempt > 0 || job.run > 0 {
            self.add_failures(&mut job)?;
        }
        let lease = Lease {
            token: Token([0; 16]),
            expires_ms: job.expires_ms.unwrap_or(0),
            fence: job.fence.unwrap_or(0),
            max_run_ms: self.max_run_ms(&job)?,
        };
        Ok(Claimed { job, payload, lease })
    }

    /// Returns how long an attempt of this job may take: its own time, or that of its queue.
    fn max_run_ms(&mut self, job: &Job) -> Try<Option<i64>> {
        if job.max_run_ms.is_some() {
            return Ok(job.max_run_ms);
        }
        Ok(self.find_line(&job.queue)?.and_then(|line| self.line(line).policy.max_run_ms))
    }

    /// Leases the job, in the database and in the outcome.
    pub fn lease(&mut self, claimed: &mut Claimed, line: usize, claim: &Claim, worker: i64) -> Try<()> {
        let lease_ms = claim.lease_ms.or(self.line(line).policy.lease_ms).unwrap_or(FOREVER_MS);
        let expires_ms = end(self.now_ms, lease_ms);
        let job = &mut claimed.job;
        job.attempt += 1;
        self.conn
            .prepare_cached(
                "UPDATE jobs SET state = 4, tries = ?2, claimed_ms = ?3, ends_ms = ?4, fence = ?5, worker = ?6, \
                 token = ?7, first_ms = ifnull(?8, first_ms) WHERE seq = ?1",
            )?
            .execute(params![
                job.seq as i64,
                i64::from(job.attempt) + UNTRIED,
                self.now_ms,
                expires_ms,
                self.commit_seq as i64,
                worker,
                claim.token.0,
                job.claimed_ms.is_none().then_some(self.now_ms)
            ])?;
        job.state = State::Leased;
        job.claimed_ms = Some(self.now_ms);
        job.expires_ms = (expires_ms < FOREVER_MS).then_some(expires_ms);
        job.fence = Some(self.commit_seq);
        job.worker = (!claim.worker.is_empty()).then(|| claim.worker.clone());
        let max_run_ms = job.max_run_ms.or(self.line(line).policy.max_run_ms);
        claimed.lease = Lease { token: claim.token, expires_ms, fence: self.commit_seq, max_run_ms };
        let wait_ms = (self.now_ms - job.run_at_ms.max(job.enqueued_ms)).max(0);
        self.cache.reported.waits_ms.push(wait_ms);
        if self.watched() {
            let queue = self.line(line).name.clone();
            let job = At { queue, id: job.id, run: job.run, attempt: job.attempt };
            self.report(Happened::Claimed { job, worker: claim.worker.as_str().into(), wait_ms });
        }
        let step_ns = self.line(line).policy.rate.map(|rate| rate.step_ns());
        let now_ns = nanos(self.now_ms);
        let marks = self.marks(line);
        marks.shift(State::Ready, State::Leased, 1);
        marks.expiry_ms = marks.expiry_ms.min(expires_ms);
        if let Some(step_ns) = step_ns {
            marks.saved.rate_ns = marks.saved.rate_ns.max(now_ns).saturating_add(step_ns);
        }
        Ok(())
    }

    /// Returns how many jobs of this queue its policy allows to claim now.
    pub fn allowance(&self, line: usize) -> usize {
        let line = self.line(line);
        let mut most = usize::MAX;
        if let Some(cap) = line.policy.concurrency {
            most = usize::try_from(i64::from(cap) - line.marks.count(State::Leased)).unwrap_or(0);
        }
        if let Some(rate) = &line.policy.rate {
            let step_ns = rate.step_ns();
            let now_ns = nanos(self.now_ms);
            let used_ns = line.marks.saved.rate_ns.max(now_ns) - now_ns;
            let left_ns = step_ns.saturating_mul(rate.burst.into()) - used_ns;
            most = most.min(usize::try_from(left_ns / step_ns).unwrap_or(0));
        }
        most
    }

    /// Returns when the rate of a queue allows the next claim, if the queue has jobs.
    pub fn rate_allows_ms(&self, line: usize) -> Option<i64> {
        let line = self.line(line);
        let rate = line.policy.rate.as_ref().filter(|_| line.marks.best != NOWHERE)?;
        let step_ns = rate.step_ns();
        let full_ns = step_ns.saturating_mul(rate.burst.into());
        let at_ns = line.marks.saved.rate_ns.saturating_add(step_ns).saturating_sub(full_ns);
        Some(at_ns.div_euclid(1_000_000) + i64::from(at_ns.rem_euclid(1_000_000) > 0))
    }

    /// Returns the jobs that an earlier sending of this claim got, in the same order.
    pub fn held_by(&mut self, lines: &[usize], token: Token) -> Try<Vec<Claimed>> {
        let mut mine = Vec::new();
        for line in lines {
            let queue = self.line(*line).id;
            let mut stmt = self.conn.prepare_cached(MINE)?;
            let mut rows = stmt.query(params![queue, self.now_ms, token.0])?;
            while let Some(row) = rows.next()? {
                let mut claimed = self.candidate(WholeJobColumns::read(row)?)?;
                claimed.lease.token = token;
                mine.push(claimed);
            }
        }
        mine.sort_unstable_by_key(|c: &Claimed| (c.job.priority, c.job.seq));
        Ok(mine)
    }

    /// Returns those of these jobs that are still leased to the token, in the order given.
    pub fn held_at(&mut self, seqs: &[u64], token: Token) -> Try<Vec<Claimed>> {
        let mut held = Vec::with_capacity(seqs.len());
        for seq in seqs {
            let mut stmt = self.conn.prepare_cached(AT)?;
            let mut rows = stmt.query(params![*seq as i64, token.0])?;
            if let Some(row) = rows.next()? {
                let mut claimed = self.candidate(WholeJobColumns::read(row)?)?;
                claimed.lease.token = token;
                held.push(claimed);
            }
        }
        Ok(held)
    }
}

const fn nanos(ms: i64) -> i64 {
    ms.saturating_mul(1_000_000)
}

/// Returns when a lease granted now ends.
pub(in crate::state::db) fn end(now_ms: i64, lease_ms: i64) -> i64 {
    now_ms.saturating_add(lease_ms).min(FOREVER_MS)
}
