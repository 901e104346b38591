//! Groups: of the live jobs of one group, in the order of their enqueues, only the first can be claimed, or as many as
//! the policy's `group_concurrency` says.
//!
//! The others are held (`jobs.held`), which keeps them out of the index that claims read, so a group costs one probe
//! when a job joins it and one when a member leaves. Called by every op that makes, finishes or deletes a job.
//!
//! A job that stops being held joins the line behind everything of the present round: its turn is one more than the
//! highest that was claimed. So groups take turns, and one with many jobs does not keep others from theirs.

use rusqlite::params;

use super::Turn;
use super::fault::Try;
use super::queues::FIRST_TURN;
use super::row::state;
use crate::broken::Broken;
use crate::job::State;

/// The first members of a group. `state <= 4` names the live states in the words of the index.
pub(super) const FIRST_MEMBERS: &str = "SELECT seq, held, state, priority, run_at_ms FROM jobs \
     WHERE queue = ?1 AND group_name = ?2 AND state <= 4 ORDER BY seq LIMIT ?3";

/// A member of a group that can be claimed from now on.
struct Forward {
    seq: i64,
    state: i64,
    priority: i32,
    run_at_ms: i64,
}

impl Turn<'_> {
    /// Whether a job that joins the group now has to wait behind others.
    pub fn is_held(&mut self, line: usize, group: Option<&str>) -> Try<bool> {
        let Some(group) = group.filter(|_| !self.is_broken(Broken::GroupNotHeld)) else { return Ok(false) };
        let (queue, most) = (self.line(line).id, self.line(line).policy.group_concurrency);
        let mut stmt = self.conn.prepare_cached(FIRST_MEMBERS)?;
        let mut rows = stmt.query(params![queue, group, most])?;
        for _ in 0..most {
            if rows.next()?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The turn of a job that joins the line now.
    pub fn next_turn(&self, line: usize, group: Option<&str>) -> i64 {
        let marks = &self.line(line).marks;
        match (marks.takes_turns(), group) {
            (true, _) => marks.kept.turn + 1,
            (false, Some(_)) => FIRST_TURN + 2,
            (false, None) => FIRST_TURN,
        }
    }

    /// From the first job of a group on, turns are taken.
    pub fn take_turns(&mut self, line: usize, group: Option<&str>) {
        if group.is_some() && !self.line(line).marks.takes_turns() {
            self.marks(line).kept.turn = FIRST_TURN + 1;
        }
    }

    /// A member of this group has left, or may have: the next ones can be claimed.
    pub fn advance(&mut self, line: usize, group: Option<&str>) -> Try<()> {
        let Some(group) = group else { return Ok(()) };
        let (queue, most) = (self.line(line).id, self.line(line).policy.group_concurrency);
        let mut forward = Vec::new();
        {
            let mut stmt = self.conn.prepare_cached(FIRST_MEMBERS)?;
            let mut rows = stmt.query(params![queue, group, most])?;
            while let Some(row) = rows.next()? {
                if row.get::<_, i64>(1)? != 0 {
                    let (seq, state, priority, run_at_ms) =
                        (row.get(0)?, row.get(2)?, row.get(3)?, row.get(4)?);
                    forward.push(Forward { seq, state, priority, run_at_ms });
                }
            }
        }
        for job in forward {
            // It could not run before now: its waiting time begins here.
            let run_at_ms = job.run_at_ms.max(self.now_ms);
            let turn = self.next_turn(line, Some(group));
            self.conn
                .prepare_cached("UPDATE jobs SET held = 0, run_at_ms = ?2, turn = ?3 WHERE seq = ?1")?
                .execute([job.seq, run_at_ms, turn])?;
            let scheduled = state(job.state)? == State::Scheduled;
            let marks = self.marks(line);
            if scheduled {
                marks.due_ms = marks.due_ms.min(run_at_ms);
            } else {
                marks.offer((job.priority, job.seq));
            }
        }
        Ok(())
    }
}
