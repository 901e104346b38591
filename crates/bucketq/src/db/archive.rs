//! The archive in the database: when there is something to do for it, the list of archive objects, and the one change that
//! puts an object on the list and takes its jobs out (docs/decisions/0016-archive.md).
//!
//! Called by the writer, and by questions about the archive. Knows nothing of where objects lie.

use std::sync::Arc;

use rusqlite::{OptionalExtension, params};

use super::fault::{Fault, Try};
use super::keep::{End, by_end};
use super::{Db, Limits, Moment, Turn};
use crate::broken::Broken;
use crate::error::{Code, Error, Result};
use crate::event::Happened;
use crate::job::State;
use crate::life::{Archived, Kind, Listing};

/// How many there are up to a place.
pub(super) const COUNT_UNTIL: [&str; 2] =
    by_end!("SELECT count(*) FROM jobs WHERE ", " AND finish_seq <= ?2");
/// When a job finished that stands so far behind the oldest.
pub(super) const NTH: [&str; 2] =
    by_end!("SELECT ends_ms FROM jobs WHERE ", " ORDER BY finish_seq LIMIT 1 OFFSET ?2");
/// When the archive of a queue last grew.
pub(super) const NEWEST_LISTED: &str =
    "SELECT max(listed_ms) FROM archives WHERE queue = ?1 AND dropped_seq IS NULL";

/// How many of a kind there are up to a place.
const fn count_until(kind: Kind) -> &'static str {
    match kind {
        Kind::Well => End::Well.pick(COUNT_UNTIL),
        Kind::Dead => End::Dead.pick(COUNT_UNTIL),
        Kind::Past => super::past::COUNT_UNTIL,
    }
}

/// What there is to do for the archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Nothing yet.
    Nothing,
    /// Jobs are to leave.
    Jobs,
    /// Objects are too old.
    Objects,
}

impl Db {
    /// Whether the archive has something to do: a queue has `enough` jobs to leave, or some for longer than `every_ms`.
    /// `thorough` also looks for those that are due by time.
    pub fn archive_due(&mut self, at: &Moment, enough: u64, every_ms: i64, thorough: bool) -> Result<Due> {
        self.look(at, |turn| turn.archive_due(enough as i64, every_ms, thorough))
    }

    /// Put an uploaded object on the list and take its jobs out, and give up what is too old. `floor` is that of the
    /// commit this is built on (P13). Refused, with nothing changed, when the jobs are not all there any more or the
    /// object lies below the floor: then it is garbage.
    pub fn archive(
        &mut self,
        listing: Option<&Listing>,
        at: &Moment,
        floor: u64,
        limits: &Limits,
    ) -> Result<()> {
        self.check_writable()?;
        let ready = self.limit_pages(limits.max_pages).and_then(|()| self.bring_up());
        let done = ready.and_then(|()| self.turn(at, limits).archive(listing, floor));
        done.map_err(|fault| {
            self.poisoned |= matches!(fault, Fault::Broken(_));
            fault.into_error()
        })
    }

    /// The listing with what is left of its jobs, if none are; only for a rule broken on purpose, so never in what ships.
    pub(crate) fn as_if_there(&mut self, listing: &Listing) -> Option<Listing> {
        let there = listing.parts.iter().any(|part| {
            let mut stmt = self.conn.prepare_cached(count_until(part.kind)).ok();
            let count = stmt
                .as_mut()
                .map(|s| s.query_row(params![listing.queue, part.until as i64], |row| row.get::<_, i64>(0)));
            !matches!(count, Some(Ok(0)))
        });
        (!there).then(|| Listing { parts: vec![], counts: [0; 3], ..listing.clone() })
    }

    /// The jobs leave, and nothing is listed; only for a rule broken on purpose, so never in what ships.
    pub(crate) fn only_leave(&mut self, listing: &Listing, at: &Moment, limits: &Limits) -> Result<()> {
        self.turn(at, limits).leave_file(listing).map_err(Fault::into_error)
    }
}

