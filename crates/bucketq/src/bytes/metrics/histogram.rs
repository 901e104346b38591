//! Histograms of durations and sizes, in fixed buckets. Counting only.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Upper ends of the buckets for times, in milliseconds.
const TIMES: &[u64] =
    &[1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000, 300_000, 3_600_000];
/// Upper ends of the buckets for ops in a commit.
const SIZES: &[u64] = &[1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000];

/// A histogram's observations so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Histogram {
    /// The upper end of each bucket; values beyond the last are in `count` only.
    pub bounds: Vec<u64>,
    /// Observations in each bucket, without those of the buckets before it.
    pub counts: Vec<u64>,
    /// The sum of all observations.
    pub sum: u64,
    /// The number of observations.
    pub count: u64,
}

#[derive(Debug)]
pub(crate) struct Buckets {
    bounds: &'static [u64],
    counts: Vec<AtomicU64>,
    sum: AtomicU64,
    count: AtomicU64,
}

impl Buckets {
    fn new(bounds: &'static [u64]) -> Self {
        let counts = bounds.iter().map(|_| AtomicU64::new(0)).collect();
        Self { bounds, counts, sum: AtomicU64::new(0), count: AtomicU64::new(0) }
    }

    pub fn observe(&self, value: u64) {
        let at = self.bounds.partition_point(|bound| *bound < value);
        if let Some(bucket) = self.counts.get(at) {
            bucket.fetch_add(1, Relaxed);
        }
        self.sum.fetch_add(value, Relaxed);
        self.count.fetch_add(1, Relaxed);
    }

    fn read(&self) -> Histogram {
        Histogram {
            bounds: self.bounds.to_vec(),
            counts: self.counts.iter().map(|c| c.load(Relaxed)).collect(),
            sum: self.sum.load(Relaxed),
            count: self.count.load(Relaxed),
        }
    }
}

/// The histograms of a writer.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Histograms {
    /// From when a job could run until it was claimed, in milliseconds, by claims through this writer.
    pub wait_ms: Histogram,
    /// From a job's claim to its ack, in milliseconds, by acks through this writer.
    pub run_ms: Histogram,
    /// From the start of a commit's first op to the store's reply, in milliseconds.
    pub commit_ms: Histogram,
    /// Ops in a commit.
    pub commit_ops: Histogram,
}

#[derive(Debug)]
pub(crate) struct Observed {
    pub wait_ms: Buckets,
    pub run_ms: Buckets,
    pub commit_ms: Buckets,
    pub commit_ops: Buckets,
}

impl Default for Observed {
    fn default() -> Self {
        let times = || Buckets::new(TIMES);
        Self { wait_ms: times(), run_ms: times(), commit_ms: times(), commit_ops: Buckets::new(SIZES) }
    }
}

impl Observed {
    pub fn read(&self) -> Histograms {
        Histograms {
            wait_ms: self.wait_ms.read(),
            run_ms: self.run_ms.read(),
            commit_ms: self.commit_ms.read(),
            commit_ops: self.commit_ops.read(),
        }
    }
}
