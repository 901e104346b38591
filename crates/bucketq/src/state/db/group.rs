//! Groups: of the live jobs of one group, in the order of their enqueues, only the first can be claimed, or as many as
//! the policy's `group_concurrency` allows.
//!
//! The others are blocked (`jobs.held`) and not in the index that claims read, so a group costs one lookup when a job
//! joins it and one when a member leaves. Called by every op that adds, finishes or deletes a job.
//!
//! An unblocked job goes behind all jobs of the current round: its turn is one more than the highest claimed turn. So
//! groups take turns, and one with many jobs does not delay others.

use rusqlite::params;

use super::Tx;
use super::columns::{row, sql};
use super::fault::Try;
use super::queues::FIRST_TURN;
use crate::noun::job::State;

row! { struct Member { seq: i64, blocked: bool = "held", state: State, priority: i32, run_at_ms: i64 } }
/// The first members of a group. `state <= 4` names the live states exactly as the index does.
pub(super) const FIRST_MEMBERS: &str = sql!(
    "SELECT ",
    Member::COLUMNS,
    " FROM jobs WHERE queue = ?1 AND group_name = ?2 AND state <= 4 ORDER BY seq LIMIT ?3"
);

impl Tx<'_> {
    /// Returns whether a job that joins the group now is blocked: by jobs that can be claimed, as many as the policy
    /// allows, or behind a blocked one. After the policy was raised, that one may be unblocked later.
    pub fn is_blocked(&mut self, line: usize, group: Option<&str>) -> Try<bool> {
        let Some(group) = group else { return Ok(false) };
        let (queue, most) = (self.line(line).id, self.line(line).policy.group_concurrency);
        let mut stmt = self.conn.prepare_cached(FIRST_MEMBERS)?;
        let mut rows = stmt.query(params![queue, group, most])?;
        for _ in 0..most {
            match rows.next()? {
                None => return Ok(false),
                Some(row) if Member::read(row)?.blocked => return Ok(true),
                Some(_) => {}
            }
        }
        Ok(true)
    }

    /// Returns the turn of a job that joins the queue now.
    pub fn next_turn(&self, line: usize, group: Option<&str>) -> i64 {
        let marks = &self.line(line).marks;
        match (marks.takes_turns(), group) {
            (true, _) => marks.saved.turn + 1,
            (false, Some(_)) => FIRST_TURN + 2,
            (false, None) => FIRST_TURN,
        }
    }

    /// Starts taking turns with the first job of a group.
    pub fn take_turns(&mut self, line: usize, group: Option<&str>) {
        if group.is_some() && !self.line(line).marks.takes_turns() {
            self.marks(line).saved.turn = FIRST_TURN + 1;
        }
    }

    /// Unblocks the next members after a member of this group has left, or may have.
    pub fn advance(&mut self, line: usize, group: Option<&str>) -> Try<()> {
        let Some(group) = group else { return Ok(()) };
        let (queue, most) = (self.line(line).id, self.line(line).policy.group_concurrency);
        let first = self
            .conn
            .prepare_cached(FIRST_MEMBERS)?
            .query_map(params![queue, group, most], Member::read)?
            .collect::<rusqlite::Result<Vec<_>>>()?;
        for job in first.into_iter().filter(|job| job.blocked) {
            // It could not run before now: its waiting time begins here.
            let run_at_ms = job.run_at_ms.max(self.now_ms);
            let turn = self.next_turn(line, Some(group));
            self.conn
                .prepare_cached("UPDATE jobs SET held = 0, run_at_ms = ?2, turn = ?3 WHERE seq = ?1")?
                .execute([job.seq, run_at_ms, turn])?;
            let marks = self.marks(line);
            if job.state == State::Scheduled {
                marks.due_ms = marks.due_ms.min(run_at_ms);
            } else {
                marks.offer((job.priority, job.seq));
            }
        }
        Ok(())
    }
}
