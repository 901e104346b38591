//! Enqueue: jobs go to the end of a queue, all or none, each id and each dedup key once.
//!
//! Every refusal comes before the first write.

use std::borrow::Cow;
use std::sync::Arc;

use rusqlite::params;

use crate::noun::config::INLINE_PAYLOAD;
use crate::noun::error::{Code, Error};
use crate::noun::event::{At, Happened};
use crate::noun::job::{Dedup, DedupScope, JobId, New, State, When};
use crate::noun::op::Enqueued;
use crate::noun::policy::{Overflow, Policy};
use crate::state::db::Tx;
use crate::state::db::columns::{Borrowed, row, sql};
use crate::state::db::dedup::Key;
use crate::state::db::fault::{Fault, Try};
use crate::state::db::job_row::{BODY, INLINE, NO_TOKEN, PayloadColumns, UNTRIED};
use crate::state::db::names::NOBODY;
use crate::state::db::queues::FIRST_TURN;

/// Bytes that a job takes beside its payload, headers and names, including index entries: a high estimate.
const JOB_BYTES: usize = 320;
/// Bytes of data in a page when b-trees are filled as badly as possible.
const USABLE: i64 = 2048;

row! {
    /// The job that has the id of an enqueue.
    struct ExistingJob<'r> {
        seq: i64, enqueued_ms: i64, queue: i64, run: u32, priority: i32, group_name: Borrowed<'r>, dedup: Borrowed<'r>,
        payload: PayloadColumns<'r> = PayloadColumns::COLUMNS,
    }
}

