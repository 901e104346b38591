//! Claim: the best jobs of some queues become leased to one holder.
//!
//! Order is priority, then seq, across queues. One queue takes one look at the index of ready jobs; several are merged
//! by the bounds the writer remembers, so that a claim on a thousand queues reads only those that can win.

use rusqlite::{Row, params};

use super::Turn;
use super::fault::Try;
use super::queues::{NOWHERE, Place};
use super::row::{UNTRIED, whole_columns};
use crate::job::{Claimed, State};
use crate::lease::{Lease, Token};
use crate::op::{Claim, Queues};

/// Claimable jobs of a queue, best first.
pub(super) const READY: &str = concat!(
    "SELECT ",
    whole_columns!(),
    " FROM jobs WHERE queue = ?1 AND state = 3 AND held = 0 ORDER BY priority, seq LIMIT ?2"
);
/// Jobs of a queue that are leased to a token.
pub(super) const MINE: &str = concat!(
    "SELECT ",
    whole_columns!(),
    " FROM jobs WHERE queue = ?1 AND state = 4 AND ends_ms > ?2 AND token = ?3"
);

impl Turn<'_> {
    pub fn claim(&mut self, claim: &Claim) -> Try<Vec<Claimed>> {
        let lines = self.claimable_lines(&claim.queues)?;
        if claim.again {
            let mine = self.held_by(&lines, claim.token)?;
            if !mine.is_empty() {
                return Ok(mine);
            }
        }
        let max = claim.max as usize;
        let mut worker = None;
        let mut taken = Vec::new();
        for line in &lines {
            self.revive(*line, max)?;
        }
        while taken.len() < max {
            let Some((line, until)) = self.best_line(&lines) else { break };
            let from = taken.len();
            self.look(line, max - from, until, &mut taken)?;
            let worker = match worker {
                Some(id) => id,
                None => *worker.insert(self.intern(&claim.worker)?),
            };
            for job in &mut taken[from..] {
                self.lease(job, line, claim, worker)?;
            }
        }
        Ok(taken)
    }

    /// The places of the queues a claim looks at: those that exist and are not paused, each once.
    pub fn claimable_lines(&mut self, queues: &Queues) -> Try<Vec<usize>> {
        let mut lines = match queues {
            Queues::Any => self.all_lines()?.collect::<Vec<_>>(),
            Queues::Named(names) => {
                let mut lines = Vec::with_capacity(names.len());
                for name in names {
                    lines.extend(self.find_line(name)?);
                }
                lines.sort_unstable();
                lines.dedup();
                lines
            }
        };
        lines.retain(|line| !self.line(*line).marks.paused);
        Ok(lines)
    }

    /// The queue that may have the best job, and the place at which another queue may have a better one.
    fn best_line(&self, lines: &[usize]) -> Option<(usize, Place)> {
        let (mut best, mut second) = ((NOWHERE, None), NOWHERE);
        for line in lines {
            let place = self.line(*line).marks.best;
            if place < best.0 {
                second = best.0;
                best = (place, Some(*line));
            } else {
                second = second.min(place);
            }
        }
        best.1.map(|line| (line, second))
    }

    /// Add the best jobs of this queue, at most `limit` and none from the place `until` on, and learn where the next
    /// one stands.
    fn look(&mut self, line: usize, limit: usize, until: Place, found: &mut Vec<Claimed>) -> Try<()> {
        let queue = self.line(line).id;
        let mut stmt = self.conn.prepare_cached(READY)?;
        let mut rows = stmt.query(params![queue, limit as i64])?;
        let (mut last, mut n) = (NOWHERE, 0);
        while let Some(row) = rows.next()? {
            let place: Place = (row.get(4)?, row.get(0)?);
            last = place;
            if place > until {
                n = 0;
                break;
            }
            found.push(self.candidate(row)?);
            n += 1;
        }
        // After a full look the next job stands behind the last one; after a cut one, exactly there.
        self.marks(line).best = match n {
            n if n == limit => last,
            0 => last,
            _ => NOWHERE,
        };
        Ok(())
    }

    fn candidate(&mut self, row: &Row<'_>) -> Try<Claimed> {
        let mut job = self.job(row)?;
        let payload = self.payload(row)?;
        // Only a job that was claimed before can have failed.
        if job.attempt > 0 {
            job.last_error = self.last_error(job.seq as i64)?;
        }
        let lease = Lease {
            token: Token([0; 16]),
            expires_ms: job.expires_ms.unwrap_or(0),
            fence: job.fence.unwrap_or(0),
        };
        Ok(Claimed { job, payload, lease })
    }

    /// The job is leased from now on, in the database and in the answer.
    fn lease(&mut self, claimed: &mut Claimed, line: usize, claim: &Claim, worker: i64) -> Try<()> {
        let expires_ms = self.now_ms.saturating_add(claim.lease_ms);
        let job = &mut claimed.job;
        job.attempt += 1;
        self.conn
            .prepare_cached(
                "UPDATE jobs SET state = 4, tries = ?2, claimed_ms = ?3, ends_ms = ?4, fence = ?5, worker = ?6, \
                 token = ?7 WHERE seq = ?1",
            )?
            .execute(params![
                job.seq as i64,
                i64::from(job.attempt) + UNTRIED,
                self.now_ms,
                expires_ms,
                self.commit_seq as i64,
                worker,
                claim.token.0
            ])?;
        job.state = State::Leased;
        job.claimed_ms = Some(self.now_ms);
        job.expires_ms = Some(expires_ms);
        job.fence = Some(self.commit_seq);
        job.worker = (!claim.worker.is_empty()).then(|| claim.worker.clone());
        claimed.lease = Lease { token: claim.token, expires_ms, fence: self.commit_seq };
        let marks = self.marks(line);
        marks.shift(State::Ready, State::Leased, 1);
        marks.expiry_ms = marks.expiry_ms.min(expires_ms);
        Ok(())
    }

    /// The jobs that an earlier sending of this claim got, in the order it got them.
    fn held_by(&mut self, lines: &[usize], token: Token) -> Try<Vec<Claimed>> {
        let mut mine = Vec::new();
        for line in lines {
            let queue = self.line(*line).id;
            let mut stmt = self.conn.prepare_cached(MINE)?;
            let mut rows = stmt.query(params![queue, self.now_ms, token.0])?;
            while let Some(row) = rows.next()? {
                let mut claimed = self.candidate(row)?;
                claimed.lease.token = token;
                mine.push(claimed);
            }
        }
        mine.sort_unstable_by_key(|c: &Claimed| (c.job.priority, c.job.seq));
        Ok(mine)
    }
}
