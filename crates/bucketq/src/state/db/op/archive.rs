//! The archive in the database: when work is due for it, the list of archive objects, and the one change that adds an
//! object to the list and deletes its jobs (docs/decisions/0016-archive.md).
//!
//! Called by the writer, and by queries about the archive. Does not know where objects are stored.

use std::sync::Arc;

use rusqlite::{OptionalExtension, params};

use crate::noun::error::{Code, Error, Result};
use crate::noun::event::Happened;
use crate::noun::life::{Archived, LifeKind, Listing};
use crate::state::db::columns::row;
use crate::state::db::fault::{Fault, Try};
use crate::state::db::retention::{End, by_end};
use crate::state::db::{Db, Limits, Moment, Tx};

/// The number of finished jobs up to a place.
pub(in crate::state::db) const COUNT_UNTIL: [&str; 3] =
    by_end!("SELECT count(*) FROM jobs WHERE ", " AND finish_seq <= ?2");
/// When the job finished that is a number of places after the oldest.
pub(in crate::state::db) const NTH: [&str; 3] =
    by_end!("SELECT ends_ms FROM jobs WHERE ", " ORDER BY finish_seq LIMIT 1 OFFSET ?2");
/// When an object of a queue was last listed.
pub(in crate::state::db) const NEWEST_LISTED: &str =
    "SELECT max(listed_ms) FROM archives WHERE queue = ?1 AND dropped_seq IS NULL";

row! {
    struct ListedObject {
        queue: i64, file: [u8; 4], seq: i64, rand: [u8; 8], bytes: i64, hash: [u8; 16], jobs: i64, first_seq: i64,
        last_seq: i64, first_ms: i64, last_ms: i64, listed_seq: i64, listed_ms: i64,
    }
}

/// Returns the statement that counts the runs of a kind up to a place.
const fn count_until(kind: LifeKind) -> &'static str {
    match End::of(kind) {
        Some(end) => end.pick(COUNT_UNTIL),
        None => crate::state::db::earlier_runs::COUNT_UNTIL,
    }
}

/// The work that is due for the archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArchiveDue {
    /// Nothing yet.
    Nothing,
    /// Jobs are due to leave.
    Jobs,
    /// Objects have expired.
    Objects,
}

impl Db {
    /// Returns the work that is due: a queue has `enough` jobs to leave, or some for longer than `every_ms`. `thorough`
    /// also checks the times.
    pub fn archive_due(
        &mut self,
        at: &Moment,
        enough: u64,
        every_ms: i64,
        thorough: bool,
    ) -> Result<ArchiveDue> {
        self.look(at, |tx| tx.archive_due(enough as i64, every_ms, thorough))
    }

    /// Lists an uploaded object and deletes its jobs, and expires objects that are too old. `floor` is that of the
    /// commit this is built on (P13). Fails without a change when some of the jobs have left or the object is below the
    /// floor: then the object is garbage.
    pub fn archive(
        &mut self,
        listing: Option<&Listing>,
        at: &Moment,
        floor: u64,
        limits: &Limits,
    ) -> Result<()> {
        self.check_writable()?;
        let ready = self.limit_pages(limits.max_pages).and_then(|()| self.bring_up());
        let done = ready.and_then(|()| self.tx(at, limits).archive(listing, floor));
        done.map_err(|fault| {
            self.poisoned |= matches!(fault, Fault::Broken(_));
            fault.into_error()
        })
    }
}

