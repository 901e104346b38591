//! What time makes claimable: scheduled jobs whose time has come, leases that have run out.
//!
//! Called by claims, which do this work for the queues they look at, in bounded batches; there is no janitor.

use rusqlite::{OptionalExtension, params};

use super::Turn;
use super::fault::Try;
use super::queues::NEVER;
use super::row::attempt;
use crate::event::Happened;
use crate::job::{Ended, JobId, State};
use crate::lease::FOREVER_MS;
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
pub(super) const EXPIRED: &str = "SELECT id, ends_ms FROM jobs \
     WHERE queue = ?1 AND state = 4 AND ends_ms <= ?2 ORDER BY ends_ms LIMIT ?3";
/// The lease of a queue that ends first.
pub(super) const FIRST_EXPIRY: &str =
    "SELECT ends_ms FROM jobs WHERE queue = ?1 AND state = 4 ORDER BY ends_ms LIMIT 1";

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
                Ok((row.get::<_, [u8; 16]>(0)?, row.get::<_, i64>(1)?))
            })?
            .collect::<rusqlite::Result<Vec<_>>>()?;
        let mut revived = 0;
        for (id, ends_ms) in lapsed {
            revived += usize::from(self.lapse(&JobId(uuid::Uuid::from_bytes(id)), ends_ms)?);
        }
        self.marks(line).expiry_ms = self.first(FIRST_EXPIRY, queue)?;
        Ok(revived)
    }

    /// A lease has run out: its job is ready again, or dead. True if it is ready.
    fn lapse(&mut self, id: &JobId, lapsed_ms: i64) -> Try<bool> {
        let mut slot = self.slot(id)?;
        let attempt = attempt(slot.tries)?;
        let dead = i64::from(attempt) >= slot.max_attempts;
        let text = format!("lease expired after attempt {attempt} of {}", slot.max_attempts);
        self.keep_attempt(&slot.ending(Ended::Expired, attempt, lapsed_ms, dead.then_some(&text[..])))?;
        self.tell_of(&slot, Happened::Expired);
        // The old holder's proof must not be good for anything, yet the job was claimed.
        slot.token = slot.token.map(|byte| !byte);
        self.conn
            .prepare_cached("UPDATE jobs SET token = ?2 WHERE seq = ?1")?
            .execute(params![slot.seq, slot.token])?;
        if dead {
            self.bury(&slot)?;
            return Ok(false);
        }
        // It has been claimable since the lease ended.
        self.conn
            .prepare_cached("UPDATE jobs SET state = 3, run_at_ms = ?2 WHERE seq = ?1")?
            .execute([slot.seq, lapsed_ms])?;
        let marks = self.marks(slot.line);
        marks.shift(State::Leased, State::Ready, 1);
        marks.offer((slot.priority, slot.seq));
        Ok(true)
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
            next = next.min(due_ms).min(marks.schedule_ms);
            if expiry_ms < FOREVER_MS {
                next = next.min(expiry_ms);
            }
            next = next.min(self.rate_allows_ms(line).unwrap_or(NEVER));
        }
        Ok((next != NEVER).then_some(next))
    }
}
