//! Dedup keys: whether one is taken, and by which job; storing keys; deleting expired ones.
//!
//! Keys are practically random, and an index by key would change a page for each of them. So they are stored in the
//! order of enqueues, at the seq of their job, and [`Places`] in memory finds a key
//! (docs/decisions/0018-dedup-keys.md).

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};

use rusqlite::{Connection, OptionalExtension, params};

use super::Tx;
use super::columns::{Borrowed, row, sql};
use super::fault::Try;
use super::op::enqueue::commit_of;
use crate::noun::job::{Dedup, JobId};
use crate::noun::op::Enqueued;

/// Expired keys that one enqueue deletes.
const SWEEP: i64 = 100;
/// Outdated hints may be as many as the keys when all were read, plus this number.
const SLACK: usize = 8_192;

row! { struct ExpiredKey { seq: i64, until_ms: i64 } }
/// Expired keys, by the index on their end.
pub(super) const EXPIRED: &str =
    sql!("SELECT ", ExpiredKey::COLUMNS, " FROM dedup WHERE until_ms IS NOT NULL ORDER BY until_ms LIMIT ?1");
row! { struct KeyColumns<'r> { queue: i64, key: Borrowed<'r>, seq: i64 } }
/// Rows after one place: the keys added since.
pub(super) const SINCE: &str = sql!("SELECT ", KeyColumns::COLUMNS, " FROM dedup WHERE seq > ?1");

/// Where a key may be in the table: for each row, the hash of its key and its seq. The row decides, so a surplus hint
/// does no harm, but a missing one lets a second job in.
///
/// A deletion may be undone, and then the row is back. So hints removed in the newest transaction are kept until the
/// next one begins, and hints first read within a transaction are dropped when it is undone.
#[derive(Debug, Default)]
pub(super) struct Places {
    hasher: RandomState,
    hints: HashMap<u64, i64>,
    /// Further places with the same hash.
    more: BTreeSet<(u64, i64)>,
    /// Removed in the newest transaction.
    gone: Vec<(u64, i64)>,
    /// All rows up to this one have hints; `None` before the first lookup.
    upto: Option<i64>,
    /// There may be newer rows.
    behind: bool,
    /// The commit in whose transaction the hints were first read, and their number then.
    read_in: u64,
    read: usize,
    /// The hints were read before the newest transaction began.
    settled: bool,
}

impl Places {
    /// Begins a transaction: earlier ones are not undone any more without [`Places::default`]. Reads the keys that
    /// other writers have added since.
    pub fn begin(&mut self, conn: &Connection) -> rusqlite::Result<()> {
        self.gone.clear();
        if self.count() > 2 * self.read + SLACK {
            self.clear();
        }
        self.settled = self.upto.is_some();
        match self.upto {
            Some(upto) if self.behind => self.read_after(conn, upto),
            _ => Ok(()),
        }
    }

    /// Handles the undo of the open transaction, or of a part of it.
    pub fn rolled_back(&mut self) {
        for place in std::mem::take(&mut self.gone) {
            self.add(place);
        }
        if !self.settled {
            self.clear();
        }
    }

    /// Handles pages that are those of this commit, or of that commit and later commits of other writers; at most the
    /// newest transaction was undone.
    pub fn rewind(&mut self, commit_seq: u64) {
        self.rolled_back();
        if self.read_in > commit_seq {
            self.clear();
        }
        self.upto = self.upto.map(|upto| upto.min(((commit_seq + 1) << 24) as i64 - 1));
        self.behind = true;
    }

    /// Returns the number of hints.
    pub fn count(&self) -> usize {
        self.hints.len() + self.more.len()
    }

    fn clear(&mut self) {
        *self = Self { hasher: std::mem::take(&mut self.hasher), ..Self::default() };
    }

    /// Reads all hints, unless they are known.
    fn load(&mut self, conn: &Connection, commit_seq: u64) -> rusqlite::Result<()> {
        if self.upto.is_some() {
            return Ok(());
        }
        self.read_after(conn, -1)?;
        self.read_in = commit_seq;
        self.read = self.count();
        Ok(())
    }

