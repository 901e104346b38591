//! Counters and histograms of one writer, their text for Prometheus, and the store wrapper that counts requests. Counting only; nothing decides by them.

mod histogram;
mod text;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

pub(crate) use histogram::Observed;
pub use histogram::{Histogram, Histograms};
pub use text::text;

use crate::error::Result;
use crate::fit::Inputs;
use crate::store::{Expect, Got, Listed, Put, Store, Version};

macro_rules! counters {
    ($( $(#[doc = $doc:literal])* $name:ident, )*) => {
        /// What a writer has done since it was opened.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
        pub struct Metrics { $( $(#[doc = $doc])* pub $name: u64, )* }

        #[derive(Debug, Default)]
        pub(crate) struct Counters { $( pub $name: AtomicU64, )* }

        impl Counters {
            pub fn read(&self) -> Metrics {
                Metrics { $( $name: self.$name.load(Relaxed), )* }
            }
        }
    };
}

counters! {
    /// Commits stored.
    commits,
    /// Ops in those commits.
    ops,
    /// Bytes of their deltas, as stored.
    delta_bytes,
    /// Bodies that lost the race and were run again.
    conflicts,
    /// Of those, bodies whose put was never answered.
    conflicts_unanswered,
    /// Identical bodies sent again.
    resends,
    /// Bodies whose outcome could not be known.
    unknown,
    /// Foreign commits taken over.
    caught_up,
    /// Commits to the local log.
    local_commits,
    /// Ops in those.
    local_ops,
    /// Claims handed back because their caller had gone.
    handed_back,
    /// Jobs that have left for the archive.
    archived_jobs,
    /// Events that listeners were too slow for.
    events_missed,
    /// Events that listeners failed over.
    events_failed,
    /// Conditional puts of HEAD.
    puts,
    /// Bytes of those.
    put_bytes,
    /// Gets.
    gets,
    /// Gets answered "unchanged".
    gets_unchanged,
    /// Bytes received by gets.
    get_bytes,
    /// Segments and bases written.
    uploads,
    /// Bytes of those.
    upload_bytes,
    /// Lists.
    lists,
    /// Deletes.
    deletes,
}

/// What the requests of a writer and the size of its file cost, by the price table of the fit model.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Cost {
    /// USD for all requests since the writer was opened.
    pub total: f64,
    /// USD for an hour: requests as many as an hour at the pace so far would bring, and the storage of the database.
    pub per_hour: f64,
}

/// A shorter life says little about an hour: opening alone takes dozens of requests.
const LEAST_LIFE: Duration = Duration::from_mins(1);
/// Hours in the month that storage is priced by, as in the fit model.
const MONTH_HOURS: f64 = 730.0;

impl Metrics {
    /// What these requests cost, made within this time, and a database of this many pages. Deletes are free.
    pub fn cost(&self, life: Duration, pages: u64) -> Cost {
        let prices = Inputs::default();
        let puts = (self.puts + self.uploads + self.lists) as f64;
        let total = (puts * prices.price_put + self.gets as f64 * prices.price_get) / 1e6;
        let hours = life.max(LEAST_LIFE).as_secs_f64() / 3_600.0;
        let storage = pages as f64 * 4_096.0 / 1e9 * prices.price_gb / MONTH_HOURS;
        Cost { total, per_hour: total / hours + storage }
    }
}

impl Counters {
    pub fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Relaxed);
    }
}

/// A store that counts what goes through it.
#[derive(Debug)]
pub(crate) struct Counted {
    pub inner: Arc<dyn Store>,
    pub counters: Arc<Counters>,
}

#[async_trait]
impl Store for Counted {
    async fn get(&self, key: &str, unless: Option<&Version>) -> Result<Got> {
        Counters::add(&self.counters.gets, 1);
        let got = self.inner.get(key, unless).await?;
        match &got {
            Got::Object { bytes, .. } => Counters::add(&self.counters.get_bytes, bytes.len() as u64),
            Got::Unchanged { .. } => Counters::add(&self.counters.gets_unchanged, 1),
            Got::Absent { .. } => {}
        }
        Ok(got)
    }

    async fn put_if(&self, key: &str, body: Bytes, expect: &Expect) -> Put {
        Counters::add(&self.counters.puts, 1);
        Counters::add(&self.counters.put_bytes, body.len() as u64);
        self.inner.put_if(key, body, expect).await
    }

    async fn put_new(&self, key: &str, body: Bytes) -> Result<()> {
        Counters::add(&self.counters.uploads, 1);
        Counters::add(&self.counters.upload_bytes, body.len() as u64);
        self.inner.put_new(key, body).await
    }

    async fn delete(&self, key: &str) -> Result<()> {
        Counters::add(&self.counters.deletes, 1);
        self.inner.delete(key).await
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Listed>> {
        Counters::add(&self.counters.lists, 1);
        self.inner.list(prefix).await
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn default_max_skew(&self) -> Duration {
        self.inner.default_max_skew()
    }

    fn needs_probe(&self) -> bool {
        self.inner.needs_probe()
    }
}
