//! The policy of a queue: settings for all its jobs, stored in the queue file so that every process agrees. No I/O.
//!
//! Changed by `Op::Configure`, read by `Query::Policy`. [`Policy::check`] refuses contradictions; the state layer
//! refuses changes that are not possible while there are jobs.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize};

use crate::noun::config::MAX_SPAN_MS;
use crate::noun::error::{Code, Error, Result};
use crate::noun::job::{Backoff, DedupScope};

macro_rules! policy {
    ($( $(#[doc = $doc:literal])* $name:ident : $type:ty = $default:expr, )*) => {
        /// The settings for the jobs of a queue.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct Policy { $( $(#[doc = $doc])* pub $name: $type, )* }

        impl Default for Policy {
            fn default() -> Self { Self { $( $name: $default, )* } }
        }

        /// Changes to a policy; everything else stays.
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct Changes {
            $( $(#[doc = $doc])*
               #[serde(deserialize_with = "named", skip_serializing_if = "Option::is_none")]
               pub $name: Option<$type>, )*
        }

        impl Policy {
            /// Returns this policy with the changes applied.
            #[must_use]
            pub fn with(mut self, changes: &Changes) -> Self {
                $( if let Some(value) = &changes.$name { self.$name = value.clone(); } )*
                self
            }
        }
    };
}

policy! {
    /// Claims a job gets before it is dead, unless the job has its own number.
    max_attempts: u32 = 10,
    /// Waiting time between the attempts of a job, unless the job has its own.
    backoff: Backoff = Backoff::default(),
    /// How long a claim holds its jobs, unless the claim has its own time. None: until they are acked or nacked,
    /// however long that takes; they are never handed out twice (at most once).
    lease_ms: Option<i64> = Some(60_000),
    /// How long a worker may work on a job: then its lease is no longer renewed, and the attempt has failed. None: as
    /// long as it renews the lease.
    max_run_ms: Option<i64> = None,
    /// How long after its enqueue a job expires if no worker has claimed it, unless the job has its own time.
    expires_ms: Option<i64> = None,
    /// Whether a job that has expired is dead or deleted.
    on_expiry: OnExpiry = OnExpiry::Dead,
    /// A job that was claimed in time and came back expires too, as soon as no worker holds it.
    expire_claimed: bool = false,
    /// The queue that dead jobs move to, as ready jobs of a new run; none leaves them here.
    dead_letter: Option<String> = None,
    /// A job without a dedup key of its own gets one from its content.
    dedup_content: bool = false,
    /// How long a dedup key counts, unless the job says so itself. None: while the first job is unfinished.
    dedup_window_ms: Option<i64> = Some(3_600_000),
    /// Most scheduled and ready jobs after an enqueue.
    max_pending: Option<u64> = None,
    /// How an enqueue beyond that is handled.
    overflow: Overflow = Overflow::Raise,
    /// Jobs of one group that may be leased at the same time.
    group_concurrency: u32 = 1,
    /// Jobs of one group that one claim may get, in the order of their enqueues. No other job of the group can be
    /// claimed until all of them have ended or come back.
    group_batch: u32 = 1,
    /// Jobs of the queue that may be leased at the same time, by all processes together.
    concurrency: Option<u32> = None,
    /// How fast jobs may be claimed, by all processes together.
    rate: Option<Rate> = None,
    /// Finished jobs to keep: this many of the newest done ones, of the newest dead ones and of the newest cancelled
    /// ones.
    keep: u64 = 1_000,
    /// Jobs that finished longer ago than this are not kept.
    keep_ms: Option<i64> = None,
    /// Done jobs to keep; none: as many as `keep` says.
    keep_done: Option<u64> = None,
    /// Jobs that were done longer ago than this are not kept; none: as long as `keep_ms` says.
    keep_done_ms: Option<i64> = None,
    /// Dead jobs to keep; none: as many as `keep` says.
    keep_dead: Option<u64> = None,
    /// Jobs that died longer ago than this are not kept; none: as long as `keep_ms` says.
    keep_dead_ms: Option<i64> = None,
    /// Cancelled jobs to keep; none: as many as `keep` says.
    keep_cancelled: Option<u64> = None,
    /// Jobs that were cancelled longer ago than this are not kept; none: as long as `keep_ms` says.
    keep_cancelled_ms: Option<i64> = None,
    /// Finished jobs are written to the archive before they leave.
    archive: bool = false,
    /// An archive object expires when its newest run ended longer ago than this.
    archive_ms: Option<i64> = None,
    /// Payloads are archived too.
    archive_payloads: bool = true,
}

/// A named field is changed, possibly to null.
fn named<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}

/// How an enqueue into a full queue is handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overflow {
    /// It fails.
    #[default]
    Raise,
    /// It waits for room, at most this long.
    Block {
        /// Then it fails.
        timeout_ms: i64,
    },
    /// The jobs that have waited longest are cancelled to make room.
    DropOldest,
}

/// Whether a job that has expired is dead or deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnExpiry {
    /// It is dead.
    #[default]
    Dead,
    /// It is deleted, and not archived.
    Delete,
}

