//! The nouns of a job: id, state, payload, retry policy, and a job as its worker gets it. No I/O.

use std::collections::BTreeMap;
use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::noun::error::{Error, Result};
use crate::noun::lease::Lease;
use crate::noun::policy::span;

/// A job's identity: a UUID version 7, drawn before the first send so that a repeated enqueue is the same job.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct JobId(pub uuid::Uuid);

impl JobId {
    /// Returns an id made of a time and ten random bytes.
    pub fn new(unix_ms: i64, random: [u8; 10]) -> Self {
        Self(uuid::Builder::from_unix_timestamp_millis(unix_ms.max(0).unsigned_abs(), &random).into_uuid())
    }

    /// Returns the sixteen bytes as stored.
    pub fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JobId({})", self.0)
    }
}

impl std::str::FromStr for JobId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        uuid::Uuid::parse_str(text)
            .map(Self)
            .map_err(|e| Error::invalid(format!("{text:?} is not a job id (a UUID): {e}")))
    }
}

/// The stored states. "Expired" is not one of them: it is a leased job whose lease has run out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum State {
    /// Waits for its time.
    Scheduled = 2,
    /// Can be claimed.
    Ready = 3,
    /// A worker holds it.
    Leased = 4,
    /// Finished successfully.
    Done = 5,
    /// Rejected, or out of attempts.
    Dead = 6,
    /// Cancelled before it was finished.
    Cancelled = 7,
}

impl State {
    /// Every state, in the order in which a job passes them.
    pub const ALL: [Self; 6] =
        [Self::Scheduled, Self::Ready, Self::Leased, Self::Done, Self::Dead, Self::Cancelled];

    /// Returns the name in the API and the database documentation.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Scheduled => "scheduled",
            Self::Ready => "ready",
            Self::Leased => "leased",
            Self::Done => "done",
            Self::Dead => "dead",
            Self::Cancelled => "cancelled",
        }
    }

    /// Returns the state with this stored number.
    pub fn from_code(code: i64) -> Option<Self> {
        Self::ALL.into_iter().find(|s| *s as i64 == code)
    }

    /// Returns true for done, dead and cancelled.
    pub const fn is_finished(self) -> bool {
        matches!(self, Self::Done | Self::Dead | Self::Cancelled)
    }
}

/// Opaque bytes and their content type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Payload {
    /// The bytes, never parsed.
    pub bytes: Bytes,
    /// A media type such as `application/json`; at most 100 bytes.
    pub content_type: String,
}

impl Payload {
    /// Returns a payload of bytes without a specific type.
    pub fn bytes(bytes: impl Into<Bytes>) -> Self {
        Self { bytes: bytes.into(), content_type: "application/octet-stream".into() }
    }

    /// Returns a payload of UTF-8 text.
    pub fn text(text: impl Into<String>) -> Self {
        Self { bytes: Bytes::from(text.into()), content_type: "text/plain".into() }
    }

    /// Returns a payload with the value as JSON.
    pub fn json<T: Serialize + ?Sized>(value: &T) -> Result<Self> {
        let bytes = serde_json::to_vec(value)
            .map_err(|e| Error::invalid("the payload cannot be written as JSON").because(e))?;
        Ok(Self { bytes: bytes.into(), content_type: "application/json".into() })
    }
}

/// How long a failed job waits before its next attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Backoff {
    /// At once.
    None,
    /// Doubles from `base_ms` up to `max_ms`; the upper `jitter_percent` of each delay is random.
    Exponential {
        /// Delay after the first failure.
        base_ms: i64,
        /// No delay is longer.
        max_ms: i64,
        /// 0 to 100: the share of the delay that is drawn at random.
        jitter_percent: u8,
    },
    /// The same after each failure.
    Fixed {
        /// The delay.
        delay_ms: i64,
    },
    /// Grows by `base_ms` with each failure, up to `max_ms`.
    Linear {
        /// Delay after the first failure; each further failure adds it again.
        base_ms: i64,
        /// No delay is longer.
        max_ms: i64,
    },
    /// These delays in turn; the last one repeats.
    List {
        /// At least one delay.
        delays_ms: Vec<i64>,
    },
}

impl Default for Backoff {
    fn default() -> Self {
        // 1 s, 2 s, 4 s ... one hour: ten attempts take about a quarter of an hour.
        Self::Exponential { base_ms: 1_000, max_ms: 3_600_000, jitter_percent: 50 }
    }
}

impl Backoff {
    /// Most delays in a list.
    pub const MAX_DELAYS: usize = 100;

