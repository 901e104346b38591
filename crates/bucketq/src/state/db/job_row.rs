//! A row of `jobs`, whole for users and in part for ops.
//!
//! Called by claims and queries ([`Job`]) and by the ops on one job ([`JobRow`]).

use bytes::Bytes;
use rusqlite::OptionalExtension;

use super::Tx;
use super::attempts::Ending;
use super::columns::{Borrowed, row, sql};
use super::fault::{Fault, Try};
use super::names::NOBODY;
use crate::noun::error::{Code, Error};
use crate::noun::job::{Ended, Job, JobId, Payload, State};
use crate::noun::lease::FOREVER_MS;

row! {
    /// The columns for [`Tx::job`].
    pub(super) struct JobColumns<'r> {
        seq: i64, id: [u8; 16], queue: i64, state: State, priority: i32, tries: i64, run: u32, max_attempts: u32,
        enqueued_ms: i64, run_at_ms: i64, claimed_ms: i64, ends_ms: i64, fence: i64, worker: i64, backoff: i64,
        token: [u8; 16], group_name: Option<String>, dedup: Option<String>, headers: Borrowed<'r>, payload_len: i64,
    }
}
row! {
    /// The columns for [`Tx::payload`].
    pub(super) struct PayloadColumns<'r> {
        content_type: i64, payload_kind: i64, payload: Borrowed<'r>, body: Option<i64>,
    }
}
row! {
    /// A job with its payload.
    pub(super) struct WholeJobColumns<'r> {
        job: JobColumns<'r> = JobColumns::COLUMNS,
        payload: PayloadColumns<'r> = PayloadColumns::COLUMNS,
    }
}

/// A token that proves nothing: the job was never claimed in this run.
pub(super) const NO_TOKEN: [u8; 16] = [0; 16];
/// `payload_kind` of a payload in the job's row.
pub(super) const INLINE: i64 = 0;
/// `payload_kind` of a payload in `bodies`.
pub(super) const BODY: i64 = 1;
/// `tries` of a job never claimed.
pub(super) const UNTRIED: i64 = 2;

fn id(bytes: [u8; 16]) -> JobId {
    JobId(uuid::Uuid::from_bytes(bytes))
}

impl Tx<'_> {
    /// Returns the job in a row; without the last error, which is in another table.
    pub fn job(&mut self, row: JobColumns<'_>) -> Try<Job> {
        let JobColumns { state, ends_ms, worker, .. } = row;
        let claimed = row.token != NO_TOKEN;
        let queue = self.line_of(row.queue)?;
        let headers = match row.headers.maybe_text()? {
            Some(json) => {
                serde_json::from_str(json).map_err(|_| Fault::corrupt("headers of a job are not JSON"))?
            }
            None => std::collections::BTreeMap::default(),
        };
        let terms = self.terms(row.backoff)?;
        Ok(Job {
            id: id(row.id),
            run: row.run,
            queue: self.line(queue).name.to_string(),
            state,
            expired: state == State::Leased && ends_ms <= self.now_ms,
            priority: row.priority,
            attempt: attempt(row.tries)?,
            max_attempts: row.max_attempts,
            backoff: terms.backoff,
            max_run_ms: terms.max_run_ms,
            group: row.group_name,
            dedup: row.dedup,
            headers,
            payload_len: row.payload_len as u64,
            seq: row.seq as u64,
            enqueued_ms: row.enqueued_ms,
            run_at_ms: row.run_at_ms,
            claimed_ms: claimed.then_some(row.claimed_ms),
            finished_ms: state.is_finished().then_some(ends_ms),
            expires_ms: (state == State::Leased && ends_ms < FOREVER_MS).then_some(ends_ms),
            fence: claimed.then_some(row.fence as u64),
            worker: if claimed && worker != NOBODY { Some(self.text(worker)?.to_string()) } else { None },
            last_error: None,
            died: None,
        })
    }

    /// Returns the payload in a row.
    pub fn payload(&mut self, row: &PayloadColumns<'_>) -> Try<Payload> {
        let content_type = self.text(row.content_type)?.to_string();
        let bytes = match row.payload_kind {
            INLINE => Bytes::copy_from_slice(row.payload.bytes()?),
            BODY => self.body(row.body, Bytes::copy_from_slice)?,
            kind => return Err(Fault::corrupt(format!("this library knows no payload kind {kind}"))),
        };
        Ok(Payload { bytes, content_type })
    }

    /// Returns a payload in `bodies`.
    pub fn body(&self, id: Option<i64>, copied: impl FnOnce(&[u8]) -> Bytes) -> Try<Bytes> {
        let mut stmt = self.conn.prepare_cached("SELECT bytes FROM bodies WHERE id = ?1")?;
        Ok(stmt.query_row([id], |row| Ok(copied(row.get_ref(0)?.as_blob()?)))?)
    }
}

/// Returns the number of claims so far.
pub(super) fn attempt(tries: i64) -> Try<u32> {
    u32::try_from(tries - UNTRIED).map_err(|_| Fault::corrupt(format!("a job has {tries} tries")))
}

row! {
    /// The columns that an op on one job needs.
    #[derive(Debug)]
    pub(super) struct JobRow {
        seq: i64,
        queue: i64,
        state: State,
        blocked: bool = "blocked",
        tries: i64,
        max_attempts: i64,
        run_at_ms: i64,
        token: [u8; 16],
        priority: i32,
        run: u32,
        backoff: i64,
        group: Option<String> = "group_name",
        worker: i64,
        claimed_ms: i64,
        /// If leased, when the lease ends.
        ends_ms: i64,
        /// It was enqueued with a dedup key.
        keyed: bool = "dedup IS NOT NULL",
        id: [u8; 16],
        ;
        /// The index of its queue among the cached queues.
        line: usize,
    }
}

impl JobRow {
    /// Returns the entry for the end of its current attempt.
    pub fn ending<'a>(
        &self,
        ended: Ended,
        attempt: u32,
        ended_ms: i64,
        error: Option<&'a str>,
    ) -> Ending<'a> {
        let claimed = (self.token != NO_TOKEN).then_some((self.worker, self.claimed_ms));
        Ending { seq: self.seq, run: self.run, attempt, queue: self.queue, ended, claimed, ended_ms, error }
    }
}

impl Tx<'_> {
    /// Returns the job with this id.
    pub fn job_row(&mut self, id: &JobId) -> Try<JobRow> {
        let sql = sql!("SELECT ", JobRow::COLUMNS, " FROM jobs WHERE id = ?1");
        let mut stmt = self.conn.prepare_cached(sql)?;
        let found = stmt.query_row([id.as_bytes()], JobRow::read).optional()?;
        let row = found.ok_or_else(|| Error::new(Code::NoSuchJob, format!("there is no job {id}")))?;
        Ok(JobRow { line: self.line_of(row.queue)?, ..row })
    }
}