/// A number of claims in a time: a bucket of `burst` tokens that refills evenly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Rate {
    /// Jobs.
    pub count: u32,
    /// The time.
    pub per_ms: i64,
    /// Jobs that may be claimed at once after a pause; by default `count`.
    pub burst: u32,
}

impl Rate {
    /// Returns the time that a claimed job takes out of the bucket, in nanoseconds; rounded up, so that the rate is
    /// never exceeded.
    pub const fn step_ns(&self) -> i64 {
        (self.per_ms * 1_000_000 + self.count as i64 - 1) / self.count as i64
    }
}

const UNITS: [(&str, i64); 5] =
    [("ms", 1), ("s", 1_000), ("min", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, ms) = UNITS.into_iter().rev().find(|(_, ms)| self.per_ms % ms == 0).unwrap_or(("ms", 1));
        let units = if self.per_ms == ms { String::new() } else { (self.per_ms / ms).to_string() };
        write!(f, "{}/{units}{unit}", self.count)?;
        if self.burst == self.count { Ok(()) } else { write!(f, " burst {}", self.burst) }
    }
}

impl From<Rate> for String {
    fn from(rate: Rate) -> Self {
        rate.to_string()
    }
}

impl TryFrom<String> for Rate {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl FromStr for Rate {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = || {
            Error::invalid(format!(
                "{text:?} is not a rate: write \"100/min\", \"5/s\", \"10/30s\" or \"100/min burst 20\", with the \
                 units ms, s, min, h and d"
            ))
        };
        let (count, rest) = text.trim().split_once('/').ok_or_else(wrong)?;
        let (per, burst) = rest.split_once(" burst ").map_or((rest, None), |(per, burst)| (per, Some(burst)));
        let per = per.trim();
        let digits = per.bytes().take_while(u8::is_ascii_digit).count();
        let units: i64 = if digits == 0 { 1 } else { per[..digits].parse().map_err(|_| wrong())? };
        let unit = UNITS.into_iter().find(|(unit, _)| *unit == per[digits..].trim()).ok_or_else(wrong)?;
        let count = count.trim().parse().map_err(|_| wrong())?;
        let burst = burst.map_or(Ok(count), |burst| burst.trim().parse().map_err(|_| wrong()))?;
        let rate = Self { count, per_ms: units.checked_mul(unit.1).ok_or_else(wrong)?, burst };
        rate.check()?;
        Ok(rate)
    }
}

impl Rate {
    fn check(&self) -> Result<()> {
        if self.count == 0 || self.burst == 0 || !(1..=MAX_RATE_MS).contains(&self.per_ms) {
            return Err(Error::invalid(
                "a rate is at least one job in at most 30 days, with a burst of at least one: to stop claims, pause \
                 the queue",
            ));
        }
        Ok(())
    }
}

/// Slowest refill, so that the level of a bucket fits into 64 bits of nanoseconds.
const MAX_RATE_MS: i64 = 30 * 86_400_000;

impl Policy {
    /// Returns the scope of a dedup key that has none of its own.
    pub fn dedup_scope(&self) -> DedupScope {
        self.dedup_window_ms.map_or(DedupScope::Unfinished, DedupScope::Window)
    }

