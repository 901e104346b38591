//! Queries about one job, the queues, or the file. Lists have their own file.
//!
//! No code here writes.

pub(super) mod archive_batch;
pub(super) mod integrity;
pub(super) mod list;

use std::collections::BTreeMap;

use rusqlite::OptionalExtension;

use crate::noun::error::{Error, Result};
use crate::noun::job::{JobId, Payload, State};
use crate::noun::query::{Answer, Archives, Detail, Finished, Query, QueueInfo, Stats};
use crate::state::db::columns::{row, sql};
use crate::state::db::fault::{Fault, Try};
use crate::state::db::job_row::WholeJobColumns;
use crate::state::db::queues::Gate;
use crate::state::db::{Db, Tx};

/// Most runs in one result.
const MAX_LIVES: u32 = 1_000;

const BY_ID: &str = sql!("SELECT ", WholeJobColumns::COLUMNS, " FROM jobs WHERE id = ?1");
const STATE: &str = "SELECT state FROM jobs WHERE id = ?1";
row! { struct JobResult { content_type: i64, bytes: Vec<u8> } }
const RESULT: &str = sql!("SELECT ", JobResult::COLUMNS, " FROM results WHERE seq = ?1");
row! {
    struct DueCount as ENDS, STARTS {
        jobs: i64 = "count(*)",
        first_ms: Option<i64> = "min(ends_ms)" => "min(run_at_ms)",
    }
}
const EXPIRED: &str =
    sql!("SELECT ", DueCount::ENDS, " FROM jobs WHERE queue = ?1 AND state = 4 AND ends_ms <= ?2");
/// Blocked jobs are due too, but not claimable.
const DUE: &str = sql!(
    "SELECT ",
    DueCount::STARTS,
    " FROM jobs WHERE queue = ?1 AND state = 2 AND blocked = ?2 AND run_at_ms <= ?3"
);
/// The longest waiting job of those that came back or became due.
const RETURNED: &str = "SELECT run_at_ms FROM jobs \
     WHERE queue = ?1 AND state = 3 AND blocked = 0 AND run_at_ms > enqueued_ms ORDER BY run_at_ms LIMIT 1";
const NEXT_PRIORITY: &str = "SELECT priority FROM jobs \
     WHERE queue = ?1 AND state = 3 AND blocked = 0 AND priority > ?2 ORDER BY priority LIMIT 1";
/// The oldest job of a priority that has waited since its enqueue: such jobs have turns in the order of their enqueues.
const FRESH: &str = "SELECT enqueued_ms FROM jobs \
     WHERE queue = ?1 AND state = 3 AND blocked = 0 AND priority = ?2 AND run_at_ms <= enqueued_ms \
     ORDER BY turn, seq LIMIT 1";

