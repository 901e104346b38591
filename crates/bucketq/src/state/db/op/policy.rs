//! Configure: the policy of a queue changes in one commit, or is refused without a write.
//!
//! Policies are cached with the queues; a queue that was never configured has every default and no row.

use std::sync::Arc;

use rusqlite::{OptionalExtension, params};

use crate::noun::config::MAX_JOBS_AT_ONCE;
use crate::noun::error::{Code, Error};
use crate::noun::job::State;
use crate::noun::op::Outcome;
use crate::noun::policy::{Changes, Overflow, Policy};
use crate::state::db::Tx;
use crate::state::db::fault::{Fault, Try};

/// Whether a queue has live members of groups.
pub(in crate::state::db) const GROUPED: &str =
    "SELECT 1 FROM jobs WHERE queue = ?1 AND group_name IS NOT NULL AND state <= 4 LIMIT 1";
/// The first group of a queue after another one.
pub(in crate::state::db) const NEXT_GROUP: &str = "SELECT group_name FROM jobs \
     WHERE queue = ?1 AND group_name > ?2 AND state <= 4 ORDER BY group_name LIMIT 1";

/// The place of the job that is a number of jobs after another place.
pub(in crate::state::db) const NTH_JOB: &str =
    "SELECT seq FROM jobs WHERE seq > ?1 ORDER BY seq LIMIT 1 OFFSET ?2";
/// Marks the live jobs of a queue between two places.
pub(in crate::state::db) const MARK: &str = "UPDATE jobs SET bounded = 1 \
     WHERE seq > ?2 AND seq <= ?3 AND +queue = ?1 AND +state <= 4 AND bounded = 0";

/// Returns whether such a queue makes room by cancelling jobs.
fn bounds(policy: &Policy) -> bool {
    policy.overflow == Overflow::DropOldest
}

/// Parses the policy in a row of `policies`.
pub(in crate::state::db) fn read(text: &str) -> Try<Arc<Policy>> {
    let understood: Result<Policy, _> = serde_json::from_str(text);
    understood.map(Arc::new).map_err(|e| {
        let message = "the policy of a queue says what this library does not know: upgrade bucketq";
        Fault::Broken(Error::new(Code::TooNew, message).because(e))
    })
}

