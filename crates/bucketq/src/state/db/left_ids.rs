//! Remembers the ids of jobs that have left the file for a while (docs/decisions/0024-ids-of-jobs-that-left.md).
//!
//! A caller that does not know whether its enqueue took effect repeats it with the same id. It must not get a second
//! job because the first one was done and deleted meanwhile. Called by code that deletes jobs, by enqueues, and by ops
//! that end a job. The first bytes of an id find its rows. In ids drawn by this library they are the time: jobs that
//! leave together share a few rows, and an id newer than every remembered one needs no lookup.

use rusqlite::params;
use twox_hash::XxHash3_128;

use super::Tx;
use super::columns::{row, sql};
use super::fault::Try;
use super::retention::{End, by_end};
use crate::noun::config::REMEMBERED_MS;
use crate::noun::job::{JobId, State};
use crate::noun::lease::Token;

/// Bytes of an id outside the bucket.
const REST: usize = 11;
/// Bytes of one remembered job.
const ENTRY: usize = REST + 4;
/// Jobs in one row, so that a row fits into a page.
const MOST: usize = 250;
/// Most rows that one sweep deletes.
const SWEEP: i64 = 100;

/// Remembered ids with the same first bytes.
pub(super) const LEFT: &str = "SELECT ids FROM left_ids WHERE bucket = ?1";
/// The newest bucket.
pub(super) const NEWEST: &str = "SELECT max(bucket) FROM left_ids";
row! { struct LeftBucket { place: i64, until_ms: i64 } }
/// The rows that expire next.
pub(super) const OLDEST: &str =
    sql!("SELECT ", LeftBucket::COLUMNS, " FROM left_ids WHERE place > 0 ORDER BY place LIMIT ?1");
row! {
    /// A job that leaves the file.
    #[derive(Clone, Copy, Debug)]
    pub(super) struct Leaver { id: [u8; 16], enqueued_ms: i64, state: State, token: [u8; 16] }
}
/// Jobs of a queue that leave together for the archive.
pub(super) const LEAVE: [&str; 3] =
    by_end!(sql!("SELECT ", Leaver::COLUMNS, " FROM jobs WHERE "), " AND finish_seq <= ?2");

/// Bounds of the table that save lookups.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeftIdsBounds {
    /// No id with a later bucket is remembered; none before the first lookup.
    newest: Option<i64>,
    /// No row expires sooner.
    sweep_ms: i64,
}

impl Default for LeftIdsBounds {
    fn default() -> Self {
        Self { newest: None, sweep_ms: i64::MIN }
    }
}

impl Leaver {
    /// Returns until when an enqueue with its id counts as a repeat.
    const fn until_ms(&self) -> i64 {
        self.enqueued_ms.saturating_add(REMEMBERED_MS)
    }
}

fn bucket(id: &[u8; 16]) -> i64 {
    id[..5].iter().fold(0, |n, byte| n << 8 | i64::from(*byte))
}

/// Returns a hash that identifies the holder that ended a job in this state.
fn how(token: &[u8; 16], state: State) -> [u8; 4] {
    let mut seed = [state as u8; 17];
    seed[..16].copy_from_slice(token);
    (XxHash3_128::oneshot(&seed) as u32).to_le_bytes()
}

impl Tx<'_> {
    /// Remembers the ids of these deleted jobs until their time is over.
    pub fn remember(&mut self, mut leavers: Vec<Leaver>) -> Try<()> {
        leavers.retain(|leaver| leaver.until_ms() > self.now_ms);
        if leavers.is_empty() {
            return Ok(());
        }
        leavers.sort_unstable_by_key(|leaver| leaver.id);
        for same in leavers.chunk_by(|a, b| bucket(&a.id) == bucket(&b.id)) {
            for row in same.chunks(MOST) {
                self.remember_row(row)?;
            }
        }
        self.sweep_left()
    }

    fn remember_row(&mut self, row: &[Leaver]) -> Try<()> {
        let bucket = bucket(&row[0].id);
        let until_ms = row.iter().map(Leaver::until_ms).max().unwrap_or(0);
        let mut ids = Vec::with_capacity(row.len() * ENTRY);
        for leaver in row {
            ids.extend_from_slice(&leaver.id[16 - REST..]);
            ids.extend_from_slice(&how(&leaver.token, leaver.state));
        }
        self.conn
            .prepare_cached("INSERT INTO left_ids (bucket, until_ms, ids) VALUES (?1, ?2, ?3)")?
            .execute(params![bucket, until_ms, ids])?;
        let bounds = &mut self.cache.left;
        bounds.newest = bounds.newest.map(|newest| newest.max(bucket));
        bounds.sweep_ms = bounds.sweep_ms.min(until_ms);
        Ok(())
    }

    /// Returns the finished jobs of this kind up to this place, which are about to leave.
    pub fn leavers(&mut self, queue: i64, end: End, last: i64) -> Try<Vec<Leaver>> {
        let mut stmt = self.conn.prepare_cached(end.pick(LEAVE))?;
        let leavers = stmt.query_map([queue, last], Leaver::read)?;
        Ok(leavers.collect::<rusqlite::Result<_>>()?)
    }

    /// Returns whether a job with this id was here and has left.
    pub fn has_left(&mut self, id: &JobId) -> Try<bool> {
        Ok(self.left(id)?.is_some())
    }

    /// Returns whether the job has left after the holder of this token ended it in this state.
    pub fn left_as(&mut self, id: &JobId, token: Token, state: State) -> Try<bool> {
        Ok(self.left(id)? == Some(how(&token.0, state)))
    }

    fn left(&mut self, id: &JobId) -> Try<Option<[u8; 4]>> {
        let bucket = bucket(id.as_bytes());
        let newest = if let Some(newest) = self.cache.left.newest {
            newest
        } else {
            let newest: Option<i64> = self.conn.prepare_cached(NEWEST)?.query_row([], |row| row.get(0))?;
            *self.cache.left.newest.insert(newest.unwrap_or(-1))
        };
        if bucket > newest {
            return Ok(None);
        }
        let rest = &id.as_bytes()[16 - REST..];
        let mut stmt = self.conn.prepare_cached(LEFT)?;
        let mut rows = stmt.query([bucket])?;
        while let Some(row) = rows.next()? {
            let ids = row.get_ref(0)?.as_blob().map_err(rusqlite::Error::from)?;
            if let Some(entry) = ids.chunks_exact(ENTRY).find(|entry| entry[..REST] == *rest) {
                return Ok(entry[REST..].try_into().ok());
            }
        }
        Ok(None)
    }

    /// Forgets some ids whose time is over.
    pub fn sweep_left(&mut self) -> Try<()> {
        if self.cache.left.sweep_ms > self.now_ms {
            return Ok(());
        }
        // Reads one row more than it deletes, to know when the next sweep is due.
        let rows = self
            .conn
            .prepare_cached(OLDEST)?
            .query_map([SWEEP + 1], LeftBucket::read)?
            .collect::<rusqlite::Result<Vec<_>>>()?;
        let over = rows.iter().take(SWEEP as usize).take_while(|row| row.until_ms <= self.now_ms).count();
        self.cache.left.sweep_ms = rows.get(over).map_or(i64::MAX, |row| row.until_ms);
        if let Some(last) = over.checked_sub(1).and_then(|n| rows.get(n)) {
            self.conn.prepare_cached("DELETE FROM left_ids WHERE place <= ?1")?.execute([last.place])?;
        }
        Ok(())
    }
}