    /// Returns the delay after failed attempt number `attempt` (from 1); `draw` is a random number.
    pub fn delay_ms(&self, attempt: u32, draw: u64) -> i64 {
        match self {
            Self::None => 0,
            Self::Fixed { delay_ms } => *delay_ms,
            Self::Linear { base_ms, max_ms } => base_ms.saturating_mul(attempt.into()).clamp(0, *max_ms),
            Self::List { delays_ms } => {
                let at = (attempt.max(1) as usize - 1).min(delays_ms.len().saturating_sub(1));
                delays_ms.get(at).copied().unwrap_or(0)
            }
            Self::Exponential { base_ms, max_ms, jitter_percent } => {
                let doublings = attempt.saturating_sub(1).min(62);
                let full = base_ms.saturating_mul(1_i64 << doublings).clamp(0, (*max_ms).max(0));
                let random = i64::try_from(i128::from(full) * i128::from((*jitter_percent).min(100)) / 100)
                    .unwrap_or(0);
                full - random + (draw % (random.unsigned_abs() + 1)) as i64
            }
        }
    }

    /// Refuses values that are out of range.
    pub fn check(&self) -> Result<()> {
        match self {
            Self::None => Ok(()),
            Self::Fixed { delay_ms } => span("back-off delay", *delay_ms, 0),
            Self::Linear { base_ms, max_ms } => {
                span("back-off base", *base_ms, 0)?;
                span("back-off maximum", *max_ms, 0)
            }
            Self::List { delays_ms } => {
                if delays_ms.is_empty() || delays_ms.len() > Self::MAX_DELAYS {
                    let (n, most) = (delays_ms.len(), Self::MAX_DELAYS);
                    return Err(Error::invalid(format!("a back-off lists 1 to {most} delays, not {n}")));
                }
                delays_ms.iter().try_for_each(|ms| span("back-off delay", *ms, 0))
            }
            Self::Exponential { base_ms, max_ms, jitter_percent } => {
                span("back-off base", *base_ms, 0)?;
                span("back-off maximum", *max_ms, 0)?;
                if *jitter_percent > 100 {
                    return Err(Error::invalid(format!(
                        "jitter_percent must be at most 100, not {jitter_percent}"
                    )));
                }
                Ok(())
            }
        }
    }
}

/// A dedup key: while it counts, a second enqueue with the same key returns the first job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dedup {
    /// The key, per queue, at most 200 bytes.
    pub key: String,
    /// How long the key counts.
    pub scope: DedupScope,
}

/// How long a dedup key counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DedupScope {
    /// This many milliseconds from the first enqueue.
    Window(i64),
    /// While the first job is unfinished.
    Unfinished,
    /// As the policy of the queue says.
    #[default]
    Policy,
}

/// When a job may first run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// At once.
    #[default]
    Now,
    /// This many milliseconds after the commit that enqueues it.
    In(i64),
    /// At this time, milliseconds since 1970 UTC.
    At(i64),
}

/// A job to be enqueued.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct New {
    /// Drawn before the first send: enqueueing the same id again changes nothing and returns the first job.
    pub id: JobId,
    /// The bytes to work on.
    pub payload: Payload,
    /// Lower runs first.
    pub priority: i32,
    /// When it may run.
    pub when: When,
    /// Claims allowed before it is dead; none for the number in the queue's policy.
    #[serde(default)]
    pub max_attempts: Option<u32>,
    /// Waiting time between attempts; none for the one in the queue's policy.
    #[serde(default)]
    pub backoff: Option<Backoff>,
    /// Keeps out a second job with this key.
    pub dedup: Option<Dedup>,
    /// Jobs of one group run in the order of their enqueues, one at a time unless the policy allows more.
    pub group: Option<String>,
    /// Small values beside the payload, such as a trace context.
    pub headers: BTreeMap<String, String>,
    /// How long after its enqueue it expires if no worker has claimed it; none for the time in the queue's policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_ms: Option<i64>,
    /// How long an attempt may take: then its lease is no longer renewed, and it has failed. None for the time in the
    /// queue's policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_run_ms: Option<i64>,
}

impl New {
    /// Returns the bytes that its caller wrote: payload, headers, keys.
    pub(crate) fn user_bytes(&self) -> usize {
        let headers: usize = self.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        let key = self.dedup.as_ref().map_or(0, |dedup| dedup.key.len());
        self.payload.bytes.len() + headers + key + self.group.as_ref().map_or(0, String::len)
    }

    /// Returns a job with this id and payload and every default.
    #[expect(clippy::self_named_constructors, reason = "the type is named after what it is: a new job")]
    pub fn new(id: JobId, payload: Payload) -> Self {
        Self {
            id,
            payload,
            priority: 0,
            when: When::Now,
            max_attempts: None,
            backoff: None,
            dedup: None,
            group: None,
            headers: BTreeMap::new(),
            expires_ms: None,
            max_run_ms: None,
        }
    }
}

