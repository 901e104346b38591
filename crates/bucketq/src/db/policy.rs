//! Configure: the policy of a queue changes in one commit, or is refused with nothing written.
//!
//! Policies are remembered with the lines; a queue that was never configured has every default and no row.

use std::sync::Arc;

use rusqlite::{OptionalExtension, params};

use super::Turn;
use super::fault::{Fault, Try};
use crate::error::{Code, Error};
use crate::job::State;
use crate::op::Outcome;
use crate::policy::{Changes, Overflow, Policy};

/// Whether live members of groups are in a queue.
pub(super) const GROUPED: &str =
    "SELECT 1 FROM jobs WHERE queue = ?1 AND group_name IS NOT NULL AND state <= 4 LIMIT 1";
/// The first group of a queue after another one.
pub(super) const NEXT_GROUP: &str = "SELECT group_name FROM jobs \
     WHERE queue = ?1 AND group_name > ?2 AND state <= 4 ORDER BY group_name LIMIT 1";

/// The policy in a row of `policies`.
pub(super) fn read(text: &str) -> Try<Arc<Policy>> {
    let understood: Result<Policy, _> = serde_json::from_str(text);
    understood.map(Arc::new).map_err(|e| {
        let message = "the policy of a queue says what this library does not know: upgrade bucketq";
        Fault::Broken(Error::new(Code::TooNew, message).because(e))
    })
}

impl Turn<'_> {
    pub fn configure(&mut self, queue: &str, changes: &Changes) -> Try<Outcome> {
        let old = self.policy_of(queue)?;
        let new = Arc::new(Policy::clone(&old).with(changes));
        new.check()?;
        self.check_dead_letter(queue, &new)?;
        if let Some(line) = self.find_line(queue)? {
            self.check_change(line, &old, &new)?;
        }
        let line = self.make_line(queue)?;
        if new == old {
            return Ok(Outcome::Configured(Box::new(Policy::clone(&new))));
        }
        let id = self.line(line).id;
        let text = serde_json::to_string(&*new).map_err(|e| Fault::corrupt(e.to_string()))?;
        self.conn
            .prepare_cached("INSERT OR REPLACE INTO policies (queue, policy) VALUES (?1, ?2)")?
            .execute(params![id, text])?;
        self.set_policy(line, Arc::clone(&new));
        self.marks(line).aged_ms = [i64::MIN; 2];
        if old.archive && !new.archive {
            // What waits for the archive waits for nothing any more.
            self.conn.prepare_cached(super::past::DROP)?.execute([id, i64::MAX])?;
        }
        let bounds = |policy: &Policy| policy.overflow == Overflow::DropOldest;
        if bounds(&old) != bounds(&new) {
            self.conn
                .prepare_cached(
                    "UPDATE jobs SET bounded = ?2 WHERE queue = ?1 AND state <= 3 AND bounded <> ?2",
                )?
                .execute([id, i64::from(bounds(&new))])?;
        }
        if new.group_concurrency > old.group_concurrency {
            self.advance_all(line)?;
        }
        Ok(Outcome::Configured(Box::new(Policy::clone(&new))))
    }

    /// The policy of the queue with this name; every default when there is none.
    pub fn policy_of(&mut self, queue: &str) -> Try<Arc<Policy>> {
        Ok(match self.find_line(queue)? {
            Some(line) => Arc::clone(&self.line(line).policy),
            None => Arc::default(),
        })
    }

    /// What a live queue cannot become without harm.
    fn check_change(&mut self, line: usize, old: &Policy, new: &Policy) -> Try<()> {
        let wrong = |what: String| Err(Fault::from(Error::new(Code::Policy, what)));
        let (id, name) = (self.line(line).id, self.line(line).name.clone());
        if let Some(most) = new.max_pending
            && (old.max_pending != new.max_pending)
            && most < self.pending(line)
        {
            let pending = self.pending(line);
            return wrong(format!(
                "max_pending {most} is below the {pending} jobs pending in {name:?}: give at least {pending}, or purge \
                 some first"
            ));
        }
        if new.group_concurrency < old.group_concurrency && self.conn.prepare_cached(GROUPED)?.exists([id])? {
            return wrong(format!(
                "group_concurrency of {name:?} can be lowered from {} to {} only while no job of a group is in the \
                 queue: finish or purge them first",
                old.group_concurrency, new.group_concurrency
            ));
        }
        Ok(())
    }

    /// Dead jobs must come to rest somewhere.
    fn check_dead_letter(&mut self, queue: &str, policy: &Policy) -> Try<()> {
        let mut next = policy.dead_letter.clone();
        if let Some(name) = &next {
            super::check::check_name("dead_letter", name)?;
        }
        let mut seen = vec![queue.to_owned()];
        while let Some(name) = next.take() {
            if seen.contains(&name) {
                seen.push(name);
                let text = format!("dead jobs would go round for ever: {}", seen.join(" -> "));
                return Err(Error::new(Code::Policy, text).into());
            }
            next.clone_from(&self.policy_of(&name)?.dead_letter);
            seen.push(name);
        }
        Ok(())
    }

    /// Scheduled and ready jobs.
    pub fn pending(&self, line: usize) -> u64 {
        let marks = &self.line(line).marks;
        (marks.count(State::Scheduled) + marks.count(State::Ready)).max(0) as u64
    }

    /// More members of each group can be claimed than before.
    fn advance_all(&mut self, line: usize) -> Try<()> {
        let id = self.line(line).id;
        let mut last = String::new();
        loop {
            let group: Option<String> = self
                .conn
                .prepare_cached(NEXT_GROUP)?
                .query_row(params![id, last], |row| row.get(0))
                .optional()?;
            let Some(group) = group else { return Ok(()) };
            self.advance(line, Some(&group))?;
            last = group;
        }
    }
}
