//! Commit time: this machine's clock, checked and corrected by the store's; if they disagree, no commit (P28).
//!
//! The writer passes on every reply that has a Date. While this machine's clock and the Dates agree within `max_skew`,
//! Dates correct the clock within bounds. When they disagree, nothing is committed until several replies, requested by
//! `date_query`, have decided which is wrong; one wrong Date alone decides nothing.

mod date_query;

use std::sync::Arc;

use tokio::time::Instant;

use date_query::{DateReply, Witnesses};

use crate::bytes::store::Store;
use crate::noun::config::Options;
use crate::noun::env::Env;
use crate::noun::error::{Code, Error, Result};
use crate::noun::schedule::stamp;

/// The resolution of a Date, by which it may be off beyond the stated skew.
const RESOLUTION_MS: i64 = 1_000;
/// This many replies on one side decide which clock is wrong.
const DECIDE: usize = 3;
/// Requests in one round; some may get no reply, or one without a Date.
const QUESTIONS: usize = 8;

/// Bounds of the store's clock minus this machine's, if the Date is right.
#[derive(Clone, Copy, Debug)]
struct SkewBounds {
    low: i64,
    high: i64,
    /// The Date itself.
    date_ms: i64,
}

impl SkewBounds {
    fn is_within(&self, most: i64) -> bool {
        self.low <= most && self.high >= -most
    }

    fn agrees_with(&self, other: &Self, most: i64) -> bool {
        self.low - most <= other.high && other.low - most <= self.high
    }
}

/// Whether this machine's clock may be used.
#[derive(Debug)]
enum ClockTrust {
    /// No Date contradicts it.
    Given,
    /// It was set by this much since it was confirmed: one reply must confirm it.
    Set(i64),
    /// A Date contradicts it: [`DECIDE`] replies must confirm or refute it.
    Doubted(Hearing),
    /// It was refuted.
    Refused(Error),
}

/// The replies that decide whether this machine's clock is right, so far.
#[derive(Debug, Default)]
struct Hearing {
    agree: Vec<SkewBounds>,
    differ: Vec<SkewBounds>,
}

/// The corrected clock of one writer.
#[derive(Debug)]
pub struct Timekeeper {
    env: Env,
    witnesses: Witnesses,
    /// Bounds of the store's clock minus this machine's, by the replies so far; `None` before the first Date.
    offset: Option<(i64, i64)>,
    max_skew_ms: i64,
    trust: ClockTrust,
    /// Requests sent in this round, when the round ends, and its last error.
    asked: usize,
    until: Instant,
    failed: Option<Error>,
    /// Wall clock and steady clock when last compared: if they moved apart since, this machine's clock was set.
    compared: (i64, Instant),
}

impl Timekeeper {
    /// Returns an uncorrected clock. In doubt it asks the store of the queue file `name`, over one connection or more.
    pub fn new(env: Env, stores: Vec<Arc<dyn Store>>, name: &str, options: &Options) -> Self {
        let witnesses = Witnesses::new(stores, name, options.deadline / 3);
        let compared = (env.wall_ms(), env.monotonic());
        Self {
            until: compared.1,
            env,
            witnesses,
            offset: None,
            max_skew_ms: 0,
            trust: ClockTrust::Given,
            asked: 0,
            failed: None,
            compared,
        }
    }

    /// Sets the skew that the queue file allows, once it is known.
    pub fn set_max_skew(&mut self, max_skew_ms: u32) {
        self.max_skew_ms = i64::from(max_skew_ms);
    }

    /// Returns the corrected time.
    pub fn now_ms(&self) -> i64 {
        self.env.wall_ms().saturating_add(self.offset_ms())
    }

    /// Returns the correction of this machine's clock. A clock that agrees with the Dates is finer than they are and
    /// stays as it is; no Date moves it by more than the bound.
    fn offset_ms(&self) -> i64 {
        let most = self.max_skew_ms.saturating_sub(RESOLUTION_MS).max(RESOLUTION_MS);
        self.offset.map_or(0, |(low, high)| 0.clamp(low, high).clamp(-most, most))
    }

    /// Returns how far a Date may be from this machine's clock.
    fn tolerance_ms(&self) -> i64 {
        self.max_skew_ms.max(RESOLUTION_MS)
    }

