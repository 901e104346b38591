//! True time, and the time that each node's clock shows.
//!
//! True time is tokio's paused clock. Every node sees it through a [`NodeClock`] that is off by a skew, drifts and
//! may be stepped. Nothing else in this crate reads a clock.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bucketq::env::Clock;
use tokio::time::Instant;

/// The true time when a world begins: an ordinary day, so that ids and dates look ordinary.
pub const EPOCH_MS: i64 = 1_800_000_000_000;

/// True time of the paused runtime.
#[expect(clippy::disallowed_methods, reason = "this is the door of the simulation")]
pub fn now() -> Instant {
    Instant::now()
}

/// The clock of one node. It outlives the node's crashes, as a machine's clock does.
#[derive(Debug)]
pub struct NodeClock {
    origin: Instant,
    skew_ms: AtomicI64,
    drift_ppm: i64,
    /// The skew before the clock was last set, and when it was set.
    before: (AtomicI64, AtomicU64),
    /// When the steady clock stood still, and for how long: only where it stops while the machine sleeps.
    stood: Mutex<Vec<(Instant, Duration)>>,
}

impl NodeClock {
    /// Returns a clock that is off by `skew_ms` at `origin` and gains `drift_ppm` microseconds a second from then on.
    pub const fn new(origin: Instant, skew_ms: i64, drift_ppm: i64) -> Self {
        let before = (AtomicI64::new(skew_ms), AtomicU64::new(0));
        Self { origin, skew_ms: AtomicI64::new(skew_ms), drift_ppm, before, stood: Mutex::new(Vec::new()) }
    }

    /// Sets the clock forward by this much (back if negative).
    pub fn step(&self, by_ms: i64) {
        let was = self.skew_ms.fetch_add(by_ms, Ordering::Relaxed);
        self.before.0.store(was, Ordering::Relaxed);
        self.before.1.store(since_ms(self.origin), Ordering::Relaxed);
    }

    /// Sets the clock so that it was off by this much at the origin.
    pub fn set(&self, skew_ms: i64) {
        self.step(skew_ms - self.skew_ms.load(Ordering::Relaxed));
    }

    /// Stops the steady clock for this long, from now on.
    pub fn stand_still(&self, ms: u64) {
        let mut stood = self.stood.lock().unwrap_or_else(PoisonError::into_inner);
        // The machine sleeps already: the new sleep follows the present one.
        let begin = stood.last().map_or(now(), |(begin, long)| now().max(*begin + *long));
        stood.push((begin, Duration::from_millis(ms)));
    }

    /// How long the steady clock has stood still, up to now and when all sleep is over.
    pub fn stood(&self) -> (Duration, Duration) {
        let stood = self.stood.lock().unwrap_or_else(PoisonError::into_inner);
        let so_far = stood.iter().map(|(begin, long)| now().saturating_duration_since(*begin).min(*long));
        (so_far.sum(), stood.iter().map(|(_, long)| *long).sum())
    }

    /// The later of the time it shows and the time it would show if it had not been set in the last two minutes: a body
    /// that is sent now may have been built before.
    pub fn latest_ms(&self) -> i64 {
        let recent = since_ms(self.origin) < self.before.1.load(Ordering::Relaxed) + 120_000;
        let lost = self.before.0.load(Ordering::Relaxed) - self.skew_ms.load(Ordering::Relaxed);
        self.wall_ms() + if recent { lost.max(0) } else { 0 }
    }
}

impl Clock for NodeClock {
    fn wall_ms(&self) -> i64 {
        let elapsed = since_ms(self.origin).cast_signed();
        EPOCH_MS + elapsed + elapsed * self.drift_ppm / 1_000_000 + self.skew_ms.load(Ordering::Relaxed)
    }

    fn monotonic(&self) -> Instant {
        now().checked_sub(self.stood().0).unwrap_or(self.origin)
    }
}

/// Whole milliseconds of true time since `origin`.
pub fn since_ms(origin: Instant) -> u64 {
    (now() - origin).as_millis() as u64
}

/// Wait for this much true time.
pub async fn pause_ms(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}
