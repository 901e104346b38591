//! Several processes of one host on one queue file: their speed over that of one process, how long a call takes beside
//! busy workers, waking, uploads, a killed process, opening, fairness. Used by the program `hosts`.
//!
//! The processes are real: `hosts --child`, or Python's `benches/hosts.py`. [`process`] starts them and gives them
//! orders, [`child`] carries them out, and one module measures each question. The public API is all they use.

pub mod beside;
pub mod child;
pub mod fair;
pub mod link;
pub mod process;
pub mod puts;
pub mod seen;
pub mod speed;
pub mod takeover;

use std::path::PathBuf;
use std::time::Duration;

use bucketq::config::S3Options;
use serde_json::{Value, json};

use crate::servers::BUCKET;
use process::Place;

/// The network that every measurement but that of the link goes through.
pub const UPSTREAM: Duration = Duration::from_millis(13);
/// Its way back.
pub const DOWNSTREAM: Duration = Duration::from_millis(12);

/// How long and how often things are measured.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Before each stretch, not counted.
    pub warm: Duration,
    /// The counted time of a stretch.
    pub window: Duration,
    /// Stretches of each side of a ratio. Other measurements have one stretch, as long as all of a side together.
    pub rounds: usize,
    /// The counted time beside busy workers, where a call is made once a second.
    pub web: Duration,
    /// Processes killed.
    pub kills: usize,
    /// The time after a kill in which callers must succeed again.
    pub after_kill: Duration,
    /// Processes that open the file of another.
    pub joins: usize,
}

impl Effort {
    /// Returns the counted time of a measurement with one stretch.
    pub fn whole(&self) -> Duration {
        self.window * u32::try_from(self.rounds).unwrap_or(1)
    }
}

/// The real server, and how the processes share it.
#[derive(Clone, Debug)]
pub struct Ground {
    /// How to reach the server.
    pub s3: S3Options,
    /// Whether the processes may share a writer.
    pub share: bool,
    /// The directory in which they meet.
    pub meeting: PathBuf,
    /// The Python interpreter that has the package, if Python is measured.
    pub python: Option<PathBuf>,
}

impl Ground {
    /// Returns a place for one measurement. No two measurements may use the same name.
    pub fn place(&self, name: &str) -> Place {
        Place {
            url: format!("s3://{BUCKET}/hosts/{name}/jobs"),
            s3: Some(self.s3.clone()),
            share: self.share,
            meeting: self.meeting.clone(),
        }
    }
}

/// Returns the order for a stretch of these groups of callers; they all work at once.
pub fn stretch(warm: Duration, window: Duration, groups: &[Value]) -> Value {
    let ms = |time: Duration| time.as_millis() as u64;
    json!({ "warm_ms": ms(warm), "window_ms": ms(window), "groups": groups })
}

/// Returns the 99th percentile: the largest of fewer than a hundred; none without samples.
pub fn p99(samples: &[u64]) -> Option<f64> {
    at(samples, 99)
}

/// Returns the median; none without samples.
pub fn p50(samples: &[u64]) -> Option<f64> {
    at(samples, 50)
}

fn at(samples: &[u64], percent: usize) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() * percent / 100).map(|sample| *sample as f64)
}

/// Prints one line about what was measured, to standard error.
pub fn say(line: &str) {
    eprintln!("{line}");
}
