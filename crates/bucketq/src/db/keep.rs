//! How jobs leave the file: retention of finished ones, many at a time, and deletion of one, for purge.
//!
//! A job takes with it its body, result, attempts and its hold on a dedup key; a dedup window outlives its job. Of a
//! queue with an archive, finished jobs leave only by it (archive.rs).

use std::sync::Arc;

use rusqlite::Row;

use super::Turn;
use super::fault::Try;
use super::row::state;
use crate::job::State;
use crate::life::Kind;

/// Most jobs one finish deletes.
const BATCH: i64 = 128;

/// How jobs ended, as far as their keeping goes: each way has its index and its own count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Done or cancelled.
    Well,
    /// Dead.
    Dead,
}

impl End {
    pub const BOTH: [Self; 2] = [Self::Well, Self::Dead];

    /// What leaves of it.
    pub const fn kind(self) -> Kind {
        match self {
            Self::Well => Kind::Well,
            Self::Dead => Kind::Dead,
        }
    }

    /// The statement for this end.
    pub const fn pick<T: Copy>(self, statements: [T; 2]) -> T {
        statements[self as usize]
    }
}

/// One statement for each end, over the jobs of a queue that ended so.
macro_rules! by_end {
    ($before:expr, $after:expr) => {
        [
            concat!($before, "queue = ?1 AND state IN (5, 7)", $after),
            concat!($before, "queue = ?1 AND state = 6", $after),
        ]
    };
}
pub(super) use by_end;

/// Finished jobs of a queue that retention may delete, oldest first.
pub(super) const OLDEST: [&str; 2] =
    by_end!("SELECT state, ends_ms, finish_seq FROM jobs WHERE ", " ORDER BY finish_seq LIMIT ?2");
/// What the jobs up to one of [`OLDEST`] keep out while they are there.
pub(super) const DROP_KEYS: [&str; 2] = by_end!(
    "DELETE FROM dedup WHERE until_ms IS NULL AND seq IN (SELECT seq FROM jobs WHERE ",
    " AND finish_seq <= ?2)"
);
/// Their results.
pub(super) const DROP_RESULTS: [&str; 2] =
    by_end!("DELETE FROM results WHERE seq IN (SELECT seq FROM jobs WHERE ", " AND finish_seq <= ?2)");
/// Their attempts.
pub(super) const DROP_ATTEMPTS: [&str; 2] =
    by_end!("DELETE FROM attempts WHERE seq IN (SELECT seq FROM jobs WHERE ", " AND finish_seq <= ?2)");
/// Their bodies.
pub(super) const DROP_BODIES: [&str; 2] =
    by_end!("DELETE FROM bodies WHERE id IN (SELECT body FROM jobs WHERE ", " AND finish_seq <= ?2)");
/// The jobs themselves.
pub(super) const DROP_JOBS: [&str; 2] = by_end!("DELETE FROM jobs WHERE ", " AND finish_seq <= ?2");

/// What has to be known of a job to delete it.
pub(super) struct Leaving {
    pub seq: i64,
    pub state: State,
    /// It was enqueued with a dedup key.
    pub keyed: bool,
    pub body: Option<i64>,
}

impl Leaving {
    /// From the columns seq, state, dedup IS NOT NULL, body.
    pub fn read(row: &Row<'_>) -> Try<Self> {
        Ok(Self { seq: row.get(0)?, state: state(row.get(1)?)?, keyed: row.get(2)?, body: row.get(3)? })
    }
}

impl Turn<'_> {
    /// Jobs of this end that there are beyond those kept by number.
    pub fn over_kept(&self, line: usize, end: End) -> i64 {
        let marks = &self.line(line).marks;
        let there = match end {
            End::Well => marks.count(State::Done) + marks.count(State::Cancelled),
            End::Dead => marks.count(State::Dead),
        };
        there - i64::try_from(self.line(line).policy.keep).unwrap_or(i64::MAX)
    }

    /// Delete the oldest finished jobs of a queue when there are clearly more than it keeps, or they are too old. The
    /// slack makes one finish in many do the work of all, on neighbouring rows and with one statement a table.
    pub fn retain(&mut self, line: usize) -> Try<()> {
        let policy = Arc::clone(&self.line(line).policy);
        if policy.archive {
            return Ok(());
        }
        for end in End::BOTH {
            let excess = self.over_kept(line, end);
            let aged = policy.keep_ms.is_some() && end.pick(self.line(line).marks.aged_ms) <= self.now_ms;
            if aged || excess > (policy.keep as i64 / 16).clamp(0, 64) {
                self.drop_finished(line, end, excess)?;
            }
        }
        Ok(())
    }

    /// Delete so many, and those that are too old, a batch at most.
    fn drop_finished(&mut self, line: usize, end: End, excess: i64) -> Try<()> {
        let queue = self.line(line).id;
        let age_ms = self.line(line).policy.keep_ms;
        let (mut last, mut n) = (None, 0);
        // Whoever finishes from now on leaves no sooner.
        let mut next_ms = age_ms.map_or(i64::MAX, |age| self.now_ms.saturating_add(age));
        let mut stmt = self.conn.prepare_cached(end.pick(OLDEST))?;
        let mut rows = stmt.query([queue, if age_ms.is_some() { BATCH } else { excess.min(BATCH) }])?;
        while let Some(row) = rows.next()? {
            let leaves_ms =
                age_ms.map_or(i64::MAX, |age| row.get::<_, i64>(1).unwrap_or(0).saturating_add(age));
            if n >= excess && leaves_ms > self.now_ms {
                next_ms = leaves_ms;
                break;
            }
            n += 1;
            last = Some(row.get::<_, i64>(2)?);
            self.marks(line).remove(state(row.get(0)?)?);
        }
        if n == BATCH {
            next_ms = self.now_ms;
        }
        self.marks(line).aged_ms[end as usize] = next_ms;
        match last {
            Some(last) => self.drop_until(queue, end, last),
            None => Ok(()),
        }
    }

    /// Delete the jobs of this end up to this place. Their counts are the caller's.
    pub fn drop_until(&self, queue: i64, end: End, last: i64) -> Try<()> {
        // Most files have nothing in most of these.
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

    /// The job is gone, with all that belongs to it.
    pub fn delete(&mut self, line: usize, job: &Leaving) -> Try<()> {
        let by_seq = |sql: &str, seq: i64| self.conn.prepare_cached(sql)?.execute([seq]);
        by_seq("DELETE FROM jobs WHERE seq = ?1", job.seq)?;
        by_seq("DELETE FROM results WHERE seq = ?1", job.seq)?;
        by_seq("DELETE FROM attempts WHERE seq = ?1", job.seq)?;
        if let Some(body) = job.body {
            by_seq("DELETE FROM bodies WHERE id = ?1", body)?;
        }
        if job.keyed {
            self.drop_key(job.seq)?;
        }
        let marks = self.marks(line);
        marks.remove(job.state);
        if job.state == State::Ready {
            marks.withdraw();
        }
        Ok(())
    }
}
