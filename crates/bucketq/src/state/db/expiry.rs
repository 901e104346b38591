//! Jobs that expire: those that no worker has claimed when their time comes are dead, or are deleted.
//!
//! Called by enqueues and claims, some jobs in each: no background process does it. A job has a row here from its
//! enqueue until its time comes, also when it was claimed meanwhile; jobs that never expire have none.

use rusqlite::{OptionalExtension, params};

use super::Tx;
use super::columns::{row, sql};
use super::fault::Try;
use super::queues::NEVER;
use super::retention::JobToDelete;
use crate::noun::event::Happened;
use crate::noun::job::{Ended, JobId, State};
use crate::noun::policy::{OnExpiry, Policy};

/// Rows that one op looks at.
const BATCH: i64 = 500;
/// The error text of a job that has expired.
const TEXT: &str = "expired: no worker claimed it in time";

row! { struct Expiry { seq: i64, at_ms: i64, ends: i64 } }
/// The rows whose time comes next.
pub(super) const NEXT: &str =
    sql!("SELECT ", Expiry::COLUMNS, " FROM expiries WHERE at_ms >= ?1 ORDER BY at_ms LIMIT ?2");
/// The row of a job whose time has come.
pub(super) const OVERDUE: &str =
    sql!("SELECT ", Expiry::COLUMNS, " FROM expiries WHERE seq = ?1 AND at_ms <= ?2");
row! { struct WaitingJob { id: [u8; 16], job: JobToDelete = JobToDelete::COLUMNS } }
/// A job that was never claimed in this run.
const WAITING: &str =
    sql!("SELECT ", WaitingJob::COLUMNS, " FROM jobs WHERE seq = ?1 AND state <= 3 AND token = zeroblob(16)");

impl Tx<'_> {
    /// Notes when the job at this place expires: its own time, or that of the policy.
    pub fn store_expiry(&mut self, seq: i64, own_ms: Option<i64>, policy: &Policy) -> Try<()> {
        let Some(ms) = own_ms.or(policy.expires_ms) else { return Ok(()) };
        let at_ms = self.now_ms.saturating_add(ms);
        let ends = match policy.on_expiry {
            OnExpiry::Dead => State::Dead as i64,
            OnExpiry::Delete => 0,
        };
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
        let found =
            self.conn.prepare_cached(WAITING)?.query_row(params![row.seq], WaitingJob::read).optional()?;
        let Some(WaitingJob { id, job }) = found else { return Ok(false) };
        let job_row = self.job_row(&JobId(uuid::Uuid::from_bytes(id)))?;
        let removed = row.ends == 0;
        self.report_job(&job_row, |job| Happened::Unclaimed { job, removed });
        if removed {
            self.delete(job_row.line, &job)?;
            self.remember(vec![job.leaver])?;
            self.advance(job_row.line, job_row.group.as_deref())?;
            return Ok(true);
        }
        let attempt = self.free_attempt(&job_row)?;
        self.store_attempt(&job_row.ending(Ended::Unclaimed, attempt, self.now_ms, Some(TEXT)))?;
        self.bury(&job_row)?;
        Ok(true)
    }
}
