//! Dedup keys: whether one is taken, and by which job; keeping one; clearing away those whose time is over.
//!
//! Keys are as good as random, and a tree in their order would change a page for each of them. So they lie in the order
//! of enqueues, at the seq of their job, and a key is found by [`Places`] in memory (docs/decisions/0018-dedup-keys.md).

use std::collections::{BTreeSet, HashMap};
use std::hash::{BuildHasher, RandomState};

use rusqlite::{Connection, OptionalExtension, params};

use super::Turn;
use super::enqueue::commit_of;
use super::fault::Try;
use crate::broken::Broken;
use crate::job::{Dedup, JobId};
use crate::op::Enqueued;

/// Expired keys that one enqueue clears away.
const SWEEP: i64 = 100;
/// Hints that lead nowhere may be as many as there were keys when all were read, and so many more.
const SLACK: usize = 8_192;

/// Expired keys, by the index on their end.
pub(super) const EXPIRED: &str =
    "SELECT seq, until_ms FROM dedup WHERE until_ms IS NOT NULL ORDER BY until_ms LIMIT ?1";
/// Rows after one place, the places of keys that came since.
pub(super) const SINCE: &str = "SELECT seq, queue, key FROM dedup WHERE seq > ?1";
/// Where in the table a key may stand: for each row that is there, the hash of its key and its seq. The row decides, so
/// a hint too many does no harm, and one too few lets a second job in.
///
/// What deleted a row may be undone, and then the row is back: hints taken away in the newest transaction are kept until
/// the next one begins, and what was first read within a transaction is dropped when that is undone.
#[derive(Debug, Default)]
pub(super) struct Places {
    hasher: RandomState,
    hints: HashMap<u64, i64>,
    /// Further places under the same hash.
    more: BTreeSet<(u64, i64)>,
    /// Taken away in the newest transaction.
    gone: Vec<(u64, i64)>,
    /// All rows up to this one have hints; `None` before the first key was asked for.
    upto: Option<i64>,
    /// Rows may have come behind that one.
    behind: bool,
    /// The commit in whose transaction they were first read, and how many there were.
    read_in: u64,
    read: usize,
    /// They were read before the newest transaction began.
    settled: bool,
}

impl Places {
    /// A transaction begins, and none before it is undone any more without [`Places::default`]: read what others have
    /// added since.
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

    /// The open transaction, or a part of it, was undone.
    pub fn rolled_back(&mut self) {
        for place in std::mem::take(&mut self.gone) {
            self.add(place);
        }
        if !self.settled {
            self.clear();
        }
    }

    /// The pages are as of this commit, or of that commit and of what others did since; at most the newest transaction
    /// was undone.
    pub fn rewind(&mut self, commit_seq: u64) {
        self.rolled_back();
        if self.read_in > commit_seq {
            self.clear();
        }
        self.upto = self.upto.map(|upto| upto.min(((commit_seq + 1) << 24) as i64 - 1));
        self.behind = true;
    }

    /// How many hints there are.
    pub fn count(&self) -> usize {
        self.hints.len() + self.more.len()
    }

    fn clear(&mut self) {
        *self = Self { hasher: std::mem::take(&mut self.hasher), ..Self::default() };
    }

    /// Read them all, unless they are known.
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
            upto = row.get(0)?;
            self.add((self.hash(row.get(1)?, row.get_ref(2)?.as_str()?), upto));
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

    /// A row was written in the open transaction.
    fn written(&mut self, place: (u64, i64)) {
        if self.upto.is_some() {
            self.add(place);
            self.upto = self.upto.max(Some(place.1));
        }
    }

    /// No row is there in the open transaction.
    fn take(&mut self, (hash, seq): (u64, i64)) {
        if self.hints.get(&hash) == Some(&seq) {
            self.hints.remove(&hash);
        }
        self.more.remove(&(hash, seq));
        self.gone.push((hash, seq));
    }
}

/// Whether a key keeps others out.
pub(super) enum Key {
    Taken(Enqueued),
    /// The row it still has, if any, stands there and counts no more.
    Free(Option<i64>),
}

/// A key in the table.
struct Kept {
    seq: i64,
    id: [u8; 16],
    until_ms: Option<i64>,
}

