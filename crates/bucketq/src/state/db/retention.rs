//! How jobs leave the file: retention of finished ones, many at a time, and deletion of one, for purge.
//!
//! A job's body, result, attempts and dedup key without a window are deleted with it; a key with a window outlives its
//! job. In a queue with an archive, finished jobs leave only through it (archive.rs).

use std::sync::Arc;

use super::Tx;
use super::columns::{row, sql};
use super::fault::Try;
use super::left_ids::Leaver;
use crate::noun::job::State;
use crate::noun::life::LifeKind;
use crate::noun::policy::Policy;

/// Most jobs that one finish deletes.
const BATCH: i64 = 128;

/// The kinds of finished jobs for retention: each has its own index and its own limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Done,
    Dead,
    Cancelled,
}

impl End {
    pub const ALL: [Self; 3] = [Self::Done, Self::Dead, Self::Cancelled];

    /// Returns the kind of the runs that leave.
    pub const fn kind(self) -> LifeKind {
        match self {
            Self::Done => LifeKind::Done,
            Self::Dead => LifeKind::Dead,
            Self::Cancelled => LifeKind::Cancelled,
        }
    }

    /// Returns the kind of finished jobs that leave as these runs; none for earlier runs of jobs.
    pub const fn of(kind: LifeKind) -> Option<Self> {
        match kind {
            LifeKind::Done => Some(Self::Done),
            LifeKind::Dead => Some(Self::Dead),
            LifeKind::Cancelled => Some(Self::Cancelled),
            LifeKind::Past => None,
        }
    }

    /// Returns the state of these jobs.
    pub const fn state(self) -> State {
        match self {
            Self::Done => State::Done,
            Self::Dead => State::Dead,
            Self::Cancelled => State::Cancelled,
        }
    }

    /// Returns the statement for this kind.
    pub const fn pick<T: Copy>(self, statements: [T; 3]) -> T {
        statements[self as usize]
    }

    /// Returns how many of these jobs a queue keeps.
    pub fn keep(self, policy: &Policy) -> u64 {
        let own = match self {
            Self::Done => policy.keep_done,
            Self::Dead => policy.keep_dead,
            Self::Cancelled => policy.keep_cancelled,
        };
        own.unwrap_or(policy.keep)
    }

    /// Returns for how long a queue keeps these jobs.
    pub fn keep_ms(self, policy: &Policy) -> Option<i64> {
        let own = match self {
            Self::Done => policy.keep_done_ms,
            Self::Dead => policy.keep_dead_ms,
            Self::Cancelled => policy.keep_cancelled_ms,
        };
        own.or(policy.keep_ms)
    }
}

/// One statement for each kind, over the finished jobs of a queue.
macro_rules! by_end {
    ($before:expr, $after:expr) => {
        [
            $crate::state::db::columns::sql!($before, "queue = ?1 AND state = 5", $after),
            $crate::state::db::columns::sql!($before, "queue = ?1 AND state = 6", $after),
            $crate::state::db::columns::sql!($before, "queue = ?1 AND state = 7", $after),
        ]
    };
}
pub(super) use by_end;

row! {
    struct FinishedJob {
        ends_ms: i64, finish_seq: i64,
        leaver: Leaver = Leaver::COLUMNS,
    }
}
/// Finished jobs of a queue that retention may delete, oldest first.
pub(super) const OLDEST: [&str; 3] =
    by_end!(sql!("SELECT ", FinishedJob::COLUMNS, " FROM jobs WHERE "), " ORDER BY finish_seq LIMIT ?2");
/// The dedup keys without a window of the jobs up to one of [`OLDEST`].
pub(super) const DROP_KEYS: [&str; 3] = by_end!(
    "DELETE FROM dedup WHERE until_ms IS NULL AND seq IN (SELECT seq FROM jobs WHERE ",
    " AND finish_seq <= ?2)"
);
/// Their results.
pub(super) const DROP_RESULTS: [&str; 3] =
    by_end!("DELETE FROM results WHERE seq IN (SELECT seq FROM jobs WHERE ", " AND finish_seq <= ?2)");
/// Their attempts.
pub(super) const DROP_ATTEMPTS: [&str; 3] =
    by_end!("DELETE FROM attempts WHERE seq IN (SELECT seq FROM jobs WHERE ", " AND finish_seq <= ?2)");
/// Their bodies.
pub(super) const DROP_BODIES: [&str; 3] =
    by_end!("DELETE FROM bodies WHERE id IN (SELECT body FROM jobs WHERE ", " AND finish_seq <= ?2)");
/// The jobs themselves.
pub(super) const DROP_JOBS: [&str; 3] = by_end!("DELETE FROM jobs WHERE ", " AND finish_seq <= ?2");

