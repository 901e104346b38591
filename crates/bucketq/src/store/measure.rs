//! What a store is like to commit to: how long requests take by size, how many commits a second one key takes, how far
//! the clocks are apart. The fit model (docs/fit.md) wants to know.
//!
//! Called by programs directly, as the probe is. Uses the Store trait only; objects `name.probe-...` are made and removed.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use serde::Serialize;
use tokio::time::Instant;

use super::probe::fresh_key;
use super::{Expect, Got, Put, Store, Version};
use crate::env::Env;
use crate::error::{Code, Error, Result};
use crate::fit::Inputs;

/// PUTs of the size of a HEAD unless told otherwise; a hundredth of them is the slowest in a hundred.
pub const SAMPLES: u32 = 100;

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;
/// What an ordinary commit uploads.
const HEAD: usize = 16 * KIB;
const SIZES: [usize; 4] = [KIB, HEAD, 128 * KIB, MIB];
/// Sizes other than that of a HEAD get so many times fewer samples.
const FEWER: u32 = 5;
/// No size is measured for longer, however slow the store.
const LIMIT: Duration = Duration::from_secs(20);
/// Objects moved for the throughput, of one MiB each, and how many at a time: as an opening reads segments.
const MOVED: usize = 16;
const AT_ONCE: usize = 8;
/// Writes in a row that may go without an answer before this gives up.
const UNANSWERED: u32 = 8;
/// Of a Date.
const RESOLUTION_MS: i64 = 1_000;
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Times of one kind of request, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Spread {
    /// How many.
    pub samples: u32,
    /// The quickest.
    pub min_ms: f64,
    /// The middle one.
    pub p50_ms: f64,
    /// The slowest in a hundred; of fewer samples the slowest.
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

/// The store's clock as seen from here.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ClockOffset {
    /// Store's clock less this machine's.
    pub offset_ms: f64,
    /// The true one is at most so far from that.
    pub within_ms: f64,
}

/// What the fit model takes from a measurement; the names are those of [`Inputs`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Latency {
    /// A small PUT at best.
    pub latency_min_ms: f64,
    /// A small PUT, typically.
    pub latency_ms: f64,
    /// The slowest in a hundred small PUTs.
    pub latency_p99_ms: f64,
    /// Upload of one MiB.
    pub per_mib_ms: f64,
    /// Writes per second to one key; 0 when no limit was met.
    pub writes_per_s: f64,
}

impl Latency {
    /// These inputs with this store.
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

/// What was measured of a store.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// Which store.
    pub store: String,
    /// Requests by size, smallest first.
    pub sizes: Vec<BySize>,
    /// Conditional PUTs of the size of a HEAD to one key, one after the other.
    pub commits_per_s: f64,
    /// Writes that the store was asked too fast for.
    pub throttled: u32,
    /// MiB per second, eight objects of one MiB at a time.
    pub upload_mib_s: f64,
    /// The same for downloads.
    pub download_mib_s: f64,
    /// None from a store that does not tell its time.
    pub clock: Option<ClockOffset>,
    /// How long it took.
    pub took_ms: f64,
    /// What the fit model takes from it.
    pub inputs: Latency,
}

/// How far a measurement has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What comes next.
    pub what: &'static str,
    /// Requests done ...
    pub done: u32,
    /// ... of about so many.
    pub of: u32,
}

/// Measure a store with `samples` PUTs of the size of a HEAD and fewer of other sizes. `progress` hears of each step
/// and answers whether to go on; what was written is removed in any case.
pub async fn measure(
    store: &Arc<dyn Store>,
    name: &str,
    samples: u32,
    env: &Env,
    progress: &(dyn Fn(Progress) -> bool + Send + Sync),
) -> Result<Measured> {
    if samples == 0 {
        return Err(Error::invalid("a measurement needs a sample"));
    }
    let begun = env.monotonic();
    let of = SIZES.iter().map(|size| 3 * samples_of(*size, samples)).sum::<u32>() + 2 * MOVED as u32;
    let mut run = Run { store, name, env, progress, keys: vec![], done: 0, of, clock: None, throttled: 0 };
    let found = run.all(samples).await;
    for deleted in join_all(run.keys.iter().map(|key| store.delete(key))).await {
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

/// The line through the times of a HEAD and of one MiB: its slope, and what is left of a HEAD without its bytes.
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

struct Run<'a> {
    store: &'a Arc<dyn Store>,
    name: &'a str,
    env: &'a Env,
    progress: &'a (dyn Fn(Progress) -> bool + Send + Sync),
    /// Everything written, to be removed.
    keys: Vec<String>,
    done: u32,
    of: u32,
    /// Between which the store's clock less this machine's must be; each Date narrows it.
    clock: Option<(i64, i64)>,
    throttled: u32,
}

/// By size; commits a second; the limit on them or 0; MiB a second up and down.
type Found = (Vec<BySize>, f64, f64, [f64; 2]);

impl Run<'_> {
    async fn all(&mut self, samples: u32) -> Result<Found> {
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
            let unchanged = self.gets("GET of what has not changed", &key, Some(&version), samples).await?;
            sizes.push(BySize { bytes: size as u64, put, get, unchanged });
        }
        let moved = self.throughput().await?;
        Ok((sizes, rate, limit, moved))
    }

    /// Replace one object over and over, as commits do. Answers what stands there, the times, and writes a second.
    async fn puts(&mut self, size: usize, samples: u32) -> Result<(String, Version, Spread, f64)> {
        let key = self.fresh_key();
        let mut expect = Expect::Absent;
        // The first opens a connection and is not counted.
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
                    let what = "the store refused a conditional PUT that nobody contended: see the probe";
                    return Err(Error::new(Code::NoCompareAndSwap, what));
                }
                Put::Unknown { error, retry_after, .. } => {
                    self.throttled += u32::from(error.code() == Code::Throttled);
                    unanswered += 1;
                    if unanswered > UNANSWERED || matches!(error.code(), Code::Denied | Code::NoSuchBucket) {
                        return Err(error);
                    }
                    self.env.sleep(retry_after.unwrap_or(PAUSE.0).min(PAUSE.1)).await;
                    // It may have been written all the same.
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

    /// MiB a second up and down, several at a time.
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

    /// A Date says between which bounds the difference of the clocks lies (see `time`).
    fn observe(&mut self, date_ms: Option<i64>, sent_ms: i64) {
        let Some(date) = date_ms else { return };
        let (low, high) = (date - self.env.wall_ms().max(sent_ms), date + RESOLUTION_MS - 1 - sent_ms);
        let (least, most) = self.clock.unwrap_or((low, high));
        let (least, most) = (least.max(low), most.min(high));
        // Clocks that drift apart meanwhile have no bounds in common: the newest ones count.
        self.clock = Some(if least <= most { (least, most) } else { (low, high) });
    }

    fn fresh_key(&mut self) -> String {
        let key = fresh_key(self.name, self.env);
        self.keys.push(key.clone());
        key
    }

    /// Bytes that do not compress, other ones each time: an unchanged body might keep its version.
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

/// Three decimals: nothing here is known better.
fn tidy(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}
