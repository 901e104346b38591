//! How jobs leave the file: retention of finished ones, many at a time, and deletion of one, for purge.
//!
//! A job takes with it its body, result, attempts and its hold on a dedup key; a dedup window outlives its job.

use rusqlite::{Row, params};

use super::Turn;
use super::fault::Try;
use super::row::state;
use crate::job::State;

/// Most jobs one finish deletes.
const BATCH: i64 = 128;

/// Finished jobs of a queue that retention may delete, oldest first.
pub(super) const OLDEST: &str = "SELECT seq, state, id, dedup, body, ends_ms FROM jobs \
     WHERE queue = ?1 AND state IN (5, 7) ORDER BY ends_ms, seq LIMIT ?2";

/// The jobs up to one of [`OLDEST`].
macro_rules! oldest_until {
    () => {
        "queue = ?1 AND state IN (5, 7) AND (ends_ms, seq) <= (?2, ?3)"
    };
}
/// Their results.
pub(super) const DROP_RESULTS: &str =
    concat!("DELETE FROM results WHERE seq IN (SELECT seq FROM jobs WHERE ", oldest_until!(), ")");
/// Their attempts.
pub(super) const DROP_ATTEMPTS: &str =
    concat!("DELETE FROM attempts WHERE seq IN (SELECT seq FROM jobs WHERE ", oldest_until!(), ")");
/// Their bodies.
pub(super) const DROP_BODIES: &str =
    concat!("DELETE FROM bodies WHERE id IN (SELECT body FROM jobs WHERE ", oldest_until!(), ")");
/// The jobs themselves.
pub(super) const DROP_JOBS: &str = concat!("DELETE FROM jobs WHERE ", oldest_until!());

/// What has to be known of a job to delete it.
pub(super) struct Leaving {
    pub seq: i64,
    pub state: State,
    pub id: [u8; 16],
    pub dedup: Option<String>,
    pub body: Option<i64>,
}

impl Leaving {
    /// From the columns seq, state, id, dedup, body.
    pub fn read(row: &Row<'_>) -> Try<Self> {
        Ok(Self {
            seq: row.get(0)?,
            state: state(row.get(1)?)?,
            id: row.get(2)?,
            dedup: row.get(3)?,
            body: row.get(4)?,
        })
    }
}

impl Turn<'_> {
    /// Delete the oldest done and cancelled jobs of a queue when there are clearly more than it keeps. The slack makes
    /// one finish in many do the work of all, on neighbouring rows and with one statement a table.
    pub fn retain(&mut self, line: usize) -> Try<()> {
        let marks = &self.line(line).marks;
        let excess = marks.count(State::Done) + marks.count(State::Cancelled) - marks.retain;
        if excess <= (marks.retain / 16).clamp(0, 64) {
            return Ok(());
        }
        let queue = self.line(line).id;
        let (mut last, mut bodies) = (None, false);
        let mut stmt = self.conn.prepare_cached(OLDEST)?;
        let mut rows = stmt.query([queue, excess.min(BATCH)])?;
        while let Some(row) = rows.next()? {
            let job = Leaving::read(row)?;
            last = Some((row.get::<_, i64>(5)?, job.seq));
            bodies |= job.body.is_some();
            self.drop_key(queue, &job.id, job.dedup.as_deref())?;
            self.marks(line).remove(job.state);
        }
        let Some((ends_ms, seq)) = last else { return Ok(()) };
        let tables =
            [Some(DROP_RESULTS), Some(DROP_ATTEMPTS), bodies.then_some(DROP_BODIES), Some(DROP_JOBS)];
        for sql in tables.into_iter().flatten() {
            self.conn.prepare_cached(sql)?.execute([queue, ends_ms, seq])?;
        }
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
        self.drop_key(self.line(line).id, &job.id, job.dedup.as_deref())?;
        let marks = self.marks(line);
        marks.remove(job.state);
        if job.state == State::Ready {
            marks.withdraw();
        }
        Ok(())
    }

    /// The job no longer keeps others out.
    pub fn drop_key(&self, queue: i64, id: &[u8; 16], dedup: Option<&str>) -> Try<()> {
        if let Some(key) = dedup {
            self.conn
                .prepare_cached(
                    "DELETE FROM dedup WHERE queue = ?1 AND key = ?2 AND id = ?3 AND until_ms IS NULL",
                )?
                .execute(params![queue, key, id])?;
        }
        Ok(())
    }
}
