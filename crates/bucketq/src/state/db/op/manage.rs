//! Operators' changes to jobs and queues: cancel, requeue, purge, pause, drain, resume.
//!
//! They need no lease; the holder of a lease that such an op ends has lost it.

use std::collections::HashSet;
use std::sync::Arc;

use rusqlite::params;

use crate::noun::config::MAX_JOBS_AT_ONCE;
use crate::noun::error::{Code, Error};
use crate::noun::event::{At, Happened};
use crate::noun::job::{Ended, JobId, State};
use crate::noun::op::Outcome;
use crate::noun::policy::Overflow;
use crate::noun::query::Filter;
use crate::state::db::Tx;
use crate::state::db::columns::sql;
use crate::state::db::fault::{Fault, Try};
use crate::state::db::job_row::{JobRow, NO_TOKEN, UNTRIED, attempt};
use crate::state::db::names::NOBODY;
use crate::state::db::queues::{FIRST_TURN, Gate};
use crate::state::db::retention::JobToDelete;

/// How a job begins a new run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::state::db) enum Begins {
    /// Requeued.
    Again,
    /// On its way to a dead-letter queue.
    Dead,
    /// Moved to another queue, with this entry about its old run. A job that waits keeps its time.
    Moved(Ended),
}

impl Tx<'_> {
    /// Cancels the job, unless it was requeued after the run `requeued` already.
    pub fn cancel(&mut self, id: &JobId, leased: bool, requeued: Option<u32>) -> Try<Outcome> {
        let job_row = self.job_row(id)?;
        if requeued.and_then(|run| run.checked_add(1)) == Some(job_row.run) {
            return Ok(Outcome::Cancelled { was: State::Cancelled });
        }
        let was = job_row.state;
        match was {
            State::Cancelled => return Ok(Outcome::Cancelled { was }),
            State::Done | State::Dead => return Err(wrong_state(id, was, "it is finished")),
            State::Leased if !leased => return Err(wrong_state(id, was, "a worker has it")),
            _ => {}
        }
        self.finish(&job_row, State::Cancelled)?;
        self.report_job(&job_row, Happened::Cancelled);
        Ok(Outcome::Cancelled { was })
    }

    pub fn requeue(&mut self, id: &JobId, run: Option<u32>) -> Try<Outcome> {
        let job_row = self.job_row(id)?;
        match run {
            Some(run) if run.checked_add(1) == Some(job_row.run) => {
                return Ok(Outcome::Requeued { run: job_row.run });
            }
            Some(run) if run != job_row.run => {
                return Err(wrong_state(
                    id,
                    job_row.state,
                    &format!("its run is {} and not {run}", job_row.run),
                ));
            }
            _ if !job_row.state.is_finished() => {
                return Err(wrong_state(id, job_row.state, "it is not finished"));
            }
            _ => {}
        }
        if job_row.run == u32::MAX {
            return Err(wrong_state(id, job_row.state, "it has had too many runs"));
        }
        if self.excess(job_row.line, 1)?.is_some() {
            return Err(self.full(job_row.line, 1).into());
        }
        let run = self.new_life(&job_row, job_row.line, Begins::Again)?;
        Ok(Outcome::Requeued { run })
    }

    pub fn requeue_many(&mut self, filter: &Filter, limit: u32) -> Try<Outcome> {
        let mut filter = filter.clone();
        if filter.states.is_empty() {
            filter.states.push(State::Dead);
        }
        let (mut found, mut after) = (Vec::new(), None);
        while found.len() < limit as usize {
            let left = (limit as usize - found.len()).min(1_000);
            let page = self.list(&filter, after, left as u32)?;
            found.extend(page.jobs.into_iter().map(|job| job.id));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        let (mut count, mut more) = (0, after.is_some());
        for id in found {
            match self.requeue(&id, None) {
                Ok(_) => count += 1,
                // Requeue as many as there is room for.
                Err(Fault::Refused(_)) if count > 0 => {
                    more = true;
                    break;
                }
                Err(fault) => return Err(fault),
            }
        }
        Ok(Outcome::RequeuedMany { count, more })
    }

    /// Begins a new run of the job at the end of its own or another queue. Stores how the old run ended.
    pub fn new_life(&mut self, job_row: &JobRow, line: usize, begins: Begins) -> Try<u32> {
        let ended = match (job_row.state, begins) {
            (State::Done, _) => Some(Ended::Done),
            (State::Cancelled, _) => Some(Ended::Cancelled),
            (_, Begins::Moved(ended)) => Some(ended),
            _ => None,
        };
        let moved = matches!(begins, Begins::Moved(_));
        // A job that waits for its time keeps it in another queue.
        let waits = moved && job_row.state == State::Scheduled && job_row.run_at_ms > self.now_ms;
        let (state, run_at_ms) =
            if waits { (State::Scheduled, job_row.run_at_ms) } else { (State::Ready, self.now_ms) };
        if let Some(ended) = ended {
            let attempt = self.free_attempt(job_row)?;
            let ended_ms = if job_row.state.is_finished() { job_row.ends_ms } else { self.now_ms };
            self.store_attempt(&job_row.ending(ended, attempt, ended_ms, None))?;
        }
        let queue = self.line(line).id;
        let blocked = self.is_blocked(line, job_row.group.as_deref())?;
        let turn = if blocked { FIRST_TURN } else { self.next_turn(line, job_row.group.as_deref()) };
        let bounded = self.line(line).policy.overflow == Overflow::DropOldest;
        // The run of a job that waits has not ended in any way that an archive knows.
        let has_ended = !moved || job_row.state.is_finished();
        let archived = self.line(job_row.line).policy.archive && has_ended;
        let aside = archived.then(|| self.end_of(job_row));
        let seq = self.next_seq();
        if let Some(end) = aside {
            self.store_earlier_run(job_row, end, seq)?;
        }
        let run = job_row.run.saturating_add(1);
        self.conn
            .prepare_cached(
                "UPDATE jobs SET seq = ?2, state = ?13, blocked = ?3, tries = ?4, run_at_ms = ?14, claimed_ms = ?5, \
                 ends_ms = ?5, enqueued_ms = ?5, fence = ?6, worker = ?7, token = ?8, run = ?9, queue = ?10, \
                 turn = ?11, bounded = ?12, finish_seq = ?2, first_ms = ?5, due_ms = ?15 WHERE seq = ?1",
            )?
            .execute(params![
                job_row.seq,
                seq,
                i64::from(blocked),
                UNTRIED,
                self.now_ms,
                self.commit_seq as i64,
                NOBODY,
                NO_TOKEN,
                run,
                queue,
                turn,
                i64::from(bounded),
                state as i64,
                run_at_ms,
                waits.then_some(run_at_ms)
            ])?;
        self.conn.prepare_cached("DELETE FROM results WHERE seq = ?1")?.execute([job_row.seq])?;
        self.move_attempts(job_row.seq, seq)?;
        if job_row.keyed {
            self.move_key(job_row.seq, seq)?;
        }
        // A job that waits keeps its time. Else the new run has that of the policy, if any.
        let keeps = moved && !job_row.state.is_finished() && self.move_expiry(job_row.seq, seq)?;
        if !keeps {
            let policy = Arc::clone(&self.line(line).policy);
            self.store_expiry(seq, None, &policy)?;
        }
        self.take_turns(line, job_row.group.as_deref());
        let marks = self.marks(job_row.line);
        marks.remove(job_row.state);
        if job_row.state == State::Ready {
            marks.withdraw();
        }
        let marks = self.marks(line);
        marks.add(state);
        match state {
            _ if blocked => {}
            State::Ready => marks.offer((job_row.priority, seq)),
            _ => marks.due_ms = marks.due_ms.min(run_at_ms),
        }
        if self.watched() {
            let (queue, id) = (self.line(line).name.clone(), JobId(uuid::Uuid::from_bytes(job_row.id)));
            let job = At { queue, id, run, attempt: 0 };
            let from = Arc::clone(&self.line(job_row.line).name);
            self.report(if moved { Happened::Moved { job, from } } else { Happened::Requeued(job) });
        }
        Ok(run)
    }

    /// Makes the job dead: it stays, or moves to the dead-letter queue of its queue's policy.
    pub fn bury(&mut self, job_row: &JobRow) -> Try<()> {
        self.report_job(job_row, Happened::Dead);
        let target = self.line(job_row.line).policy.dead_letter.clone();
        let Some(target) = target.filter(|_| job_row.run < u32::MAX) else {
            return self.finish(job_row, State::Dead);
        };
        let line = self.make_line(&target)?;
        // Its key is freed, as that of any dead job.
        if job_row.keyed {
            self.drop_key(job_row.seq)?;
        }
        self.new_life(job_row, line, Begins::Dead)?;
        self.advance(job_row.line, job_row.group.as_deref())?;
        Ok(())
    }

    /// Returns the number under which the end of this job's run can be stored: that of its newest attempt, or the next
    /// one if that attempt has its own entry.
    pub fn free_attempt(&mut self, job_row: &JobRow) -> Try<u32> {
        let attempt = attempt(job_row.tries)?;
        let is_used = self
            .conn
            .prepare_cached("SELECT 1 FROM attempts WHERE seq = ?1 AND run = ?2 AND attempt = ?3")?
            .exists(params![job_row.seq, job_row.run, attempt])?;
        Ok(if is_used { attempt.saturating_add(1) } else { attempt })
    }

    /// Deletes the jobs in these states, except those in `spared`.
    pub fn purge(&mut self, queue: &str, states: &[State], spared: &HashSet<JobId>) -> Try<Outcome> {
        let Some(line) = self.find_line(queue)? else { return Ok(Outcome::Purged { count: 0 }) };
        let found = State::ALL.iter().filter(|s| states.contains(s)).map(|s| self.line(line).marks.count(*s));
        let found = found.sum::<i64>();
        if found > MAX_JOBS_AT_ONCE as i64 {
            return Err(Error::new(
                Code::State,
                format!(
                    "queue {queue:?} has {found} jobs to purge, and one commit deletes at most {MAX_JOBS_AT_ONCE}: \
                     purge the queue first, outside an atomic, which takes several commits"
                ),
            )
            .into());
        }
        let count = self.purge_before(line, states, i64::MAX, i64::MAX, spared)?;
        Ok(Outcome::Purged { count })
    }

    /// Takes one step of a purge of many jobs: deletes some of those enqueued before this place in the order of
    /// enqueues; in the first step, up to this commit.
    pub fn purge_some(
        &mut self,
        queue: &str,
        states: &[State],
        before: Option<u64>,
        limit: u32,
    ) -> Try<Outcome> {
        let before = before.unwrap_or((self.commit_seq + 1) << 24);
        let Some(line) = self.find_line(queue)? else {
            return Ok(Outcome::PurgedSome { count: 0, before, more: false });
        };
        let most = i64::try_from(before).unwrap_or(i64::MAX);
        let count = self.purge_before(line, states, most, limit.into(), &HashSet::new())?;
        Ok(Outcome::PurgedSome { count, before, more: count >= u64::from(limit) })
    }

    /// Returns the queue with this name; fails if it does not exist.
    pub fn line_there(&mut self, queue: &str) -> Try<usize> {
        self.find_line(queue)?
            .ok_or_else(|| Error::new(Code::NoSuchQueue, format!("there is no queue {queue:?}")).into())
    }

    /// Deletes some jobs of a queue that were enqueued before a place. Returns how many.
    pub fn purge_before(
        &mut self,
        line: usize,
        states: &[State],
        before: i64,
        limit: i64,
        spared: &HashSet<JobId>,
    ) -> Try<u64> {
        let mut leaving = Vec::new();
        let blocked = states.contains(&State::Ready).then_some(BLOCKED);
        for sql in State::ALL.into_iter().filter(|s| states.contains(s)).map(of_state).chain(blocked) {
            let left = limit - leaving.len() as i64;
            let mut stmt = self.conn.prepare_cached(sql)?;
            let mut rows = stmt.query([self.line(line).id, before, left])?;
            while let Some(row) = rows.next()? {
                let job = JobToDelete::read(row)?;
                if !spared.contains(&JobId(uuid::Uuid::from_bytes(job.leaver.id))) {
                    leaving.push(job);
                }
            }
        }
        for job in &leaving {
            self.delete(line, job)?;
        }
        self.remember(leaving.iter().map(|job| job.leaver).collect())?;
        // Only after all are deleted, or a group would advance to a job that is about to be deleted.
        let mut groups: Vec<_> = leaving.iter().filter_map(|job| job.group.as_deref()).collect();
        groups.sort_unstable();
        groups.dedup();
        for group in groups {
            self.advance(line, Some(group))?;
        }
        let count = leaving.len() as u64;
        if self.watched() && count > 0 {
            let queue = self.line(line).name.clone();
            self.report(Happened::Purged { queue, count });
        }
        Ok(count)
    }

    /// Opens, pauses or drains a queue.
    pub fn gate(&mut self, queue: &str, gate: Gate) -> Try<Outcome> {
        let line = self.allowed_line(queue)?;
        self.set_gate(line, gate)?;
        let leased = self.line(line).marks.count(State::Leased).max(0) as u64;
        Ok(match gate {
            Gate::Open => Outcome::Resumed,
            Gate::Paused => Outcome::Paused,
            Gate::Draining | Gate::Deleted => Outcome::Draining { leased },
        })
    }
}

