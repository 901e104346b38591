//! The simulated store: any store behind a round trip of fixed length, with every request counted.
//!
//! Used by every benchmark. It changes neither requests nor replies. Half of the round trip is before the
//! request and half after it, so that the store acts in the middle, as on a network.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bucketq::error::Result;
use bucketq::store::{Expect, Got, Listed, Put, Store, Version};
use bytes::Bytes;

/// A store behind a delay. Clones share the delay and the counters.
#[derive(Clone, Debug)]
pub struct Delayed {
    inner: Arc<dyn Store>,
    round_trip_us: Arc<AtomicU64>,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    puts: AtomicU64,
    put_bytes: AtomicU64,
    gets: AtomicU64,
    lists: AtomicU64,
    deletes: AtomicU64,
    uploads: AtomicU64,
    upload_bytes: AtomicU64,
}

/// Counts of requests so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// Conditional PUTs.
    pub puts: u64,
    /// Bytes of the conditional PUTs.
    pub put_bytes: u64,
    /// PUTs of bases and segments.
    pub uploads: u64,
    /// Bytes of the PUTs of bases and segments.
    pub upload_bytes: u64,
    /// GETs, conditional or not.
    pub gets: u64,
    /// LISTs.
    pub lists: u64,
    /// Deletes.
    pub deletes: u64,
}

impl Requests {
    /// Returns the counts since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            puts: self.puts - before.puts,
            put_bytes: self.put_bytes - before.put_bytes,
            uploads: self.uploads - before.uploads,
            upload_bytes: self.upload_bytes - before.upload_bytes,
            gets: self.gets - before.gets,
            lists: self.lists - before.lists,
            deletes: self.deletes - before.deletes,
        }
    }

    /// Returns the mean size of a conditional PUT; zero without any.
    pub fn mean_put(&self) -> usize {
        usize::try_from(self.put_bytes.checked_div(self.puts).unwrap_or(0)).unwrap_or(usize::MAX)
    }
}

impl Delayed {
    /// Puts this store behind a delay of zero.
    pub fn new(inner: Arc<dyn Store>) -> Self {
        Self { inner, round_trip_us: Arc::default(), counts: Arc::default() }
    }

    /// Sets the delay of later requests, which is added to the store's own time.
    pub fn set_round_trip(&self, time: Duration) {
        self.round_trip_us.store(u64::try_from(time.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Returns the requests so far, through every clone.
    pub fn requests(&self) -> Requests {
        let read = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let c = &self.counts;
        Requests {
            puts: read(&c.puts),
            put_bytes: read(&c.put_bytes),
            uploads: read(&c.uploads),
            upload_bytes: read(&c.upload_bytes),
            gets: read(&c.gets),
            lists: read(&c.lists),
            deletes: read(&c.deletes),
        }
    }

    async fn half_way(&self) {
        let half = self.round_trip_us.load(Ordering::Relaxed) / 2;
        // At zero even a timer is too much: it would round up to a millisecond.
        if half > 0 {
            tokio::time::sleep(Duration::from_micros(half)).await;
        }
    }

    async fn round_trip<T>(&self, count: &AtomicU64, request: impl Future<Output = T>) -> T {
        count.fetch_add(1, Ordering::Relaxed);
        self.half_way().await;
        let answer = request.await;
        self.half_way().await;
        answer
    }
}

#[async_trait]
impl Store for Delayed {
    async fn get(&self, key: &str, unless: Option<&Version>) -> Result<Got> {
        self.round_trip(&self.counts.gets, self.inner.get(key, unless)).await
    }

    async fn put_if(&self, key: &str, body: Bytes, expect: &Expect) -> Put {
        self.counts.put_bytes.fetch_add(body.len() as u64, Ordering::Relaxed);
        self.round_trip(&self.counts.puts, self.inner.put_if(key, body, expect)).await
    }

    async fn put_new(&self, key: &str, body: Bytes) -> Result<()> {
        self.counts.upload_bytes.fetch_add(body.len() as u64, Ordering::Relaxed);
        self.round_trip(&self.counts.uploads, self.inner.put_new(key, body)).await
    }

    async fn delete(&self, key: &str) -> Result<()> {
        self.round_trip(&self.counts.deletes, self.inner.delete(key)).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Listed>> {
        self.round_trip(&self.counts.lists, self.inner.list(prefix)).await
    }

    fn describe(&self) -> String {
        format!("delayed {}", self.inner.describe())
    }

    bucketq::forward_to_inner!(default_max_skew needs_probe);
}
