//! A queue as a whole: create and delete it, and refuse names that were never created.
//!
//! A deleted queue keeps its row, which attempts, archive objects and dedup keys of others may refer to: its gate is
//! closed for good, until a queue of this name is created again.

use std::collections::HashSet;
use std::sync::Arc;

use rusqlite::{OptionalExtension, params};

use super::moves::unknown_queue;
use crate::noun::job::State;
use crate::noun::op::Outcome;
use crate::noun::policy::Policy;
use crate::state::db::Tx;
use crate::state::db::fault::Try;
use crate::state::db::queues::{Gate, NEVER};

const STRICT: &str = "SELECT 1 FROM meta WHERE name = 'strict_queues' AND value = 1";

impl Tx<'_> {
    pub fn create_queue(&mut self, queue: &str) -> Try<Outcome> {
        let is_new = self.find_line(queue)?.is_none();
        self.make_line(queue)?;
        Ok(Outcome::QueueCreated { is_new })
    }

    /// Takes one step of the deletion of a queue. Only the last one, which leaves no job, deletes the queue itself.
    pub fn delete_queue(&mut self, queue: &str, limit: u32) -> Try<Outcome> {
        let Some(line) = self.find_line(queue)? else {
            return Ok(Outcome::QueueDeleted { count: 0, was_there: false, more: false });
        };
        let count = self.purge_before(line, &State::ALL, i64::MAX, limit.into(), &HashSet::new())?;
        let more = self.line(line).marks.total() > 0;
        if more {
            self.set_gate(line, Gate::Draining)?;
            return Ok(Outcome::QueueDeleted { count, was_there: true, more });
        }
        let id = self.line(line).id;
        for sql in [
            "DELETE FROM schedules WHERE queue = ?1",
            "DELETE FROM policies WHERE queue = ?1",
            "DELETE FROM past WHERE queue = ?1",
        ] {
            self.conn.prepare_cached(sql)?.execute([id])?;
        }
        self.cache.paused.forget();
        self.set_policy(line, Arc::new(Policy::default()));
        let marks = self.marks(line);
        marks.schedule_ms = NEVER;
        marks.saved.dropped = 0;
        self.set_gate(line, Gate::Deleted)?;
        Ok(Outcome::QueueDeleted { count, was_there: true, more })
    }

    /// Opens, pauses, drains or deletes the queue at this index.
    pub fn set_gate(&mut self, line: usize, gate: Gate) -> Try<()> {
        if self.line(line).marks.gate != gate {
            self.conn
                .prepare_cached("UPDATE queues SET paused = ?2 WHERE id = ?1")?
                .execute([self.line(line).id, gate as i64])?;
            self.marks(line).gate = gate;
        }
        Ok(())
    }

    pub fn set_strict(&mut self, strict: bool) -> Try<Outcome> {
        if self.is_strict()? != strict {
            self.conn
                .prepare_cached("INSERT OR REPLACE INTO meta (name, value) VALUES ('strict_queues', ?1)")?
                .execute(params![i64::from(strict)])?;
        }
        Ok(Outcome::StrictQueuesSet)
    }

    /// Returns whether only `CreateQueue` creates queues.
    pub fn is_strict(&self) -> Try<bool> {
        let mut stmt = self.conn.prepare_cached(STRICT)?;
        Ok(stmt.query_row([], |_| Ok(())).optional()?.is_some())
    }

    /// Refuses the name of a queue that does not exist, if the file is strict.
    pub fn check_known(&mut self, name: &str) -> Try<()> {
        if self.find_line(name)?.is_none() && self.is_strict()? {
            return Err(unknown_queue(name).into());
        }
        Ok(())
    }

    /// Returns the index of the queue with this name; creates the queue if it does not exist, unless the file is strict.
    pub fn allowed_line(&mut self, name: &str) -> Try<usize> {
        self.check_known(name)?;
        self.make_line(name)
    }
}