impl Turn<'_> {
    /// Whether a key is taken, and what to answer then.
    pub fn key(&mut self, queue: &str, key: &str) -> Try<Key> {
        let Some(line) = self.find_line(queue)? else { return Ok(Key::Free(None)) };
        let Some(kept) = self.find_key(self.line(line).id, key)? else { return Ok(Key::Free(None)) };
        let job = self
            .conn
            .prepare_cached("SELECT seq, state <= 4 FROM jobs WHERE id = ?1")?
            .query_row([kept.id], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, bool>(1)?)))
            .optional()?;
        let counts = match kept.until_ms {
            Some(until_ms) => !self.has_ended(until_ms),
            None => job.is_some_and(|(_, live)| live),
        };
        if !counts {
            return Ok(Key::Free(Some(kept.seq)));
        }
        Ok(Key::Taken(Enqueued {
            id: JobId(uuid::Uuid::from_bytes(kept.id)),
            deduplicated: true,
            // The job may have been deleted within the window.
            commit_seq: commit_of(job.map_or(kept.seq, |(seq, _)| seq)),
            dropped: vec![],
        }))
    }

    /// The key of a job that was just enqueued at `seq`; `old` is the row that it is free of.
    pub fn keep_key(
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

    /// The job at `seq` no longer keeps others out.
    pub fn drop_key(&self, seq: i64) -> Try<()> {
        self.conn.prepare_cached("DELETE FROM dedup WHERE seq = ?1 AND until_ms IS NULL")?.execute([seq])?;
        Ok(())
    }

    /// The job has a new seq, and its key with it.
    pub fn move_key(&mut self, from: i64, to: i64) -> Try<()> {
        let mut stmt =
            self.conn.prepare_cached("UPDATE dedup SET seq = ?2 WHERE seq = ?1 RETURNING queue, key")?;
        let mut rows = stmt.query([from, to])?;
        while let Some(row) = rows.next()? {
            let places = &mut self.cache.places;
            let key = row.get_ref(1)?.as_str().map_err(rusqlite::Error::from)?;
            places.written((places.hash(row.get(0)?, key), to));
        }
        Ok(())
    }

    /// Clear away some keys whose window is over.
    pub fn sweep(&mut self) -> Try<()> {
        if self.cache.sweep_ms > self.now_ms {
            return Ok(());
        }
        // One more than is cleared: it says when the next sweep is due.
        let keys = self
            .conn
            .prepare_cached(EXPIRED)?
            .query_map([SWEEP + 1], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?)))?
            .collect::<rusqlite::Result<Vec<_>>>()?;
        self.cache.sweep_ms = i64::MAX;
        for (i, (seq, until_ms)) in keys.iter().enumerate() {
            if !self.has_ended(*until_ms) || i as i64 == SWEEP {
                self.cache.sweep_ms = *until_ms;
                break;
            }
            self.conn.prepare_cached("DELETE FROM dedup WHERE seq = ?1")?.execute([seq])?;
        }
        Ok(())
    }

    fn find_key(&mut self, queue: i64, key: &str) -> Try<Option<Kept>> {
        self.cache.places.load(self.conn, self.commit_seq)?;
        let hash = self.cache.places.hash(queue, key);
        let (mut found, mut nowhere) = (None, vec![]);
        for seq in self.cache.places.of(hash) {
            let kept = self
                .conn
                .prepare_cached("SELECT queue, key, id, until_ms FROM dedup WHERE seq = ?1")?
                .query_row([seq], |row| {
                    let same = row.get::<_, i64>(0)? == queue && row.get_ref(1)?.as_str()? == key;
                    Ok((same, Kept { seq, id: row.get(2)?, until_ms: row.get(3)? }))
                })
                .optional()?;
            match kept {
                Some((true, kept)) => {
                    found = Some(kept);
                    break;
                }
                // Two keys with one hash, or a place that another row has got since a rollback.
                Some((false, _)) => {}
                None => nowhere.push(seq),
            }
        }
        for seq in nowhere {
            self.cache.places.take((hash, seq));
        }
        Ok(found)
    }

    /// A window counts up to its end, and at its end no more.
    fn has_ended(&self, until_ms: i64) -> bool {
        if self.is_broken(Broken::WindowTooLong) {
            return until_ms < self.now_ms;
        }
        until_ms <= self.now_ms + i64::from(self.is_broken(Broken::WindowTooShort))
    }
}
