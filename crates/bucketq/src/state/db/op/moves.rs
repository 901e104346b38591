//! Moves of jobs to other queues, and dead letters: how a job died, and its way back (redrive).
//!
//! A moved job begins a new run in the other queue. Its attempts come along, and they say whether it is a dead
//! letter: its last run died in another queue.

use rusqlite::{OptionalExtension, params};

use super::manage::{Begins, wrong_state};
use crate::noun::error::Error;
use crate::noun::job::{Died, Ended, Job, JobId, State};
use crate::noun::op::Outcome;
use crate::noun::query::{Cursor, Filter};
use crate::state::db::Tx;
use crate::state::db::columns::{row, sql};
use crate::state::db::fault::{Fault, Try};
use crate::state::db::job_row::JobRow;

row! { struct LastEntry { run: u32, attempt: u32, queue: i64, ended: i64, ended_ms: i64 } }
/// The newest entry of a job up to a run.
pub(in crate::state::db) const LAST_ENTRY: &str = sql!(
    "SELECT ",
    LastEntry::COLUMNS,
    " FROM attempts WHERE seq = ?1 AND run <= ?2 ORDER BY run DESC, attempt DESC LIMIT 1"
);

impl Tx<'_> {
    /// Adds the last error of a job and how it died, which are in another table.
    pub fn add_failures(&mut self, job: &mut Job) -> Try<()> {
        let seq = job.seq as i64;
        job.last_error = self.last_error(seq, job.run)?;
        let line = self.find_line(&job.queue)?;
        let Some(queue) = line.map(|line| self.line(line).id) else { return Ok(()) };
        job.died = self.origin(seq, job.run, queue)?;
        if job.last_error.is_none() {
            job.last_error = job.died.as_ref().and_then(|died| died.error.clone());
        }
        if job.died.is_none() && job.state == State::Dead {
            let last = self.last_entry(seq, i64::from(job.run))?;
            job.died = last.map(|last| self.death(seq, &last)).transpose()?.flatten();
        }
        Ok(())
    }

    fn last_entry(&self, seq: i64, run: i64) -> Try<Option<LastEntry>> {
        Ok(self.conn.prepare_cached(LAST_ENTRY)?.query_row([seq, run], LastEntry::read).optional()?)
    }

    fn death(&mut self, seq: i64, last: &LastEntry) -> Try<Option<Died>> {
        let ended = Ended::from_code(last.ended)
            .ok_or_else(|| Fault::corrupt(format!("an attempt ended in the way {}", last.ended)))?;
        let Some(reason) = ended.reason() else { return Ok(None) };
        let line = self.line_of(last.queue)?;
        let attempts = if ended == Ended::Unclaimed { last.attempt.saturating_sub(1) } else { last.attempt };
        Ok(Some(Died {
            queue: self.line(line).name.to_string(),
            reason,
            attempts,
            error: self.last_error(seq, last.run)?,
            at_ms: last.ended_ms,
        }))
    }

    /// Returns how a job died that is a dead letter in this queue.
    fn origin(&mut self, seq: i64, run: u32, queue: i64) -> Try<Option<Died>> {
        let mut run = i64::from(run) - 1;
        while run >= 0 {
            let Some(last) = self.last_entry(seq, run)? else { return Ok(None) };
            // A dead letter stays one when it runs here again, or was moved on.
            if last.queue == queue && last.ended != Ended::Moved as i64
                || last.ended == Ended::Forwarded as i64
            {
                run = i64::from(last.run) - 1;
                continue;
            }
            return self.death(seq, &last);
        }
        Ok(None)
    }

    pub fn move_job(&mut self, id: &JobId, run: Option<u32>, to: &str) -> Try<Outcome> {
        let job_row = self.job_row(id)?;
        let is_there = self.find_line(to)? == Some(job_row.line);
        match run {
            Some(run) if is_there && run.checked_add(1) == Some(job_row.run) => {
                return Ok(Outcome::Moved { run: job_row.run });
            }
            Some(run) if run != job_row.run => {
                let why = format!("its run is {} and not {run}", job_row.run);
                return Err(wrong_state(id, job_row.state, &why));
            }
            _ if is_there => return Ok(Outcome::Moved { run: job_row.run }),
            _ => {}
        }
        let letter = self.origin(job_row.seq, job_row.run, job_row.queue)?.is_some();
        let ended = if letter { Ended::Forwarded } else { Ended::Moved };
        Ok(Outcome::Moved { run: self.move_row(&job_row, to, ended)? })
    }

    /// Moves the job as a new run, with this entry about its old one.
    fn move_row(&mut self, job_row: &JobRow, to: &str, ended: Ended) -> Try<u32> {
        let id = JobId(uuid::Uuid::from_bytes(job_row.id));
        if job_row.state == State::Leased {
            return Err(wrong_state(&id, State::Leased, "a worker has it"));
        }
        if job_row.run == u32::MAX {
            return Err(wrong_state(&id, job_row.state, "it has had too many runs"));
        }
        let line = self.allowed_line(to)?;
        if self.excess(line, 1)?.is_some() {
            return Err(self.full(line, 1).into());
        }
        // Its key is for the queue that it leaves.
        if job_row.keyed {
            self.drop_key(job_row.seq)?;
        }
        let run = self.new_life(job_row, line, Begins::Moved(ended))?;
        self.advance(job_row.line, job_row.group.as_deref())?;
        Ok(run)
    }

    pub fn move_some(
        &mut self,
        filter: &Filter,
        redrive: bool,
        to: Option<&str>,
        after: u64,
        before: Option<u64>,
        limit: u32,
    ) -> Try<Outcome> {
        let from = filter.queue.as_deref().unwrap_or_default();
        self.line_there(from)?;
        let before = before.unwrap_or((self.commit_seq + 1) << 24);
        let mut filter = filter.clone();
        if filter.states.is_empty() {
            filter.states = vec![State::Scheduled, State::Ready];
            filter.states.extend(redrive.then_some(State::Dead));
        }
        let (mut count, mut looked, mut place) = (0, 0, after);
        loop {
            let cursor = (place > 0).then_some(Cursor(place));
            let page = self.list(&filter, cursor, (limit - looked).min(1_000))?;
            for job in page.jobs {
                if job.seq >= before {
                    return Ok(Outcome::MovedSome { count, after: place, before, more: false });
                }
                looked += 1;
                match self.move_listed(&job, redrive, to) {
                    Ok(moved) => count += u64::from(moved),
                    // Move as many as there is room for.
                    Err(Fault::Refused(_)) if count > 0 => {
                        return Ok(Outcome::MovedSome { count, after: place, before, more: true });
                    }
                    Err(fault) => return Err(fault),
                }
                place = job.seq;
            }
            if page.next.is_none() || looked >= limit {
                return Ok(Outcome::MovedSome { count, after: place, before, more: page.next.is_some() });
            }
        }
    }

    /// Moves a job of a list, unless only dead letters are to move and it is none.
    fn move_listed(&mut self, job: &Job, redrive: bool, to: Option<&str>) -> Try<bool> {
        let origin = job.died.as_ref().map(|died| &*died.queue).filter(|queue| **queue != *job.queue);
        let (to, ended) = match (redrive, origin) {
            (true, None) => return Ok(false),
            (true, Some(origin)) => (to.unwrap_or(origin), Ended::Moved),
            (false, Some(_)) => (to.unwrap_or_default(), Ended::Forwarded),
            (false, None) => (to.unwrap_or_default(), Ended::Moved),
        };
        let job_row = self.job_row(&job.id)?;
        if redrive {
            // The time that it had here was for a dead letter.
            self.conn.prepare_cached("DELETE FROM expiries WHERE seq = ?1")?.execute([job_row.seq])?;
        }
        self.move_row(&job_row, to, ended)?;
        Ok(true)
    }

    pub fn delete_job(&mut self, id: &JobId, leased: bool) -> Try<Outcome> {
        let sql = sql!("SELECT ", DoomedJob::COLUMNS, " FROM jobs WHERE id = ?1");
        let found =
            self.conn.prepare_cached(sql)?.query_row(params![id.as_bytes()], DoomedJob::read).optional()?;
        let Some(DoomedJob { queue, job }) = found else { return Ok(Outcome::Deleted { was: None }) };
        let was = job.leaver.state;
        if was == State::Leased && !leased {
            return Err(wrong_state(id, was, "a worker has it"));
        }
        let line = self.line_of(queue)?;
        self.delete(line, &job)?;
        self.remember(vec![job.leaver])?;
        self.advance(line, job.group.as_deref())?;
        if self.watched() {
            let queue = self.line(line).name.clone();
            self.report(crate::noun::event::Happened::Purged { queue, count: 1 });
        }
        Ok(Outcome::Deleted { was: Some(was) })
    }
}

row! {
    struct DoomedJob {
        queue: i64,
        job: crate::state::db::retention::JobToDelete = crate::state::db::retention::JobToDelete::COLUMNS,
    }
}

/// Returns the error for an op that names a queue which does not exist in a strict file.
pub(in crate::state::db) fn unknown_queue(name: &str) -> Error {
    Error::new(
        crate::noun::error::Code::NoSuchQueue,
        format!(
            "there is no queue {name:?}, and strict_queues lets only create_queue make one: create it first"
        ),
    )
}
