//! Sharing: how a writer that is always busy leaves room for others of the same queue file.
//!
//! A commit takes the winner one round trip and a loser two (a look, then a put), so who has won once wins on, and the
//! others starve. Hence gaps: after a run of commits the writer sends nothing for as long as a loser needs. How long a
//! run may be is learnt: short while others are met, twice as long after every gap that nobody used, up to some
//! seconds, for who loses every race is never met. A writer that has pauses by itself leaves no gaps.
//! Called by turn and look; knows nothing but times.

use std::time::Duration;

use tokio::time::Instant;

/// A run among others, in puts.
const SHORT: u32 = 6;
/// The longest run, in puts, if that is more than [`LONG`]: the cost of gaps nobody uses stays under 2 %.
const LONG_PUTS: u32 = 125;
/// The longest run with nobody about ...
const LONG: Duration = Duration::from_secs(5);
/// ... and the first.
const FIRST: Duration = Duration::from_secs(2);

/// How one writer shares.
#[derive(Debug)]
pub(super) struct Sharing {
    /// How long it may go on without a gap.
    run: Duration,
    /// When this run began.
    since: Option<Instant>,
    /// When its newest commit was stored.
    stored: Option<Instant>,
    /// A gap has been left and nobody was met since.
    left: bool,
}

impl Sharing {
    pub fn new() -> Self {
        Self { run: FIRST, since: None, stored: None, left: false }
    }

    /// A commit sent at `sent` is stored. What comes back is when the next may be sent, if that is not at once.
    pub fn stored(&mut self, sent: Instant, now: Instant, put: Duration) -> Option<Instant> {
        // A loser's look, its back-off and its put.
        let gap = put * 9 / 4;
        if std::mem::take(&mut self.left) {
            self.run = (self.run * 2).min(LONG.max(put * LONG_PUTS));
        }
        let paused = self.stored.is_none_or(|stored| sent.saturating_duration_since(stored) >= gap);
        let since = *self.since.get_or_insert(sent);
        self.stored = Some(now);
        if paused {
            self.since = Some(sent);
            return None;
        }
        if now.saturating_duration_since(since) < self.run.max(put * SHORT) {
            return None;
        }
        self.left = true;
        self.since = None;
        Some(now + gap)
    }

    /// Commits of another writer have been met.
    pub fn met(&mut self, put: Duration) {
        self.run = put * SHORT;
        self.left = false;
        self.since = None;
    }
}
