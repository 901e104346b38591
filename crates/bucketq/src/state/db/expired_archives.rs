//! Expired archive objects: they leave the list at once, but stay in its table until no reader can need them.
//!
//! Called by the commit that lists an object, and by the writer (docs/decisions/0016-archive.md).

use rusqlite::params;

use super::fault::Try;
use super::{Db, Moment, Tx};
use crate::noun::error::Result;
use crate::noun::life::Archived;

/// Marks the expired objects of a queue.
pub(super) const TOO_OLD: &str =
    "UPDATE archives SET dropped_seq = ?3 WHERE queue = ?1 AND last_ms < ?2 AND dropped_seq IS NULL";
/// Whether a queue has expired objects.
pub(super) const ANY_TOO_OLD: &str =
    "SELECT 1 FROM archives WHERE queue = ?1 AND last_ms < ?2 AND dropped_seq IS NULL LIMIT 1";
/// Deletes entries whose objects no reader can need any more.
pub(super) const FORGET: &str = "DELETE FROM archives WHERE dropped_seq < ?1";

impl Db {
    /// Returns whether objects have expired.
    pub fn archives_too_old(&mut self, at: &Moment) -> Result<bool> {
        self.look(at, |tx| {
            let mut old = false;
            for line in tx.all_lines()? {
                old |= tx.has_too_old(line)?;
            }
            Ok(old)
        })
    }

    /// Returns the archive objects that must be kept with this floor: those listed, and those that expired at or after
    /// it.
    pub fn live_archives(&mut self, floor: u64) -> Result<Vec<Archived>> {
        let at = Moment { now_ms: 0, commit_seq: 0 };
        self.look(&at, |tx| tx.listed("dropped_seq IS NULL OR dropped_seq >= ?1", [floor as i64]))
    }
}

impl Tx<'_> {
    /// Returns whether the queue has an expired object.
    pub fn has_too_old(&self, line: usize) -> Try<bool> {
        let Some(before) = self.too_old(line) else { return Ok(false) };
        Ok(self.conn.prepare_cached(ANY_TOO_OLD)?.exists(params![self.line(line).id, before])?)
    }

    /// Returns the time before which the newest run of an expired object ended.
    fn too_old(&self, line: usize) -> Option<i64> {
        let age = self.line(line).policy.archive_ms?;
        Some(self.now_ms.saturating_sub(age))
    }

    /// Expires objects that are too old, and deletes entries that expired before the floor.
    pub fn expire_archives(&mut self, floor: u64) -> Try<()> {
        for line in self.all_lines()? {
            if let Some(before) = self.too_old(line) {
                let queue = self.line(line).id;
                self.conn.prepare_cached(TOO_OLD)?.execute(params![queue, before, self.commit_seq as i64])?;
            }
        }
        self.conn.prepare_cached(FORGET)?.execute([floor as i64])?;
        Ok(())
    }
}