/// The queries here and the other hot statements of this layer, by name, for the test of their plans.
pub const PLANNED: &[(&str, &str)] = &[
    ("ready", crate::state::db::op::claim::READY),
    ("mine", crate::state::db::op::claim::MINE),
    ("job of a session", crate::state::db::op::claim::AT),
    ("session", crate::state::db::sessions::SESSION),
    ("due", crate::state::db::due::DUE),
    ("next expiries", crate::state::db::expiry::NEXT),
    ("expiry of a job", crate::state::db::expiry::OVERDUE),
    ("last entry", crate::state::db::op::moves::LAST_ENTRY),
    ("first due", crate::state::db::due::FIRST_DUE),
    ("expired", crate::state::db::due::EXPIRED),
    ("first expiry", crate::state::db::due::FIRST_EXPIRY),
    ("first members of a group", crate::state::db::group::FIRST_MEMBERS),
    ("any group", crate::state::db::op::policy::GROUPED),
    ("next group", crate::state::db::op::policy::NEXT_GROUP),
    ("last error", crate::state::db::attempts::LAST_ERROR),
    ("attempt too old", crate::state::db::attempts::TOO_OLD),
    ("oldest to be dropped", crate::state::db::backpressure::OLDEST),
    ("job at a place", crate::state::db::op::policy::NTH_JOB),
    ("mark jobs", crate::state::db::op::policy::MARK),
    ("left ids", crate::state::db::left_ids::LEFT),
    ("newest left id", crate::state::db::left_ids::NEWEST),
    ("oldest left ids", crate::state::db::left_ids::OLDEST),
    ("leavers", crate::state::db::left_ids::LEAVE[0]),
    ("leavers, dead", crate::state::db::left_ids::LEAVE[1]),
    ("leavers, cancelled", crate::state::db::left_ids::LEAVE[2]),
    ("due schedules", crate::state::db::op::schedule::DUE),
    ("oldest finished", crate::state::db::retention::OLDEST[0]),
    ("oldest finished, dead", crate::state::db::retention::OLDEST[1]),
    ("oldest finished, cancelled", crate::state::db::retention::OLDEST[2]),
    ("drop results", crate::state::db::retention::DROP_RESULTS[0]),
    ("drop results, dead", crate::state::db::retention::DROP_RESULTS[1]),
    ("drop results, cancelled", crate::state::db::retention::DROP_RESULTS[2]),
    ("drop attempts", crate::state::db::retention::DROP_ATTEMPTS[0]),
    ("drop attempts, dead", crate::state::db::retention::DROP_ATTEMPTS[1]),
    ("drop attempts, cancelled", crate::state::db::retention::DROP_ATTEMPTS[2]),
    ("drop bodies", crate::state::db::retention::DROP_BODIES[0]),
    ("drop bodies, dead", crate::state::db::retention::DROP_BODIES[1]),
    ("drop bodies, cancelled", crate::state::db::retention::DROP_BODIES[2]),
    ("drop jobs", crate::state::db::retention::DROP_JOBS[0]),
    ("drop jobs, dead", crate::state::db::retention::DROP_JOBS[1]),
    ("drop jobs, cancelled", crate::state::db::retention::DROP_JOBS[2]),
    ("finished lives", crate::state::db::read::archive_batch::FINISHED[0]),
    ("finished lives, dead", crate::state::db::read::archive_batch::FINISHED[1]),
    ("finished lives, cancelled", crate::state::db::read::archive_batch::FINISHED[2]),
    ("count finished", crate::state::db::op::archive::COUNT_UNTIL[0]),
    ("count finished, dead", crate::state::db::op::archive::COUNT_UNTIL[1]),
    ("count finished, cancelled", crate::state::db::op::archive::COUNT_UNTIL[2]),
    ("nth finished", crate::state::db::op::archive::NTH[0]),
    ("nth finished, dead", crate::state::db::op::archive::NTH[1]),
    ("nth finished, cancelled", crate::state::db::op::archive::NTH[2]),
    ("past lives", crate::state::db::earlier_runs::FINISHED),
    ("oldest past lives", crate::state::db::earlier_runs::OLDEST),
    ("count past lives", crate::state::db::earlier_runs::COUNT_UNTIL),
    ("nth past life", crate::state::db::earlier_runs::NTH),
    ("drop past lives", crate::state::db::earlier_runs::DROP),
    ("archives too old", crate::state::db::expired_archives::TOO_OLD),
    ("any archive too old", crate::state::db::expired_archives::ANY_TOO_OLD),
    ("newest archive", crate::state::db::op::archive::NEWEST_LISTED),
    ("forget archives", crate::state::db::expired_archives::FORGET),
    ("expired keys", crate::state::db::dedup::EXPIRED),
    ("newer keys", crate::state::db::dedup::SINCE),
    ("drop keys", crate::state::db::retention::DROP_KEYS[0]),
    ("drop keys, dead", crate::state::db::retention::DROP_KEYS[1]),
    ("drop keys, cancelled", crate::state::db::retention::DROP_KEYS[2]),
    ("purge scheduled", crate::state::db::op::manage::of_state(State::Scheduled)),
    ("purge ready", crate::state::db::op::manage::of_state(State::Ready)),
    ("purge blocked", crate::state::db::op::manage::BLOCKED),
    ("purge leased", crate::state::db::op::manage::of_state(State::Leased)),
    ("purge done", crate::state::db::op::manage::of_state(State::Done)),
    ("purge dead", crate::state::db::op::manage::of_state(State::Dead)),
    ("purge cancelled", crate::state::db::op::manage::of_state(State::Cancelled)),
    ("by id", BY_ID),
    ("state by id", STATE),
    ("count expired", EXPIRED),
    ("count due", DUE),
    ("longest waiting of the returned", RETURNED),
    ("next priority", NEXT_PRIORITY),
    ("longest waiting of the fresh", FRESH),
];

