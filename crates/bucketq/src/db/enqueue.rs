//! Enqueue: jobs go to the end of a queue, all or none, each id and each dedup key once.
//!
//! Every refusal comes before the first write.

use std::borrow::Cow;
use std::sync::Arc;

use rusqlite::{OptionalExtension, params};

use super::Turn;
use super::dedup::Key;
use super::fault::Try;
use super::names::NOBODY;
use super::queues::FIRST_TURN;
use super::row::{BODY, INLINE, NO_TOKEN, UNTRIED};
use crate::config::INLINE_PAYLOAD;
use crate::error::{Code, Error};
use crate::event::{At, Happened};
use crate::job::{Dedup, DedupScope, JobId, New, State, When};
use crate::op::Enqueued;
use crate::policy::{Overflow, Policy};

/// Bytes a job takes beside its payload, headers and names, its index entries included: rather too many.
const JOB_BYTES: usize = 320;
/// Bytes of a page that hold data when b-trees are filled as badly as they get.
const USABLE: i64 = 2048;

impl Turn<'_> {
    pub fn enqueue(&mut self, queue: &str, jobs: &[New]) -> Try<Vec<Enqueued>> {
        self.make_room(jobs)?;
        let dropped = self.make_way(queue, jobs)?;
        self.sweep()?;
        let mut done = jobs.iter().map(|job| self.enqueue_one(queue, job)).collect::<Try<Vec<Enqueued>>>()?;
        if let Some(first) = done.first_mut() {
            first.dropped = dropped;
        }
        Ok(done)
    }

    /// The dedup key of a job, if only by the policy of its queue.
    pub fn dedup_of<'a>(&self, line: usize, job: &'a New) -> Option<Cow<'a, Dedup>> {
        match &job.dedup {
            Some(dedup) => Some(Cow::Borrowed(dedup)),
            None if !self.line(line).policy.dedup_content => None,
            None => Some(Cow::Owned(Dedup::of_content(&job.payload, DedupScope::Policy))),
        }
    }

    /// Whether the key is taken: by this very job, sent once more, or by another.
    fn key_for(&mut self, queue: &str, job: &New, key: &str) -> Try<Key> {
        let found = self.key(queue, key)?;
        let Key::Taken(there) = &found else { return Ok(found) };
        // A repeated enqueue is answered as it was, whoever has its key by now.
        if let Some(known) = self.known(&job.id)? {
            return Ok(Key::Taken(known));
        }
        if self.watched() {
            self.tell(Happened::Deduplicated { queue: queue.into(), id: there.id });
        }
        Ok(found)
    }

    fn enqueue_one(&mut self, queue: &str, job: &New) -> Try<Enqueued> {
        let found = self.find_line(queue)?;
        let dedup = match found {
            Some(line) => self.dedup_of(line, job),
            None => job.dedup.as_ref().map(Cow::Borrowed),
        };
        // The insert notices a known id by itself, but then a queue would have been made for nothing.
        if found.is_none()
            && let Some(there) = self.known(&job.id)?
        {
            return Ok(there);
        }
        let mut old_key = None;
        if let Some(dedup) = &dedup {
            match self.key_for(queue, job, &dedup.key)? {
                Key::Taken(there) => return Ok(there),
                Key::Free(old) => old_key = old,
            }
        }
        let line = self.make_line(queue)?;
        let policy = Arc::clone(&self.line(line).policy);
        let queue = self.line(line).id;
        let run_at_ms = match job.when {
            When::Now => self.now_ms,
            When::In(ms) => self.now_ms.saturating_add(ms),
            When::At(ms) => ms,
        };
        let state = if run_at_ms > self.now_ms { State::Scheduled } else { State::Ready };
        let held = self.is_held(line, job.group.as_deref())?;
        let turn = if held { FIRST_TURN } else { self.next_turn(line, job.group.as_deref()) };
        let backoff = self.intern_backoff(job.backoff.as_ref().unwrap_or(&policy.backoff))?;
        let content_type = self.intern(&job.payload.content_type)?;
        let headers = if job.headers.is_empty() { None } else { serde_json::to_string(&job.headers).ok() };
        let bytes = &job.payload.bytes[..];
        let apart = bytes.len() > INLINE_PAYLOAD;
        let seq = self.next_seq();
        let added = self
            .conn
            .prepare_cached(
                "INSERT INTO jobs (seq, queue, state, held, tries, run_at_ms, claimed_ms, ends_ms, fence, worker, \
                 token, priority, run, max_attempts, enqueued_ms, backoff, content_type, id, group_name, dedup, \
                 headers, payload_kind, payload_len, body, payload, turn, bounded, finish_seq, first_ms, due_ms) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7, ?8, ?9, ?10, ?11, 0, ?12, ?7, ?13, ?14, ?15, ?16, ?17, \
                 ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?1, ?7, ?25) ON CONFLICT (id) DO NOTHING",
            )?
            .execute(params![
                seq,
                queue,
                state as i64,
                i64::from(held),
                UNTRIED,
                run_at_ms,
                self.now_ms,
                self.commit_seq as i64,
                NOBODY,
                NO_TOKEN,
                job.priority,
                job.max_attempts.unwrap_or(policy.max_attempts),
                backoff,
                content_type,
                job.id.as_bytes(),
                job.group,
                dedup.as_ref().map(|d| &d.key),
                headers,
                if apart { BODY } else { INLINE },
                bytes.len() as i64,
                apart.then_some(seq),
                (!apart).then_some(bytes),
                turn,
                i64::from(policy.overflow == Overflow::DropOldest),
                (state == State::Scheduled).then_some(run_at_ms),
            ])?;
        if added == 0 {
            self.cache.ordinal -= 1;
            return self.known(&job.id)?.ok_or_else(|| super::Fault::corrupt("the index of ids misleads"));
        }
        if apart {
            self.conn
                .prepare_cached("INSERT INTO bodies (id, bytes) VALUES (?1, ?2)")?
                .execute(params![seq, bytes])?;
        }
        if let Some(dedup) = &dedup {
            let until_ms = self.key_ends_ms(dedup.scope, &policy);
            self.keep_key(queue, dedup, until_ms, &job.id, seq, old_key)?;
        }
        self.take_turns(line, job.group.as_deref());
        let marks = self.marks(line);
        marks.add(state);
        match state {
            _ if held => {}
            State::Ready => marks.offer((job.priority, seq)),
            _ => marks.due_ms = marks.due_ms.min(run_at_ms),
        }
        if self.watched() {
            let queue = self.line(line).name.clone();
            self.tell(Happened::Enqueued(At { queue, id: job.id, run: 0, attempt: 0 }));
        }
        Ok(Enqueued { id: job.id, deduplicated: false, commit_seq: self.commit_seq, dropped: vec![] })
    }

    /// When a key that is kept now counts no more; none: while its job is unfinished.
    fn key_ends_ms(&self, scope: DedupScope, policy: &Policy) -> Option<i64> {
        let scope = if scope == DedupScope::Policy { policy.dedup_scope() } else { scope };
        match scope {
            DedupScope::Window(ms) => Some(self.now_ms.saturating_add(ms)),
            DedupScope::Unfinished | DedupScope::Policy => None,
        }
    }

    /// The answer for a job that is there already under this id.
    pub fn known(&mut self, id: &JobId) -> Try<Option<Enqueued>> {
        let seq: Option<i64> = self
            .conn
            .prepare_cached("SELECT seq FROM jobs WHERE id = ?1")?
            .query_row([id.as_bytes()], |row| row.get(0))
            .optional()?;
        Ok(seq.map(|seq| Enqueued {
            id: *id,
            deduplicated: false,
            commit_seq: commit_of(seq),
            dropped: vec![],
        }))
    }

    /// Refuse jobs that would bring the file near its limit: acks and purges must still work then.
    pub fn make_room(&mut self, jobs: &[New]) -> Try<()> {
        let need: i64 = jobs.iter().map(|job| bytes_of(job) as i64).sum();
        if self.cache.room < need {
            let pragma = |name| self.conn.prepare_cached(name)?.query_row([], |row| row.get::<_, i64>(0));
            let used = pragma("PRAGMA page_count")? - pragma("PRAGMA freelist_count")?;
            let max = i64::from(self.limits.max_pages);
            let reserve = (max / 16).clamp(8, 1024);
            self.cache.room = (max - reserve - used) * USABLE;
        }
        if self.cache.room < need {
            return Err(Error::new(
                Code::FileFull,
                format!("the queue file is at its limit of {} pages, or near it", self.limits.max_pages),
            )
            .into());
        }
        self.cache.room -= need;
        Ok(())
    }
}

/// A body fills its pages, which the badly filled ones are counted as twice over.
fn bytes_of(job: &New) -> usize {
    let len = job.payload.bytes.len();
    let payload = if len > INLINE_PAYLOAD { len.div_ceil(4092) * USABLE as usize } else { len };
    let headers: usize = job.headers.iter().map(|(k, v)| 2 * (k.len() + v.len()) + 6).sum();
    let names =
        2 * job.group.as_ref().map_or(0, String::len) + 2 * job.dedup.as_ref().map_or(0, |d| d.key.len());
    JOB_BYTES + payload + headers + names
}

/// `commit_seq` in a seq.
pub(super) const fn commit_of(seq: i64) -> u64 {
    (seq >> 24) as u64
}