/// A job without its bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// Its identity.
    pub id: JobId,
    /// Its run: 0, and one more with each requeue.
    pub run: u32,
    /// Its queue.
    pub queue: String,
    /// The stored state.
    pub state: State,
    /// Leased, and the lease has run out at the time of reading.
    pub expired: bool,
    /// Lower runs first.
    pub priority: i32,
    /// Claims so far in this run.
    pub attempt: u32,
    /// Claims allowed.
    pub max_attempts: u32,
    /// Waiting time between attempts.
    pub backoff: Backoff,
    /// How long an attempt may take; none for the time in the queue's policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_run_ms: Option<i64>,
    /// Its group.
    pub group: Option<String>,
    /// Its dedup key.
    pub dedup: Option<String>,
    /// Its headers.
    pub headers: BTreeMap<String, String>,
    /// Bytes of payload.
    pub payload_len: u64,
    /// Position in the order of enqueues: `commit_seq * 2^24 + ordinal`.
    pub seq: u64,
    /// When it was enqueued, or requeued.
    pub enqueued_ms: i64,
    /// When it may first run, or run again; for a finished job, when it might have.
    pub run_at_ms: i64,
    /// When it was claimed last.
    pub claimed_ms: Option<i64>,
    /// When it was finished.
    pub finished_ms: Option<i64>,
    /// When the lease runs or ran out; only while leased.
    pub expires_ms: Option<i64>,
    /// `commit_seq` of the newest claim.
    pub fence: Option<u64>,
    /// The worker that claimed it last.
    pub worker: Option<String>,
    /// The error text of the last failure; of a dead letter that has not failed here, that of its death.
    pub last_error: Option<String>,
    /// How it died: of a dead job, and of a dead letter, which is a job that died in another queue and is here since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub died: Option<Died>,
}

/// How a job died.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Died {
    /// The queue that it died in: the origin of a dead letter.
    pub queue: String,
    /// Why.
    pub reason: Reason,
    /// Claims in the run that died.
    pub attempts: u32,
    /// The error text of the last failure of that run.
    pub error: Option<String>,
    /// When.
    pub at_ms: i64,
}

/// Why a job died.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// Its last attempt failed.
    Failed,
    /// The lease of its last attempt ran out.
    LeaseExpired,
    /// Rejected by its worker.
    Rejected,
    /// No worker claimed it in time.
    Expired,
}

impl Job {
    /// Returns the `commit_seq` of the commit that enqueued it.
    pub fn commit_seq(&self) -> u64 {
        self.seq >> 24
    }
}

/// One attempt that did not succeed, or the end of an earlier run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attempt {
    /// The run it belongs to.
    pub run: u32,
    /// Its number in that run; 0 if there was no claim.
    pub attempt: u32,
    /// The queue the job was in.
    pub queue: String,
    /// How it ended.
    pub ended: Ended,
    /// The worker that had claimed the job.
    pub worker: Option<String>,
    /// When it was claimed.
    pub claimed_ms: Option<i64>,
    /// When it ended.
    pub ended_ms: i64,
    /// The error text.
    pub error: Option<String>,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Ended {
    /// Nacked.
    Failed = 2,
    /// Its lease ran out.
    Expired = 3,
    /// Rejected: the job can never succeed.
    Rejected = 4,
    /// Acked; kept when the job was requeued.
    Done = 5,
    /// Cancelled; kept when the job was requeued.
    Cancelled = 6,
    /// Cancelled to make room for newer jobs.
    Dropped = 7,
    /// Moved to another queue.
    Moved = 8,
    /// Moved to another queue, where it is a dead letter of its origin still.
    Forwarded = 9,
    /// No worker claimed it in time.
    Unclaimed = 10,
}

impl Ended {
    const ALL: [Self; 9] = [
        Self::Failed,
        Self::Expired,
        Self::Rejected,
        Self::Done,
        Self::Cancelled,
        Self::Dropped,
        Self::Moved,
        Self::Forwarded,
        Self::Unclaimed,
    ];

    /// Returns the end with this stored number.
    pub fn from_code(code: i64) -> Option<Self> {
        Self::ALL.into_iter().find(|e| *e as i64 == code)
    }

    /// Returns why the job died, if it did.
    pub const fn reason(self) -> Option<Reason> {
        match self {
            Self::Failed => Some(Reason::Failed),
            Self::Expired => Some(Reason::LeaseExpired),
            Self::Rejected => Some(Reason::Rejected),
            Self::Unclaimed => Some(Reason::Expired),
            Self::Done | Self::Cancelled | Self::Dropped | Self::Moved | Self::Forwarded => None,
        }
    }
}

/// A claimed job as its worker gets it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Claimed {
    /// The job, without its bytes.
    pub job: Job,
    /// Its bytes.
    pub payload: Payload,
    /// The right to work on it.
    pub lease: Lease,
}