impl Db {
    /// Returns the state of a job, if it exists: cheaper than the whole job.
    pub fn state(&self, id: JobId) -> Result<Option<State>> {
        let look = || -> Try<_> {
            let mut stmt = self.conn.prepare_cached(STATE)?;
            Ok(stmt.query_row([id.as_bytes()], |row| row.get(0)).optional()?)
        };
        look().map_err(Fault::into_error)
    }
}

impl Tx<'_> {
    pub fn query(&mut self, query: &Query) -> Try<Answer> {
        Ok(match query {
            Query::History { .. } => {
                return Err(Error::bug("the log is not in the database").into());
            }
            Query::Policy(queue) => Answer::Policy(Box::new(self.policy_of(queue)?.as_ref().clone())),
            Query::Schedules(queue) => Answer::Schedules(self.schedules(queue.as_deref())?),
            Query::Archives { queue, after } => Answer::Archives(self.archives(queue.as_deref(), *after)?),
            Query::Finished { queue, after, until, limit } => {
                if *limit == 0 || *limit > MAX_LIVES {
                    let told = format!("1 to {MAX_LIVES} finished runs at a time, not {limit}");
                    return Err(Error::invalid(told).into());
                }
                let lives = self.finished(queue.as_deref(), *after, *until, *limit)?;
                Answer::Finished(Finished { commit_seq: self.commit_seq, lives })
            }
            Query::Get(id) => Answer::Job(self.detail(id)?.map(Box::new)),
            Query::GetMany(ids) => Answer::Jobs(self.details(ids)?),
            Query::List { filter, after, limit } => Answer::Page(self.list(filter, *after, *limit)?),
            Query::ListWhole { filter, after, limit } => {
                Answer::Details(self.list_whole(filter, *after, *limit)?)
            }
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
                    strict_queues: self.is_strict()?,
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

    pub(super) fn detail(&mut self, id: &JobId) -> Try<Option<Detail>> {
        let mut stmt = self.conn.prepare_cached(BY_ID)?;
        let mut rows = stmt.query([id.as_bytes()])?;
        let Some(row) = rows.next()? else { return Ok(None) };
        let row = WholeJobColumns::read(row)?;
        let mut job = self.job(row.job)?;
        let seq = job.seq as i64;
        self.add_failures(&mut job)?;
        let payload = self.payload(&row.payload)?;
        let found = self.conn.prepare_cached(RESULT)?.query_row([seq], JobResult::read).optional()?;
        let result = match found {
            Some(JobResult { content_type, bytes }) => {
                Some(Payload { bytes: bytes.into(), content_type: self.text(content_type)?.to_string() })
            }
            None => None,
        };
        let attempts = self.attempts(seq)?;
        Ok(Some(Detail { job, payload, result, attempts }))
    }

    /// Returns every queue, by name.
    fn queues(&mut self) -> Try<Vec<QueueInfo>> {
        let there = self.all_lines()?.filter(|line| self.line(*line).marks.gate != Gate::Deleted);
        let there = there.collect::<Vec<_>>();
        let mut infos = there.into_iter().map(|line| self.info(line)).collect::<Try<Vec<_>>>()?;
        infos.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Ok(infos)
    }

    fn info(&mut self, line: usize) -> Try<QueueInfo> {
        let (queue, marks) = (self.line(line).id, self.line(line).marks);
        let counted = |sql: &str, params: &[i64]| {
            self.conn.prepare_cached(sql)?.query_row(rusqlite::params_from_iter(params), DueCount::read)
        };
        let expired = counted(EXPIRED, &[queue, self.now_ms])?;
        let due = counted(DUE, &[queue, 0, self.now_ms])?;
        let blocked_due = counted(DUE, &[queue, 1, self.now_ms])?;
        let since = [expired.first_ms, due.first_ms, self.oldest_ready(queue)?].into_iter().flatten().min();
        Ok(QueueInfo {
            name: self.line(line).name.to_string(),
            paused: marks.gate == Gate::Paused,
            draining: marks.gate == Gate::Draining,
            dropped: marks.saved.dropped.max(0) as u64,
            counts: State::ALL.into_iter().map(|s| (s, marks.count(s) as u64)).collect::<BTreeMap<_, _>>(),
            expired: expired.jobs as u64,
            due: (due.jobs + blocked_due.jobs) as u64,
            oldest_ready_ms: since.map(|ms| (self.now_ms - ms).max(0)),
        })
    }

    /// Returns since when the longest waiting ready job can be claimed. Among the jobs of one priority that never came
    /// back, the first in order is the oldest, because commit time never goes backwards; an index has the others.
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
