//! Counters and histograms of one writer, and their text for Prometheus.
//! Counting only; no code decides by them.

mod histogram;
mod text;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

pub(crate) use histogram::Observed;
pub use histogram::{Histogram, Histograms};
pub use text::text;

use crate::fit::Inputs;

macro_rules! counters {
    ($( $(#[doc = $doc:literal])* $name:ident, )*) => {
        /// The counters of a writer since it was opened.
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
    /// Bodies that lost the race; their ops ran again.
    conflicts,
    /// Those whose PUT got no reply.
    conflicts_unanswered,
    /// Identical bodies sent again.
    resends,
    /// Bodies whose outcome could not be found out.
    unknown,
    /// Commits of other writers applied here.
    caught_up,
    /// Commits to the local log.
    local_commits,
    /// Ops in those commits.
    local_ops,
    /// Claims handed back because their caller had disappeared.
    handed_back,
    /// Jobs looked up for callers that wait until a job is finished.
    wait_looks,
    /// Jobs that this process archived.
    archived_jobs,
    /// Events missed because a listener was too slow.
    events_missed,
    /// Events on which a listener failed.
    events_failed,
    /// Conditional PUTs of HEAD.
    puts,
    /// Bytes of those PUTs.
    put_bytes,
    /// GETs.
    gets,
    /// GETs for which the store replied "unchanged".
    gets_unchanged,
    /// Bytes received by GETs.
    get_bytes,
    /// Segments and bases written.
    uploads,
    /// Bytes of those uploads.
    upload_bytes,
    /// Lists.
    lists,
    /// Deletes.
    deletes,
    /// Other processes of this host that share this writer now.
    processes,
}

/// Cost of a writer's requests and of its file's storage, at the prices of the fit model.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Cost {
    /// USD for all requests since the writer was opened.
    pub total: f64,
    /// USD for an hour: requests at the rate so far, and the storage of the database.
    pub per_hour: f64,
}

/// A shorter run time says little about an hour: opening alone takes dozens of requests.
const LEAST_LIFE: Duration = Duration::from_mins(1);
/// Hours of a month of storage, as in the fit model.
const MONTH_HOURS: f64 = 730.0;

impl Metrics {
    /// Returns the cost of these requests, made within `life`, and of a database of this many pages. Deletes are free.
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
