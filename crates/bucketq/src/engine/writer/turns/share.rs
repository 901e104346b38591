//! Sharing: how a writer that is always busy leaves gaps for others of the same queue file.
//!
//! A commit takes the winner one round trip and a loser two (a read, then a put), so a writer that won once keeps
//! winning, and the others starve. Hence gaps: after a series of commits the writer sends nothing for as long as a
//! loser needs. It learns how long a series may be: short while commits of others appear, longer after every unused
//! gap, up to some seconds, because a writer that loses every race never appears. A writer that has pauses anyway
//! leaves no gaps. Knows nothing but times.

use std::time::Duration;

use tokio::time::Instant;

/// The longest series while others commit, in puts.
const SHORT: u32 = 6;
/// The longest series, in puts, if that is more than [`LONG`]: unused gaps cost less than 2 %.
const LONG_PUTS: u32 = 125;
/// The longest series while no other writer commits ...
const LONG: Duration = Duration::from_secs(5);
/// ... and the first one.
const FIRST: Duration = Duration::from_secs(2);

/// How one writer shares the queue file.
#[derive(Debug)]
pub(super) struct Sharing {
    /// How long a series may last without a gap.
    run: Duration,
    /// When this series began.
    since: Option<Instant>,
    /// When its newest commit was stored.
    stored: Option<Instant>,
    /// A gap was left, and no commit of others has appeared since.
    left: bool,
    /// Commits of this series, one after the other.
    commits: u32,
}

/// How many times longer a series may be after each unused gap.
const UNUSED: u32 = 4;
/// With every second commit of a series, the writer looks for a knock: one GET for two PUTs.
const LISTEN: u32 = 2;

impl Sharing {
    pub fn new() -> Self {
        Self { run: FIRST, since: None, stored: None, left: false, commits: 0 }
    }

    /// Takes in a stored commit, sent at `sent`. Returns when the next may be sent, or `None` for at once.
    pub fn stored(&mut self, sent: Instant, now: Instant, put: Duration) -> Option<Instant> {
        // A loser's read, its back-off and its put.
        let gap = put * 9 / 4;
        if std::mem::take(&mut self.left) {
            self.run = (self.run * UNUSED).min(LONG.max(put * LONG_PUTS));
        }
        let paused = self.stored.is_none_or(|stored| sent.saturating_duration_since(stored) >= gap);
        let since = *self.since.get_or_insert(sent);
        self.stored = Some(now);
        if paused {
            self.since = Some(sent);
            self.commits = 0;
            return None;
        }
        self.commits += 1;
        if now.saturating_duration_since(since) < self.run.max(put * SHORT) {
            return None;
        }
        self.left = true;
        self.since = None;
        Some(now + gap)
    }

    /// Returns whether to look for a knock with the next put: this writer may leave another one no room.
    pub fn listens(&self, put: Duration) -> bool {
        let run = self.since.zip(self.stored).map(|(since, stored)| stored.saturating_duration_since(since));
        self.commits % LISTEN == LISTEN - 1 && run.is_some_and(|run| run >= put * (LISTEN - 1))
    }

    /// Takes in a knock for a gap of this length. Returns when the next commit may be sent. For a while gaps are
    /// frequent, as after commits of others.
    pub fn knocked(&mut self, now: Instant, put: Duration, wanted: Duration) -> Instant {
        self.met(put);
        self.stored = Some(now);
        self.left = true;
        now + wanted.max(put * 3)
    }

    /// Notes that commits of another writer have appeared.
    pub fn met(&mut self, put: Duration) {
        self.run = put * SHORT;
        self.left = false;
        self.since = None;
        self.commits = 0;
    }
}
