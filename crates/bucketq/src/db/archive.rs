//! The archive in the database: which finished jobs leave next, the list of archive objects, and the one change that puts
//! an object on the list and takes its jobs out (docs/decisions/0016-archive.md).
//!
//! Called by the writer, and by questions about the archive. Knows nothing of where objects lie.

use std::sync::Arc;

use bytes::Bytes;
use rusqlite::{OptionalExtension, Row, params};

use super::fault::{Fault, Try};
use super::keep::{End, by_end};
use super::names::NOBODY;
use super::row::{BODY, INLINE, NO_TOKEN, attempt, state};
use super::{Db, Limits, Moment, Turn};
use crate::broken::Broken;
use crate::error::{Code, Error, Result};
use crate::event::Happened;
use crate::job::{JobId, State};
use crate::life::{Archived, Kind, Life, Listing, Part};

/// The columns of a life, in the order [`Turn::life`] reads them.
macro_rules! life_columns {
    () => {
        "finish_seq, id, run, group_name, state, priority, tries, max_attempts, worker, enqueued_ms, due_ms, first_ms, \
         claimed_ms, ends_ms, jobs.seq, fence, token, payload_len, payload_kind, payload, body, jobs.content_type, \
         results.content_type, bytes"
    };
}

/// Finished jobs of a queue after one place in the order of finishes up to another, in that order.
pub(super) const FINISHED: [&str; 2] = by_end!(
    concat!("SELECT ", life_columns!(), " FROM jobs LEFT JOIN results ON results.seq = jobs.seq WHERE "),
    " AND finish_seq > ?2 AND finish_seq <= ?3 ORDER BY finish_seq LIMIT ?4"
);
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

/// Lives of one queue that are to leave.
#[derive(Clone, Debug, PartialEq)]
pub struct Leaving {
    /// `queues.id`.
    pub queue: i64,
    /// What they are.
    pub lives: Vec<Life>,
    /// Where they stand.
    pub parts: Vec<Part>,
    /// How many of the jobs among them are done, dead and cancelled.
    pub counts: [u64; 3],
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
    /// The oldest jobs that are to leave the queue which has most of them, at most so many and of about so many bytes;
    /// those in `gone` not, for they are about to leave.
    pub fn leaving(
        &mut self,
        at: &Moment,
        most: u32,
        bytes: usize,
        gone: Option<&Listing>,
    ) -> Result<Option<Leaving>> {
        self.look(at, |turn| turn.leaving(most, bytes, gone))
    }

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

