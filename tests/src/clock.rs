//! Clocks that tests set: they follow tokio's clock, which a paused runtime drives, and step when a test says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use bucketq::Env;
use bucketq::env::{Clock, Entropy};
use tokio::time::Instant;

/// The time such a clock shows at first: an ordinary day.
const EPOCH_MS: i64 = 1_800_000_000_000;

/// A clock of one machine. Clones are the same clock.
#[derive(Clone, Debug)]
pub struct TestClock {
    origin: Instant,
    off_ms: Arc<AtomicI64>,
    slept_ms: Arc<AtomicU64>,
}

impl TestClock {
    /// A clock that is right from now on.
    pub fn start() -> Self {
        Self { origin: now(), off_ms: Arc::default(), slept_ms: Arc::default() }
    }

    /// Another machine's clock, off by this much.
    #[must_use]
    pub fn off_by(&self, ms: i64) -> Self {
        let off_ms = self.off_ms.load(Ordering::Relaxed) + ms;
        Self {
            origin: self.origin,
            off_ms: Arc::new(AtomicI64::new(off_ms)),
            slept_ms: Arc::clone(&self.slept_ms),
        }
    }

    /// Sets the clock forward by this much.
    pub fn step(&self, ms: i64) {
        self.off_ms.fetch_add(ms, Ordering::Relaxed);
    }

    /// The machine slept for this long just now: its clocks continued, and no timer did.
    pub fn slept(&self, time: Duration) {
        self.slept_ms.fetch_add(time.as_millis() as u64, Ordering::Relaxed);
    }

    fn all_sleep(&self) -> Duration {
        Duration::from_millis(self.slept_ms.load(Ordering::Relaxed))
    }

    /// An engine's environment with this clock and randomness of its own.
    pub fn env(&self) -> Env {
        static SEEDS: AtomicU64 = AtomicU64::new(1);
        self.seeded(SEEDS.fetch_add(1, Ordering::Relaxed))
    }

    /// The same, with randomness seeded by this number.
    pub fn seeded(&self, seed: u64) -> Env {
        Env::new(Arc::new(self.clone()), Arc::new(Counted(AtomicU64::new(seed << 32))))
    }
}

impl Clock for TestClock {
    fn wall_ms(&self) -> i64 {
        EPOCH_MS + (self.monotonic() - self.origin).as_millis() as i64 + self.off_ms.load(Ordering::Relaxed)
    }

    fn monotonic(&self) -> Instant {
        now() + self.all_sleep()
    }
}

/// The runtime's clock.
#[expect(clippy::disallowed_methods, reason = "this is the door of the tests")]
pub fn now() -> Instant {
    Instant::now()
}

/// Let time pass: at once where it is paused.
pub async fn pass(time: Duration) {
    tokio::time::sleep(time).await;
}

/// A mixed counter: never twice the same.
#[derive(Debug)]
struct Counted(AtomicU64);

impl Entropy for Counted {
    fn fill(&self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let mut x = self.0.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            chunk.copy_from_slice(&(x ^ (x >> 31)).to_le_bytes()[..chunk.len()]);
        }
    }
}
