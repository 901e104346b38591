//! A job's attempts: every failure, and how earlier runs ended.
//!
//! Written by ops that end an attempt or a run, read with the job. The rows follow a job through its runs.

use rusqlite::{OptionalExtension, params};

use super::Tx;
use super::columns::{row, sql};
use super::fault::{Fault, Try};
use super::names::NOBODY;
use crate::noun::config::MAX_ERROR_TEXT;
use crate::noun::job::{Attempt, Ended};

/// Rows kept per job, the newest ones.
const KEPT: i64 = 100;

/// The error text of the newest failure of a run that had one.
pub(super) const LAST_ERROR: &str = "SELECT error FROM attempts \
     WHERE seq = ?1 AND run = ?2 AND error IS NOT NULL ORDER BY attempt DESC LIMIT 1";
row! { struct AttemptNumber { run: i64, attempt: i64 } }
/// The newest row beyond the limit.
pub(super) const TOO_OLD: &str = sql!(
    "SELECT ",
    AttemptNumber::COLUMNS,
    " FROM attempts WHERE seq = ?1 ORDER BY run DESC, attempt DESC LIMIT 1 OFFSET ?2"
);
row! {
    struct AttemptColumns {
        run: u32, attempt: u32, queue: i64, ended: i64, worker: i64, claimed_ms: Option<i64>, ended_ms: i64,
        error: Option<String>,
    }
}

/// An attempt that ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ending<'a> {
    pub seq: i64,
    pub run: u32,
    pub attempt: u32,
    pub queue: i64,
    pub ended: Ended,
    /// The worker that claimed the job, and when; none if it was not claimed.
    pub claimed: Option<(i64, i64)>,
    pub ended_ms: i64,
    pub error: Option<&'a str>,
}

impl Tx<'_> {
    /// Stores how an attempt ended, with its text cut to size.
    pub fn store_attempt(&mut self, e: &Ending<'_>) -> Try<()> {
        let error = e.error.map(|text| &text[..text.floor_char_boundary(MAX_ERROR_TEXT)]);
        let (worker, claimed_ms) = e.claimed.map_or((NOBODY, None), |(worker, ms)| (worker, Some(ms)));
        self.conn
            .prepare_cached(
                "INSERT OR REPLACE INTO attempts (seq, run, attempt, queue, ended, worker, claimed_ms, ended_ms, error) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
            )?
            .execute(params![
                e.seq,
                e.run,
                e.attempt,
                e.queue,
                e.ended as i64,
                worker,
                claimed_ms,
                e.ended_ms,
                error
            ])?;
        if i64::from(e.attempt) <= KEPT && e.run == 0 {
            return Ok(());
        }
        let mut stmt = self.conn.prepare_cached(TOO_OLD)?;
        let oldest = stmt.query_row([e.seq, KEPT], AttemptNumber::read).optional()?;
        if let Some(AttemptNumber { run, attempt }) = oldest {
            self.conn
                .prepare_cached("DELETE FROM attempts WHERE seq = ?1 AND (run, attempt) <= (?2, ?3)")?
                .execute([e.seq, run, attempt])?;
        }
        Ok(())
    }

    /// Moves the attempts of a job to its new place in the order of enqueues.
    pub fn move_attempts(&self, from: i64, to: i64) -> Try<()> {
        self.conn.prepare_cached("UPDATE attempts SET seq = ?2 WHERE seq = ?1")?.execute([from, to])?;
        Ok(())
    }

    /// Returns the newest error text of this run of the job.
    pub fn last_error(&self, seq: i64, run: u32) -> Try<Option<String>> {
        let mut stmt = self.conn.prepare_cached(LAST_ERROR)?;
        Ok(stmt.query_row(params![seq, run], |row| row.get(0)).optional()?)
    }

    /// Returns the stored attempts of the job, oldest first.
    pub fn attempts(&mut self, seq: i64) -> Try<Vec<Attempt>> {
        let sql =
            sql!("SELECT ", AttemptColumns::COLUMNS, " FROM attempts WHERE seq = ?1 ORDER BY run, attempt");
        let mut stmt = self.conn.prepare_cached(sql)?;
        let mut rows = stmt.query([seq])?;
        let mut attempts = Vec::new();
        while let Some(row) = rows.next()? {
            let row = AttemptColumns::read(row)?;
            let (queue, worker, ended) = (self.line_of(row.queue)?, row.worker, row.ended);
            attempts.push(Attempt {
                run: row.run,
                attempt: row.attempt,
                queue: self.line(queue).name.to_string(),
                ended: Ended::from_code(ended)
                    .ok_or_else(|| Fault::corrupt(format!("an attempt ended in the way {ended}")))?,
                worker: if worker == NOBODY { None } else { Some(self.text(worker)?.to_string()) },
                claimed_ms: row.claimed_ms,
                ended_ms: row.ended_ms,
                error: row.error,
            });
        }
        Ok(attempts)
    }
}
