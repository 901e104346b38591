//! Which finished jobs leave next for the archive, and reading them and other finished ones as lives
//! (docs/decisions/0016-archive.md).
//!
//! Called by whoever makes an object, on a settled image, and by questions about the archive. Changes nothing.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use rusqlite::{Row, params};

use super::fault::{Fault, Try};
use super::keep::{End, by_end};
use super::names::NOBODY;
use super::row::{BODY, INLINE, NO_TOKEN, attempt, state};
use super::{Db, Moment, Turn};
use crate::error::Result;
use crate::job::{JobId, State};
use crate::life::{Kind, Life, Part};

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

/// Lives that are in objects already, while the pages still have them: of each queue and kind those up to a place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gone(Vec<(i64, Part)>);

impl Gone {
    /// These too. They stand behind those of their queue and kind that are here.
    pub fn add(&mut self, queue: i64, parts: &[Part]) {
        for part in parts {
            match self.0.iter_mut().find(|(of, known)| *of == queue && known.kind == part.kind) {
                Some((_, known)) => *known = Part { jobs: known.jobs + part.jobs, ..*part },
                None => self.0.push((queue, *part)),
            }
        }
    }

    /// After which place the others stand, and how many have gone.
    pub(super) fn of(&self, queue: i64, kind: Kind) -> (i64, i64) {
        let known = self.0.iter().find(|(of, part)| *of == queue && part.kind == kind);
        known.map_or((-1, 0), |(_, part)| (part.until as i64, part.jobs as i64))
    }
}

/// Bytes of payloads and results that are read one after another: many small ones share a piece of memory.
#[derive(Debug, Default)]
pub(super) struct Values(BytesMut);

impl Values {
    /// Memory shared at the most.
    const PIECE: usize = 64 * 1024;

    fn copy(&mut self, bytes: &[u8]) -> Bytes {
        if bytes.len() > Self::PIECE / 16 {
            return Bytes::copy_from_slice(bytes);
        }
        if self.0.capacity() < bytes.len() {
            self.0 = BytesMut::with_capacity(Self::PIECE);
        }
        self.0.extend_from_slice(bytes);
        self.0.split().freeze()
    }
}

impl Db {
    /// The oldest jobs that are to leave the queue which has most of them, at most so many and of about so many bytes;
    /// those in `gone` not, for they have left since, or are about to.
    pub fn leaving(&mut self, at: &Moment, most: u32, bytes: usize, gone: &Gone) -> Result<Option<Leaving>> {
        self.look(at, |turn| turn.leaving(most, bytes, gone))
    }

    /// Lives of all queues that are not archived yet, after one place in the order of finishes up to another, in that
    /// order; at most so many.
    pub fn finished_lives(&mut self, after: u64, until: u64, limit: u32, at: &Moment) -> Result<Vec<Life>> {
        self.look(at, |turn| turn.finished(None, after, until, limit))
    }
}

impl Turn<'_> {
    fn leaving(&mut self, most: u32, bytes: usize, gone: &Gone) -> Try<Option<Leaving>> {
        let mut lines = vec![];
        for line in self.all_lines()?.filter(|l| self.line(*l).policy.archive).collect::<Vec<_>>() {
            let queue = self.line(line).id;
            let past: i64 = self
                .conn
                .prepare_cached(super::past::COUNT_UNTIL)?
                .query_row([queue, i64::MAX], |row| row.get(0))?;
            let over = End::BOTH.map(|end| self.over_kept(line, end) - gone.of(queue, end.kind()).1);
            let past = past - gone.of(queue, Kind::Past).1;
            lines.push((over.into_iter().fold(past, i64::max), line));
        }
        lines.sort_by_key(|(most, _)| -most);
        for (_, line) in lines {
            let mut leaving =
                Leaving { queue: self.line(line).id, lives: vec![], parts: vec![], counts: [0; 3] };
            let mut room = bytes;
            for end in End::BOTH {
                let gone = gone.of(leaving.queue, end.kind());
                self.leave(line, end, most, &mut room, gone, &mut leaving)?;
            }
            let gone = gone.of(leaving.queue, Kind::Past);
            self.leave_past(line, most, &mut room, gone, &mut leaving)?;
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
        (after, gone): (i64, i64),
        leaving: &mut Leaving,
    ) -> Try<()> {
        let policy = Arc::clone(&self.line(line).policy);
        let excess = self.over_kept(line, end) - gone;
        let before = policy.keep_ms.map_or(i64::MIN, |age| self.now_ms.saturating_sub(age));
        let left = i64::from(most) - leaving.lives.len() as i64;
        let limit = if policy.keep_ms.is_some() { left } else { left.min(excess) };
        if limit <= 0 || *room == 0 {
            return Ok(());
        }
        let mut part = Part { kind: end.kind(), until: 0, jobs: 0 };
        let mut values = Values::default();
        let mut stmt = self.conn.prepare_cached(end.pick(FINISHED))?;
        let mut rows = stmt.query(params![self.line(line).id, after, i64::MAX, limit])?;
        while let Some(row) = rows.next()? {
            let aged = row.get::<_, i64>(13)? <= before;
            if (part.jobs as i64 >= excess && !aged) || *room == 0 {
                break;
            }
            let one = self.life(row, line, policy.archive_payloads, &mut values)?;
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
    pub fn life(&mut self, row: &Row<'_>, line: usize, payloads: bool, values: &mut Values) -> Try<Life> {
        let state = state(row.get(4)?)?;
        let (run, seq): (u32, i64) = (row.get(2)?, row.get(14)?);
        let claimed = row.get::<_, [u8; 16]>(16)? != NO_TOKEN;
        let tries = attempt(row.get(6)?)?;
        let worker: i64 = row.get(8)?;
        let enqueued_ms: i64 = row.get(9)?;
        let mut copied = |r: &Row<'_>, i: usize| {
            r.get_ref(i)?.as_blob().map(|bytes| values.copy(bytes)).map_err(rusqlite::Error::from)
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

    /// Lives that are not archived yet, of one queue or of all, after one place up to another, in order; at most so many.
    pub fn finished(&mut self, queue: Option<&str>, after: u64, until: u64, limit: u32) -> Try<Vec<Life>> {
        let queues = match queue {
            Some(name) => self.find_line(name)?.into_iter().collect(),
            None => self.all_lines()?.collect::<Vec<_>>(),
        };
        let place = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let (mut lives, mut values) = (vec![], Values::default());
        for line in queues {
            let payloads = self.line(line).policy.archive_payloads;
            for end in End::BOTH {
                let mut stmt = self.conn.prepare_cached(end.pick(FINISHED))?;
                let mut rows = stmt.query(params![self.line(line).id, place(after), place(until), limit])?;
                while let Some(row) = rows.next()? {
                    lives.push(self.life(row, line, payloads, &mut values)?);
                }
            }
            lives.extend(self.finished_past(line, place(after), place(until), limit)?);
        }
        lives.sort_unstable_by_key(|life| life.finish_seq);
        lives.truncate(limit as usize);
        Ok(lives)
    }
}
