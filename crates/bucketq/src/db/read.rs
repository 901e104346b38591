//! Questions about one job, the queues, or the file. Lists have a file of their own.
//!
//! Nothing here writes.

use std::collections::BTreeMap;

use rusqlite::OptionalExtension;

use super::Turn;
use super::fault::Try;
use super::queues::Gate;
use super::row::whole_columns;
use crate::error::{Code, Error};
use crate::job::{JobId, Payload, State};
use crate::query::{Answer, Archives, Detail, Finished, Query, QueueInfo, Stats};

/// Lives in one answer at most.
const MAX_LIVES: u32 = 1_000;

const BY_ID: &str = concat!("SELECT ", whole_columns!(), " FROM jobs WHERE id = ?1");
const EXPIRED: &str =
    "SELECT count(*), min(ends_ms) FROM jobs WHERE queue = ?1 AND state = 4 AND ends_ms <= ?2";
/// Held jobs are due too, but not claimable.
const DUE: &str = "SELECT count(*), min(run_at_ms) FROM jobs \
     WHERE queue = ?1 AND state = 2 AND held = ?2 AND run_at_ms <= ?3";
/// The job that has waited longest of those that came back or came due.
const RETURNED: &str = "SELECT run_at_ms FROM jobs \
     WHERE queue = ?1 AND state = 3 AND held = 0 AND run_at_ms > enqueued_ms ORDER BY run_at_ms LIMIT 1";
const NEXT_PRIORITY: &str = "SELECT priority FROM jobs \
     WHERE queue = ?1 AND state = 3 AND held = 0 AND priority > ?2 ORDER BY priority LIMIT 1";
/// The oldest job of a priority that has waited since its enqueue: such jobs have turns in the order of their enqueues.
const FRESH: &str = "SELECT enqueued_ms FROM jobs \
     WHERE queue = ?1 AND state = 3 AND held = 0 AND priority = ?2 AND run_at_ms <= enqueued_ms \
     ORDER BY turn, seq LIMIT 1";

/// The questions here and the other hot statements of this layer, by name, for the test of their plans.
pub const PLANNED: &[(&str, &str)] = &[
    ("ready", super::claim::READY),
    ("mine", super::claim::MINE),
    ("due", super::due::DUE),
    ("first due", super::due::FIRST_DUE),
    ("expired", super::due::EXPIRED),
    ("first expiry", super::due::FIRST_EXPIRY),
    ("first members of a group", super::group::FIRST_MEMBERS),
    ("any group", super::policy::GROUPED),
    ("next group", super::policy::NEXT_GROUP),
    ("last error", super::attempts::LAST_ERROR),
    ("attempt too old", super::attempts::TOO_OLD),
    ("oldest to be dropped", super::room::OLDEST),
    ("due schedules", super::schedule::DUE),
    ("oldest finished", super::keep::OLDEST[0]),
    ("oldest finished, dead", super::keep::OLDEST[1]),
    ("drop results", super::keep::DROP_RESULTS[0]),
    ("drop results, dead", super::keep::DROP_RESULTS[1]),
    ("drop attempts", super::keep::DROP_ATTEMPTS[0]),
    ("drop attempts, dead", super::keep::DROP_ATTEMPTS[1]),
    ("drop bodies", super::keep::DROP_BODIES[0]),
    ("drop bodies, dead", super::keep::DROP_BODIES[1]),
    ("drop jobs", super::keep::DROP_JOBS[0]),
    ("drop jobs, dead", super::keep::DROP_JOBS[1]),
    ("finished lives", super::leave::FINISHED[0]),
    ("finished lives, dead", super::leave::FINISHED[1]),
    ("count finished", super::archive::COUNT_UNTIL[0]),
    ("count finished, dead", super::archive::COUNT_UNTIL[1]),
    ("nth finished", super::archive::NTH[0]),
    ("nth finished, dead", super::archive::NTH[1]),
    ("past lives", super::past::FINISHED),
    ("oldest past lives", super::past::OLDEST),
    ("count past lives", super::past::COUNT_UNTIL),
    ("nth past life", super::past::NTH),
    ("drop past lives", super::past::DROP),
    ("archives too old", super::given_up::TOO_OLD),
    ("any archive too old", super::given_up::ANY_TOO_OLD),
    ("newest archive", super::archive::NEWEST_LISTED),
    ("forget archives", super::given_up::FORGET),
    ("expired keys", super::dedup::EXPIRED),
    ("newer keys", super::dedup::SINCE),
    ("drop keys", super::keep::DROP_KEYS[0]),
    ("drop keys, dead", super::keep::DROP_KEYS[1]),
    ("purge scheduled", super::manage::of_state(State::Scheduled)),
    ("purge leased", super::manage::of_state(State::Leased)),
    ("purge done", super::manage::of_state(State::Done)),
    ("purge dead", super::manage::of_state(State::Dead)),
    ("purge cancelled", super::manage::of_state(State::Cancelled)),
    ("by id", BY_ID),
    ("count expired", EXPIRED),
    ("count due", DUE),
    ("longest waiting of the returned", RETURNED),
    ("next priority", NEXT_PRIORITY),
    ("longest waiting of the fresh", FRESH),
];

