//! What became of a job's attempts: every failure, and how earlier lives ended.
//!
//! Written by whatever ends an attempt or a life, read with the job. The rows follow a job through its lives.

use rusqlite::{OptionalExtension, params};

use super::Turn;
use super::fault::{Fault, Try};
use super::names::NOBODY;
use crate::config::MAX_ERROR_TEXT;
use crate::job::{Attempt, Ended};

/// Rows a job keeps, newest first.
const KEPT: i64 = 100;

/// What the newest failure of a life that said something said.
pub(super) const LAST_ERROR: &str = "SELECT error FROM attempts \
     WHERE seq = ?1 AND run = ?2 AND error IS NOT NULL ORDER BY attempt DESC LIMIT 1";
/// The newest row that is one too many.
pub(super) const TOO_OLD: &str = "SELECT run, attempt FROM attempts \
     WHERE seq = ?1 ORDER BY run DESC, attempt DESC LIMIT 1 OFFSET ?2";

/// An attempt that ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ending<'a> {
    pub seq: i64,
    pub run: u32,
    pub attempt: u32,
    pub queue: i64,
    pub ended: Ended,
    /// Who claimed the job, and when; none if nobody did.
    pub claimed: Option<(i64, i64)>,
    pub ended_ms: i64,
    pub error: Option<&'a str>,
}

impl Turn<'_> {
    /// Keep how an attempt ended, its text cut to size.
    pub fn keep_attempt(&mut self, e: &Ending<'_>) -> Try<()> {
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
        let oldest: Option<(i64, i64)> = self
            .conn
            .prepare_cached(TOO_OLD)?
            .query_row([e.seq, KEPT], |row| Ok((row.get(0)?, row.get(1)?)))
            .optional()?;
        if let Some((run, attempt)) = oldest {
            self.conn
                .prepare_cached("DELETE FROM attempts WHERE seq = ?1 AND (run, attempt) <= (?2, ?3)")?
                .execute([e.seq, run, attempt])?;
        }
        Ok(())
    }

    /// The job has a new place in the order of enqueues; its attempts go with it.
    pub fn move_attempts(&self, from: i64, to: i64) -> Try<()> {
        self.conn.prepare_cached("UPDATE attempts SET seq = ?2 WHERE seq = ?1")?.execute([from, to])?;
        Ok(())
    }

    /// What the newest failure of this life of the job said.
    pub fn last_error(&self, seq: i64, run: u32) -> Try<Option<String>> {
        let mut stmt = self.conn.prepare_cached(LAST_ERROR)?;
        Ok(stmt.query_row(params![seq, run], |row| row.get(0)).optional()?)
    }

    /// Everything kept of the job's attempts, oldest first.
    pub fn attempts(&mut self, seq: i64) -> Try<Vec<Attempt>> {
        let mut stmt = self.conn.prepare_cached(
            "SELECT run, attempt, queue, ended, worker, claimed_ms, ended_ms, error FROM attempts \
             WHERE seq = ?1 ORDER BY run, attempt",
        )?;
        let mut rows = stmt.query([seq])?;
        let mut attempts = Vec::new();
        while let Some(row) = rows.next()? {
            let (queue, worker) = (self.line_of(row.get(2)?)?, row.get::<_, i64>(4)?);
            let ended: i64 = row.get(3)?;
            attempts.push(Attempt {
                run: row.get(0)?,
                attempt: row.get(1)?,
                queue: self.line(queue).name.to_string(),
                ended: Ended::from_code(ended)
                    .ok_or_else(|| Fault::corrupt(format!("an attempt ended in the way {ended}")))?,
                worker: if worker == NOBODY { None } else { Some(self.text(worker)?.to_string()) },
                claimed_ms: row.get(5)?,
                ended_ms: row.get(6)?,
                error: row.get(7)?,
            });
        }
        Ok(attempts)
    }
}
