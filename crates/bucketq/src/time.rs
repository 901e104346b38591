//! Commit time: the machine's clock corrected by the store's, and the refusal to commit when they disagree (P28).
//!
//! Called by the writer with every answer that carries a Date. The Date has a resolution of one second, so each one
//! only says between which bounds the difference to the store's clock lies; the estimate stays within them.

use tokio::time::Instant;

use crate::env::Env;
use crate::error::{Code, Error, Result};

/// What a Date may be off beyond the stated skew: its own resolution.
const RESOLUTION_MS: i64 = 1_000;

/// The corrected clock of one writer.
#[derive(Debug)]
pub struct Timekeeper {
    env: Env,
    /// Store's clock minus this machine's; none before the first Date.
    offset_ms: Option<i64>,
    max_skew_ms: i64,
    skewed: Option<Error>,
    /// Both clocks when they were last compared: apart since then, this machine's clock was set.
    compared: (i64, Instant),
}

impl Timekeeper {
    /// A clock not yet corrected.
    pub fn new(env: Env) -> Self {
        let compared = (env.wall_ms(), env.monotonic());
        Self { env, offset_ms: None, max_skew_ms: 0, skewed: None, compared }
    }

    /// The skew the queue file is made for, once it is known.
    pub fn set_max_skew(&mut self, max_skew_ms: u32) {
        self.max_skew_ms = i64::from(max_skew_ms);
    }

    /// Corrected time.
    pub fn now_ms(&self) -> i64 {
        self.env.wall_ms().saturating_add(self.offset_ms.unwrap_or(0))
    }

    /// An answer sent between `sent_ms` and now (this machine's clock) said it was `date_ms`.
    pub fn observe(&mut self, date_ms: Option<i64>, sent_ms: i64) {
        let Some(date) = date_ms else { return };
        let received = self.env.wall_ms().max(sent_ms);
        let (low, high) =
            (date.saturating_sub(received), date.saturating_add(RESOLUTION_MS - 1).saturating_sub(sent_ms));
        let Some(offset) = self.offset_ms else {
            // A clock that agrees with the Date is finer than the Date: it stays as it is.
            self.offset_ms = Some(if low <= 0 && 0 <= high { 0 } else { low.midpoint(high) });
            self.skewed = None;
            return;
        };
        let off = if offset < low { low - offset } else { offset.saturating_sub(high).max(0) };
        if off > self.max_skew_ms + RESOLUTION_MS {
            self.skewed = Some(Error::new(
                Code::ClockSkew,
                format!(
                    "the clock of this machine went {off} ms away from the store's, more than the {} ms this queue file is made for: nothing is committed until they agree",
                    self.max_skew_ms
                ),
            ));
            return;
        }
        self.skewed = None;
        // Slewed by a quarter of the distance, so that one slow answer cannot make time jump.
        let step = (off / 4).max(i64::from(off > 0));
        self.offset_ms = Some(if offset < low { offset + step } else { offset - step });
    }

    /// True while the newest Date disagreed, or the clock was set since: a fresh Date is needed before a commit.
    pub fn is_skewed(&mut self) -> bool {
        let now = (self.env.wall_ms(), self.env.monotonic());
        let elapsed = now.1.saturating_duration_since(self.compared.1).as_millis() as i64;
        let set_by = now.0.saturating_sub(self.compared.0).saturating_sub(elapsed);
        self.compared = now;
        // Without a Date nobody can tell which of the two is right.
        if set_by.abs() > RESOLUTION_MS && self.offset_ms.take().is_some() {
            self.skewed = Some(Error::new(
                Code::ClockSkew,
                format!(
                    "the clock of this machine was set by {set_by} ms and the store has not told its time since"
                ),
            ));
        }
        self.skewed.is_some()
    }

    /// The time of the next commit on a HEAD of `head_ms`, or why there must be none.
    pub fn commit_ms(&self, head_ms: i64) -> Result<i64> {
        if let Some(error) = &self.skewed {
            return Err(error.clone());
        }
        let now = self.now_ms();
        if head_ms.saturating_sub(now) > self.max_skew_ms + RESOLUTION_MS {
            return Err(Error::new(
                Code::ClockSkew,
                format!(
                    "the newest commit is {} ms ahead of the clock of this machine, more than the {} ms this queue file is made for: one of the writers' clocks is wrong",
                    head_ms - now,
                    self.max_skew_ms
                ),
            ));
        }
        Ok(now.max(head_ms))
    }
}
