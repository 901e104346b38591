//! Measures a store for the fit model (docs/fit.md): how long requests take by size, how many commits a second one key
//! takes, and how far the clocks differ.
//!
//! Called by programs directly, as the probe is. Uses the Store trait only; creates and deletes objects
//! `name.probe-...`.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use serde::Serialize;
use tokio::time::Instant;

use super::probe::fresh_key;
use super::{Expect, Got, Put, Store, Version};
use crate::bytes::wrap::limited::CallLimit;
use crate::fit::Inputs;
use crate::noun::env::Env;
use crate::noun::error::{Code, Error, Result};

/// Default number of PUTs of the size of a HEAD; enough to find the slowest in a hundred.
pub const SAMPLES: u32 = 100;

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;
/// The size of an ordinary commit's PUT.
const HEAD: usize = 16 * KIB;
const SIZES: [usize; 4] = [KIB, HEAD, 128 * KIB, MIB];
/// Other sizes than HEAD's get this many times fewer samples.
const FEWER: u32 = 5;
/// Longest time for one size, however slow the store.
const LIMIT: Duration = Duration::from_secs(20);
/// Objects of one MiB moved to measure the throughput, and how many at a time: like an opening that reads segments.
const MOVED: usize = 16;
const AT_ONCE: usize = 8;
/// Consecutive writes without a reply before the measurement gives up.
const UNANSWERED: u32 = 8;
/// The resolution of a Date header.
const RESOLUTION_MS: i64 = 1_000;
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Durations of one kind of request, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// The number of requests.
    pub samples: u32,
    /// The fastest.
    pub min_ms: f64,
    /// The median.
    pub p50_ms: f64,
    /// The slowest in a hundred; with fewer samples the slowest.
    pub p99_ms: f64,
}

/// Requests for objects of one size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct BySize {
    /// The size.
    pub bytes: u64,
    /// Conditional PUTs.
    pub put: Spread,
    /// GETs of the whole object.
    pub get: Spread,
    /// GETs of an object that has not changed.
    pub unchanged: Spread,
}

/// The store's clock relative to this machine's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ClockOffset {
    /// The store's clock minus this machine's.
    pub offset_ms: f64,
    /// The true value is at most this far away.
    pub within_ms: f64,
}

/// The inputs of the fit model that a measurement provides; the names are those of [`Inputs`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// The fastest small PUT.
    pub latency_min_ms: f64,
    /// The median small PUT.
    pub latency_ms: f64,
    /// The slowest in a hundred small PUTs.
    pub latency_p99_ms: f64,
    /// Upload of one MiB.
    pub per_mib_ms: f64,
    /// Writes per second to one key; 0 when there was no limit.
    pub writes_per_s: f64,
}

impl Latency {
    /// Returns these inputs with the values of this store.
    pub fn on(&self, inputs: &Inputs) -> Inputs {
        Inputs {
            latency_min_ms: self.latency_min_ms,
            latency_ms: self.latency_ms,
            latency_p99_ms: self.latency_p99_ms,
            per_mib_ms: self.per_mib_ms,
            writes_per_s: self.writes_per_s,
            ..*inputs
        }
    }
}

/// The result of measuring a store.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// The store.
    pub store: String,
    /// Requests by size, smallest first.
    pub sizes: Vec<BySize>,
    /// Sequential conditional PUTs of the size of a HEAD to one key, per second.
    pub commits_per_s: f64,
    /// Writes that the store throttled.
    pub throttled: u32,
    /// MiB per second, eight objects of one MiB at a time.
    pub upload_mib_s: f64,
    /// The same for downloads, in MiB per second.
    pub download_mib_s: f64,
    /// None if the store does not send its time.
    pub clock: Option<ClockOffset>,
    /// Duration of the measurement.
    pub took_ms: f64,
    /// The inputs for the fit model.
    pub inputs: Latency,
}

/// The progress of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The kind of the request just done.
    pub what: &'static str,
    /// Requests done ...
    pub done: u32,
    /// ... of about this many.
    pub of: u32,
}

