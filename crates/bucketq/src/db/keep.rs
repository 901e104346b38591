//! How jobs leave the file: retention of finished ones, and the deletion that it shares with purge.
//!
//! Called whenever a job finishes. A job takes with it its body, result, error and its hold on a dedup key.

use rusqlite::params;

use super::Turn;
use super::fault::Try;
use super::row::UNTRIED;
use crate::job::State;

/// Most jobs one finish deletes.
const BATCH: i64 = 128;

/// Finished jobs of a queue that retention may delete, oldest first.
pub(super) const OLDEST: &str = "SELECT seq, state, tries, id, dedup, body FROM jobs \
     WHERE queue = ?1 AND state IN (5, 7) ORDER BY ends_ms, seq LIMIT ?2";

/// What deleting a job takes.
pub(super) struct Leaving {
    pub seq: i64,
    pub state: i64,
    pub tries: i64,
    pub id: [u8; 16],
    pub dedup: Option<String>,
    pub body: Option<i64>,
}

impl Leaving {
    /// From the columns seq, state, tries, id, dedup, body.
    pub fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            seq: row.get(0)?,
            state: row.get(1)?,
            tries: row.get(2)?,
            id: row.get(3)?,
            dedup: row.get(4)?,
            body: row.get(5)?,
        })
    }
}

impl Turn<'_> {
    /// Delete the oldest done and cancelled jobs of a queue when there are clearly more than it keeps. The slack makes
    /// one finish in many do the work of all, on neighbouring rows.
    pub fn retain(&mut self, line: usize) -> Try<()> {
        let marks = &self.line(line).marks;
        let excess = marks.count(State::Done) + marks.count(State::Cancelled) - marks.retain;
        if excess <= (marks.retain / 16).clamp(0, 64) {
            return Ok(());
        }
        let oldest = self
            .conn
            .prepare_cached(OLDEST)?
            .query_map([self.line(line).id, excess.min(BATCH)], Leaving::read)?
            .collect::<rusqlite::Result<Vec<_>>>()?;
        oldest.iter().try_for_each(|job| self.delete(line, job))
    }

    /// The job is gone, with all that belongs to it.
    pub fn delete(&mut self, line: usize, job: &Leaving) -> Try<()> {
        let state = super::row::state(job.state)?;
        let by_seq = |sql: &str, seq: i64| self.conn.prepare_cached(sql)?.execute([seq]);
        by_seq("DELETE FROM jobs WHERE seq = ?1", job.seq)?;
        if let Some(body) = job.body {
            by_seq("DELETE FROM bodies WHERE id = ?1", body)?;
        }
        if state == State::Done {
            by_seq("DELETE FROM results WHERE seq = ?1", job.seq)?;
        }
        // A job done at its first attempt never failed.
        if state != State::Done || job.tries > UNTRIED + 1 {
            by_seq("DELETE FROM errors WHERE seq = ?1", job.seq)?;
        }
        if let Some(key) = &job.dedup {
            // A window outlives its job.
            self.conn
                .prepare_cached(
                    "DELETE FROM dedup WHERE queue = ?1 AND key = ?2 AND id = ?3 AND until_ms IS NULL",
                )?
                .execute(params![self.line(line).id, key, job.id])?;
        }
        self.marks(line).remove(state);
        Ok(())
    }
}
