//! The only door to the clock and to randomness.
//!
//! Everything that needs the time or a random number gets it from an [`Env`]; the simulation hands in its own.
//! Waiting goes through tokio's timers, which a paused runtime drives. Nothing else in the crate may call
//! `SystemTime::now`, `Instant::now` or a random number generator (`.clippy.toml`).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

/// Where the time comes from.
pub trait Clock: Send + Sync + fmt::Debug {
    /// Milliseconds since 1970 in UTC, as this machine believes.
    fn wall_ms(&self) -> i64;
    /// A clock that never steps; only differences mean anything.
    fn monotonic(&self) -> Instant;
}

/// Where random bytes come from. They must be unpredictable: lease tokens and commit ids are drawn here.
pub trait Entropy: Send + Sync + fmt::Debug {
    /// Fill the slice.
    fn fill(&self, bytes: &mut [u8]);
}

/// The clock and the randomness of one engine.
#[derive(Clone, Debug)]
pub struct Env {
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
}

impl Default for Env {
    fn default() -> Self {
        Self::new(Arc::new(SystemClock), Arc::new(SystemEntropy))
    }
}

impl Env {
    /// An environment of these two parts.
    pub fn new(clock: Arc<dyn Clock>, entropy: Arc<dyn Entropy>) -> Self {
        Self { clock, entropy }
    }

    /// Milliseconds since 1970 in UTC, uncorrected.
    pub fn wall_ms(&self) -> i64 {
        self.clock.wall_ms()
    }

    /// A point on the clock that never steps.
    pub fn monotonic(&self) -> Instant {
        self.clock.monotonic()
    }

    /// Random bytes.
    pub fn bytes<const N: usize>(&self) -> [u8; N] {
        let mut out = [0; N];
        self.entropy.fill(&mut out);
        out
    }

    /// A random number below `bound`; 0 for a bound of 0. For back-off only: slightly biased.
    pub fn below(&self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { u64::from_le_bytes(self.bytes()) % bound }
    }

    /// Wait for this long on the clock that never steps.
    pub async fn sleep(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }
}

#[derive(Debug)]
struct SystemClock;

impl Clock for SystemClock {
    #[expect(clippy::disallowed_methods, reason = "this is the door")]
    fn wall_ms(&self) -> i64 {
        std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |d| i64::try_from(d.as_millis()).unwrap_or(i64::MAX))
    }

    #[expect(clippy::disallowed_methods, reason = "this is the door")]
    fn monotonic(&self) -> Instant {
        Instant::now()
    }
}

#[derive(Debug)]
struct SystemEntropy;

impl Entropy for SystemEntropy {
    #[expect(clippy::disallowed_methods, reason = "this is the door")]
    fn fill(&self, bytes: &mut [u8]) {
        // Without randomness no commit can be told from another: nothing sensible is left to do.
        getrandom::fill(bytes).expect("the operating system gives random bytes");
    }
}