/// Measures a store with `samples` PUTs of the size of a HEAD and fewer of other sizes. Calls `progress` after each
/// step and stops when it returns false; the objects are deleted in any case. Ends at the deadline, or later as soon as
/// the store has been silent for a third of the deadline.
pub async fn measure(
    store: &Arc<dyn Store>,
    name: &str,
    samples: u32,
    deadline: Duration,
    env: &Env,
    progress: &(dyn Fn(Progress) -> bool + Send + Sync),
) -> Result<Measured> {
    if samples == 0 {
        return Err(Error::invalid("a measurement needs a sample"));
    }
    let begun = env.monotonic();
    let of = SIZES.iter().map(|size| 3 * samples_of(*size, samples)).sum::<u32>() + 2 * MOVED as u32;
    let call_limit = CallLimit::new(env, deadline);
    let heard = call_limit.over_store(Arc::clone(store));
    let store = &heard;
    let mut run =
        Measurement { store, name, env, progress, keys: vec![], done: 0, of, clock: None, throttled: 0 };
    let found = call_limit.run("the measurement", run.all(samples)).await;
    let left = (begun + deadline + deadline / 10).saturating_duration_since(env.monotonic());
    let clean = CallLimit::new(env, left.max(deadline / 20));
    let heard = clean.over_store(Arc::clone(store));
    let deletes = async { Ok(join_all(run.keys.iter().map(|key| heard.delete(key))).await) };
    for deleted in clean.run("deleting the written objects", deletes).await.unwrap_or_else(|e| vec![Err(e)]) {
        if let Err(error) = deleted {
            tracing::warn!(%error, "the measurement could not remove an object");
        }
    }
    let (sizes, rate, limit, [upload, download]) = found?;
    Ok(Measured {
        store: store.describe(),
        inputs: latency(&sizes, limit),
        sizes,
        commits_per_s: tidy(rate),
        throttled: run.throttled,
        upload_mib_s: tidy(upload),
        download_mib_s: tidy(download),
        clock: run.clock.map(|(low, high)| ClockOffset {
            offset_ms: (low + high) as f64 / 2.0,
            within_ms: (high - low).unsigned_abs() as f64 / 2.0,
        }),
        took_ms: millis(env.monotonic() - begun),
    })
}

fn samples_of(size: usize, samples: u32) -> u32 {
    if size == HEAD { samples } else { samples.div_ceil(FEWER) }
}

/// Fits a line through the times of a HEAD and of one MiB: returns its slope, and the time of a HEAD without its bytes.
fn latency(sizes: &[BySize], limit: f64) -> Latency {
    let of = |size: usize| sizes.iter().find(|s| s.bytes == size as u64).map_or(Spread::default(), |s| s.put);
    let (head, mib) = (of(HEAD), of(MIB));
    let share = HEAD as f64 / MIB as f64;
    let per_mib = ((mib.p50_ms - head.p50_ms) / (1.0 - share)).clamp(0.0, 60_000.0);
    let bare = |ms: f64| tidy((ms - per_mib * share).clamp(0.0, 60_000.0));
    Latency {
        latency_min_ms: bare(head.min_ms),
        latency_ms: bare(head.p50_ms),
        latency_p99_ms: bare(head.p99_ms),
        per_mib_ms: tidy(per_mib),
        writes_per_s: tidy(limit),
    }
}

struct Measurement<'a> {
    store: &'a Arc<dyn Store>,
    name: &'a str,
    env: &'a Env,
    progress: &'a (dyn Fn(Progress) -> bool + Send + Sync),
    /// Every key written, to be deleted.
    keys: Vec<String>,
    done: u32,
    of: u32,
    /// Bounds of the store's clock minus this machine's; each Date narrows them.
    clock: Option<(i64, i64)>,
    throttled: u32,
}

/// By size; commits per second; the limit on them or 0; MiB per second up and down.
type Figures = (Vec<BySize>, f64, f64, [f64; 2]);

