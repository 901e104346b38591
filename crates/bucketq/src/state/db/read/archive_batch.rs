//! Selects the finished jobs that leave next for the archive, and reads finished jobs as runs
//! (docs/decisions/0016-archive.md).
//!
//! Called on a settled image to make an archive object, and by queries about the archive. Changes nothing.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use rusqlite::params;

use crate::noun::error::Result;
use crate::noun::job::{JobId, State};
use crate::noun::life::{Life, LifeKind, Part};
use crate::state::db::columns::sql;
use crate::state::db::earlier_runs::LifeColumns;
use crate::state::db::fault::{Fault, Try};
use crate::state::db::job_row::{BODY, INLINE, NO_TOKEN, attempt};
use crate::state::db::names::NOBODY;
use crate::state::db::retention::{End, by_end};
use crate::state::db::{Db, Moment, Tx};

/// Finished jobs of a queue after one `finish_seq` up to another, in that order.
pub(in crate::state::db) const FINISHED: [&str; 3] = by_end!(
    sql!("SELECT ", LifeColumns::COLUMNS, " FROM jobs LEFT JOIN results ON results.seq = jobs.seq WHERE "),
    " AND finish_seq > ?2 AND finish_seq <= ?3 ORDER BY finish_seq LIMIT ?4"
);

/// Runs of one queue that are about to leave.
#[derive(Clone, Debug, PartialEq)]
pub struct ArchiveBatch {
    /// `queues.id`.
    pub queue: i64,
    /// The runs.
    pub lives: Vec<Life>,
    /// The parts that they come from.
    pub parts: Vec<Part>,
}

/// Runs that are in archive objects already while the pages still have them: per queue and kind, all up to a place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gone(Vec<(i64, Part)>);

impl Gone {
    /// Adds these parts. They come after the known ones of the same queue and kind.
    pub fn add(&mut self, queue: i64, parts: &[Part]) {
        for part in parts {
            match self.0.iter_mut().find(|(of, known)| *of == queue && known.kind == part.kind) {
                Some((_, known)) => *known = Part { jobs: known.jobs + part.jobs, ..*part },
                None => self.0.push((queue, *part)),
            }
        }
    }

    /// Returns the place after which the other runs are, and how many have gone.
    pub(in crate::state::db) fn of(&self, queue: i64, kind: LifeKind) -> (i64, i64) {
        let known = self.0.iter().find(|(of, part)| *of == queue && part.kind == kind);
        known.map_or((-1, 0), |(_, part)| (part.until as i64, part.jobs as i64))
    }
}

/// Payloads and results that are read one after another: many small ones share a piece of memory.
#[derive(Debug, Default)]
pub(in crate::state::db) struct Values(BytesMut);

impl Values {
    /// Bytes of a shared piece.
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
    /// Returns the oldest jobs that are to leave the queue with most of them, at most `most` and about `bytes` in size;
    /// without those in `gone`, which have left since or are about to.
    pub fn leaving(
        &mut self,
        at: &Moment,
        most: u32,
        bytes: usize,
        gone: &Gone,
    ) -> Result<Option<ArchiveBatch>> {
        self.look(at, |tx| tx.leaving(most, bytes, gone))
    }

    /// Returns runs of all queues that are not archived yet, after one `finish_seq` up to another, in that order, at
    /// most `limit`.
    pub fn finished_lives(&mut self, after: u64, until: u64, limit: u32, at: &Moment) -> Result<Vec<Life>> {
        self.look(at, |tx| tx.finished(None, after, until, limit))
    }
}

