//! Groups: of the live jobs of one group, in the order of their enqueues, only the first can be claimed, or as many as
//! the policy's `group_concurrency` allows.
//!
//! The others are blocked (`jobs.blocked`) and not in the index that claims read, so a group costs one lookup when a job
//! joins it and one when a member leaves. Called by every op that adds, finishes or deletes a job.
//!
//! An unblocked job goes behind all jobs of the current round: its turn is one more than the highest claimed turn. So
//! groups take turns, and one with many jobs does not delay others.
//!
//! With a `group_batch` a claim gets the first job of a group and those behind it. As long as one of them is leased, the
//! others of the group are blocked, those that came back too.

use rusqlite::params;

use super::Tx;
use super::columns::{row, sql};
use super::fault::Try;
use super::job_row::JobRow;
use super::queues::FIRST_TURN;
use crate::noun::job::{Claimed, State};
use crate::noun::op::Claim;
use crate::noun::policy::Policy;

row! { struct Member { seq: i64, blocked: bool = "blocked", state: State, priority: i32, run_at_ms: i64 } }
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

    /// Unblocks the next members after a member of this group has left, or may have. Returns whether there was one.
    pub fn advance(&mut self, line: usize, group: Option<&str>) -> Try<bool> {
        let Some(group) = group else { return Ok(false) };
        let Policy { group_concurrency: most, group_batch: batch, .. } = *self.line(line).policy;
        let queue = self.line(line).id;
        let first = self
            .conn
            .prepare_cached(FIRST_MEMBERS)?
            .query_map(params![queue, group, most.max(batch)], Member::read)?
            .collect::<rusqlite::Result<Vec<_>>>()?;
        if batch > 1 && first.iter().any(|job| job.state == State::Leased) {
            return Ok(false);
        }
        let mut unblocked = false;
        for job in first.into_iter().take(most as usize).filter(|job| job.blocked) {
            unblocked = true;
            // It could not run before now: its waiting time begins here.
            let run_at_ms = job.run_at_ms.max(self.now_ms);
            let turn = self.next_turn(line, Some(group));
            self.conn
                .prepare_cached("UPDATE jobs SET blocked = 0, run_at_ms = ?2, turn = ?3 WHERE seq = ?1")?
                .execute([job.seq, run_at_ms, turn])?;
            let marks = self.marks(line);
            if job.state == State::Scheduled {
                marks.due_ms = marks.due_ms.min(run_at_ms);
            } else {
                marks.offer((job.priority, job.seq));
            }
        }
        Ok(unblocked)
    }

    /// Blocks a job that has come back from a claim of several jobs of its group, until the others have ended or come
    /// back too. Returns whether that is so now; none if no claim gets several: then the job can be claimed, and the
    /// caller notes it.
    pub fn step_back(&mut self, job_row: &JobRow) -> Try<Option<bool>> {
        if job_row.group.is_none() || self.line(job_row.line).policy.group_batch == 1 {
            return Ok(None);
        }
        self.conn.prepare_cached("UPDATE jobs SET blocked = 1 WHERE seq = ?1")?.execute([job_row.seq])?;
        Ok(Some(self.advance(job_row.line, job_row.group.as_deref())?))
    }

    /// Leases the jobs behind these, in their groups, as far as the policies and the claim allow.
    pub fn lease_followers(&mut self, heads: &mut Vec<Claimed>, claim: &Claim) -> Try<()> {
        for at in 0..heads.len() {
            let Some(group) = heads[at].job.group.clone() else { continue };
            let Some(line) = self.find_line(&heads[at].job.queue)? else { continue };
            let batch = self.line(line).policy.group_batch as usize;
            let most = (batch - 1).min(claim.max as usize - heads.len());
            if most == 0 {
                continue;
            }
            let first = heads[at].job.seq as i64;
            for seq in self.followers(line, &group, first, most)? {
                if self.allowance(line) == 0 {
                    break;
                }
                if self.expire_one(seq)? {
                    continue;
                }
                let mut follower = self.unblock(line, seq)?;
                let worker = self.intern(&claim.worker)?;
                self.lease(&mut follower, line, claim, worker)?;
                heads.push(follower);
            }
        }
        Ok(())
    }

    /// Returns the jobs directly behind the first of a group that could run now.
    fn followers(&mut self, line: usize, group: &str, first: i64, most: usize) -> Try<Vec<i64>> {
        let queue = self.line(line).id;
        let mut stmt = self.conn.prepare_cached(FIRST_MEMBERS)?;
        let members = stmt.query_map(params![queue, group, most as i64 + 1], Member::read)?;
        let members = members.collect::<rusqlite::Result<Vec<_>>>()?;
        let can_run = |job: &Member| {
            job.state == State::Ready || job.state == State::Scheduled && job.run_at_ms <= self.now_ms
        };
        let behind = members.into_iter().skip_while(|job| job.seq <= first);
        Ok(behind.take_while(can_run).map(|job| job.seq).collect())
    }

    /// Makes a blocked job claimable by the claim at work, and returns it.
    fn unblock(&mut self, line: usize, seq: i64) -> Try<Claimed> {
        let claimed = self.placed(seq)?;
        self.conn.prepare_cached("UPDATE jobs SET blocked = 0, state = 3 WHERE seq = ?1")?.execute([seq])?;
        if claimed.job.state == State::Scheduled {
            self.marks(line).shift(State::Scheduled, State::Ready, 1);
        }
        Ok(claimed)
    }
}
