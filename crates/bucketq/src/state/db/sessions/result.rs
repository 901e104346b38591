//! The stored form of a session's results: short, because every commit of the session writes them anew.
//!
//! An entry holds no payloads and no tokens: they are read again from the op and from the rows of its jobs.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::noun::error::{Code, Error, Result};
use crate::noun::job::JobId;
use crate::noun::op::{Enqueued, Outcome};
use crate::state::db::fault::{Fault, Try};

/// The result of one op, and its commit.
#[derive(Clone, Debug)]
pub(super) struct SessionResult {
    pub commit_seq: u64,
    pub commit_ms: i64,
    pub stamp: u64,
    pub value: SessionValue,
}

/// The return value of an op.
#[derive(Clone, Debug)]
pub(super) enum SessionValue {
    /// Every job of the enqueue is new, in this commit.
    EnqueuedAll,
    /// The jobs with these `seq`.
    Claimed(Vec<u64>),
    /// Any other outcome, as it is.
    Whole(Outcome),
    Failed(Error),
}

/// An error as it is stored.
#[derive(Serialize, Deserialize)]
struct StoredError {
    code: Code,
    message: String,
}

const WHOLE: u64 = 0;
const ENQUEUED_ALL: u64 = 1;
const CLAIMED: u64 = 2;
const FAILED: u64 = 3;

/// Returns the outcome of a job that an enqueue added.
pub(super) fn enqueued(id: JobId, commit_seq: u64, commit_ms: i64) -> Enqueued {
    Enqueued { id, deduplicated: false, existing: false, commit_seq, commit_ms, dropped: vec![] }
}

impl SessionResult {
    pub fn new(result: &Result<Outcome>, commit_seq: u64, commit_ms: i64, stamp: u64) -> Self {
        let value = match result {
            Ok(Outcome::Enqueued(jobs))
                if jobs.iter().all(|job| *job == enqueued(job.id, commit_seq, commit_ms)) =>
            {
                SessionValue::EnqueuedAll
            }
            Ok(Outcome::Claimed(jobs) | Outcome::ClaimedNext(jobs)) => {
                SessionValue::Claimed(jobs.iter().map(|claimed| claimed.job.seq).collect())
            }
            Ok(outcome) => SessionValue::Whole(outcome.clone()),
            Err(error) => SessionValue::Failed(error.clone()),
        };
        Self { commit_seq, commit_ms, stamp, value }
    }
}

/// Returns the bytes of the results, all of them above `floor`.
pub(super) fn encode(results: &HashMap<u64, SessionResult>, floor: u64) -> Vec<u8> {
    let mut bytes = vec![];
    for (n, result) in results {
        put(&mut bytes, n - floor);
        put(&mut bytes, result.commit_seq);
        put(&mut bytes, result.commit_ms.max(0).unsigned_abs());
        put(&mut bytes, result.stamp);
        match &result.value {
            SessionValue::EnqueuedAll => put(&mut bytes, ENQUEUED_ALL),
            SessionValue::Claimed(seqs) => {
                put(&mut bytes, CLAIMED);
                put(&mut bytes, seqs.len() as u64);
                for seq in seqs {
                    put(&mut bytes, *seq);
                }
            }
            SessionValue::Whole(outcome) => put_json(&mut bytes, WHOLE, outcome),
            SessionValue::Failed(error) => {
                let error = StoredError { code: error.code(), message: error.message().to_owned() };
                put_json(&mut bytes, FAILED, &error);
            }
        }
    }
    bytes
}

/// Reads what [`encode`] wrote.
pub(super) fn decode(mut bytes: &[u8], floor: u64) -> Try<HashMap<u64, SessionResult>> {
    let mut results = HashMap::new();
    while !bytes.is_empty() {
        let entry = entry(&mut bytes, floor);
        let (n, result) = entry.ok_or_else(|| Fault::corrupt("the results of a session are damaged"))?;
        results.insert(n, result);
    }
    Ok(results)
}

fn entry(bytes: &mut &[u8], floor: u64) -> Option<(u64, SessionResult)> {
    let n = floor.checked_add(take(bytes)?)?;
    let commit_seq = take(bytes)?;
    let commit_ms = i64::try_from(take(bytes)?).ok()?;
    let stamp = take(bytes)?;
    let value = match take(bytes)? {
        ENQUEUED_ALL => SessionValue::EnqueuedAll,
        CLAIMED => {
            let count = take(bytes)?;
            // Each takes at least a byte, so a damaged count allocates nothing.
            let count = usize::try_from(count).ok().filter(|count| *count <= bytes.len())?;
            SessionValue::Claimed((0..count).map(|_| take(bytes)).collect::<Option<_>>()?)
        }
        WHOLE => SessionValue::Whole(take_json(bytes)?),
        FAILED => {
            let StoredError { code, message } = take_json(bytes)?;
            SessionValue::Failed(Error::new(code, message))
        }
        _ => return None,
    };
    Some((n, SessionResult { commit_seq, commit_ms, stamp, value }))
}

/// Adds a number: seven bits a byte, the lowest first, the highest bit set in all bytes but the last.
fn put(bytes: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        bytes.push(n as u8 | 0x80);
        n >>= 7;
    }
    bytes.push(n as u8);
}

fn take(bytes: &mut &[u8]) -> Option<u64> {
    let mut n = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        n |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(n);
        }
    }
    None
}

fn put_json(bytes: &mut Vec<u8>, tag: u64, value: &impl Serialize) {
    let json = serde_json::to_vec(value).unwrap_or_default();
    put(bytes, tag);
    put(bytes, json.len() as u64);
    bytes.extend(json);
}

fn take_json<T: for<'a> Deserialize<'a>>(bytes: &mut &[u8]) -> Option<T> {
    let len = usize::try_from(take(bytes)?).ok()?;
    let json = bytes.split_off(..len)?;
    serde_json::from_slice(json).ok()
}
