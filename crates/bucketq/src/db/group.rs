//! Groups: of the live jobs of one group, in the order of their enqueues, only the first can be claimed.
//!
//! The others are held (`jobs.held`), which keeps them out of the index that claims read, so a group costs one probe
//! when a job joins it and one when its head leaves. Called by every op that makes, finishes or deletes a job.

use rusqlite::{OptionalExtension, params};

use super::Turn;
use super::fault::Try;
use super::row::state;
use crate::job::State;

/// The head of a group. `state <= 4` names the live states in the words of the index.
pub(super) const HEAD: &str = "SELECT seq, held, state, priority, run_at_ms FROM jobs \
     WHERE queue = ?1 AND group_name = ?2 AND state <= 4 ORDER BY seq LIMIT 1";

impl Turn<'_> {
    /// Whether a job that joins the group now has to wait behind others.
    pub fn is_held(&mut self, queue: i64, group: Option<&str>) -> Try<bool> {
        let Some(group) = group else { return Ok(false) };
        Ok(self.conn.prepare_cached(HEAD)?.exists(params![queue, group])?)
    }

    /// The head of this group has left, or may have: the next one can be claimed.
    pub fn advance(&mut self, line: usize, group: Option<&str>) -> Try<()> {
        let Some(group) = group else { return Ok(()) };
        let head = self
            .conn
            .prepare_cached(HEAD)?
            .query_row(params![self.line(line).id, group], |row| {
                Ok((
                    row.get::<_, i64>(0)?,
                    row.get::<_, i64>(1)? != 0,
                    row.get::<_, i64>(2)?,
                    row.get::<_, i32>(3)?,
                    row.get::<_, i64>(4)?,
                ))
            })
            .optional()?;
        let Some((seq, true, code, priority, run_at_ms)) = head else { return Ok(()) };
        // It could not run before now: its waiting time begins here.
        let run_at_ms = run_at_ms.max(self.now_ms);
        self.conn
            .prepare_cached("UPDATE jobs SET held = 0, run_at_ms = ?2 WHERE seq = ?1")?
            .execute([seq, run_at_ms])?;
        let scheduled = state(code)? == State::Scheduled;
        let marks = self.marks(line);
        if scheduled {
            marks.due_ms = marks.due_ms.min(run_at_ms);
        } else {
            marks.offer((priority, seq));
        }
        Ok(())
    }
}
