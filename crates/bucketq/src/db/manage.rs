//! What people do to jobs and queues from outside: cancel, requeue, purge, pause, resume.
//!
//! No lease is needed; a lease that such an op ends is lost for its holder.

use rusqlite::params;

use super::Turn;
use super::fault::Try;
use super::keep::Leaving;
use super::names::NOBODY;
use super::row::{NO_TOKEN, UNTRIED};
use crate::error::{Code, Error};
use crate::job::{JobId, State};
use crate::op::Outcome;

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
        let Some(run) = slot.run.checked_add(1) else {
            return Err(wrong_state(id, slot.state, "it has had too many lives"));
        };
        let held = self.is_held(slot.queue, slot.group.as_deref())?;
        let seq = self.next_seq();
        self.conn
            .prepare_cached(
                "UPDATE jobs SET seq = ?2, state = 3, held = ?3, tries = ?4, run_at_ms = ?5, claimed_ms = ?5, \
                 ends_ms = ?5, enqueued_ms = ?5, fence = ?6, worker = ?7, token = ?8, run = ?9 WHERE seq = ?1",
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
                run
            ])?;
        self.conn.prepare_cached("DELETE FROM results WHERE seq = ?1")?.execute([slot.seq])?;
        self.conn.prepare_cached("DELETE FROM errors WHERE seq = ?1")?.execute([slot.seq])?;
        let marks = self.marks(slot.line);
        marks.shift(slot.state, State::Ready, 1);
        if !held {
            marks.offer((slot.priority, seq));
        }
        Ok(Outcome::Requeued { run })
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
                leaving.push((Leaving::read(row)?, row.get::<_, Option<String>>(5)?));
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
        Ok(Outcome::Purged { count: leaving.len() as u64 })
    }

    pub fn pause(&mut self, queue: &str, paused: bool) -> Try<Outcome> {
        let line = self.make_line(queue)?;
        if self.line(line).marks.paused != paused {
            self.conn
                .prepare_cached("UPDATE queues SET paused = ?2 WHERE id = ?1")?
                .execute([self.line(line).id, i64::from(paused)])?;
            self.marks(line).paused = paused;
        }
        Ok(if paused { Outcome::Paused } else { Outcome::Resumed })
    }
}

/// The jobs of a queue in one state, by the index that has them. A ready job that is held is in none: those are found
/// by walking the jobs.
pub(super) const fn of_state(state: State) -> &'static str {
    macro_rules! of {
        ($when:literal) => {
            concat!(
                "SELECT seq, state, id, dedup, body, iif(state <= 4, group_name, NULL) FROM jobs \
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
