//! The only access to the clock and to randomness.
//!
//! All code gets the time and random numbers from an [`Env`]; the simulation passes its own. Waiting uses tokio's
//! timers, which a paused runtime controls. No other code in the crate may call `SystemTime::now`, `Instant::now` or a
//! random number generator (`.clippy.toml`).

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::time::Instant;

/// A sleep of the machine is noticed this soon afterwards.
const LOOK_EACH_US: u64 = 500;
/// Shorter differences do not count as a sleep.
const SHORTEST_SLEEP_MS: u64 = 100;

/// The source of the time.
pub trait Clock: Send + Sync + fmt::Debug {
    /// Returns milliseconds since 1970 in UTC, by this machine's clock.
    fn wall_ms(&self) -> i64;
    /// Returns a clock that never steps and continues while the machine sleeps; only differences have a meaning.
    fn monotonic(&self) -> Instant;
}

/// The source of random bytes. They must be unpredictable: lease tokens and commit ids come from here.
pub trait Entropy: Send + Sync + fmt::Debug {
    /// Fills the slice.
    fn fill(&self, bytes: &mut [u8]);
}

/// The clock and the random numbers of one engine.
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
    /// Returns an environment of these two parts.
    pub fn new(clock: Arc<dyn Clock>, entropy: Arc<dyn Entropy>) -> Self {
        Self { clock, entropy }
    }

    /// Returns milliseconds since 1970 in UTC, uncorrected.
    pub fn wall_ms(&self) -> i64 {
        self.clock.wall_ms()
    }

    /// Returns the time on the clock that never steps.
    pub fn monotonic(&self) -> Instant {
        self.clock.monotonic()
    }

    /// Returns random bytes.
    pub fn bytes<const N: usize>(&self) -> [u8; N] {
        let mut out = [0; N];
        self.entropy.fill(&mut out);
        out
    }

    /// Returns a random number below `bound`; 0 for a bound of 0. For back-off only: slightly biased.
    pub fn below(&self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { u64::from_le_bytes(self.bytes()) % bound }
    }

    /// Waits for this long on the clock that never steps.
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
        let now = Instant::now();
        now + slept(now)
    }
}

/// Returns how long this machine has slept since the first call: the clock beneath `Instant` may stand still meanwhile,
/// but leases keep running.
fn slept(now: Instant) -> Duration {
    static BEGIN: OnceLock<Instant> = OnceLock::new();
    static LOOKED_US: AtomicU64 = AtomicU64::new(0);
    static FIRST: OnceLock<(Duration, std::time::Instant)> = OnceLock::new();
    static SLEPT_MS: AtomicU64 = AtomicU64::new(0);
    // Reading a clock may take half a microsecond, and this one is read several times for each op.
    let begin = *BEGIN.get_or_init(|| now);
    let now_us = u64::try_from(now.saturating_duration_since(begin).as_micros()).unwrap_or(u64::MAX);
    let is_first = FIRST.get().is_none();
    if !is_first && now_us.saturating_sub(LOOKED_US.load(Ordering::Relaxed)) < LOOK_EACH_US {
        return Duration::from_millis(SLEPT_MS.load(Ordering::Relaxed));
    }
    LOOKED_US.store(now_us, Ordering::Relaxed);
    // In this order, so that a pause of the thread in between never counts as sleep.
    let Some(through) = through_sleep() else { return Duration::ZERO };
    let awake = awake();
    let (first_through, first_awake) = *FIRST.get_or_init(|| (through, awake));
    let passed = through.saturating_sub(first_through);
    let slept = passed.saturating_sub(awake.saturating_duration_since(first_awake));
    let slept = u64::try_from(slept.as_millis()).unwrap_or(u64::MAX);
    let known = SLEPT_MS.load(Ordering::Relaxed);
    // A smaller difference is the time between the two readings.
    if slept > known.saturating_add(SHORTEST_SLEEP_MS) {
        SLEPT_MS.fetch_max(slept, Ordering::Relaxed);
        return Duration::from_millis(slept);
    }
    Duration::from_millis(known)
}

#[expect(clippy::disallowed_methods, reason = "this is the door")]
fn awake() -> std::time::Instant {
    std::time::Instant::now()
}

/// Returns a clock that never steps and continues while the machine sleeps, on systems where `Instant` stands still.
#[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
fn through_sleep() -> Option<Duration> {
    #[cfg(target_vendor = "apple")]
    let clock = rustix::time::ClockId::Monotonic;
    #[cfg(not(target_vendor = "apple"))]
    let clock = rustix::time::ClockId::Boottime;
    let time = rustix::time::clock_gettime(clock);
    Some(Duration::new(time.tv_sec.try_into().ok()?, time.tv_nsec.try_into().ok()?))
}

/// On other systems `Instant` itself continues.
#[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
fn through_sleep() -> Option<Duration> {
    None
}

#[derive(Debug)]
struct SystemEntropy;

impl Entropy for SystemEntropy {
    #[expect(clippy::disallowed_methods, reason = "this is the door")]
    fn fill(&self, bytes: &mut [u8]) {
        // Without randomness two commits cannot be distinguished, so the process cannot continue.
        getrandom::fill(bytes).expect("the operating system gives random bytes");
    }
}
