//! Backpressure: how an enqueue into a full or draining queue is handled, and how room is made.
//!
//! Decided in the commit that enqueues, so producers that race in several processes never exceed the limit together.
//! Jobs that come back (nacked, released, expired) are always accepted: no caller could be refused.

use std::collections::HashSet;

use rusqlite::params;

use super::Tx;
use super::dedup::Key;
use super::fault::{Fault, Try};
use super::queues::Gate;
use crate::noun::error::{Code, Error};
use crate::noun::event::Happened;
use crate::noun::job::{Dedup, Ended, JobId, New, State};
use crate::noun::policy::Overflow;

/// Scheduled and ready jobs of a queue with `drop_oldest`.
pub(super) const OLDEST: &str =
    "SELECT id FROM jobs WHERE queue = ?1 AND bounded = 1 AND state <= 3 ORDER BY seq LIMIT ?2";

impl Tx<'_> {
    /// Refuses jobs that the queue does not accept, or makes room for them. Returns the jobs that were cancelled.
    pub fn make_way(&mut self, queue: &str, jobs: &[New]) -> Try<Vec<JobId>> {
        let Some(line) = self.find_line(queue)? else { return Ok(vec![]) };
        let (gate, most) = (self.line(line).marks.gate, self.line(line).policy.max_pending);
        if gate != Gate::Draining && most.is_none() {
            return Ok(vec![]);
        }
        if gate != Gate::Draining && self.excess(line, jobs.len() as u64)?.is_none() {
            return Ok(vec![]);
        }
        // Jobs that exist already, or twice among these, need no room: a repeated enqueue returns normally. A cancelled
        // job frees its dedup key, so a job with that key needs room as well.
        let mut going = Vec::new();
        loop {
            let fresh = self.count_fresh(queue, line, jobs, &going)?;
            if fresh == 0 {
                return Ok(vec![]);
            }
            let excess = self.excess(line, fresh)?.unwrap_or(0);
            if excess <= going.len() as u64 {
                return self.drop_oldest(line, going);
            }
            if self.line(line).policy.overflow != Overflow::DropOldest || fresh > most.unwrap_or(u64::MAX) {
                return Err(self.full(line, fresh).into());
            }
            going = self.oldest(line, excess)?;
        }
    }

    /// Returns by how many jobs the queue would exceed its limit with these; none if it accepts them. Fails if it is
    /// draining.
    pub fn excess(&self, line: usize, fresh: u64) -> Try<Option<u64>> {
        let found = self.line(line);
        if found.marks.gate == Gate::Draining {
            let text =
                format!("queue {:?} is being drained: resume it first, or enqueue elsewhere", found.name);
            return Err(Error::new(Code::Draining, text).into());
        }
        let Some(most) = found.policy.max_pending else { return Ok(None) };
        let after = self.pending(line).saturating_add(fresh);
        Ok(after.checked_sub(most).filter(|excess| *excess > 0))
    }

    /// Returns the error for jobs without room.
    pub fn full(&self, line: usize, fresh: u64) -> Error {
        let found = self.line(line);
        let most = found.policy.max_pending.unwrap_or(u64::MAX);
        let (name, pending) = (&found.name, self.pending(line));
        if fresh > most {
            let text = format!(
                "{fresh} jobs at once never fit into queue {name:?}, whose max_pending is {most}: enqueue fewer at a time"
            );
            return Error::new(Code::QueueFull, text);
        }
        let text = format!(
            "queue {name:?} has {pending} pending jobs and its max_pending is {most}: try again when some are claimed"
        );
        let waits = matches!(found.policy.overflow, Overflow::Block { .. });
        Error::new(if waits { Code::Blocked } else { Code::QueueFull }, text)
    }

    /// Returns how many of these jobs would be added once the jobs `going` are cancelled.
    fn count_fresh(&mut self, queue: &str, line: usize, jobs: &[New], going: &[JobId]) -> Try<u64> {
        let (mut ids, mut keys) = (HashSet::new(), HashSet::new());
        let mut fresh = 0;
        for job in jobs {
            if !ids.insert(job.id) || self.there(queue, job)?.is_some() {
                continue;
            }
            let dedup = self.dedup_of(line, job);
            if let Some(Dedup { key, .. }) = dedup.as_deref() {
                let taken = matches!(self.key(queue, key)?, Key::Taken(by) if !going.contains(&by.id));
                if taken || !keys.insert(key.clone()) {
                    continue;
                }
            }
            fresh += 1;
        }
        Ok(fresh)
    }

    /// Returns the jobs that have been pending longest.
    fn oldest(&mut self, line: usize, n: u64) -> Try<Vec<JobId>> {
        let queue = self.line(line).id;
        let oldest = self
            .conn
            .prepare_cached(OLDEST)?
            .query_map(params![queue, n as i64], |row| row.get(0).map(uuid::Uuid::from_bytes).map(JobId))?
            .collect::<rusqlite::Result<Vec<_>>>()?;
        if (oldest.len() as u64) < n {
            return Err(Fault::corrupt("a queue that makes room has jobs that are not marked"));
        }
        Ok(oldest)
    }

    /// Cancels these jobs. Each frees its dedup key, whatever its window: no worker has processed the message, so the
    /// next one with that key must get in.
    fn drop_oldest(&mut self, line: usize, oldest: Vec<JobId>) -> Try<Vec<JobId>> {
        for id in &oldest {
            let job_row = self.job_row(id)?;
            let text = Some("dropped to make room for newer jobs");
            let attempt = self.free_attempt(&job_row)?;
            let ending = job_row.ending(Ended::Dropped, attempt, self.now_ms, text);
            self.store_attempt(&super::attempts::Ending { claimed: None, ..ending })?;
            if job_row.keyed {
                self.free_key(job_row.seq)?;
            }
            self.finish(&job_row, State::Cancelled)?;
            self.report_job(&job_row, Happened::Dropped);
            self.marks(line).saved.dropped += 1;
        }
        Ok(oldest)
    }
}
