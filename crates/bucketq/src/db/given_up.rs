//! Archive objects that are too old: they leave the list at once, and stay in its table until nobody looks for them.
//!
//! Called by the commit that lists an object, and by the writer (docs/decisions/0016-archive.md).

use rusqlite::params;

use super::fault::Try;
use super::{Db, Moment, Turn};
use crate::broken::Broken;
use crate::error::Result;
use crate::life::Archived;

/// Objects of a queue that are too old.
pub(super) const TOO_OLD: &str =
    "UPDATE archives SET dropped_seq = ?3 WHERE queue = ?1 AND last_ms < ?2 AND dropped_seq IS NULL";
/// Whether there are such.
pub(super) const ANY_TOO_OLD: &str =
    "SELECT 1 FROM archives WHERE queue = ?1 AND last_ms < ?2 AND dropped_seq IS NULL LIMIT 1";
/// Entries whose objects nobody looks for any more.
pub(super) const FORGET: &str = "DELETE FROM archives WHERE dropped_seq < ?1";

impl Db {
    /// Whether there are objects to give up.
    pub fn archives_too_old(&mut self, at: &Moment) -> Result<bool> {
        self.look(at, |turn| {
            let mut old = false;
            for line in turn.all_lines()? {
                old |= turn.has_too_old(line)?;
            }
            Ok(old)
        })
    }

    /// The archive objects that must stay while the floor is this: those listed, and those given up no longer ago.
    pub fn archives_kept(&mut self, floor: u64) -> Result<Vec<Archived>> {
        let at = Moment { now_ms: 0, commit_seq: 0 };
        self.look(&at, |turn| {
            let which = if turn.is_broken(Broken::GivenUpGoesAtOnce) {
                "dropped_seq IS NULL AND ?1 >= 0"
            } else if turn.is_broken(Broken::GivenUpStays) {
                "?1 >= 0"
            } else {
                "dropped_seq IS NULL OR dropped_seq >= ?1"
            };
            turn.listed(which, [floor as i64])
        })
    }
}

impl Turn<'_> {
    /// An object of a queue is too old.
    pub fn has_too_old(&self, line: usize) -> Try<bool> {
        let Some(before) = self.too_old(line) else { return Ok(false) };
        Ok(self.conn.prepare_cached(ANY_TOO_OLD)?.exists(params![self.line(line).id, before])?)
    }

    /// Objects whose newest life ended before this are too old.
    fn too_old(&self, line: usize) -> Option<i64> {
        let age = self.line(line).policy.archive_ms?;
        let age = if self.is_broken(Broken::GivenUpTooSoon) { age / 2 } else { age };
        Some(self.now_ms.saturating_sub(age))
    }

    /// Give up what is too old, and forget what was given up so long ago that the floor has passed it.
    pub fn give_up(&mut self, floor: u64) -> Try<()> {
        for line in self.all_lines()? {
            if let Some(before) = self.too_old(line) {
                let queue = self.line(line).id;
                self.conn.prepare_cached(TOO_OLD)?.execute(params![queue, before, self.commit_seq as i64])?;
            }
        }
        if !self.is_broken(Broken::GivenUpStays) {
            self.conn.prepare_cached(FORGET)?.execute([floor as i64])?;
        }
        Ok(())
    }
}
