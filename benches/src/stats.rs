//! Figures made of samples, the clock for the samples, and the comparison with an aim.

use std::time::Duration;

use bucketq::env::Env;
use serde_json::{Value, json};
use tokio::time::Instant;

/// Returns the time of the monotonic clock. The benchmarks read the clock only here.
pub fn now() -> Instant {
    Env::default().monotonic()
}

/// Returns the mean; zero for an empty slice.
pub fn mean(samples: &[Duration]) -> Duration {
    let count = u32::try_from(samples.len()).unwrap_or(u32::MAX);
    if count == 0 { Duration::ZERO } else { samples.iter().sum::<Duration>() / count }
}

/// Returns the middle sample; zero for an empty slice.
pub fn median(samples: &[Duration]) -> Duration {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

/// Returns microseconds for people: one decimal.
pub fn micros(time: Duration) -> f64 {
    tidy(time.as_secs_f64() * 1e6, 1)
}

/// Rounds a number to this many decimals, so that the JSON can be read.
pub fn tidy(number: f64, decimals: i32) -> f64 {
    let scale = 10_f64.powi(decimals);
    (number * scale).round() / scale
}

/// Events in a stretch of time, summed over several stretches.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rate {
    events: u64,
    time: Duration,
}

impl Rate {
    /// Adds one stretch.
    pub fn add(&mut self, events: u64, time: Duration) {
        self.events += events;
        self.time += time;
    }

    /// Returns the events per second; zero before the first stretch.
    pub fn per_second(&self) -> f64 {
        if self.time.is_zero() { 0.0 } else { self.events as f64 / self.time.as_secs_f64() }
    }
}

/// The good side of an aim.
#[derive(Clone, Copy, Debug)]
pub enum Aim {
    /// At least this.
    AtLeast(f64),
    /// At most this.
    AtMost(f64),
}

/// Returns one line of the table on standard error: the measured value, the aim, and whether it was reached.
pub fn judge(name: &str, measured: &Value, aim: Aim) -> String {
    let (met, word, wanted) = match (measured.as_f64(), aim) {
        (None, Aim::AtLeast(w) | Aim::AtMost(w)) => return format!("{name:<44} not measured (aim {w})"),
        (Some(m), Aim::AtLeast(w)) => (m >= w, "at least", w),
        (Some(m), Aim::AtMost(w)) => (m <= w, "at most", w),
    };
    let verdict = if met { "met" } else { "MISSED" };
    format!("{name:<44} {measured:>12}   aim {word} {wanted:<8} {verdict}")
}

/// Returns the value as JSON, rounded to `decimals`.
pub fn number(value: f64, decimals: i32) -> Value {
    json!(tidy(value, decimals))
}
