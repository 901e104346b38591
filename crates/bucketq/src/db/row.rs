//! A row of `jobs`, as a whole for people and in part for ops.
//!
//! Called by claims and queries ([`JOB`]) and by the ops on one job ([`Slot`]).

use bytes::Bytes;
use rusqlite::Row;

use super::Turn;
use super::attempts::Ending;
use super::fault::{Fault, Try};
use super::names::NOBODY;
use crate::error::{Code, Error};
use crate::job::{Ended, Job, JobId, Payload, State};
use crate::lease::FOREVER_MS;

/// The columns [`Turn::job`] reads, in its order.
macro_rules! job_columns {
    () => {
        "seq, id, queue, state, priority, tries, run, max_attempts, enqueued_ms, run_at_ms, claimed_ms, ends_ms, \
         fence, worker, backoff, token, group_name, dedup, headers, payload_len"
    };
}
/// The same and those [`Turn::payload`] reads.
macro_rules! whole_columns {
    () => {
        concat!(crate::db::row::job_columns!(), ", content_type, payload_kind, payload, body")
    };
}
pub(super) use {job_columns, whole_columns};

/// A token that proves nothing: the job was never claimed in this life.
pub(super) const NO_TOKEN: [u8; 16] = [0; 16];
/// `payload_kind` of a payload in the job's row.
pub(super) const INLINE: i64 = 0;
/// `payload_kind` of a payload in `bodies`.
pub(super) const BODY: i64 = 1;
/// `tries` of a job never claimed.
pub(super) const UNTRIED: i64 = 2;

pub(super) fn state(code: i64) -> Try<State> {
    State::from_code(code).ok_or_else(|| Fault::corrupt(format!("a job has state {code}")))
}

fn id(bytes: [u8; 16]) -> JobId {
    JobId(uuid::Uuid::from_bytes(bytes))
}

impl Turn<'_> {
    /// The job in a row of [`job_columns`]; without the last error, which lies elsewhere.
    pub fn job(&mut self, row: &Row<'_>) -> Try<Job> {
        let state = state(row.get(3)?)?;
        let ends_ms: i64 = row.get(11)?;
        let claimed = row.get::<_, [u8; 16]>(15)? != NO_TOKEN;
        let worker: i64 = row.get(13)?;
        let queue = self.line_of(row.get(2)?)?;
        let headers = match row.get_ref(18)?.as_str_or_null().map_err(rusqlite::Error::from)? {
            Some(json) => {
                serde_json::from_str(json).map_err(|_| Fault::corrupt("headers of a job are not JSON"))?
            }
            None => std::collections::BTreeMap::default(),
        };
        Ok(Job {
            id: id(row.get(1)?),
            run: row.get(6)?,
            queue: self.line(queue).name.to_string(),
            state,
            expired: state == State::Leased && ends_ms <= self.now_ms,
            priority: row.get(4)?,
            attempt: attempt(row.get(5)?)?,
            max_attempts: row.get(7)?,
            backoff: self.backoff(row.get(14)?)?,
            group: row.get(16)?,
            dedup: row.get(17)?,
            headers,
            payload_len: row.get::<_, i64>(19)? as u64,
            seq: row.get::<_, i64>(0)? as u64,
            enqueued_ms: row.get(8)?,
            run_at_ms: row.get(9)?,
            claimed_ms: if claimed { Some(row.get(10)?) } else { None },
            finished_ms: state.is_finished().then_some(ends_ms),
            expires_ms: (state == State::Leased && ends_ms < FOREVER_MS).then_some(ends_ms),
            fence: if claimed { Some(row.get::<_, i64>(12)? as u64) } else { None },
            worker: if claimed && worker != NOBODY { Some(self.text(worker)?.to_string()) } else { None },
            last_error: None,
        })
    }

    /// The payload in a row of [`whole_columns`].
    pub fn payload(&mut self, row: &Row<'_>) -> Try<Payload> {
        let content_type = self.text(row.get(20)?)?.to_string();
        let copied = |r: &Row<'_>, i: usize| {
            r.get_ref(i)?.as_blob().map(Bytes::copy_from_slice).map_err(rusqlite::Error::from)
        };
        let bytes = match row.get(21)? {
            INLINE => copied(row, 22)?,
            BODY => self
                .conn
                .prepare_cached("SELECT bytes FROM bodies WHERE id = ?1")?
                .query_row([row.get::<_, i64>(23)?], |body| copied(body, 0))?,
            kind => return Err(Fault::corrupt(format!("this library knows no payload kind {kind}"))),
        };
        Ok(Payload { bytes, content_type })
    }
}

/// Claims so far.
pub(super) fn attempt(tries: i64) -> Try<u32> {
    u32::try_from(tries - UNTRIED).map_err(|_| Fault::corrupt(format!("a job has {tries} tries")))
}

/// What an op on one job needs to know.
#[derive(Debug)]
pub(super) struct Slot {
    pub seq: i64,
    /// Its queue's place among the lines.
    pub line: usize,
    pub queue: i64,
    pub state: State,
    pub held: bool,
    pub tries: i64,
    pub max_attempts: i64,
    pub run_at_ms: i64,
    pub token: [u8; 16],
    pub priority: i32,
    pub run: u32,
    pub backoff: i64,
    pub group: Option<String>,
    pub worker: i64,
    pub claimed_ms: i64,
    /// Leased: when the lease ends.
    pub ends_ms: i64,
    /// It was enqueued with a dedup key.
    pub keyed: bool,
    pub id: [u8; 16],
}

impl Slot {
    /// How its present attempt ends.
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

impl Turn<'_> {
    /// The job with this id.
    pub fn slot(&mut self, id: &JobId) -> Try<Slot> {
        let mut stmt = self.conn.prepare_cached(
            "SELECT seq, queue, state, held, tries, max_attempts, run_at_ms, token, priority, run, backoff, \
             group_name, worker, claimed_ms, ends_ms, dedup IS NOT NULL FROM jobs WHERE id = ?1",
        )?;
        let mut rows = stmt.query([id.as_bytes()])?;
        let Some(row) = rows.next()? else {
            return Err(Error::new(Code::NoSuchJob, format!("there is no job {id}")).into());
        };
        let queue = row.get(1)?;
        Ok(Slot {
            seq: row.get(0)?,
            line: self.line_of(queue)?,
            queue,
            state: state(row.get(2)?)?,
            held: row.get::<_, i64>(3)? != 0,
            tries: row.get(4)?,
            max_attempts: row.get(5)?,
            run_at_ms: row.get(6)?,
            token: row.get(7)?,
            priority: row.get(8)?,
            run: row.get(9)?,
            backoff: row.get(10)?,
            group: row.get(11)?,
            worker: row.get(12)?,
            claimed_ms: row.get(13)?,
            ends_ms: row.get(14)?,
            keyed: row.get(15)?,
            id: *id.as_bytes(),
        })
    }
}