impl Tx<'_> {
    pub fn enqueue(&mut self, queue: &str, jobs: &[New]) -> Try<Vec<Enqueued>> {
        // A later one of several jobs may have an id that is taken. A single job is refused before it writes.
        if jobs.len() > 1 && !self.cache.lines.has_undo() {
            return self.all_or_nothing(|tx| tx.enqueue_all(queue, jobs));
        }
        self.enqueue_all(queue, jobs)
    }

    fn enqueue_all(&mut self, queue: &str, jobs: &[New]) -> Try<Vec<Enqueued>> {
        self.check_known(queue)?;
        self.make_room(jobs)?;
        // Before a full queue refuses: what expires makes room.
        self.expire()?;
        let dropped = self.make_way(queue, jobs)?;
        self.sweep()?;
        self.sweep_left()?;
        let mut done = jobs.iter().map(|job| self.enqueue_one(queue, job)).collect::<Try<Vec<Enqueued>>>()?;
        if let Some(first) = done.first_mut() {
            first.dropped = dropped;
        }
        Ok(done)
    }

    /// Returns the dedup key of a job: its own, or one by the policy of its queue.
    pub fn dedup_of<'a>(&self, line: usize, job: &'a New) -> Option<Cow<'a, Dedup>> {
        match &job.dedup {
            Some(dedup) => Some(Cow::Borrowed(dedup)),
            None if !self.line(line).policy.dedup_content => None,
            None => Some(Cow::Owned(Dedup::of_content(&job.payload, DedupScope::Policy))),
        }
    }

    /// Returns whether the key is taken: by this very job, sent once more, or by another.
    fn key_for(&mut self, queue: &str, job: &New, key: &str) -> Try<Key> {
        let found = self.key(queue, key)?;
        let Key::Taken(there) = &found else { return Ok(found) };
        // A repeated enqueue returns the same result, even if another job has its key by now.
        if let Some(known) = self.there(queue, job)? {
            return Ok(Key::Taken(known));
        }
        if self.watched() {
            self.report(Happened::Deduplicated { queue: queue.into(), id: there.id });
        }
        Ok(found)
    }

    fn enqueue_one(&mut self, queue: &str, job: &New) -> Try<Enqueued> {
        let found = self.find_line(queue)?;
        let dedup = match found {
            Some(line) => self.dedup_of(line, job),
            None => job.dedup.as_ref().map(Cow::Borrowed),
        };
        // The insert itself detects a taken id, but by then a queue or a text could have been stored unnecessarily.
        let may_store = found.is_none() || !self.has_texts(found, job);
        let there = if may_store { self.there(queue, job)? } else { self.left_before(&job.id)? };
        if let Some(there) = there {
            return Ok(there);
        }
        let mut old_key = None;
        if let Some(dedup) = &dedup {
            match self.key_for(queue, job, &dedup.key)? {
                Key::Taken(there) => return Ok(there),
                Key::Free(old) => old_key = old,
            }
        }
        let name = queue;
        let line = self.make_line(queue)?;
        let policy = Arc::clone(&self.line(line).policy);
        let queue = self.line(line).id;
        let run_at_ms = self.run_at_ms(job.when);
        let state = if run_at_ms > self.now_ms { State::Scheduled } else { State::Ready };
        let blocked = self.is_blocked(line, job.group.as_deref())?;
        let turn = if blocked { FIRST_TURN } else { self.next_turn(line, job.group.as_deref()) };
        let backoff = self.intern_terms(job.backoff.as_ref().unwrap_or(&policy.backoff), job.max_run_ms)?;
        let content_type = self.intern(&job.payload.content_type)?;
        let headers = if job.headers.is_empty() { None } else { serde_json::to_string(&job.headers).ok() };
        let bytes = &job.payload.bytes[..];
        let apart = bytes.len() > INLINE_PAYLOAD;
        let seq = self.next_seq();
        let added = self
            .conn
            .prepare_cached(
                "INSERT INTO jobs (seq, queue, state, blocked, tries, run_at_ms, claimed_ms, ends_ms, fence, worker, \
                 token, priority, run, max_attempts, enqueued_ms, backoff, content_type, id, group_name, dedup, \
                 headers, payload_kind, payload_len, body, payload, turn, bounded, finish_seq, first_ms, due_ms) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7, ?8, ?9, ?10, ?11, 0, ?12, ?7, ?13, ?14, ?15, ?16, ?17, \
                 ?18, ?19, ?20, ?21, ?22, ?23, ?24, ?1, ?7, ?25) ON CONFLICT (id) DO NOTHING",
            )?
            .execute(params![
                seq,
                queue,
                state as i64,
                i64::from(blocked),
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
            return self.there(name, job)?.ok_or_else(|| Fault::corrupt("the index of ids misleads"));
        }
        if apart {
            self.conn
                .prepare_cached("INSERT INTO bodies (id, bytes) VALUES (?1, ?2)")?
                .execute(params![seq, bytes])?;
        }
        if let Some(dedup) = &dedup {
            let until_ms = self.key_ends_ms(dedup.scope, &policy);
            self.store_key(queue, dedup, until_ms, &job.id, seq, old_key)?;
        }
        self.store_expiry(seq, job.expires_ms, &policy)?;
        self.take_turns(line, job.group.as_deref());
        let marks = self.marks(line);
        marks.add(state);
        match state {
            _ if blocked => {}
            State::Ready => marks.offer((job.priority, seq)),
            _ => marks.due_ms = marks.due_ms.min(run_at_ms),
        }
        if self.watched() {
            let queue = self.line(line).name.clone();
            self.report(Happened::Enqueued(At { queue, id: job.id, run: 0, attempt: 0 }));
        }
        Ok(self.added(job.id))
    }

    /// Returns the receipt of a job that this op added.
    const fn added(&self, id: JobId) -> Enqueued {
        let (commit_seq, commit_ms) = (self.commit_seq, self.now_ms);
        Enqueued { id, deduplicated: false, existing: false, commit_seq, commit_ms, dropped: vec![] }
    }

    const fn run_at_ms(&self, when: When) -> i64 {
        match when {
            When::Now => self.now_ms,
            When::In(ms) => self.now_ms.saturating_add(ms),
            When::At(ms) => ms,
        }
    }

    /// Returns when a key that is stored now expires; none: while its job is unfinished.
    fn key_ends_ms(&self, scope: DedupScope, policy: &Policy) -> Option<i64> {
        let scope = if scope == DedupScope::Policy { policy.dedup_scope() } else { scope };
        match scope {
            DedupScope::Window(ms) => Some(self.now_ms.saturating_add(ms)),
            DedupScope::Unfinished | DedupScope::Policy => None,
        }
    }

    /// Returns the result for a job whose id is taken by this very job, sent once more. Fails if the existing job is
    /// another one.
    pub fn there(&mut self, queue: &str, job: &New) -> Try<Option<Enqueued>> {
        let sql = sql!("SELECT ", ExistingJob::COLUMNS, " FROM jobs WHERE id = ?1");
        let mut stmt = self.conn.prepare_cached(sql)?;
        let mut rows = stmt.query([job.id.as_bytes()])?;
        let Some(row) = rows.next()? else { return self.left_before(&job.id) };
        let ExistingJob { seq, enqueued_ms, queue: there, run, priority, group_name, dedup, payload } =
            ExistingJob::read(row)?;
        let line = self.line_of(there)?;
        let bytes = match payload.payload_kind {
            INLINE => payload.payload.bytes()? == &job.payload.bytes[..],
            BODY => self
                .conn
                .prepare_cached("SELECT bytes = ?2 FROM bodies WHERE id = ?1")?
                .query_row(params![payload.body, &job.payload.bytes[..]], |body| body.get(0))?,
            kind => return Err(Fault::corrupt(format!("this library knows no payload kind {kind}"))),
        };
        let (key, group) = (dedup.maybe_text()?, group_name.maybe_text()?);
        let content_type = self.text(payload.content_type)?;
        let other_key = match (&job.dedup, key) {
            (Some(dedup), _) => key != Some(&dedup.key),
            // It may come from the content, by a policy that has changed since.
            (None, Some(key)) => key != Dedup::of_content(&job.payload, DedupScope::Policy).key,
            (None, None) => false,
        };
        let differs = [
            // A job with a later run may have moved to a dead-letter queue.
            ("queue", *self.line(line).name != *queue && run == 0),
            ("payload", !bytes),
            ("content type", *content_type != *job.payload.content_type),
            ("priority", priority != job.priority),
            ("group", group != job.group.as_deref()),
            ("dedup key", other_key),
        ];
        if let Some((what, _)) = differs.iter().find(|(_, differs)| *differs) {
            let text = format!(
                "there is a job {} already, in queue {:?}, and its {what} is another one: draw a new id for a new job",
                job.id,
                self.line(line).name
            );
            return Err(Error::new(Code::IdTaken, text).into());
        }
        Ok(Some(existing(&job.id, commit_of(seq), enqueued_ms)))
    }

    /// Returns the result for a job that has left.
    fn left_before(&mut self, id: &JobId) -> Try<Option<Enqueued>> {
        Ok(self.has_left(id)?.then(|| existing(id, 0, 0)))
    }

    /// Returns whether all texts that the row of this job will refer to are known to be stored.
    fn has_texts(&self, line: Option<usize>, job: &New) -> bool {
        let names = &self.cache.names;
        let policy = line.map(|line| &self.line(line).policy.backoff);
        let backoff = job.backoff.as_ref().or(policy);
        names.has(&job.payload.content_type)
            && backoff.is_some_and(|backoff| names.has_terms(backoff, job.max_run_ms))
    }

    /// Refuses jobs that would bring the file near its limit: acks and purges must still work.
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
                format!(
                    "the queue file is full or nearly full: the option max_file allows {} pages of 4 KiB. Delete finished jobs (purge), keep fewer (keep), or raise max_file",
                    self.limits.max_pages
                ),
            )
            .into());
        }
        self.cache.room -= need;
        Ok(())
    }
}

const fn existing(id: &JobId, commit_seq: u64, commit_ms: i64) -> Enqueued {
    Enqueued { id: *id, deduplicated: false, existing: true, commit_seq, commit_ms, dropped: vec![] }
}

/// Returns the estimated bytes of a job. A body fills its pages, and badly filled pages count double.
fn bytes_of(job: &New) -> usize {
    let len = job.payload.bytes.len();
    let payload = if len > INLINE_PAYLOAD { len.div_ceil(4092) * USABLE as usize } else { len };
    let headers: usize = job.headers.iter().map(|(k, v)| 2 * (k.len() + v.len()) + 6).sum();
    let names =
        2 * job.group.as_ref().map_or(0, String::len) + 2 * job.dedup.as_ref().map_or(0, |d| d.key.len());
    JOB_BYTES + payload + headers + names
}

/// Returns the `commit_seq` in a seq.
pub(in crate::state::db) const fn commit_of(seq: i64) -> u64 {
    (seq >> 24) as u64
}