    /// Returns the bounds from the Date of a reply received now, to a request sent at `sent`.
    fn bounds(&self, date_ms: i64, sent: Instant) -> SkewBounds {
        let (received, now) = (self.env.wall_ms(), self.env.monotonic());
        let took = i64::try_from(now.saturating_duration_since(sent).as_millis()).unwrap_or(i64::MAX);
        let low = date_ms.saturating_sub(received);
        SkewBounds { low, high: low.saturating_add(RESOLUTION_MS - 1).saturating_add(took), date_ms }
    }

    /// Takes in the Date of a reply to a request sent at `sent`.
    pub fn observe(&mut self, date_ms: Option<i64>, sent: Instant) {
        self.compare();
        let Some(date) = date_ms else { return };
        let bounds = self.bounds(date, sent);
        let agrees = bounds.is_within(self.tolerance_ms());
        match (&self.trust, agrees) {
            (ClockTrust::Given | ClockTrust::Set(_), true) => {
                self.trust = ClockTrust::Given;
                self.learn(bounds);
            }
            (ClockTrust::Given | ClockTrust::Set(_), false) => {
                tracing::debug!(
                    date_ms = date,
                    "a Date contradicts this machine's clock; asking the store again"
                );
                self.trust = ClockTrust::Doubted(Hearing::default());
            }
            // Replies to other requests may come out of a cache: they decide nothing.
            (ClockTrust::Doubted(_) | ClockTrust::Refused(_), _) => {}
        }
    }

    /// Intersects the known bounds with these. If they do not overlap, the known ones move by a quarter of the
    /// distance, so that one reply cannot make time jump.
    fn learn(&mut self, SkewBounds { low, high, .. }: SkewBounds) {
        let Some((was_low, was_high)) = self.offset else {
            self.offset = Some((low, high));
            return;
        };
        let by = if low > was_high {
            ((low - was_high) / 4).max(1)
        } else if high < was_low {
            ((high - was_low) / 4).min(-1)
        } else {
            self.offset = Some((was_low.max(low), was_high.min(high)));
            return;
        };
        self.offset = Some((was_low + by, was_high + by));
    }

    /// Notices when this machine's clock was set.
    fn compare(&mut self) {
        let now = (self.env.wall_ms(), self.env.monotonic());
        let elapsed = now.1.saturating_duration_since(self.compared.1).as_millis() as i64;
        let set_by = now.0.saturating_sub(self.compared.0).saturating_sub(elapsed);
        self.compared = now;
        if set_by.abs() <= RESOLUTION_MS {
            return;
        }
        // If no Date was ever seen, no Date can confirm the new setting: trust it.
        if self.offset.take().is_some() || !matches!(self.trust, ClockTrust::Given) {
            self.trust = ClockTrust::Set(set_by);
        }
    }

    /// Begins a round of requests before a commit, if this machine's clock is in doubt.
    pub fn begin(&mut self) {
        self.compare();
        match self.trust {
            ClockTrust::Given => return,
            ClockTrust::Refused(_) => self.trust = ClockTrust::Doubted(Hearing::default()),
            ClockTrust::Set(_) | ClockTrust::Doubted(_) => {}
        }
        self.asked = 0;
        self.failed = None;
        self.until = self.env.monotonic() + self.witnesses.limit();
    }

    /// Returns the next request of this round, to be awaited and passed to [`Timekeeper::hear`]; `None` when the clock
    /// is not in doubt, or the round is over.
    pub fn question(&mut self) -> Option<impl Future<Output = DateReply> + Send + use<>> {
        let is_open = matches!(self.trust, ClockTrust::Set(_) | ClockTrust::Doubted(_));
        if !is_open || self.asked >= QUESTIONS {
            return None;
        }
        let left = self.until.saturating_duration_since(self.env.monotonic());
        if left.is_zero() {
            return None;
        }
        let number = self.asked;
        self.asked += 1;
        Some(self.witnesses.ask(number, &self.env, left))
    }