impl Tx<'_> {
    fn archive_due(&mut self, enough: i64, every_ms: i64, thorough: bool) -> Try<ArchiveDue> {
        let mut old = false;
        for line in self.all_lines()? {
            let (queue, policy) = (self.line(line).id, Arc::clone(&self.line(line).policy));
            if policy.archive && End::ALL.into_iter().any(|end| self.over_retention(line, end) >= enough) {
                return Ok(ArchiveDue::Jobs);
            }
            if policy.archive
                && thorough
                && (self.nth_earlier_run(queue, enough - 1)?.is_some() || self.overdue(line, every_ms)?)
            {
                return Ok(ArchiveDue::Jobs);
            }
            old |= thorough && self.has_too_old(line)?;
        }
        Ok(if old { ArchiveDue::Objects } else { ArchiveDue::Nothing })
    }

    /// Returns whether a job should have left longer ago than this, and none has left since.
    fn overdue(&mut self, line: usize, every_ms: i64) -> Try<bool> {
        let (queue, policy) = (self.line(line).id, Arc::clone(&self.line(line).policy));
        let listed: Option<i64> =
            self.conn.prepare_cached(NEWEST_LISTED)?.query_row([queue], |row| row.get(0))?;
        let waits =
            |since: i64| self.now_ms >= since && self.now_ms - since.max(listed.unwrap_or(0)) >= every_ms;
        for end in End::ALL {
            let nth = |n: i64| -> Try<Option<i64>> {
                let mut stmt = self.conn.prepare_cached(end.pick(NTH))?;
                Ok(stmt.query_row([queue, n], |row| row.get(0)).optional()?)
            };
            let Some(oldest) = nth(0)? else { continue };
            // The oldest leaves when a finished job exceeds the number to keep, or when it is too old.
            let by_age = end.keep_ms(&policy).map(|age| oldest.saturating_add(age));
            let by_number = nth(end.keep(&policy) as i64)?;
            let Some(since) = [by_age, by_number].into_iter().flatten().min() else { continue };
            if waits(since) {
                return Ok(true);
            }
        }
        Ok(self.nth_earlier_run(queue, 0)?.is_some_and(waits))
    }

    fn archive(&mut self, listing: Option<&Listing>, floor: u64) -> Try<()> {
        if let Some(listing) = listing {
            self.may_list(listing, floor)?;
        }
        // Before the new one is listed: every listed object stays listed for at least one commit, so that readers can
        // see it.
        self.expire_archives(floor)?;
        listing.map_or(Ok(()), |listing| self.list_object(listing))
    }

    /// Checks everything before the first write.
    fn may_list(&mut self, listing: &Listing, floor: u64) -> Try<()> {
        let object = &listing.object;
        let refused = |why: &str| {
            Err(Error::new(Code::Contended, format!("an archive object is dropped: {why}")).into())
        };
        if object.seq < floor {
            return refused("the floor has passed it");
        }
        // The rows were chosen by the policy of the state they were read from, which may be some commits old.
        let line = self.line_of(listing.queue)?;
        let policy = Arc::clone(&self.line(line).policy);
        if !policy.archive {
            return refused("its queue has no archive any more");
        }
        for part in &listing.parts {
            let is_kept = End::of(part.kind).is_some_and(|end| {
                end.keep_ms(&policy).is_none() && self.over_retention(line, end) < part.jobs as i64
            });
            if is_kept {
                return refused("its queue keeps more now");
            }
            // Later jobs come after that place: the same number up to it means the same jobs.
            let there: i64 = self
                .conn
                .prepare_cached(count_until(part.kind))?
                .query_row(params![listing.queue, part.until as i64], |row| row.get(0))?;
            if there as u64 != part.jobs {
                return refused("its jobs have left, or were requeued or purged");
            }
        }
        Ok(())
    }

    fn list_object(&mut self, listing: &Listing) -> Try<()> {
        let object = &listing.object;
        self.leave_file(listing)?;
        let line = self.line_of(listing.queue)?;
        self.conn
            .prepare_cached(
                "INSERT INTO archives (queue, file, seq, rand, bytes, hash, jobs, first_seq, last_seq, first_ms, last_ms, \
                 listed_seq, listed_ms) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
            )?
            .execute(params![
                listing.queue,
                object.file,
                object.seq as i64,
                object.rand,
                object.bytes as i64,
                object.hash,
                object.jobs as i64,
                object.first_seq as i64,
                object.last_seq as i64,
                object.first_ms,
                object.last_ms,
                self.commit_seq as i64,
                self.now_ms
            ])?;
        if self.watched() {
            let queue = self.line(line).name.clone();
            self.report(Happened::Archived { queue, count: object.jobs });
        }
        Ok(())
    }

    /// Deletes the jobs of an object and their rows in other tables.
    fn leave_file(&mut self, listing: &Listing) -> Try<()> {
        let line = self.line_of(listing.queue)?;
        for part in &listing.parts {
            let until = part.until as i64;
            if let Some(end) = End::of(part.kind) {
                self.leave_with(listing.queue, end, until)?;
                self.marks(line).drop_many(end.state(), part.jobs as i64);
            } else {
                self.conn
                    .prepare_cached(crate::state::db::earlier_runs::DROP)?
                    .execute([listing.queue, until])?;
            }
        }
        Ok(())
    }

    fn leave_with(&mut self, queue: i64, end: End, until: i64) -> Try<()> {
        let leavers = self.leavers(queue, end, until)?;
        self.drop_until(queue, end, until)?;
        self.remember(leavers)
    }

    /// Returns the listed objects that match a condition, in the order of their listing.
    pub fn listed(&mut self, which: &str, params: impl rusqlite::Params) -> Try<Vec<Archived>> {
        let sql = format!("SELECT {} FROM archives WHERE {which} ORDER BY id", ListedObject::COLUMNS);
        let mut stmt = self.conn.prepare_cached(&sql)?;
        let mut rows = stmt.query(params)?;
        let mut listed = vec![];
        while let Some(row) = rows.next()? {
            let row = ListedObject::read(row)?;
            let line = self.line_of(row.queue)?;
            listed.push(Archived {
                key: String::new(),
                queue: self.line(line).name.clone(),
                file: row.file,
                seq: row.seq as u64,
                rand: row.rand,
                bytes: row.bytes as u64,
                hash: row.hash,
                jobs: row.jobs as u64,
                first_seq: row.first_seq as u64,
                last_seq: row.last_seq as u64,
                first_ms: row.first_ms,
                last_ms: row.last_ms,
                listed_seq: row.listed_seq as u64,
                listed_ms: row.listed_ms,
            });
        }
        Ok(listed)
    }
}