    /// Lives of all queues that are not archived yet, after one place in the order of finishes up to another, in that
    /// order; at most so many.
    pub fn finished_lives(&mut self, after: u64, until: u64, limit: u32, at: &Moment) -> Result<Vec<Life>> {
        self.look(at, |turn| turn.finished(None, after, until, limit))
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

    fn leaving(&mut self, most: u32, bytes: usize, gone: Option<&Listing>) -> Try<Option<Leaving>> {
        let mut lines = vec![];
        for line in self.all_lines()?.filter(|l| self.line(*l).policy.archive).collect::<Vec<_>>() {
            let past: i64 = self
                .conn
                .prepare_cached(super::past::COUNT_UNTIL)?
                .query_row([self.line(line).id, i64::MAX], |row| row.get(0))?;
            lines.push((
                End::BOTH.map(|end| self.over_kept(line, end)).into_iter().fold(past, i64::max),
                line,
            ));
        }
        lines.sort_by_key(|(most, _)| -most);
        for (_, line) in lines {
            let mut leaving =
                Leaving { queue: self.line(line).id, lives: vec![], parts: vec![], counts: [0; 3] };
            let mut room = bytes;
            let gone = gone.filter(|listing| listing.queue == leaving.queue);
            let gone = |kind| gone.and_then(|l| l.parts.iter().find(|part| part.kind == kind));
            for end in End::BOTH {
                self.leave(line, end, most, &mut room, gone(end.kind()), &mut leaving)?;
            }
            self.leave_past(line, most, &mut room, gone(Kind::Past), &mut leaving)?;
            if !leaving.lives.is_empty() {
                leaving.lives.sort_unstable_by_key(|life| life.finish_seq);
                return Ok(Some(leaving));
            }
        }
        Ok(None)
    }

    fn leave(
        &mut self,
        line: usize,
        end: End,
        most: u32,
        room: &mut usize,
        gone: Option<&Part>,
        leaving: &mut Leaving,
    ) -> Try<()> {
        let policy = Arc::clone(&self.line(line).policy);
        let (after, gone) = gone.map_or((-1, 0), |part| (part.until as i64, part.jobs as i64));
        let excess = self.over_kept(line, end) - gone;
        let before = policy.keep_ms.map_or(i64::MIN, |age| self.now_ms.saturating_sub(age));
        let left = i64::from(most) - leaving.lives.len() as i64;
        let limit = if policy.keep_ms.is_some() { left } else { left.min(excess) };
        if limit <= 0 || *room == 0 {
            return Ok(());
        }
        let mut part = Part { kind: end.kind(), until: 0, jobs: 0 };
        let mut stmt = self.conn.prepare_cached(end.pick(FINISHED))?;
        let mut rows = stmt.query(params![self.line(line).id, after, i64::MAX, limit])?;
        while let Some(row) = rows.next()? {
            let aged = row.get::<_, i64>(13)? <= before;
            if (part.jobs as i64 >= excess && !aged) || *room == 0 {
                break;
            }
            let one = self.life(row, line, policy.archive_payloads)?;
            part = Part { until: one.finish_seq, jobs: part.jobs + 1, ..part };
            *room = room.saturating_sub(one.size());
            match one.state {
                State::Dead => leaving.counts[1] += 1,
                State::Cancelled => leaving.counts[2] += 1,
                _ => leaving.counts[0] += 1,
            }
            leaving.lives.push(one);
        }
        if part.jobs > 0 {
            leaving.parts.push(part);
        }
        Ok(())
    }

    /// The life in a row of [`life_columns`].
    pub fn life(&mut self, row: &Row<'_>, line: usize, payloads: bool) -> Try<Life> {
        let state = state(row.get(4)?)?;
        let (run, seq): (u32, i64) = (row.get(2)?, row.get(14)?);
        let claimed = row.get::<_, [u8; 16]>(16)? != NO_TOKEN;
        let tries = attempt(row.get(6)?)?;
        let worker: i64 = row.get(8)?;
        let enqueued_ms: i64 = row.get(9)?;
        let copied = |r: &Row<'_>, i: usize| {
            r.get_ref(i)?.as_blob().map(Bytes::copy_from_slice).map_err(rusqlite::Error::from)
        };
        let payload = match row.get(18)? {
            _ if !payloads => None,
            INLINE => Some(copied(row, 19)?),
            BODY => Some(
                self.conn
                    .prepare_cached("SELECT bytes FROM bodies WHERE id = ?1")?
                    .query_row([row.get::<_, i64>(20)?], |body| copied(body, 0))?,
            ),
            kind => return Err(Fault::corrupt(format!("this library knows no payload kind {kind}"))),
        };
        let (result_type, result) = match row.get::<_, Option<i64>>(22)? {
            Some(kind) => (Some(self.text(kind)?), Some(copied(row, 23)?)),
            None => (None, None),
        };
        let failed = tries > 1 || state == State::Dead;
        Ok(Life {
            finish_seq: row.get::<_, i64>(0)? as u64,
            id: JobId(uuid::Uuid::from_bytes(row.get(1)?)),
            run,
            queue: self.line(line).name.clone(),
            group: row.get::<_, Option<String>>(3)?.map(Into::into),
            state,
            priority: row.get(5)?,
            attempts: tries,
            max_attempts: row.get(7)?,
            worker: if claimed && worker != NOBODY { Some(self.text(worker)?) } else { None },
            enqueued_ms,
            run_at_ms: row.get::<_, Option<i64>>(10)?.unwrap_or(enqueued_ms),
            first_claimed_ms: if claimed { Some(row.get(11)?) } else { None },
            claimed_ms: if claimed { Some(row.get(12)?) } else { None },
            finished_ms: row.get(13)?,
            seq: seq as u64,
            fence: if claimed { Some(row.get::<_, i64>(15)? as u64) } else { None },
            payload_len: row.get::<_, i64>(17)? as u64,
            payload_type: if payload.is_some() { Some(self.text(row.get(21)?)?) } else { None },
            payload,
            result,
            result_type,
            last_error: if failed { self.last_error(seq, run)? } else { None },
        })
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
        for part in &listing.parts {
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

    /// Lives that are not archived yet, of one queue or of all, after one place up to another, in order; at most so many.
    pub fn finished(&mut self, queue: Option<&str>, after: u64, until: u64, limit: u32) -> Try<Vec<Life>> {
        let queues = match queue {
            Some(name) => self.find_line(name)?.into_iter().collect(),
            None => self.all_lines()?.collect::<Vec<_>>(),
        };
        let place = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let mut lives = vec![];
        for line in queues {
            let payloads = self.line(line).policy.archive_payloads;
            for end in End::BOTH {
                let mut stmt = self.conn.prepare_cached(end.pick(FINISHED))?;
                let mut rows = stmt.query(params![self.line(line).id, place(after), place(until), limit])?;
                while let Some(row) = rows.next()? {
                    lives.push(self.life(row, line, payloads)?);
                }
            }
            lives.extend(self.finished_past(line, place(after), place(until), limit)?);
        }
        lives.sort_unstable_by_key(|life| life.finish_seq);
        lives.truncate(limit as usize);
        Ok(lives)
    }
}
