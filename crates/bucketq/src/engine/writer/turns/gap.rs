//! Gaps that a writer asks for in HEAD, for a commit that takes long to build (decision 29).
//!
//! A writer that builds for longer than the others pause loses every race, however often it tries. So it first commits
//! that it needs a gap, and for how long. The others must read that before they can commit, and send nothing until HEAD
//! moves on or the time is over. Correctness depends only on the compare-and-swap.

use std::time::Duration;

use tokio::time::Instant;

use super::{LATELY_MS, Turns};
use crate::bucket::head::Head;
use crate::door::{Slot, Work};
use crate::engine::duty;
use crate::engine::gap::Gap;
use crate::engine::time::Timekeeper;

/// From this number of changes, a commit is expected to take long even before it was tried.
const LARGE: usize = 1_000;
/// A commit that took less to build is tried again without a gap.
const QUICK: Duration = Duration::from_millis(20);
/// The assumed time of a change, until it was measured.
const A_CHANGE: Duration = Duration::from_micros(30);

/// A writer's measurements of building commits.
#[derive(Debug)]
pub(super) struct Building {
    /// Average time for a change, in batches that had many.
    pub each: Duration,
    /// How long the last try took from its beginning to its put.
    pub took: Duration,
    /// The last try had to wait for a segment.
    pub segment: bool,
    /// A gap that the next body asks for, in milliseconds.
    pub asks: Option<u32>,
}

impl Building {
    pub fn new() -> Self {
        Self { each: A_CHANGE, took: Duration::ZERO, segment: false, asks: None }
    }
}

/// Returns roughly how many changes a batch makes.
pub(in crate::engine::writer) fn changes(batch: &[Slot]) -> usize {
    let one = |work: &Work| match work {
        Work::Op(op) => op.changes(),
        Work::Fence | Work::Archive { .. } => 1,
    };
    batch.iter().filter_map(|slot| Some(one(&slot.work()?.work))).sum()
}

impl Turns {
    /// Notes that the next try of a batch begins.
    pub fn begins(&mut self) {
        self.building.segment = false;
    }

    /// Notes that the try has to wait for a segment.
    pub fn waits_for_segment(&mut self) {
        self.building.segment = true;
    }

    /// Learns from a batch of `changes` changes that ran for this time.
    pub fn executed(&mut self, changes: usize, took: Duration) {
        if changes >= LARGE
            && let Ok(changes) = u32::try_from(changes)
        {
            self.building.each = (self.building.each * 3 + took / changes) / 4;
        }
    }

    /// Notes that a try which began at `started` has lost.
    pub fn lost(&mut self, started: Instant) {
        let sent = self.last_put.unwrap_or(started);
        self.building.took = sent.saturating_duration_since(started);
    }

    /// Lets the next body ask for a gap of this length, in milliseconds, or for none.
    pub fn ask(&mut self, ms: Option<u32>) {
        self.building.asks = ms;
    }

    /// Puts the gap that this writer asks for into the body.
    pub fn ask_in(&self, head: &mut Head, id: [u8; 8]) {
        if let Some(ms) = self.building.asks {
            head.set_gap(Some(Gap { writer: id, ms }));
        }
    }

    /// Returns the gap, in milliseconds, without which a batch of this number of changes would lose. It has lost
    /// `losses` races.
    pub fn needs_gap(
        &self,
        changes: usize,
        losses: u32,
        head: &Head,
        id: [u8; 8],
        time: &Timekeeper,
    ) -> Option<u32> {
        let (put, building) = (self.put, &self.building);
        let others_write = || !duty::is_alone(head, id) && time.now_ms() - head.commit_ms < LATELY_MS;
        let expected = building.each * u32::try_from(changes).unwrap_or(u32::MAX);
        let needs = match losses {
            0 if changes < LARGE || !others_write() => return None,
            // A commit that took long last time takes long again.
            0 => building.took.max(expected) * 2 + put * 6,
            _ if !building.segment && building.took < put.max(QUICK) => return None,
            _ => (building.took * 2).max(expected * 2) + put * 6,
        };
        Some(u32::try_from(needs.min(self.gap_most()).as_millis()).unwrap_or(u32::MAX).max(1))
    }

    /// Returns the longest gap a writer asks for: if that writer dies, the gap costs the others this, once.
    fn gap_most(&self) -> Duration {
        self.options.deadline / 3
    }

    /// Returns how often HEAD is read while a gap lasts.
    pub(super) fn poll_gap(&self) -> Duration {
        self.put.clamp(POLL.0, POLL.1)
    }

    /// Returns when the gap that the newest commit asks for is over, if it is another writer's.
    pub(super) fn gap_of_another(&self, head: &Head, id: [u8; 8], time: &Timekeeper) -> Option<Instant> {
        let Gap { writer, ms } = head.gap()?;
        let length = Duration::from_millis(ms.into()).min(self.gap_most());
        // A gap that is found long afterwards does not count.
        let since_ms = time.now_ms() - head.commit_ms;
        let over = since_ms > i64::from(ms) + i64::from(head.max_skew_ms);
        (writer != id && !over).then(|| self.moved + length)
    }
}

/// Shortest and longest pause between reads of HEAD while a gap lasts.
const POLL: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(100));

/// Returns how long an op that extends a lease waits at most: a quarter of that lease. `None` for other ops.
pub(super) fn patience(slot: &Slot) -> Option<Duration> {
    slot.work().and_then(|loaded| match &loaded.work {
        Work::Op(op) => Some(Duration::from_millis(u64::try_from(op.extends_ms()?).ok()?) / 4),
        Work::Fence | Work::Archive { .. } => None,
    })
}
