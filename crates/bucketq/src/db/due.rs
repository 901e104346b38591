//! What time makes claimable: scheduled jobs whose time has come, leases that have run out.
//!
//! Called by claims, which do this work for the queues they look at, in bounded batches; there is no janitor.

use rusqlite::{OptionalExtension, params};

use super::Turn;
use super::fault::Try;
use super::queues::NEVER;
use super::row::attempt;
use crate::job::State;
use crate::op::Queues;

/// Jobs one claim moves at least, if there are so many.
const BATCH: usize = 100;

/// Due jobs of a queue, soonest first.
pub(super) const DUE: &str = "SELECT seq, priority, run_at_ms FROM jobs \
     WHERE queue = ?1 AND state = 2 AND held = 0 AND run_at_ms <= ?2 ORDER BY run_at_ms LIMIT ?3";
/// The soonest scheduled job of a queue.
pub(super) const FIRST_DUE: &str = "SELECT run_at_ms FROM jobs \
     WHERE queue = ?1 AND state = 2 AND held = 0 ORDER BY run_at_ms LIMIT 1";
/// Leased jobs of a queue whose lease has run out, soonest first.
pub(super) const EXPIRED: &str = "SELECT seq, priority, ends_ms, tries, max_attempts, token, group_name FROM jobs \
     WHERE queue = ?1 AND state = 4 AND ends_ms <= ?2 ORDER BY ends_ms LIMIT ?3";
/// The lease of a queue that ends first.
pub(super) const FIRST_EXPIRY: &str =
    "SELECT ends_ms FROM jobs WHERE queue = ?1 AND state = 4 ORDER BY ends_ms LIMIT 1";

/// A leased job whose lease has run out.
struct Lapsed {
    seq: i64,
    priority: i32,
    ends_ms: i64,
    tries: i64,
    max_attempts: i64,
    token: [u8; 16],
    group: Option<String>,
}

impl Turn<'_> {
    /// Make claimable what time allows, at least enough for `wanted` jobs if there are so many.
    pub fn revive(&mut self, line: usize, wanted: usize) -> Try<()> {
        let batch = wanted.max(BATCH);
        // A batch of leases may all end dead, with others behind them that can be claimed.
        let mut revived = 0;
        while revived < wanted && self.line(line).marks.expiry_ms <= self.now_ms {
            revived += self.reclaim(line, batch)?;
        }
        // Second, since the end of a group's head may let a scheduled job forward.
        if self.line(line).marks.due_ms <= self.now_ms {
            self.promote(line, batch)?;
        }
        Ok(())
    }

    /// Scheduled jobs whose time has come are ready.
    fn promote(&mut self, line: usize, batch: usize) -> Try<()> {
        let queue = self.line(line).id;
        let due = self
            .conn
            .prepare_cached(DUE)?
            .query_map(params![queue, self.now_ms, batch as i64], |row| {
                Ok((row.get::<_, i64>(0)?, row.get::<_, i32>(1)?))
            })?
            .collect::<rusqlite::Result<Vec<_>>>()?;
        for (seq, priority) in &due {
            self.conn.prepare_cached("UPDATE jobs SET state = 3 WHERE seq = ?1")?.execute([seq])?;
            self.marks(line).offer((*priority, *seq));
        }
        let first = self.first(FIRST_DUE, queue)?;
        let marks = self.marks(line);
        marks.shift(State::Scheduled, State::Ready, due.len() as i64);
        marks.due_ms = first;
        Ok(())
    }

    /// Leases that have run out end: their jobs are ready again, or dead. Returns how many can be claimed.
    fn reclaim(&mut self, line: usize, batch: usize) -> Try<usize> {
        let queue = self.line(line).id;
        let lapsed = self
            .conn
            .prepare_cached(EXPIRED)?
            .query_map(params![queue, self.now_ms, batch as i64], |row| {
                Ok(Lapsed {
                    seq: row.get(0)?,
                    priority: row.get(1)?,
                    ends_ms: row.get(2)?,
                    tries: row.get(3)?,
                    max_attempts: row.get(4)?,
                    token: row.get(5)?,
                    group: row.get(6)?,
                })
            })?
            .collect::<rusqlite::Result<Vec<_>>>()?;
        let mut revived = 0;
        for job in &lapsed {
            // The old holder's proof must not be good for anything, yet the job was claimed.
            let token = job.token.map(|byte| !byte);
            let dead = i64::from(attempt(job.tries)?) >= job.max_attempts;
            let state = if dead { State::Dead } else { State::Ready };
            // A revived job has been claimable since its lease ended; a dead one ends now.
            let (run_at_ms, ends_ms) =
                if dead { (None, self.now_ms) } else { (Some(job.ends_ms), job.ends_ms) };
            self.conn
                .prepare_cached(
                    "UPDATE jobs SET state = ?2, token = ?3, run_at_ms = ifnull(?4, run_at_ms), ends_ms = ?5 \
                     WHERE seq = ?1",
                )?
                .execute(params![job.seq, state as i64, token, run_at_ms, ends_ms])?;
            let marks = self.marks(line);
            marks.shift(State::Leased, state, 1);
            if dead {
                let text =
                    format!("lease expired after attempt {} of {}", job.max_attempts, job.max_attempts);
                self.keep_error(job.seq, Some(&text))?;
                self.advance(line, job.group.as_deref())?;
            } else {
                marks.offer((job.priority, job.seq));
                revived += 1;
            }
        }
        self.marks(line).expiry_ms = self.first(FIRST_EXPIRY, queue)?;
        Ok(revived)
    }

    fn first(&self, sql: &str, queue: i64) -> Try<i64> {
        let first = self.conn.prepare_cached(sql)?.query_row([queue], |row| row.get(0)).optional()?;
        Ok(first.unwrap_or(NEVER))
    }

    pub fn next_due(&mut self, queues: &Queues) -> Try<Option<i64>> {
        let mut next = NEVER;
        for line in self.claimable_lines(queues)? {
            let queue = self.line(line).id;
            let (due_ms, expiry_ms) = (self.first(FIRST_DUE, queue)?, self.first(FIRST_EXPIRY, queue)?);
            // Looked up, so the bounds may as well be exact.
            let marks = self.marks(line);
            (marks.due_ms, marks.expiry_ms) = (due_ms, expiry_ms);
            next = next.min(due_ms).min(expiry_ms);
        }
        Ok((next != NEVER).then_some(next))
    }
}
