//! What people do to jobs and queues from outside: cancel, requeue, purge, pause, drain, resume.
//!
//! No lease is needed; a lease that such an op ends is lost for its holder.

use rusqlite::params;

use super::Turn;
use super::fault::{Fault, Try};
use super::keep::Leaving;
use super::names::NOBODY;
use super::queues::{FIRST_TURN, Gate};
use super::row::{NO_TOKEN, Slot, UNTRIED, attempt};
use crate::broken::Broken;
use crate::error::{Code, Error};
use crate::event::{At, Happened};
use crate::job::{Ended, JobId, State};
use crate::op::Outcome;
use crate::policy::Overflow;
use crate::query::Filter;

impl Turn<'_> {
    pub fn cancel(&mut self, id: &JobId, leased: bool) -> Try<Outcome> {
        let slot = self.slot(id)?;
        let was = slot.state;
        match was {
            State::Cancelled => return Ok(Outcome::Cancelled { was }),
            State::Done | State::Dead => return Err(wrong_state(id, was, "it is finished")),
            State::Leased if !leased => return Err(wrong_state(id, was, "somebody works on it")),
            _ => {}
        }
        self.finish(&slot, State::Cancelled)?;
        self.tell_of(&slot, Happened::Cancelled);
        Ok(Outcome::Cancelled { was })
    }

    pub fn requeue(&mut self, id: &JobId, run: Option<u32>) -> Try<Outcome> {
        let slot = self.slot(id)?;
        match run {
            Some(run) if run.checked_add(1) == Some(slot.run) => {
                return Ok(Outcome::Requeued { run: slot.run });
            }
            Some(run) if run != slot.run => {
                return Err(wrong_state(id, slot.state, &format!("its life is {} and not {run}", slot.run)));
            }
            _ if !slot.state.is_finished() => return Err(wrong_state(id, slot.state, "it is not finished")),
            _ => {}
        }
        if slot.run == u32::MAX {
            return Err(wrong_state(id, slot.state, "it has had too many lives"));
        }
        if self.excess(slot.line, 1)?.is_some() {
            return Err(self.full(slot.line, 1).into());
        }
        let run = self.new_life(&slot, slot.line)?;
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
                // As many as there is room for.
                Err(Fault::Refused(_)) if count > 0 => {
                    more = true;
                    break;
                }
                Err(fault) => return Err(fault),
            }
        }
        Ok(Outcome::RequeuedMany { count, more })
    }

    /// The job begins anew at the end of a line, its own or another one. What became of its old life is kept with it.
    fn new_life(&mut self, slot: &Slot, line: usize) -> Try<u32> {
        let ended = match slot.state {
            State::Done => Some(Ended::Done),
            State::Cancelled => Some(Ended::Cancelled),
            _ => None,
        };
        if let Some(ended) = ended {
            let attempt = self.free_attempt(slot)?;
            self.keep_attempt(&slot.ending(ended, attempt, slot.ends_ms, None))?;
        }
        let queue = self.line(line).id;
        let held = self.is_held(line, slot.group.as_deref())?;
        let turn = if held { FIRST_TURN } else { self.next_turn(line, slot.group.as_deref()) };
        let bounded = self.line(line).policy.overflow == Overflow::DropOldest;
        let archived = self.line(slot.line).policy.archive && !self.is_broken(Broken::PastForgotten);
        let aside = archived.then(|| self.end_of(slot));
        let seq = self.next_seq();
        if let Some(end) = aside {
            self.keep_past(slot, end, seq)?;
        }
        let run = slot.run.saturating_add(1);
        self.conn
            .prepare_cached(
                "UPDATE jobs SET seq = ?2, state = 3, held = ?3, tries = ?4, run_at_ms = ?5, claimed_ms = ?5, \
                 ends_ms = ?5, enqueued_ms = ?5, fence = ?6, worker = ?7, token = ?8, run = ?9, queue = ?10, \
                 turn = ?11, bounded = ?12, finish_seq = ?2, first_ms = ?5, due_ms = NULL WHERE seq = ?1",
            )?
            .execute(params![
                slot.seq,
                seq,
                i64::from(held),
                UNTRIED,
                self.now_ms,
                self.commit_seq as i64,
                NOBODY,
                NO_TOKEN,
                run,
                queue,
                turn,
                i64::from(bounded)
            ])?;
        self.conn.prepare_cached("DELETE FROM results WHERE seq = ?1")?.execute([slot.seq])?;
        self.move_attempts(slot.seq, seq)?;
        if slot.keyed {
            self.move_key(slot.seq, seq)?;
        }
        self.take_turns(line, slot.group.as_deref());
        self.marks(slot.line).remove(slot.state);
        let marks = self.marks(line);
        marks.add(State::Ready);
        if !held {
            marks.offer((slot.priority, seq));
        }
        if self.watched() {
            let (queue, id) = (self.line(line).name.clone(), JobId(uuid::Uuid::from_bytes(slot.id)));
            self.tell(Happened::Requeued(At { queue, id, run, attempt: 0 }));
        }
        Ok(run)
    }

    /// The job is dead: it stays, or goes where the policy of its queue sends dead jobs.
    pub fn bury(&mut self, slot: &Slot) -> Try<()> {
        self.tell_of(slot, Happened::Dead);
        let target = self.line(slot.line).policy.dead_letter.clone();
        let Some(target) = target.filter(|_| slot.run < u32::MAX) else {
            return self.finish(slot, State::Dead);
        };
        let line = self.make_line(&target)?;
        // Its key keeps others out as little as that of a job that is dead.
        if slot.keyed {
            self.drop_key(slot.seq)?;
        }
        self.new_life(slot, line)?;
        self.advance(slot.line, slot.group.as_deref())
    }

    /// The number under which the end of this job's life can be kept: that of its newest attempt, or the next one if
    /// that one has ended by itself.
    pub fn free_attempt(&mut self, slot: &Slot) -> Try<u32> {
        let attempt = attempt(slot.tries)?;
        let taken = self
            .conn
            .prepare_cached("SELECT 1 FROM attempts WHERE seq = ?1 AND run = ?2 AND attempt = ?3")?
            .exists(params![slot.seq, slot.run, attempt])?;
        Ok(if taken { attempt.saturating_add(1) } else { attempt })
    }

    pub fn purge(&mut self, queue: &str, states: &[State]) -> Try<Outcome> {
        let Some(line) = self.find_line(queue)? else {
            return Err(Error::new(Code::NoSuchQueue, format!("there is no queue {queue:?}")).into());
        };
        let mut leaving = Vec::new();
        for state in State::ALL.into_iter().filter(|s| states.contains(s)) {
            let mut stmt = self.conn.prepare_cached(of_state(state))?;
            let mut rows = stmt.query([self.line(line).id])?;
            while let Some(row) = rows.next()? {
                leaving.push((Leaving::read(row)?, row.get::<_, Option<String>>(4)?));
            }
        }
        for (job, _) in &leaving {
            self.delete(line, job)?;
        }
        // After all are gone, or a group would advance to a job that is about to leave.
        let mut groups: Vec<_> = leaving.iter().filter_map(|(_, group)| group.as_deref()).collect();
        groups.sort_unstable();
        groups.dedup();
        for group in groups {
            self.advance(line, Some(group))?;
        }
        let count = leaving.len() as u64;
        if self.watched() && count > 0 {
            let queue = self.line(line).name.clone();
            self.tell(Happened::Purged { queue, count });
        }
        Ok(Outcome::Purged { count })
    }

    /// Open or close a queue.
    pub fn gate(&mut self, queue: &str, gate: Gate) -> Try<Outcome> {
        let line = self.make_line(queue)?;
        if self.line(line).marks.gate != gate {
            self.conn
                .prepare_cached("UPDATE queues SET paused = ?2 WHERE id = ?1")?
                .execute([self.line(line).id, gate as i64])?;
            self.marks(line).gate = gate;
        }
        let leased = self.line(line).marks.count(State::Leased).max(0) as u64;
        Ok(match gate {
            Gate::Open => Outcome::Resumed,
            Gate::Paused => Outcome::Paused,
            Gate::Draining => Outcome::Draining { leased },
        })
    }
}

/// The jobs of a queue in one state, by the index that has them. A ready job that is held is in none: those are found
/// by walking the jobs.
pub(super) const fn of_state(state: State) -> &'static str {
    macro_rules! of {
        ($when:literal) => {
            concat!(
                "SELECT seq, state, dedup IS NOT NULL, body, iif(state <= 4, group_name, NULL) FROM jobs \
                 WHERE queue = ?1 AND ",
                $when
            )
        };
    }
    match state {
        State::Scheduled => of!("state = 2"),
        State::Ready => of!("state = 3"),
        State::Leased => of!("state = 4"),
        State::Done => of!("state IN (5, 7) AND state = 5"),
        State::Dead => of!("state = 6"),
        State::Cancelled => of!("state IN (5, 7) AND state = 7"),
    }
}

fn wrong_state(id: &JobId, state: State, why: &str) -> super::Fault {
    Error::new(Code::State, format!("job {id} is {}: {why}", state.as_str())).into()
}