    /// Refuses contradictions and values out of range, with an error that names valid values.
    pub fn check(&self) -> Result<()> {
        let wrong = |what: String| Err(Error::new(Code::Policy, what));
        if self.max_attempts == 0 {
            return wrong("max_attempts must be at least 1".into());
        }
        self.backoff.check()?;
        if let Backoff::Linear { base_ms, max_ms } | Backoff::Exponential { base_ms, max_ms, .. } =
            &self.backoff
            && base_ms > max_ms
        {
            return wrong(format!(
                "a back-off cannot begin with {base_ms} ms and have a maximum of {max_ms} ms: give a larger maximum"
            ));
        }
        span("lease_ms", self.lease_ms.unwrap_or(1), 1)?;
        span("max_run_ms", self.max_run_ms.unwrap_or(1), 1)?;
        span("expires_ms", self.expires_ms.unwrap_or(1), 1)?;
        span("dedup_window_ms", self.dedup_window_ms.unwrap_or(1), 1)?;
        if self.group_concurrency == 0 || self.group_concurrency > MAX_GROUP_CONCURRENCY {
            return wrong(format!(
                "group_concurrency must be 1 to {MAX_GROUP_CONCURRENCY}, not {}: to stop claims, pause the queue",
                self.group_concurrency
            ));
        }
        if self.group_batch == 0 || self.group_batch > MAX_GROUP_CONCURRENCY {
            return wrong(format!(
                "group_batch must be 1 to {MAX_GROUP_CONCURRENCY}, not {}",
                self.group_batch
            ));
        }
        if self.group_batch > 1 && self.group_concurrency > 1 {
            return wrong(format!(
                "group_batch {} needs group_concurrency 1: the jobs of a batch are one holder's, in order",
                self.group_batch
            ));
        }
        if self.concurrency == Some(0) {
            return wrong("concurrency must be at least 1: to stop claims, pause the queue".into());
        }
        if self.concurrency.is_some_and(|most| most < self.group_concurrency) {
            return wrong(format!(
                "group_concurrency {} is more than the concurrency {} of the whole queue",
                self.group_concurrency,
                self.concurrency.unwrap_or(0)
            ));
        }
        if let Some(rate) = &self.rate {
            rate.check()?;
        }
        for (name, keep) in [
            ("keep", Some(self.keep)),
            ("keep_done", self.keep_done),
            ("keep_dead", self.keep_dead),
            ("keep_cancelled", self.keep_cancelled),
        ] {
            if let Some(keep) = keep.filter(|keep| *keep > MAX_KEPT) {
                return wrong(format!(
                    "{name} must be at most {MAX_KEPT}, not {keep}: archive jobs to keep them for longer"
                ));
            }
        }
        let ages = [
            ("keep_ms", self.keep_ms),
            ("keep_done_ms", self.keep_done_ms),
            ("keep_dead_ms", self.keep_dead_ms),
            ("keep_cancelled_ms", self.keep_cancelled_ms),
        ];
        for (name, ms) in ages {
            span(name, ms.unwrap_or(1), 1)?;
        }
        span("archive_ms", self.archive_ms.unwrap_or(1), 1)?;
        let longest_ms = ages[1..].iter().filter_map(|(_, own_ms)| own_ms.or(self.keep_ms)).max();
        if self.archive && self.archive_ms.zip(longest_ms).is_some_and(|(archive, keep)| archive <= keep) {
            return wrong(
                "archive objects would expire as soon as they are written: archive for longer than jobs are kept"
                    .into(),
            );
        }
        match (self.max_pending, self.overflow) {
            (Some(0), _) => {
                wrong("max_pending must be at least 1: to accept no jobs, drain the queue".into())
            }
            (None, Overflow::Block { .. } | Overflow::DropOldest) => {
                wrong("overflow needs max_pending: give both".into())
            }
            (_, Overflow::Block { timeout_ms }) => span("timeout_ms of overflow", timeout_ms, 0),
            _ => Ok(()),
        }
    }
}

/// Most finished jobs that a queue can keep: every opening reads them.
const MAX_KEPT: u64 = 10_000_000;
/// Most members of a group that may be leased together: each enqueue of a member counts them.
const MAX_GROUP_CONCURRENCY: u32 = 1_000;

/// Refuses a time that is negative or longer than a hundred years.
pub(crate) fn span(what: &str, ms: i64, min: i64) -> Result<()> {
    if !(min..=MAX_SPAN_MS).contains(&ms) {
        return Err(Error::invalid(format!("{what}: {ms} ms is outside {min} ms to a hundred years")));
    }
    Ok(())
}