impl Measurement<'_> {
    async fn all(&mut self, samples: u32) -> Result<Figures> {
        let (mut sizes, mut rate, mut limit) = (vec![], 0.0, 0.0);
        for size in SIZES {
            let samples = samples_of(size, samples);
            let before = self.throttled;
            let (key, version, put, per_second) = self.puts(size, samples).await?;
            if size == HEAD {
                rate = per_second;
                limit = if self.throttled > before { per_second } else { 0.0 };
            }
            let get = self.gets("GET", &key, None, samples).await?;
            let unchanged = self.gets("GET of an unchanged object", &key, Some(&version), samples).await?;
            sizes.push(BySize { bytes: size as u64, put, get, unchanged });
        }
        let moved = self.throughput().await?;
        Ok((sizes, rate, limit, moved))
    }

    /// Replaces one object repeatedly, as commits do. Returns its key and version, the times, and writes per second.
    async fn puts(&mut self, size: usize, samples: u32) -> Result<(String, Version, Spread, f64)> {
        let key = self.fresh_key();
        let mut expect = Expect::Absent;
        // The first PUT opens a connection and is not counted.
        let (mut times, mut unanswered, mut begun) = (vec![], 0, None::<Instant>);
        loop {
            let body = self.body(size);
            let (sent, sent_ms) = (self.env.monotonic(), self.env.wall_ms());
            let put = self.store.put_if(&key, body, &expect).await;
            let took = self.env.monotonic() - sent;
            match put {
                Put::Stored { version, date_ms } => {
                    self.observe(date_ms, sent_ms);
                    if begun.is_some() {
                        times.push(took);
                        self.step("PUT")?;
                    }
                    expect = Expect::Is(version);
                    unanswered = 0;
                }
                Put::Conflict => {
                    let what = "the store refused a conditional PUT although no other writer was there: see the probe";
                    return Err(Error::new(Code::NoCompareAndSwap, what));
                }
                Put::Unknown { error, retry_after, .. } => {
                    self.throttled += u32::from(error.code() == Code::Throttled);
                    unanswered += 1;
                    if unanswered > UNANSWERED || matches!(error.code(), Code::Denied | Code::NoSuchBucket) {
                        return Err(error);
                    }
                    self.env.sleep(retry_after.unwrap_or(PAUSE.0).min(PAUSE.1)).await;
                    // The body may have been written nevertheless.
                    expect = match self.store.get(&key, None).await? {
                        Got::Object { version, .. } => Expect::Is(version),
                        _ => Expect::Absent,
                    };
                }
            }
            let since = *begun.get_or_insert(self.env.monotonic());
            let elapsed = self.env.monotonic() - since;
            let over = times.len() as u32 >= samples || (elapsed > LIMIT && !times.is_empty());
            if let (true, Expect::Is(version)) = (over, &expect) {
                let per_second = times.len() as f64 / elapsed.as_secs_f64().max(1e-6);
                return Ok((key, version.clone(), spread(times), per_second));
            }
        }
    }

    async fn gets(
        &mut self,
        what: &'static str,
        key: &str,
        unless: Option<&Version>,
        samples: u32,
    ) -> Result<Spread> {
        let (mut times, begun) = (vec![], self.env.monotonic());
        while (times.len() as u32) < samples {
            let (sent, sent_ms) = (self.env.monotonic(), self.env.wall_ms());
            let got = self.store.get(key, unless).await?;
            times.push(self.env.monotonic() - sent);
            let (Got::Object { date_ms, .. } | Got::Unchanged { date_ms } | Got::Absent { date_ms }) = got;
            self.observe(date_ms, sent_ms);
            self.step(what)?;
            if self.env.monotonic() - begun > LIMIT {
                break;
            }
        }
        Ok(spread(times))
    }

    /// Measures MiB per second up and down, several objects at a time.
    async fn throughput(&mut self) -> Result<[f64; 2]> {
        let keys: Vec<String> = (0..MOVED).map(|_| self.fresh_key()).collect();
        let (body, mut rates) = (self.body(MIB), [0.0; 2]);
        for (upload, rate) in [true, false].into_iter().zip(&mut rates) {
            let mut time = Duration::ZERO;
            for some in keys.chunks(AT_ONCE) {
                let sent = self.env.monotonic();
                let moves = some.iter().map(|key| async {
                    if upload {
                        return self.store.put_new(key, body.clone()).await;
                    }
                    self.store.get(key, None).await.map(|_| ())
                });
                join_all(moves).await.into_iter().collect::<Result<()>>()?;
                time += self.env.monotonic() - sent;
                for _ in some {
                    self.step(if upload { "upload" } else { "download" })?;
                }
            }
            *rate = MOVED as f64 / time.as_secs_f64().max(1e-6);
        }
        Ok(rates)
    }

    fn step(&mut self, what: &'static str) -> Result<()> {
        self.done += 1;
        if (self.progress)(Progress { what, done: self.done, of: self.of }) {
            return Ok(());
        }
        Err(Error::new(Code::Closed, "the measurement was stopped"))
    }

    /// Narrows the bounds of the clock difference by a Date (see `time`).
    fn observe(&mut self, date_ms: Option<i64>, sent_ms: i64) {
        let Some(date) = date_ms else { return };
        let (low, high) = (date - self.env.wall_ms().max(sent_ms), date + RESOLUTION_MS - 1 - sent_ms);
        let (least, most) = self.clock.unwrap_or((low, high));
        let (least, most) = (least.max(low), most.min(high));
        // If the clocks drift apart meanwhile, the bounds do not overlap: the newest ones count.
        self.clock = Some(if least <= most { (least, most) } else { (low, high) });
    }

    fn fresh_key(&mut self) -> String {
        let key = fresh_key(self.name, self.env);
        self.keys.push(key.clone());
        key
    }

    /// Returns incompressible bytes, different each time: an unchanged body might keep its version.
    fn body(&self, size: usize) -> Bytes {
        let mut state = u64::from_le_bytes(self.env.bytes()) | 1;
        let mut body = Vec::with_capacity(size);
        while body.len() < size {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            body.extend_from_slice(&state.to_le_bytes());
        }
        Bytes::from(body)
    }
}

fn spread(mut times: Vec<Duration>) -> Spread {
    times.sort_unstable();
    let at =
        |share: usize| times.get((times.len() * share).div_ceil(100).max(1) - 1).copied().map_or(0.0, millis);
    Spread { samples: times.len() as u32, min_ms: at(0), p50_ms: at(50), p99_ms: at(99) }
}

fn millis(time: Duration) -> f64 {
    tidy(time.as_secs_f64() * 1000.0)
}

/// Rounds to three decimals: the measurement is no more precise.
fn tidy(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}