impl Turn<'_> {
    pub fn query(&mut self, query: &Query) -> Try<Answer> {
        Ok(match query {
            Query::History { .. } => {
                return Err(Error::new(Code::Internal, "the log is not in the database").into());
            }
            Query::Policy(queue) => Answer::Policy(Box::new(self.policy_of(queue)?.as_ref().clone())),
            Query::Schedules(queue) => Answer::Schedules(self.schedules(queue.as_deref())?),
            Query::Archives { queue, after } => Answer::Archives(self.archives(queue.as_deref(), *after)?),
            Query::Finished { queue, after, until, limit } => {
                if *limit == 0 || *limit > MAX_LIVES {
                    let told = format!("1 to {MAX_LIVES} lives at a time, not {limit}");
                    return Err(Error::invalid(told).into());
                }
                let lives = self.finished(queue.as_deref(), *after, *until, *limit)?;
                Answer::Finished(Finished { commit_seq: self.commit_seq, lives })
            }
            Query::Get(id) => Answer::Job(self.detail(id)?.map(Box::new)),
            Query::List { filter, after, limit } => Answer::Page(self.list(filter, *after, *limit)?),
            Query::Queues => Answer::Queues(self.queues()?),
            Query::Stats => {
                let pragma = |sql| self.conn.prepare_cached(sql)?.query_row([], |row| row.get::<_, i64>(0));
                let (pages, free_pages) = (pragma("PRAGMA page_count")?, pragma("PRAGMA freelist_count")?);
                Answer::Stats(Stats {
                    queues: self.queues()?,
                    commit_seq: self.commit_seq,
                    commit_id: String::new(),
                    commit_ms: self.now_ms,
                    pages: pages as u64,
                    free_pages: free_pages as u64,
                })
            }
        })
    }

    fn archives(&mut self, queue: Option<&str>, after: u64) -> Try<Archives> {
        let after = i64::try_from(after).unwrap_or(i64::MAX);
        let objects = match queue {
            None => self.listed("dropped_seq IS NULL AND last_seq > ?1", [after])?,
            Some(name) => match self.find_line(name)? {
                Some(line) => {
                    let queue = self.line(line).id;
                    self.listed("dropped_seq IS NULL AND last_seq > ?1 AND queue = ?2", [after, queue])?
                }
                None => vec![],
            },
        };
        Ok(Archives { commit_seq: self.commit_seq, objects })
    }

    fn detail(&mut self, id: &JobId) -> Try<Option<Detail>> {
        let mut stmt = self.conn.prepare_cached(BY_ID)?;
        let mut rows = stmt.query([id.as_bytes()])?;
        let Some(row) = rows.next()? else { return Ok(None) };
        let mut job = self.job(row)?;
        let seq = job.seq as i64;
        job.last_error = self.last_error(seq, job.run)?;
        let payload = self.payload(row)?;
        let found = self
            .conn
            .prepare_cached("SELECT content_type, bytes FROM results WHERE seq = ?1")?
            .query_row([seq], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, Vec<u8>>(1)?)))
            .optional()?;
        let result = match found {
            Some((content_type, bytes)) => {
                Some(Payload { bytes: bytes.into(), content_type: self.text(content_type)?.to_string() })
            }
            None => None,
        };
        let attempts = self.attempts(seq)?;
        Ok(Some(Detail { job, payload, result, attempts }))
    }

    /// Every queue, by name.
    fn queues(&mut self) -> Try<Vec<QueueInfo>> {
        let mut infos = self.all_lines()?.map(|line| self.info(line)).collect::<Try<Vec<_>>>()?;
        infos.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(infos)
    }

    fn info(&mut self, line: usize) -> Try<QueueInfo> {
        let (queue, marks) = (self.line(line).id, self.line(line).marks);
        let counted = |sql: &str, params: &[i64]| {
            self.conn.prepare_cached(sql)?.query_row(rusqlite::params_from_iter(params), |row| {
                Ok((row.get::<_, i64>(0)? as u64, row.get::<_, Option<i64>>(1)?))
            })
        };
        let (expired, first_expired) = counted(EXPIRED, &[queue, self.now_ms])?;
        let (due, first_due) = counted(DUE, &[queue, 0, self.now_ms])?;
        let (held_due, _) = counted(DUE, &[queue, 1, self.now_ms])?;
        let since = [first_expired, first_due, self.oldest_ready(queue)?].into_iter().flatten().min();
        Ok(QueueInfo {
            name: self.line(line).name.to_string(),
            paused: marks.gate == Gate::Paused,
            draining: marks.gate == Gate::Draining,
            dropped: marks.kept.dropped.max(0) as u64,
            counts: State::ALL.into_iter().map(|s| (s, marks.count(s) as u64)).collect::<BTreeMap<_, _>>(),
            expired,
            due: due + held_due,
            oldest_ready_ms: since.map(|ms| (self.now_ms - ms).max(0)),
        })
    }

    /// Since when the ready job that has waited longest can be claimed. Among the jobs of one priority that never came
    /// back, the first in line is the oldest, since commit time never goes backwards; the others have an index.
    fn oldest_ready(&self, queue: i64) -> Try<Option<i64>> {
        let get = |sql: &str, params: &[i64]| {
            let mut stmt = self.conn.prepare_cached(sql)?;
            stmt.query_row(rusqlite::params_from_iter(params), |row| row.get::<_, i64>(0)).optional()
        };
        let mut since = get(RETURNED, &[queue])?;
        let mut priority = i64::MIN;
        while let Some(next) = get(NEXT_PRIORITY, &[queue, priority])? {
            priority = next;
            let fresh = get(FRESH, &[queue, priority])?;
            since = [since, fresh].into_iter().flatten().min();
        }
        Ok(since)
    }
}