    fn read_after(&mut self, conn: &Connection, seq: i64) -> rusqlite::Result<()> {
        let mut stmt = conn.prepare_cached(SINCE)?;
        let mut rows = stmt.query([seq])?;
        let mut upto = seq;
        while let Some(row) = rows.next()? {
            let row = KeyColumns::read(row)?;
            upto = row.seq;
            self.add((self.hash(row.queue, row.key.text()?), upto));
        }
        self.upto = Some(upto);
        self.behind = false;
        Ok(())
    }

    fn hash(&self, queue: i64, key: &str) -> u64 {
        self.hasher.hash_one((queue, key))
    }

    fn of(&self, hash: u64) -> impl Iterator<Item = i64> {
        let more = self.more.range((hash, i64::MIN)..=(hash, i64::MAX)).map(|(_, seq)| *seq);
        self.hints.get(&hash).copied().into_iter().chain(more)
    }

    fn add(&mut self, (hash, seq): (u64, i64)) {
        if *self.hints.entry(hash).or_insert(seq) != seq {
            self.more.insert((hash, seq));
        }
    }

    /// Adds a row that was written in the open transaction.
    fn written(&mut self, place: (u64, i64)) {
        if self.upto.is_some() {
            self.add(place);
            self.upto = self.upto.max(Some(place.1));
        }
    }

    /// Removes the hint of a row that does not exist in the open transaction.
    fn take(&mut self, (hash, seq): (u64, i64)) {
        if self.hints.get(&hash) == Some(&seq) {
            self.hints.remove(&hash);
        }
        self.more.remove(&(hash, seq));
        self.gone.push((hash, seq));
    }
}

/// Whether a key is taken.
pub(super) enum Key {
    Taken(Enqueued),
    /// Free; an expired row of the key, if any, is at this seq.
    Free(Option<i64>),
}

row! {
    /// A kept key, without its text.
    struct DedupRow { seq: i64, id: [u8; 16], until_ms: Option<i64> }
}
row! { struct KeptKey<'r> { queue: i64, key: Borrowed<'r>, row: DedupRow = DedupRow::COLUMNS } }
row! { struct KeyOwner { seq: i64, live: bool = "state <= 4", enqueued_ms: i64 } }

