//! Backpressure: what an enqueue meets in a queue that is full or draining, and how room is made.
//!
//! Judged in the commit that enqueues, so producers that race in several processes never pass the cap together. Jobs that
//! come back (nacked, released, expired) are always let in: nobody could be told otherwise.

use std::collections::HashSet;

use rusqlite::params;

use super::Turn;
use super::dedup::Key;
use super::fault::{Fault, Try};
use super::queues::Gate;
use crate::broken::Broken;
use crate::error::{Code, Error};
use crate::event::Happened;
use crate::job::{Dedup, Ended, JobId, New, State};
use crate::policy::Overflow;

/// Scheduled and ready jobs of a queue that makes room by cancelling them.
pub(super) const OLDEST: &str =
    "SELECT id FROM jobs WHERE queue = ?1 AND bounded = 1 AND state <= 3 ORDER BY seq LIMIT ?2";

impl Turn<'_> {
    /// Refuse jobs that the queue does not take, or make room for them. Answers which jobs had to go.
    pub fn make_way(&mut self, queue: &str, jobs: &[New]) -> Try<Vec<JobId>> {
        let Some(line) = self.find_line(queue)? else { return Ok(vec![]) };
        let (gate, most) = (self.line(line).marks.gate, self.line(line).policy.max_pending);
        if gate != Gate::Draining && most.is_none() {
            return Ok(vec![]);
        }
        if gate != Gate::Draining && self.excess(line, jobs.len() as u64)?.is_none() {
            return Ok(vec![]);
        }
        // What is there already, or twice among them, needs no room: a repeated enqueue gets its answer.
        let fresh = self.count_fresh(queue, line, jobs)?;
        if fresh == 0 {
            return Ok(vec![]);
        }
        let Some(excess) = self.excess(line, fresh)? else { return Ok(vec![]) };
        if self.line(line).policy.overflow != Overflow::DropOldest || fresh > most.unwrap_or(u64::MAX) {
            return Err(self.full(line, fresh).into());
        }
        self.drop_oldest(line, excess)
    }

    /// By how many jobs the queue would be over its cap with these; none if it takes them. An error if it takes none.
    pub fn excess(&self, line: usize, fresh: u64) -> Try<Option<u64>> {
        let found = self.line(line);
        if found.marks.gate == Gate::Draining {
            let text =
                format!("queue {:?} is being drained: resume it first, or enqueue elsewhere", found.name);
            return Err(Error::new(Code::Draining, text).into());
        }
        let Some(most) = found.policy.max_pending else { return Ok(None) };
        let pending = if self.is_broken(Broken::PendingForEachEnqueue) { 0 } else { self.pending(line) };
        let after = pending.saturating_add(fresh);
        Ok(after.checked_sub(most).filter(|excess| *excess > 0))
    }

    /// The error for jobs that have no room.
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
            "queue {name:?} has {pending} jobs pending and takes {most}: try again when some are claimed"
        );
        let waits = matches!(found.policy.overflow, Overflow::Block { .. });
        Error::new(if waits { Code::Blocked } else { Code::QueueFull }, text)
    }

    fn count_fresh(&mut self, queue: &str, line: usize, jobs: &[New]) -> Try<u64> {
        let (mut ids, mut keys) = (HashSet::new(), HashSet::new());
        let mut fresh = 0;
        for job in jobs {
            if !ids.insert(job.id) || self.known(&job.id)?.is_some() {
                continue;
            }
            let dedup = self.dedup_of(line, job);
            if let Some(Dedup { key, .. }) = dedup.as_deref()
                && (matches!(self.key(queue, key)?, Key::Taken(_)) || !keys.insert(key.clone()))
            {
                continue;
            }
            fresh += 1;
        }
        Ok(fresh)
    }

    /// Cancel the jobs that have been pending longest.
    fn drop_oldest(&mut self, line: usize, excess: u64) -> Try<Vec<JobId>> {
        let queue = self.line(line).id;
        let oldest = self
            .conn
            .prepare_cached(OLDEST)?
            .query_map(params![queue, excess as i64], |row| row.get::<_, [u8; 16]>(0))?
            .collect::<rusqlite::Result<Vec<_>>>()?;
        if (oldest.len() as u64) < excess {
            return Err(Fault::corrupt("a queue that makes room has jobs that are not marked"));
        }
        let mut dropped = Vec::with_capacity(oldest.len());
        for id in oldest {
            let id = JobId(uuid::Uuid::from_bytes(id));
            let slot = self.slot(&id)?;
            let text = Some("dropped to make room for newer jobs");
            let attempt = self.free_attempt(&slot)?;
            let ending = slot.ending(Ended::Dropped, attempt, self.now_ms, text);
            self.keep_attempt(&super::attempts::Ending { claimed: None, ..ending })?;
            self.finish(&slot, State::Cancelled)?;
            self.tell_of(&slot, Happened::Dropped);
            self.marks(line).kept.dropped += 1;
            dropped.push(id);
        }
        Ok(dropped)
    }
}
