//! Jobs that expire: those that no worker has claimed when their time comes are dead, or are deleted.
//!
//! Called by enqueues and claims, some jobs in each: no background process does it. A job has a row here from its
//! enqueue until its time comes, also when it was claimed meanwhile; jobs that never expire have none. In a queue where
//! claimed jobs expire too, the row of a leased job stays until the job comes back.

use rusqlite::{OptionalExtension, params};

use super::Tx;
use super::columns::{row, sql};
use super::fault::Try;
use super::job_row::NO_TOKEN;
use super::queues::NEVER;
use super::retention::JobToDelete;
use crate::noun::event::Happened;
use crate::noun::job::{Ended, JobId, State};
use crate::noun::policy::{OnExpiry, Policy};

/// Rows that one op looks at.
const BATCH: i64 = 500;
/// The error text of a job that has expired: one that was never claimed, and one that came back.
const TEXT: [&str; 2] = ["expired: no worker claimed it in time", "expired: it was not done in time"];
/// In `ends`: the job expires also if it was claimed ...
const CLAIMED_TOO: i64 = 16;
/// ... and was leased when its time came.
const OVERDUE_LEASED: i64 = 32;
/// The time of such a row: later than all others.
const WHEN_BACK: i64 = NEVER - 1;

row! { struct Expiry { seq: i64, at_ms: i64, ends: i64 } }
/// The rows whose time comes next.
pub(super) const NEXT: &str =
    sql!("SELECT ", Expiry::COLUMNS, " FROM expiries WHERE at_ms >= ?1 ORDER BY at_ms LIMIT ?2");
/// The row of a job whose time has come.
pub(super) const OVERDUE: &str =
    sql!("SELECT ", Expiry::COLUMNS, " FROM expiries WHERE seq = ?1 AND at_ms <= ?2");
row! { struct WaitingJob { id: [u8; 16], job: JobToDelete = JobToDelete::COLUMNS } }
/// A job that waits, and was never claimed in this run unless that does not matter.
const WAITING: &str = sql!(
    "SELECT ",
    WaitingJob::COLUMNS,
    " FROM jobs WHERE seq = ?1 AND state <= 3 AND (?2 OR token = zeroblob(16))"
);

const LEASED: &str = "SELECT 1 FROM jobs WHERE seq = ?1 AND state = 4";
const DROP_OVERDUE: &str = "DELETE FROM expiries WHERE seq = ?1 AND ends & 32";
const RETURNED: &str = "UPDATE expiries SET at_ms = ?2 WHERE seq = ?1 AND ends & 32";

impl Tx<'_> {
    /// Notes when the job at this place expires: its own time, or that of the policy.
    pub fn store_expiry(&mut self, seq: i64, own_ms: Option<i64>, policy: &Policy) -> Try<()> {
        let Some(ms) = own_ms.or(policy.expires_ms) else { return Ok(()) };
        let at_ms = self.now_ms.saturating_add(ms);
        let ends = match policy.on_expiry {
            OnExpiry::Dead => State::Dead as i64,
            OnExpiry::Delete => 0,
        };
        let ends = ends + if policy.expire_claimed { CLAIMED_TOO } else { 0 };
        self.conn
            .prepare_cached("INSERT OR REPLACE INTO expiries (seq, at_ms, ends) VALUES (?1, ?2, ?3)")?
            .execute([seq, at_ms, ends])?;
        self.cache.expiry_ms = self.cache.expiry_ms.min(at_ms);
        Ok(())
    }

    /// Moves the time at which a job expires to its new place. Returns false if it has none.
    pub fn move_expiry(&self, from: i64, to: i64) -> Try<bool> {
        let moved =
            self.conn.prepare_cached("UPDATE expiries SET seq = ?2 WHERE seq = ?1")?.execute([from, to])?;
        Ok(moved > 0)
    }

    /// Lets a job that comes back expire with the next op if its time came while it was leased.
    pub fn expire_returned(&mut self, seq: i64) -> Try<()> {
        if self.cache.expiry_ms == NEVER {
            return Ok(());
        }
        let now_ms = self.now_ms;
        let changed = self.conn.prepare_cached(RETURNED)?.execute([seq, now_ms])?;
        if changed > 0 {
            self.cache.expiry_ms = self.cache.expiry_ms.min(now_ms);
        }
        Ok(())
    }

    /// Drops the row of a job that ends, if it waits for its return.
    pub fn drop_overdue(&mut self, seq: i64) -> Try<()> {
        if self.cache.expiry_ms < NEVER {
            self.conn.prepare_cached(DROP_OVERDUE)?.execute([seq])?;
        }
        Ok(())
    }

    /// Ends jobs whose time has come, soonest first, at most a batch.
    pub fn expire(&mut self) -> Try<()> {
        if self.cache.expiry_ms > self.now_ms {
            return Ok(());
        }
        let rows = self
            .conn
            .prepare_cached(NEXT)?
            .query_map([i64::MIN, BATCH], Expiry::read)?
            .collect::<rusqlite::Result<Vec<_>>>()?;
        let now_ms = self.now_ms;
        for row in rows.iter().filter(|row| row.at_ms <= now_ms) {
            self.end_expired(row)?;
        }
        // A dead-letter queue with a time may have added rows, all of them later than now.
        let next = self.conn.prepare_cached(NEXT)?.query_row([i64::MIN, 1], Expiry::read).optional()?;
        self.cache.expiry_ms = next.map_or(NEVER, |row| row.at_ms);
        Ok(())
    }

    /// Ends the job at this place if its time has come. Returns true if it did.
    pub fn expire_one(&mut self, seq: i64) -> Try<bool> {
        if self.cache.expiry_ms > self.now_ms {
            return Ok(false);
        }
        let found =
            self.conn.prepare_cached(OVERDUE)?.query_row([seq, self.now_ms], Expiry::read).optional()?;
        match found {
            Some(row) => self.end_expired(&row),
            None => Ok(false),
        }
    }

    fn end_expired(&mut self, row: &Expiry) -> Try<bool> {
        self.conn.prepare_cached("DELETE FROM expiries WHERE seq = ?1")?.execute([row.seq])?;
        let claimed_too = row.ends & CLAIMED_TOO != 0;
        let found = self
            .conn
            .prepare_cached(WAITING)?
            .query_row(params![row.seq, claimed_too], WaitingJob::read)
            .optional()?;
        let Some(WaitingJob { id, job }) = found else {
            if claimed_too && self.conn.prepare_cached(LEASED)?.exists([row.seq])? {
                self.conn
                    .prepare_cached("INSERT INTO expiries (seq, at_ms, ends) VALUES (?1, ?2, ?3)")?
                    .execute([row.seq, WHEN_BACK, row.ends | OVERDUE_LEASED])?;
            }
            return Ok(false);
        };
        let job_row = self.job_row(&JobId(uuid::Uuid::from_bytes(id)))?;
        let removed = row.ends & (CLAIMED_TOO - 1) == 0;
        self.report_job(&job_row, |job| Happened::Unclaimed { job, removed });
        if removed {
            self.delete(job_row.line, &job)?;
            self.remember(vec![job.leaver])?;
            self.advance(job_row.line, job_row.group.as_deref())?;
            return Ok(true);
        }
        let text = TEXT[usize::from(job_row.token != NO_TOKEN)];
        let attempt = self.free_attempt(&job_row)?;
        self.store_attempt(&job_row.ending(Ended::Unclaimed, attempt, self.now_ms, Some(text)))?;
        self.bury(&job_row)?;
        Ok(true)
    }
}