    /// Takes in the reply to a request of this round.
    pub fn hear(&mut self, heard: DateReply) {
        self.compare();
        let date_ms = match heard.date_ms {
            Ok(Some(date_ms)) => date_ms,
            Ok(None) => return,
            Err(error) => {
                self.failed = Some(error);
                return;
            }
        };
        let bounds = self.bounds(date_ms, heard.sent);
        let tolerance = self.tolerance_ms();
        if matches!(self.trust, ClockTrust::Set(_)) {
            if bounds.is_within(tolerance) {
                self.trust = ClockTrust::Given;
                return self.learn(bounds);
            }
            self.trust = ClockTrust::Doubted(Hearing::default());
        }
        let ClockTrust::Doubted(hearing) = &mut self.trust else { return };
        if bounds.is_within(tolerance) {
            hearing.agree.push(bounds);
        } else {
            hearing.differ.push(bounds);
        }
        let Hearing { agree, differ } = hearing;
        if agree.len() >= DECIDE {
            tracing::warn!(
                answers = agree.len(),
                "the store's Date was wrong at least once; other replies agree with this machine's clock"
            );
            let agree = std::mem::take(agree);
            self.trust = ClockTrust::Given;
            for bounds in agree {
                self.learn(bounds);
            }
        } else if differ.len() >= DECIDE {
            let agree = differ.windows(2).all(|pair| pair[0].agrees_with(&pair[1], tolerance));
            self.trust = ClockTrust::Refused(self.refusal(bounds.date_ms, agree));
        }
    }

    fn refusal(&self, date_ms: i64, agree: bool) -> Error {
        let (own, store) = (stamp(self.env.wall_ms()), stamp(date_ms));
        let told =
            if agree { "in several replies" } else { "in the newest of several replies, which differ" };
        Error::new(
            Code::ClockSkew,
            format!(
                "this machine's clock says {own} and the store says {store} {told}; this queue file allows a difference of {} ms, so nothing is committed. Set this machine's clock (NTP), or the store's if that one is wrong",
                self.max_skew_ms
            ),
        )
    }

    /// Returns the time of the next commit on a HEAD of `head_ms`, or the reason why none may be made.
    pub fn commit_ms(&self, head_ms: i64) -> Result<i64> {
        let now = self.present_ms()?;
        self.not_behind(head_ms, now)?;
        Ok(now.max(head_ms))
    }

    /// Refuses to commit at `now` on a HEAD of `head_ms` that is ahead of it.
    pub fn not_behind(&self, head_ms: i64, now: i64) -> Result<()> {
        if self.is_ahead(head_ms, now) {
            return Err(Error::new(
                Code::ClockSkew,
                format!(
                    "the newest commit is of {} and this machine's clock says {}; this queue file allows a difference of {} ms, so nothing is committed. If this machine's clock is wrong, set it (NTP). If it is right, a writer with a wrong clock made that commit: set that clock, then run `bucketq fix-time` on the queue file",
                    stamp(head_ms),
                    stamp(now),
                    self.max_skew_ms
                ),
            ));
        }
        Ok(())
    }

    /// Returns whether only the time of HEAD, which is ahead, prevents a commit.
    pub fn is_held_up(&self, head_ms: i64) -> bool {
        self.present_ms().is_ok_and(|now_ms| self.is_ahead(head_ms, now_ms))
    }

    /// Returns whether a commit of `head_ms` is further ahead of `now_ms` than clocks may differ.
    pub fn is_ahead(&self, head_ms: i64, now_ms: i64) -> bool {
        head_ms.saturating_sub(now_ms) > self.max_skew_ms + RESOLUTION_MS
    }

    /// Returns the corrected time, if this machine's clock may be used.
    pub fn present_ms(&self) -> Result<i64> {
        match &self.trust {
            ClockTrust::Given => Ok(self.now_ms()),
            ClockTrust::Refused(error) => Err(error.clone()),
            ClockTrust::Set(by) => Err(self.undecided(&format!("this machine's clock was set by {by} ms"))),
            ClockTrust::Doubted(_) => {
                Err(self.undecided("a Date of the store contradicts this machine's clock"))
            }
        }
    }

    /// Returns the corrected time, after asking the store if the clock is in doubt.
    pub async fn agreed_ms(&mut self) -> Result<i64> {
        self.begin();
        while let Some(question) = self.question() {
            let heard = question.await;
            self.hear(heard);
        }
        self.present_ms()
    }

    fn undecided(&self, what: &str) -> Error {
        match &self.failed {
            Some(error) => error.clone().during(format!("{what}, and asking the store for its time")),
            None => Error::new(
                Code::ClockSkew,
                format!(
                    "{what}, and the store did not report its time often enough since: nothing is committed. Try again"
                ),
            ),
        }
    }
}

/// Returns the skew that a queue file created here would allow.
pub fn skew_ms(options: &Options, store: &dyn Store) -> u32 {
    let skew = options.max_skew.unwrap_or_else(|| store.default_max_skew());
    u32::try_from(skew.as_millis()).unwrap_or(u32::MAX)
}
