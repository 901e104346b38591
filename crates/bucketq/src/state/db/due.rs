//! Jobs that become claimable by time: scheduled jobs that are due, and jobs whose lease has run out.
//!
//! Called by claims, which do this work for the queues they read, in bounded batches; there is no background process.

use rusqlite::{OptionalExtension, params};

use super::Tx;
use super::columns::{row, sql};
use super::fault::{Fault, Try};
use super::job_row::attempt;
use super::queues::NEVER;
use crate::noun::event::Happened;
use crate::noun::job::{Ended, JobId, State};
use crate::noun::lease::{FOREVER_MS, TIMED_OUT};
use crate::noun::op::Queues;

/// Least number of jobs that one claim moves, if there are that many.
const BATCH: usize = 100;

row! { struct DueJob { seq: i64, priority: i32 } }
/// Due jobs of a queue, soonest first.
pub(super) const DUE: &str = sql!(
    "SELECT ",
    DueJob::COLUMNS,
    " FROM jobs WHERE queue = ?1 AND state = 2 AND blocked = 0 AND run_at_ms <= ?2 ORDER BY run_at_ms LIMIT ?3"
);
/// The soonest scheduled job of a queue.
pub(super) const FIRST_DUE: &str = "SELECT run_at_ms FROM jobs \
     WHERE queue = ?1 AND state = 2 AND blocked = 0 ORDER BY run_at_ms LIMIT 1";
row! { struct ExpiredJob { id: [u8; 16], ends_ms: i64 } }
/// Leased jobs of a queue whose lease has run out, soonest first.
pub(super) const EXPIRED: &str = sql!(
    "SELECT ",
    ExpiredJob::COLUMNS,
    " FROM jobs WHERE queue = ?1 AND state = 4 AND ends_ms <= ?2 ORDER BY ends_ms LIMIT ?3"
);
/// The first end of a lease in a queue.
pub(super) const FIRST_EXPIRY: &str =
    "SELECT ends_ms FROM jobs WHERE queue = ?1 AND state = 4 ORDER BY ends_ms LIMIT 1";

impl Tx<'_> {
    /// Makes due jobs claimable, at least enough for `wanted` jobs if there are that many.
    pub fn revive(&mut self, line: usize, wanted: usize) -> Try<()> {
        let batch = wanted.max(BATCH);
        // All jobs of a batch may end dead, while others after them can be claimed.
        let (mut revived, mut before) = (0, None);
        while revived < wanted && self.line(line).marks.expiry_ms <= self.now_ms {
            let (ready, first) = self.reclaim(line, batch)?;
            // A lease that ended leaves the index. In a damaged database it may not, and this would never end.
            if first.is_none() {
                break;
            }
            if first == before {
                return Err(Fault::corrupt("the index of leases has a lease that its job has not"));
            }
            revived += ready;
            before = first;
        }
        // Second, because the end of a group's first job may unblock a scheduled job.
        if self.line(line).marks.due_ms <= self.now_ms {
            self.promote(line, batch)?;
        }
        Ok(())
    }

    /// Makes due scheduled jobs ready.
    fn promote(&mut self, line: usize, batch: usize) -> Try<()> {
        let queue = self.line(line).id;
        let due = self
            .conn
            .prepare_cached(DUE)?
            .query_map(params![queue, self.now_ms, batch as i64], DueJob::read)?
            .collect::<rusqlite::Result<Vec<_>>>()?;
        for DueJob { seq, priority } in &due {
            self.conn.prepare_cached("UPDATE jobs SET state = 3 WHERE seq = ?1")?.execute([seq])?;
            self.marks(line).offer((*priority, *seq));
        }
        let first = self.first(FIRST_DUE, queue)?;
        let marks = self.marks(line);
        marks.shift(State::Scheduled, State::Ready, due.len() as i64);
        marks.due_ms = first;
        Ok(())
    }

    /// Ends leases that have run out: their jobs are ready again, or dead. Returns how many can be claimed, and the first
    /// job whose lease had run out.
    fn reclaim(&mut self, line: usize, batch: usize) -> Try<(usize, Option<[u8; 16]>)> {
        let queue = self.line(line).id;
        let lapsed = self
            .conn
            .prepare_cached(EXPIRED)?
            .query_map(params![queue, self.now_ms, batch as i64], ExpiredJob::read)?
            .collect::<rusqlite::Result<Vec<_>>>()?;
        let (mut revived, first) = (0, lapsed.first().map(|job| job.id));
        for ExpiredJob { id, ends_ms } in lapsed {
            revived += usize::from(self.lapse(&JobId(uuid::Uuid::from_bytes(id)), ends_ms)?);
        }
        self.marks(line).expiry_ms = self.first(FIRST_EXPIRY, queue)?;
        Ok((revived, first))
    }

    /// Ends one lease that has run out: its job is ready again, or dead. Returns true if it is ready.
    pub fn lapse(&mut self, id: &JobId, lapsed_ms: i64) -> Try<bool> {
        let mut job_row = self.job_row(id)?;
        let attempt = attempt(job_row.tries)?;
        let dead = i64::from(attempt) >= job_row.max_attempts;
        let text = format!("lease expired after attempt {attempt} of {}", job_row.max_attempts);
        let ran_ms = lapsed_ms.saturating_sub(job_row.claimed_ms);
        // Its holder was not there to end the attempt.
        let own_ms = self.terms(job_row.backoff)?.max_run_ms;
        let most_ms = own_ms.or(self.line(job_row.line).policy.max_run_ms);
        let is_over = most_ms.is_some_and(|most| ran_ms >= most);
        let text = if is_over { Some(TIMED_OUT) } else { dead.then_some(&text[..]) };
        self.store_attempt(&job_row.ending(Ended::Expired, attempt, lapsed_ms, text))?;
        self.report_job(&job_row, Happened::Expired);
        // The old holder's token must not be valid any more, but must not be NO_TOKEN: the job was claimed.
        job_row.token = job_row.token.map(|byte| !byte);
        self.conn
            .prepare_cached("UPDATE jobs SET token = ?2 WHERE seq = ?1")?
            .execute(params![job_row.seq, job_row.token])?;
        if dead {
            self.bury(&job_row)?;
            return Ok(false);
        }
        // It has been claimable since the lease ended.
        self.conn
            .prepare_cached("UPDATE jobs SET state = 3, run_at_ms = ?2 WHERE seq = ?1")?
            .execute([job_row.seq, lapsed_ms])?;
        self.marks(job_row.line).shift(State::Leased, State::Ready, 1);
        self.expire_returned(job_row.seq)?;
        if let Some(can_run) = self.step_back(&job_row)? {
            return Ok(can_run);
        }
        self.marks(job_row.line).offer((job_row.priority, job_row.seq));
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
            // They were read, so the bounds can be exact.
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