impl Tx<'_> {
    /// Changes the policy in one commit; fails if that concerns too many jobs.
    pub fn configure(&mut self, queue: &str, changes: &Changes) -> Try<Outcome> {
        let (old, new) = self.changed(queue, changes)?;
        if let Some(line) = self.find_line(queue)?
            && ((bounds(&new) && !bounds(&old)) || self.unblocks(line, &old, &new)?)
            && self.live(line) > MAX_JOBS_AT_ONCE
        {
            let live = self.live(line);
            return Err(Error::new(
                Code::Policy,
                format!(
                    "queue {queue:?} has {live} unfinished jobs, and one commit applies this policy to at most \
                     {MAX_JOBS_AT_ONCE}: configure the queue outside an atomic, which takes several commits"
                ),
            )
            .into());
        }
        let (old, new) = self.set(queue, changes, 0)?;
        let line = self.make_line(queue)?;
        if self.unblocks(line, &old, &new)? {
            self.unblock_groups(line, "", u32::MAX)?;
        }
        Ok(configured(&new))
    }

    /// Takes one step of a change that concerns many jobs: marks some, or the last ones and changes the policy. If that
    /// unblocks jobs of many groups, `unblock_some` does it in steps afterwards.
    pub fn configure_some(&mut self, queue: &str, changes: &Changes, after: u64, limit: u32) -> Try<Outcome> {
        let after = i64::try_from(after).unwrap_or(i64::MAX);
        let (old, new) = self.changed(queue, changes)?;
        if let Some(line) = self.find_line(queue)?
            && bounds(&new)
            && !bounds(&old)
        {
            let upto: Option<i64> = self
                .conn
                .prepare_cached(NTH_JOB)?
                .query_row([after, i64::from(limit)], |row| row.get(0))
                .optional()?;
            if let Some(upto) = upto {
                self.mark(line, after, upto)?;
                return Ok(Outcome::ConfiguredSome { after: upto as u64, raised: None });
            }
        }
        let (old, new) = self.set(queue, changes, after)?;
        let line = self.make_line(queue)?;
        if !self.unblocks(line, &old, &new)? {
            return Ok(configured(&new));
        }
        if self.live(line) > u64::from(limit) {
            return Ok(Outcome::ConfiguredSome { after: 0, raised: Some(String::new()) });
        }
        self.unblock_groups(line, "", u32::MAX)?;
        Ok(configured(&new))
    }

    /// Takes one step after `group_concurrency` was raised: unblocks jobs of some groups, in the order of their names,
    /// after this one. The other groups get there when one of their jobs leaves, if no step comes.
    pub fn unblock_some(&mut self, queue: &str, after: &str, limit: u32) -> Try<Outcome> {
        let line = self.line_there(queue)?;
        Ok(match self.unblock_groups(line, after, limit)? {
            Some(last) => Outcome::ConfiguredSome { after: 0, raised: Some(last) },
            None => configured(&self.line(line).policy),
        })
    }

    /// Returns the old and the new policy; fails if the change is not possible.
    fn changed(&mut self, queue: &str, changes: &Changes) -> Try<(Arc<Policy>, Arc<Policy>)> {
        let old = self.policy_of(queue)?;
        let new = Arc::new(Policy::clone(&old).with(changes));
        new.check()?;
        self.check_dead_letter(queue, &new)?;
        if let Some(line) = self.find_line(queue)? {
            self.check_change(line, &old, &new)?;
        }
        Ok((old, new))
    }

    /// Changes the policy. Returns the old and the new one. Jobs up to the place `marked` in the order of enqueues are
    /// marked already, if the change needs that. The caller unblocks jobs.
    fn set(&mut self, queue: &str, changes: &Changes, marked: i64) -> Try<(Arc<Policy>, Arc<Policy>)> {
        let (old, new) = self.changed(queue, changes)?;
        let line = self.allowed_line(queue)?;
        if new == old {
            return Ok((old, new));
        }
        let id = self.line(line).id;
        let text = stored(&new)?;
        self.conn
            .prepare_cached("INSERT OR REPLACE INTO policies (queue, policy) VALUES (?1, ?2)")?
            .execute(params![id, text])?;
        self.set_policy(line, Arc::clone(&new));
        self.marks(line).aged_ms = [i64::MIN; 3];
        if old.archive && !new.archive {
            // Runs that wait for the archive are not archived any more.
            self.conn.prepare_cached(crate::state::db::earlier_runs::DROP)?.execute([id, i64::MAX])?;
        }
        // Unneeded marks stay: they do no harm, and are deleted with their jobs.
        if bounds(&new) && !bounds(&old) {
            self.mark(line, marked, i64::MAX)?;
        }
        Ok((old, new))
    }

    /// Marks the live jobs of a queue between two places as jobs that may be cancelled to make room. A leased job may
    /// come back.
    fn mark(&self, line: usize, after: i64, upto: i64) -> Try<()> {
        self.conn.prepare_cached(MARK)?.execute([self.line(line).id, after, upto])?;
        Ok(())
    }

    /// Returns the policy of the queue with this name; every default if the queue does not exist.
    pub fn policy_of(&mut self, queue: &str) -> Try<Arc<Policy>> {
        Ok(match self.find_line(queue)? {
            Some(line) => Arc::clone(&self.line(line).policy),
            None => Arc::default(),
        })
    }

    /// Refuses changes that would harm the jobs in the queue.
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
        for (field, old, new) in [
            ("group_concurrency", old.group_concurrency, new.group_concurrency),
            ("group_batch", old.group_batch, new.group_batch),
        ] {
            if new < old && self.conn.prepare_cached(GROUPED)?.exists([id])? {
                return wrong(format!(
                    "{field} of {name:?} can be lowered from {old} to {new} only while no job of a group is in the \
                     queue: finish or purge them first"
                ));
            }
        }
        Ok(())
    }

    /// Refuses a cycle of dead-letter queues.
    fn check_dead_letter(&mut self, queue: &str, policy: &Policy) -> Try<()> {
        let mut next = policy.dead_letter.clone();
        if let Some(name) = &next {
            crate::state::db::check::check_name("dead_letter", name)?;
        }
        let mut seen = vec![queue.to_owned()];
        while let Some(name) = next.take() {
            if seen.contains(&name) {
                seen.push(name);
                let text = format!("dead jobs would move in a circle: {}", seen.join(" -> "));
                return Err(Error::new(Code::Policy, text).into());
            }
            next.clone_from(&self.policy_of(&name)?.dead_letter);
            seen.push(name);
        }
        match policy.dead_letter.as_deref() {
            Some(name) => self.check_known(name),
            None => Ok(()),
        }
    }

    /// Returns the number of scheduled and ready jobs.
    pub fn pending(&self, line: usize) -> u64 {
        let marks = &self.line(line).marks;
        (marks.count(State::Scheduled) + marks.count(State::Ready)).max(0) as u64
    }

    /// Returns whether the change lets more jobs of the groups of a queue be claimed.
    fn unblocks(&self, line: usize, old: &Policy, new: &Policy) -> Try<bool> {
        let is_raised = new.group_concurrency > old.group_concurrency;
        Ok(is_raised && self.conn.prepare_cached(GROUPED)?.exists([self.line(line).id])?)
    }

    /// Returns the number of unfinished jobs.
    fn live(&self, line: usize) -> u64 {
        self.pending(line) + self.line(line).marks.count(State::Leased).max(0) as u64
    }

    /// Unblocks jobs of this number of groups whose names come after this one, as the policy allows. Returns the last
    /// of them if there may be more.
    fn unblock_groups(&mut self, line: usize, after: &str, limit: u32) -> Try<Option<String>> {
        let id = self.line(line).id;
        let mut last = after.to_owned();
        for _ in 0..limit {
            let group: Option<String> = self
                .conn
                .prepare_cached(NEXT_GROUP)?
                .query_row(params![id, last], |row| row.get(0))
                .optional()?;
            let Some(group) = group else { return Ok(None) };
            self.advance(line, Some(&group))?;
            last = group;
        }
        Ok(Some(last))
    }
}

/// Fields that libraries of earlier versions do not know. They are stored only where they are used, so that such a
/// library can read all other policies.
const NEWER: [&str; 9] = [
    "expire_claimed",
    "max_run_ms",
    "group_batch",
    "keep_done",
    "keep_done_ms",
    "keep_dead",
    "keep_dead_ms",
    "keep_cancelled",
    "keep_cancelled_ms",
];

/// Returns the policy as it is stored.
fn stored(policy: &Policy) -> Try<String> {
    let fields = |policy: &Policy| match serde_json::to_value(policy) {
        Ok(serde_json::Value::Object(fields)) => Ok(fields),
        _ => Err(Fault::corrupt("a policy is no JSON object")),
    };
    let (mut kept, unused) = (fields(policy)?, fields(&Policy::default())?);
    kept.retain(|name, value| !NEWER.contains(&&**name) || unused.get(name) != Some(value));
    Ok(serde_json::Value::Object(kept).to_string())
}

fn configured(policy: &Policy) -> Outcome {
    Outcome::Configured(Box::new(policy.clone()))
}