row! {
    /// The columns needed to delete a job.
    pub(super) struct JobToDelete {
        seq: i64,
        /// It was enqueued with a dedup key.
        keyed: bool = "dedup IS NOT NULL",
        body: Option<i64>,
        leaver: Leaver = Leaver::COLUMNS,
        /// Its group, if it is not finished.
        group: Option<String> = "iif(state <= 4, group_name, NULL)",
    }
}

impl Tx<'_> {
    /// Returns how many jobs of this kind exceed the number to keep.
    pub fn over_retention(&self, line: usize, end: End) -> i64 {
        let there = self.line(line).marks.count(end.state());
        there - i64::try_from(end.keep(&self.line(line).policy)).unwrap_or(i64::MAX)
    }

    /// Deletes the oldest finished jobs of a queue when they clearly exceed the number to keep, or are too old. Because
    /// of the slack, one finish in many deletes for all, on neighbouring rows and with one statement per table.
    pub fn retain(&mut self, line: usize) -> Try<()> {
        let policy = Arc::clone(&self.line(line).policy);
        if policy.archive {
            return Ok(());
        }
        for end in End::ALL {
            let excess = self.over_retention(line, end);
            let aged =
                end.keep_ms(&policy).is_some() && end.pick(self.line(line).marks.aged_ms) <= self.now_ms;
            if aged || excess > (end.keep(&policy) as i64 / 16).clamp(0, 64) {
                self.drop_finished(line, end, excess)?;
            }
        }
        Ok(())
    }

    /// Deletes `excess` jobs and those that are too old, at most a batch.
    fn drop_finished(&mut self, line: usize, end: End, excess: i64) -> Try<()> {
        let queue = self.line(line).id;
        let age_ms = end.keep_ms(&self.line(line).policy);
        let (mut last, mut n) = (None, 0);
        let mut leavers = Vec::new();
        // A job that finishes from now on leaves no sooner.
        let mut next_ms = age_ms.map_or(i64::MAX, |age| self.now_ms.saturating_add(age));
        let mut stmt = self.conn.prepare_cached(end.pick(OLDEST))?;
        let mut rows = stmt.query([queue, if age_ms.is_some() { BATCH } else { excess.min(BATCH) }])?;
        while let Some(row) = rows.next()? {
            let row = FinishedJob::read(row)?;
            let leaves_ms = age_ms.map_or(i64::MAX, |age| row.ends_ms.saturating_add(age));
            if n >= excess && leaves_ms > self.now_ms {
                next_ms = leaves_ms;
                break;
            }
            n += 1;
            last = Some(row.finish_seq);
            self.marks(line).remove(row.leaver.state);
            leavers.push(row.leaver);
        }
        if n == BATCH {
            next_ms = self.now_ms;
        }
        self.marks(line).aged_ms[end as usize] = next_ms;
        let Some(last) = last else { return Ok(()) };
        self.drop_until(queue, end, last)?;
        self.remember(leavers)
    }

    /// Deletes the jobs of this kind up to this place. The caller updates their counts and remembers their ids.
    pub fn drop_until(&self, queue: i64, end: End, last: i64) -> Try<()> {
        // Most files have no rows in most of these tables.
        for (any, sql) in [
            ("SELECT 1 FROM dedup LIMIT 1", DROP_KEYS),
            ("SELECT 1 FROM results LIMIT 1", DROP_RESULTS),
            ("SELECT 1 FROM attempts LIMIT 1", DROP_ATTEMPTS),
            ("SELECT 1 FROM bodies LIMIT 1", DROP_BODIES),
        ] {
            if self.conn.prepare_cached(any)?.exists([])? {
                self.conn.prepare_cached(end.pick(sql))?.execute([queue, last])?;
            }
        }
        self.conn.prepare_cached(end.pick(DROP_JOBS))?.execute([queue, last])?;
        Ok(())
    }

    /// Deletes the job and its rows in other tables. The caller remembers its id.
    pub fn delete(&mut self, line: usize, job: &JobToDelete) -> Try<()> {
        let by_seq = |sql: &str, seq: i64| self.conn.prepare_cached(sql)?.execute([seq]);
        by_seq("DELETE FROM jobs WHERE seq = ?1", job.seq)?;
        self.drop_overdue(job.seq)?;
        self.cache.reported.deleted = true;
        by_seq("DELETE FROM results WHERE seq = ?1", job.seq)?;
        by_seq("DELETE FROM attempts WHERE seq = ?1", job.seq)?;
        if let Some(body) = job.body {
            by_seq("DELETE FROM bodies WHERE id = ?1", body)?;
        }
        if job.keyed {
            self.drop_key(job.seq)?;
        }
        let marks = self.marks(line);
        marks.remove(job.leaver.state);
        if job.leaver.state == State::Ready {
            marks.withdraw();
        }
        Ok(())
    }
}
