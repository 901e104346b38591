//! Lives that ended while their job went on: requeued, or moved to a dead-letter queue. A queue with an archive keeps
//! them aside until they are archived; of other queues the job itself remembers them (attempts.rs).
//!
//! Called by whoever begins a new life, and by the archive.

use rusqlite::{OptionalExtension, params};

use super::Turn;
use super::fault::Try;
use super::leave::{Leaving, Values};
use super::row::{Slot, UNTRIED};
use crate::job::State;
use crate::life::{Kind, Life, Part};

/// The columns of a life, in the order `Turn::life` reads them, and its error.
macro_rules! past_columns {
    () => {
        "finish_seq, id, run, group_name, state, priority, tries, max_attempts, worker, enqueued_ms, due_ms, first_ms, \
         claimed_ms, ends_ms, seq, fence, token, payload_len, 0, NULL, NULL, 0, result_type, result, error, place"
    };
}

/// Past lives of a queue after one place in the order of finishes up to another, in that order.
pub(super) const FINISHED: &str = concat!(
    "SELECT ",
    past_columns!(),
    " FROM past WHERE queue = ?1 AND finish_seq > ?2 AND finish_seq <= ?3 ORDER BY finish_seq LIMIT ?4"
);
/// Past lives of a queue that leave next.
pub(super) const OLDEST: &str =
    concat!("SELECT ", past_columns!(), " FROM past WHERE queue = ?1 AND place > ?2 ORDER BY place LIMIT ?3");
/// How many there are up to a place.
pub(super) const COUNT_UNTIL: &str = "SELECT count(*) FROM past WHERE queue = ?1 AND place <= ?2";
/// When the life ended that stands so far behind the oldest.
pub(super) const NTH: &str = "SELECT ends_ms FROM past WHERE queue = ?1 ORDER BY place LIMIT 1 OFFSET ?2";
/// They have left.
pub(super) const DROP: &str = "DELETE FROM past WHERE queue = ?1 AND place <= ?2";

/// How a life ended whose job goes on.
#[derive(Clone, Copy, Debug)]
pub(super) struct PastEnd {
    state: State,
    /// Where; none: where the job says.
    finish_seq: Option<i64>,
    ended_ms: i64,
}

impl Turn<'_> {
    /// How this life of a job ends that begins a new one; one that dies on its way to another queue, just now.
    pub fn end_of(&mut self, slot: &Slot) -> PastEnd {
        if slot.state.is_finished() {
            PastEnd { state: slot.state, finish_seq: None, ended_ms: slot.ends_ms }
        } else {
            PastEnd { state: State::Dead, finish_seq: Some(self.next_seq()), ended_ms: self.now_ms }
        }
    }

    /// Keep this life aside, whose job begins a new one at `place`.
    pub fn keep_past(&mut self, slot: &Slot, end: PastEnd, place: i64) -> Try<()> {
        let failed = end.state == State::Dead || slot.tries > UNTRIED + 1;
        let error = if failed { self.last_error(slot.seq, slot.run)? } else { None };
        self.conn
            .prepare_cached(
                "INSERT INTO past SELECT queue, ?2, ifnull(?3, finish_seq), id, run, group_name, ?4, priority, tries, max_attempts, worker, \
                 enqueued_ms, due_ms, first_ms, claimed_ms, ?5, jobs.seq, fence, token, payload_len, \
                 results.content_type, results.bytes, ?6 \
                 FROM jobs LEFT JOIN results ON results.seq = jobs.seq WHERE jobs.seq = ?1",
            )?
            .execute(params![slot.seq, place, end.finish_seq, end.state as i64, end.ended_ms, error])?;
        Ok(())
    }

    /// When the past life ended that stands so far behind the oldest; none when there are fewer.
    pub fn nth_past(&self, queue: i64, n: i64) -> Try<Option<i64>> {
        Ok(self.conn.prepare_cached(NTH)?.query_row([queue, n], |row| row.get(0)).optional()?)
    }

    /// Past lives of a queue, which all are to leave: the oldest after those of `gone`.
    pub fn leave_past(
        &mut self,
        line: usize,
        most: u32,
        room: &mut usize,
        (after, _): (i64, i64),
        leaving: &mut Leaving,
    ) -> Try<()> {
        let left = i64::from(most) - leaving.lives.len() as i64;
        let mut part = Part { kind: Kind::Past, until: 0, jobs: 0 };
        let mut values = Values::default();
        let mut stmt = self.conn.prepare_cached(OLDEST)?;
        let mut rows = stmt.query([self.line(line).id, after, left.max(0)])?;
        while *room > 0
            && let Some(row) = rows.next()?
        {
            let one = self.past_life(row, line, &mut values)?;
            part = Part { until: row.get::<_, i64>(25)? as u64, jobs: part.jobs + 1, ..part };
            *room = room.saturating_sub(one.size());
            leaving.lives.push(one);
        }
        if part.jobs > 0 {
            leaving.parts.push(part);
        }
        Ok(())
    }

    /// Past lives of a queue after one place in the order of finishes up to another, in that order; at most so many.
    pub fn finished_past(&mut self, line: usize, after: i64, until: i64, limit: u32) -> Try<Vec<Life>> {
        let mut stmt = self.conn.prepare_cached(FINISHED)?;
        let mut rows = stmt.query(params![self.line(line).id, after, until, limit])?;
        let (mut lives, mut values) = (vec![], Values::default());
        while let Some(row) = rows.next()? {
            lives.push(self.past_life(row, line, &mut values)?);
        }
        Ok(lives)
    }

    fn past_life(&mut self, row: &rusqlite::Row<'_>, line: usize, values: &mut Values) -> Try<Life> {
        let told = self.life(row, line, false, values)?;
        // Its attempts went on with the job, and may be gone with it.
        Ok(Life { last_error: row.get(24)?, ..told })
    }
}
