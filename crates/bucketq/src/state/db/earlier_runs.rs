//! Earlier runs: runs that ended while their job continued, requeued or moved to a dead-letter queue. A queue with an
//! archive stores them until they are archived; in other queues only the job's attempts remember them (attempts.rs).
//!
//! Called by ops that begin a new run, and by the archive.

use rusqlite::{OptionalExtension, params};

use super::Tx;
use super::columns::{Borrowed, row, sql};
use super::fault::Try;
use super::job_row::{JobRow, UNTRIED};
use super::read::archive_batch::{ArchiveBatch, Values};
use crate::noun::job::State;
use crate::noun::life::{Life, LifeKind, Part};

row! {
    /// The columns for [`Tx::life`]: of a job with its result, or of an earlier run.
    pub(super) struct LifeColumns<'r> as COLUMNS, EARLIER_COLUMNS {
        finish_seq: i64, id: [u8; 16], run: u32, group_name: Option<String>, state: State, priority: i32, tries: i64,
        max_attempts: u32, worker: i64, enqueued_ms: i64, due_ms: Option<i64>, first_ms: i64, claimed_ms: i64,
        ends_ms: i64, seq: i64 = "jobs.seq" => "seq", fence: i64, token: [u8; 16], payload_len: i64,
        payload_kind: i64 = "payload_kind" => "0",
        payload: Borrowed<'r> = "payload" => "NULL",
        body: Option<i64> = "body" => "NULL",
        content_type: i64 = "jobs.content_type" => "0",
        result_type: Option<i64> = "results.content_type" => "result_type",
        result: Borrowed<'r> = "bytes" => "result",
    }
}
row! {
    /// A run, its error and its place.
    struct EarlierRunColumns<'r> {
        life: LifeColumns<'r> = LifeColumns::EARLIER_COLUMNS,
        error: Option<String>,
        place: i64,
    }
}

/// Earlier runs of a queue after one `finish_seq` up to another, in that order.
pub(super) const FINISHED: &str = sql!(
    "SELECT ",
    EarlierRunColumns::COLUMNS,
    " FROM past WHERE queue = ?1 AND finish_seq > ?2 AND finish_seq <= ?3 ORDER BY finish_seq LIMIT ?4"
);
/// Earlier runs of a queue that leave next.
pub(super) const OLDEST: &str = sql!(
    "SELECT ",
    EarlierRunColumns::COLUMNS,
    " FROM past WHERE queue = ?1 AND place > ?2 ORDER BY place LIMIT ?3"
);
/// The number of earlier runs up to a place.
pub(super) const COUNT_UNTIL: &str = "SELECT count(*) FROM past WHERE queue = ?1 AND place <= ?2";
/// When the run ended that is a number of places after the oldest.
pub(super) const NTH: &str = "SELECT ends_ms FROM past WHERE queue = ?1 ORDER BY place LIMIT 1 OFFSET ?2";
/// Deletes archived earlier runs.
pub(super) const DROP: &str = "DELETE FROM past WHERE queue = ?1 AND place <= ?2";

/// How a run ended whose job continues.
#[derive(Clone, Copy, Debug)]
pub(super) struct RunEnd {
    state: State,
    /// Its place in the order of finishes; none: that of the job.
    finish_seq: Option<i64>,
    ended_ms: i64,
}

impl Tx<'_> {
    /// Returns how this run of a job ends when a new one begins; a job that dies on its way to another queue ends now.
    pub fn end_of(&mut self, job_row: &JobRow) -> RunEnd {
        if job_row.state.is_finished() {
            RunEnd { state: job_row.state, finish_seq: None, ended_ms: job_row.ends_ms }
        } else {
            RunEnd { state: State::Dead, finish_seq: Some(self.next_seq()), ended_ms: self.now_ms }
        }
    }

    /// Stores this run of a job whose new run begins at `place`.
    pub fn store_earlier_run(&mut self, job_row: &JobRow, end: RunEnd, place: i64) -> Try<()> {
        let failed = end.state == State::Dead || job_row.tries > UNTRIED + 1;
        let error = if failed { self.last_error(job_row.seq, job_row.run)? } else { None };
        self.conn
            .prepare_cached(
                "INSERT INTO past SELECT queue, ?2, ifnull(?3, finish_seq), id, run, group_name, ?4, priority, tries, max_attempts, worker, \
                 enqueued_ms, due_ms, first_ms, claimed_ms, ?5, jobs.seq, fence, token, payload_len, \
                 results.content_type, results.bytes, ?6 \
                 FROM jobs LEFT JOIN results ON results.seq = jobs.seq WHERE jobs.seq = ?1",
            )?
            .execute(params![job_row.seq, place, end.finish_seq, end.state as i64, end.ended_ms, error])?;
        Ok(())
    }

    /// Returns when the earlier run ended that is `n` places after the oldest; none when there are fewer.
    pub fn nth_earlier_run(&self, queue: i64, n: i64) -> Try<Option<i64>> {
        Ok(self.conn.prepare_cached(NTH)?.query_row([queue, n], |row| row.get(0)).optional()?)
    }

    /// Adds the oldest earlier runs of a queue after those of `gone`; all earlier runs are to leave.
    pub fn leaving_earlier_runs(
        &mut self,
        line: usize,
        most: u32,
        room: &mut usize,
        (after, _): (i64, i64),
        leaving: &mut ArchiveBatch,
    ) -> Try<()> {
        let left = i64::from(most) - leaving.lives.len() as i64;
        let mut part = Part { kind: LifeKind::Past, until: 0, jobs: 0 };
        let mut values = Values::default();
        let mut stmt = self.conn.prepare_cached(OLDEST)?;
        let mut rows = stmt.query([self.line(line).id, after, left.max(0)])?;
        while *room > 0
            && let Some(row) = rows.next()?
        {
            let row = EarlierRunColumns::read(row)?;
            part = Part { until: row.place as u64, jobs: part.jobs + 1, ..part };
            let one = self.earlier_run(row, line, &mut values)?;
            *room = room.saturating_sub(one.size());
            leaving.lives.push(one);
        }
        if part.jobs > 0 {
            leaving.parts.push(part);
        }
        Ok(())
    }

    /// Returns earlier runs of a queue after one `finish_seq` up to another, in that order, at most `limit`.
    pub fn finished_earlier_runs(
        &mut self,
        line: usize,
        after: i64,
        until: i64,
        limit: u32,
    ) -> Try<Vec<Life>> {
        let mut stmt = self.conn.prepare_cached(FINISHED)?;
        let mut rows = stmt.query(params![self.line(line).id, after, until, limit])?;
        let (mut lives, mut values) = (vec![], Values::default());
        while let Some(row) = rows.next()? {
            lives.push(self.earlier_run(EarlierRunColumns::read(row)?, line, &mut values)?);
        }
        Ok(lives)
    }

    fn earlier_run(&mut self, row: EarlierRunColumns<'_>, line: usize, values: &mut Values) -> Try<Life> {
        let told = self.life(row.life, line, false, values)?;
        // Its attempts moved with the job, and may be deleted with it.
        Ok(Life { last_error: row.error, ..told })
    }
}