impl Tx<'_> {
    /// Returns whether a key is taken, and then the result of the enqueue.
    pub fn key(&mut self, queue: &str, key: &str) -> Try<Key> {
        let Some(line) = self.find_line(queue)? else { return Ok(Key::Free(None)) };
        let Some(kept) = self.find_key(self.line(line).id, key)? else { return Ok(Key::Free(None)) };
        let job = self
            .conn
            .prepare_cached(sql!("SELECT ", KeyOwner::COLUMNS, " FROM jobs WHERE id = ?1"))?
            .query_row([kept.id], KeyOwner::read)
            .optional()?;
        let counts = match kept.until_ms {
            Some(until_ms) => !self.has_ended(until_ms),
            None => job.as_ref().is_some_and(|job| job.live),
        };
        if !counts {
            return Ok(Key::Free(Some(kept.seq)));
        }
        Ok(Key::Taken(Enqueued {
            id: JobId(uuid::Uuid::from_bytes(kept.id)),
            deduplicated: true,
            existing: false,
            // The job may have been deleted within the window.
            commit_ms: job.as_ref().map_or(0, |job| job.enqueued_ms),
            commit_seq: commit_of(job.map_or(kept.seq, |job| job.seq)),
            dropped: vec![],
        }))
    }

    /// Stores the key of a job that was just enqueued at `seq`; `old` is the key's expired row.
    pub fn store_key(
        &mut self,
        queue: i64,
        dedup: &Dedup,
        until_ms: Option<i64>,
        id: &JobId,
        seq: i64,
        old: Option<i64>,
    ) -> Try<()> {
        let hash = self.cache.places.hash(queue, &dedup.key);
        if let Some(old) = old {
            self.conn.prepare_cached("DELETE FROM dedup WHERE seq = ?1")?.execute([old])?;
            self.cache.places.take((hash, old));
        }
        self.conn
            .prepare_cached("INSERT INTO dedup (seq, queue, key, id, until_ms) VALUES (?1, ?2, ?3, ?4, ?5)")?
            .execute(params![seq, queue, dedup.key, id.as_bytes(), until_ms])?;
        self.cache.places.written((hash, seq));
        if let Some(until_ms) = until_ms {
            self.cache.sweep_ms = self.cache.sweep_ms.min(until_ms);
        }
        Ok(())
    }

    /// Frees the key of the job at `seq`, unless it has a window.
    pub fn drop_key(&self, seq: i64) -> Try<()> {
        self.conn.prepare_cached("DELETE FROM dedup WHERE seq = ?1 AND until_ms IS NULL")?.execute([seq])?;
        Ok(())
    }

    /// Frees the key of the job at `seq`, even within its window.
    pub fn free_key(&self, seq: i64) -> Try<()> {
        self.conn.prepare_cached("DELETE FROM dedup WHERE seq = ?1")?.execute([seq])?;
        Ok(())
    }

    /// Moves the key of a job to its new seq.
    pub fn move_key(&mut self, from: i64, to: i64) -> Try<()> {
        let sql = sql!("UPDATE dedup SET seq = ?2 WHERE seq = ?1 RETURNING ", KeyColumns::COLUMNS);
        let mut stmt = self.conn.prepare_cached(sql)?;
        let mut rows = stmt.query([from, to])?;
        while let Some(row) = rows.next()? {
            let (row, places) = (KeyColumns::read(row)?, &mut self.cache.places);
            places.written((places.hash(row.queue, row.key.text()?), row.seq));
        }
        Ok(())
    }

    /// Deletes some keys whose window is over.
    pub fn sweep(&mut self) -> Try<()> {
        if self.cache.sweep_ms > self.now_ms {
            return Ok(());
        }
        // Reads one row more than it deletes, to know when the next sweep is due.
        let keys = self
            .conn
            .prepare_cached(EXPIRED)?
            .query_map([SWEEP + 1], ExpiredKey::read)?
            .collect::<rusqlite::Result<Vec<_>>>()?;
        self.cache.sweep_ms = i64::MAX;
        for (i, ExpiredKey { seq, until_ms }) in keys.iter().enumerate() {
            if !self.has_ended(*until_ms) || i as i64 == SWEEP {
                self.cache.sweep_ms = *until_ms;
                break;
            }
            self.conn.prepare_cached("DELETE FROM dedup WHERE seq = ?1")?.execute([seq])?;
        }
        Ok(())
    }

    fn find_key(&mut self, queue: i64, key: &str) -> Try<Option<DedupRow>> {
        self.cache.places.load(self.conn, self.commit_seq)?;
        let hash = self.cache.places.hash(queue, key);
        let (mut found, mut nowhere) = (None, vec![]);
        for seq in self.cache.places.of(hash) {
            let kept = self
                .conn
                .prepare_cached(sql!("SELECT ", KeptKey::COLUMNS, " FROM dedup WHERE seq = ?1"))?
                .query_row([seq], |row| {
                    let kept = KeptKey::read(row)?;
                    Ok((kept.queue == queue && kept.key.text()? == key, kept.row))
                })
                .optional()?;
            match kept {
                Some((true, kept)) => {
                    found = Some(kept);
                    break;
                }
                // Two keys with one hash, or a place that has another row since a rollback.
                Some((false, _)) => {}
                None => nowhere.push(seq),
            }
        }
        for seq in nowhere {
            self.cache.places.take((hash, seq));
        }
        Ok(found)
    }

    /// Returns whether a window is over: it counts up to its end, exclusively.
    fn has_ended(&self, until_ms: i64) -> bool {
        until_ms <= self.now_ms
    }
}