impl Turn<'_> {
    fn archive_due(&mut self, enough: i64, every_ms: i64, thorough: bool) -> Try<Due> {
        let mut old = false;
        for line in self.all_lines()? {
            let (queue, policy) = (self.line(line).id, Arc::clone(&self.line(line).policy));
            if policy.archive && End::BOTH.into_iter().any(|end| self.over_kept(line, end) >= enough) {
                return Ok(Due::Jobs);
            }
            if policy.archive
                && thorough
                && (self.nth_past(queue, enough - 1)?.is_some() || self.overdue(line, every_ms)?)
            {
                return Ok(Due::Jobs);
            }
            old |= thorough && self.has_too_old(line)?;
        }
        Ok(if old { Due::Objects } else { Due::Nothing })
    }

    /// A job should have left for longer than this, and no other has since.
    fn overdue(&mut self, line: usize, every_ms: i64) -> Try<bool> {
        let (queue, policy) = (self.line(line).id, Arc::clone(&self.line(line).policy));
        let listed: Option<i64> =
            self.conn.prepare_cached(NEWEST_LISTED)?.query_row([queue], |row| row.get(0))?;
        let waits =
            |since: i64| self.now_ms >= since && self.now_ms - since.max(listed.unwrap_or(0)) >= every_ms;
        for end in End::BOTH {
            let nth = |n: i64| -> Try<Option<i64>> {
                let mut stmt = self.conn.prepare_cached(end.pick(NTH))?;
                Ok(stmt.query_row([queue, n], |row| row.get(0)).optional()?)
            };
            let Some(oldest) = nth(0)? else { continue };
            // The oldest leaves when one too many finishes after it, or when it is too old.
            let by_age = policy.keep_ms.map(|age| oldest.saturating_add(age));
            let by_number = nth(policy.keep as i64)?;
            let Some(since) = [by_age, by_number].into_iter().flatten().min() else { continue };
            if waits(since) {
                return Ok(true);
            }
        }
        Ok(self.nth_past(queue, 0)?.is_some_and(waits))
    }

    fn archive(&mut self, listing: Option<&Listing>, floor: u64) -> Try<()> {
        if let Some(listing) = listing {
            self.may_list(listing, floor)?;
        }
        // Before the new one: whatever is listed stays so for a commit at least, or nobody would ever see it.
        self.give_up(floor)?;
        listing.map_or(Ok(()), |listing| self.list_object(listing))
    }

    /// Every refusal comes before the first write.
    fn may_list(&mut self, listing: &Listing, floor: u64) -> Try<()> {
        let object = &listing.object;
        let refused = |why: &str| {
            Err(Error::new(Code::Contended, format!("an archive object is dropped: {why}")).into())
        };
        if object.seq < floor {
            return refused("the floor has passed it");
        }
        // The rows were chosen by the policy of their state, which may be some commits old.
        let line = self.line_of(listing.queue)?;
        let policy = Arc::clone(&self.line(line).policy);
        if !policy.archive {
            return refused("its queue has no archive any more");
        }
        for part in &listing.parts {
            let kept = match part.kind {
                Kind::Well => self.over_kept(line, End::Well) < part.jobs as i64,
                Kind::Dead => self.over_kept(line, End::Dead) < part.jobs as i64,
                Kind::Past => false,
            };
            if kept && policy.keep_ms.is_none() {
                return refused("its queue keeps more now");
            }
            // What comes later stands behind: so many up to there means that they are the same.
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
            self.tell(Happened::Archived { queue, count: object.jobs });
        }
        Ok(())
    }

    /// Take the jobs of an object out, with what belongs to them.
    fn leave_file(&mut self, listing: &Listing) -> Try<()> {
        let line = self.line_of(listing.queue)?;
        for part in &listing.parts {
            let until = part.until as i64;
            match part.kind {
                Kind::Well => self.drop_until(listing.queue, End::Well, until)?,
                Kind::Dead => self.drop_until(listing.queue, End::Dead, until)?,
                // Not always, or the archive would never come to an end.
                Kind::Past if self.is_broken(Broken::PastStays) && self.commit_seq.is_multiple_of(2) => {}
                Kind::Past => {
                    self.conn.prepare_cached(super::past::DROP)?.execute([listing.queue, until])?;
                }
            }
        }
        let marks = self.marks(line);
        for (state, n) in [State::Done, State::Dead, State::Cancelled].into_iter().zip(listing.counts) {
            marks.drop_many(state, n as i64);
        }
        Ok(())
    }

    /// Objects on the list for which a condition holds, in the order in which they were listed.
    pub fn listed(&mut self, which: &str, params: impl rusqlite::Params) -> Try<Vec<Archived>> {
        let sql = format!(
            "SELECT queue, file, seq, rand, bytes, hash, jobs, first_seq, last_seq, first_ms, last_ms, listed_seq, \
             listed_ms FROM archives WHERE {which} ORDER BY id"
        );
        let mut stmt = self.conn.prepare_cached(&sql)?;
        let mut rows = stmt.query(params)?;
        let mut listed = vec![];
        while let Some(row) = rows.next()? {
            let line = self.line_of(row.get(0)?)?;
            listed.push(Archived {
                key: String::new(),
                queue: self.line(line).name.clone(),
                file: row.get(1)?,
                seq: row.get::<_, i64>(2)? as u64,
                rand: row.get(3)?,
                bytes: row.get::<_, i64>(4)? as u64,
                hash: row.get(5)?,
                jobs: row.get::<_, i64>(6)? as u64,
                first_seq: row.get::<_, i64>(7)? as u64,
                last_seq: row.get::<_, i64>(8)? as u64,
                first_ms: row.get(9)?,
                last_ms: row.get(10)?,
                listed_seq: row.get::<_, i64>(11)? as u64,
                listed_ms: row.get(12)?,
            });
        }
        Ok(listed)
    }
}