impl Tx<'_> {
    fn leaving(&mut self, most: u32, bytes: usize, gone: &Gone) -> Try<Option<ArchiveBatch>> {
        let mut lines = vec![];
        for line in self.all_lines()?.filter(|l| self.line(*l).policy.archive).collect::<Vec<_>>() {
            let queue = self.line(line).id;
            let past: i64 = self
                .conn
                .prepare_cached(crate::state::db::earlier_runs::COUNT_UNTIL)?
                .query_row([queue, i64::MAX], |row| row.get(0))?;
            let over = End::ALL.map(|end| self.over_retention(line, end) - gone.of(queue, end.kind()).1);
            let past = past - gone.of(queue, LifeKind::Past).1;
            lines.push((over.into_iter().fold(past, i64::max), line));
        }
        lines.sort_by_key(|(most, _)| -most);
        for (_, line) in lines {
            let mut leaving = ArchiveBatch { queue: self.line(line).id, lives: vec![], parts: vec![] };
            let mut room = bytes;
            for end in End::ALL {
                let gone = gone.of(leaving.queue, end.kind());
                self.leave(line, end, most, &mut room, gone, &mut leaving)?;
            }
            let gone = gone.of(leaving.queue, LifeKind::Past);
            self.leaving_earlier_runs(line, most, &mut room, gone, &mut leaving)?;
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
        leaving: &mut ArchiveBatch,
    ) -> Try<()> {
        let policy = Arc::clone(&self.line(line).policy);
        let excess = self.over_retention(line, end) - gone;
        let age_ms = end.keep_ms(&policy);
        let before = age_ms.map_or(i64::MIN, |age| self.now_ms.saturating_sub(age));
        let left = i64::from(most) - leaving.lives.len() as i64;
        let limit = if age_ms.is_some() { left } else { left.min(excess) };
        if limit <= 0 || *room == 0 {
            return Ok(());
        }
        let mut part = Part { kind: end.kind(), until: 0, jobs: 0 };
        let mut values = Values::default();
        let mut stmt = self.conn.prepare_cached(end.pick(FINISHED))?;
        let mut rows = stmt.query(params![self.line(line).id, after, i64::MAX, limit])?;
        while let Some(row) = rows.next()? {
            let row = LifeColumns::read(row)?;
            let aged = row.ends_ms <= before;
            if (part.jobs as i64 >= excess && !aged) || *room == 0 {
                break;
            }
            let one = self.life(row, line, policy.archive_payloads, &mut values)?;
            part = Part { until: one.finish_seq, jobs: part.jobs + 1, ..part };
            *room = room.saturating_sub(one.size());
            leaving.lives.push(one);
        }
        if part.jobs > 0 {
            leaving.parts.push(part);
        }
        Ok(())
    }

    /// Returns the run in a row.
    pub fn life(
        &mut self,
        row: LifeColumns<'_>,
        line: usize,
        payloads: bool,
        values: &mut Values,
    ) -> Try<Life> {
        let LifeColumns { state, run, seq, worker, enqueued_ms, .. } = row;
        let claimed = row.token != NO_TOKEN;
        let tries = attempt(row.tries)?;
        let payload = match row.payload_kind {
            _ if !payloads => None,
            INLINE => Some(values.copy(row.payload.bytes()?)),
            BODY => Some(self.body(row.body, |bytes| values.copy(bytes))?),
            kind => return Err(Fault::corrupt(format!("this library knows no payload kind {kind}"))),
        };
        let (result_type, result) = match row.result_type {
            Some(kind) => (Some(self.text(kind)?), Some(values.copy(row.result.bytes()?))),
            None => (None, None),
        };
        let failed = tries > 1 || state == State::Dead;
        Ok(Life {
            finish_seq: row.finish_seq as u64,
            id: JobId(uuid::Uuid::from_bytes(row.id)),
            run,
            queue: self.line(line).name.clone(),
            group: row.group_name.map(Into::into),
            state,
            priority: row.priority,
            attempts: tries,
            max_attempts: row.max_attempts,
            worker: if claimed && worker != NOBODY { Some(self.text(worker)?) } else { None },
            enqueued_ms,
            run_at_ms: row.due_ms.unwrap_or(enqueued_ms),
            first_claimed_ms: claimed.then_some(row.first_ms),
            claimed_ms: claimed.then_some(row.claimed_ms),
            finished_ms: row.ends_ms,
            seq: seq as u64,
            fence: claimed.then_some(row.fence as u64),
            payload_len: row.payload_len as u64,
            payload_type: if payload.is_some() { Some(self.text(row.content_type)?) } else { None },
            payload,
            result,
            result_type,
            last_error: if failed { self.last_error(seq, run)? } else { None },
        })
    }

    /// Returns runs that are not archived yet, of one queue or of all, after one place up to another, in order; at most
    /// `limit`.
    pub fn finished(&mut self, queue: Option<&str>, after: u64, until: u64, limit: u32) -> Try<Vec<Life>> {
        let queues = match queue {
            Some(name) => self.find_line(name)?.into_iter().collect(),
            None => self.all_lines()?.collect::<Vec<_>>(),
        };
        let place = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let (mut lives, mut values) = (vec![], Values::default());
        for line in queues {
            let payloads = self.line(line).policy.archive_payloads;
            for end in End::ALL {
                let mut stmt = self.conn.prepare_cached(end.pick(FINISHED))?;
                let mut rows = stmt.query(params![self.line(line).id, place(after), place(until), limit])?;
                while let Some(row) = rows.next()? {
                    lives.push(self.life(LifeColumns::read(row)?, line, payloads, &mut values)?);
                }
            }
            lives.extend(self.finished_earlier_runs(line, place(after), place(until), limit)?);
        }
        lives.sort_unstable_by_key(|life| life.finish_seq);
        lives.truncate(limit as usize);
        Ok(lives)
    }
}