macro_rules! leaving_jobs {
    ($when:literal) => {
        sql!(
            "SELECT ",
            JobToDelete::COLUMNS,
            " FROM jobs WHERE queue = ?1 AND ",
            $when,
            // The plus keeps the planner from walking all jobs up to that place.
            " AND +seq < ?2 LIMIT ?3"
        )
    };
}

/// The jobs of a queue in one state that were enqueued before a place, by the index that has them. Without blocked
/// ready jobs.
pub(in crate::state::db) const fn of_state(state: State) -> &'static str {
    match state {
        State::Scheduled => leaving_jobs!("state = 2"),
        State::Ready => leaving_jobs!("state = 3 AND blocked = 0"),
        State::Leased => leaving_jobs!("state = 4"),
        State::Done => leaving_jobs!("state = 5"),
        State::Dead => leaving_jobs!("state = 6"),
        State::Cancelled => leaving_jobs!("state = 7"),
    }
}

/// The blocked ready jobs, which are members of groups.
pub(in crate::state::db) const BLOCKED: &str =
    leaving_jobs!("group_name IS NOT NULL AND state <= 4 AND +state = 3 AND blocked = 1");

/// Returns the refusal of an op on a job in this state.
pub(in crate::state::db) fn wrong_state(id: &JobId, state: State, why: &str) -> crate::state::db::Fault {
    Error::new(Code::State, format!("job {id} is {}: {why}", state.as_str())).into()
}
