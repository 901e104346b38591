//! The measurement finds the known properties of a store, and leaves nothing behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bucketq::env::Env;
use bucketq::error::{Code, Error, Result};
use bucketq::fit::Inputs;
use bucketq::store::measure::Progress;
use bucketq::store::{Expect, Got, Measured, Memory, Put, Store, Version, measure};
use bucketq_tests::clock::TestClock;
use bucketq_tests::ground::Ground;
use bucketq_tests::servers;
use bytes::Bytes;
use tokio::time::Instant;

/// Longer than any measurement takes.
const DEADLINE: Duration = Duration::from_mins(5);
const MIB: f64 = 1_048_576.0;
/// How far the store's clock is ahead.
const AHEAD_MS: i64 = 2_340;

fn env() -> Env {
    TestClock::start().env()
}

/// 20 ms a PUT and 64 ms a MiB, every tenth PUT 100 ms more; 15 ms a GET; 12 ms when nothing has changed.
#[derive(Debug)]
struct Habits {
    inner: Memory,
    env: Env,
    puts: AtomicU64,
    /// Writes that come sooner after another one are refused.
    least: Option<Duration>,
    last: std::sync::Mutex<Option<Instant>>,
    refuses: Option<Code>,
}

impl Habits {
    fn new(env: &Env) -> Self {
        let (puts, last) = (AtomicU64::new(0), std::sync::Mutex::default());
        Self { inner: Memory::new(), env: env.clone(), puts, least: None, last, refuses: None }
    }

    fn date(&self) -> i64 {
        (self.env.wall_ms() + AHEAD_MS) / 1000 * 1000
    }
}

#[async_trait]
impl Store for Habits {
    async fn get(&self, key: &str, unless: Option<&Version>) -> Result<Got> {
        let got = self.inner.get(key, unless).await?;
        let time = if matches!(got, Got::Unchanged { .. }) { 12 } else { 15 };
        self.env.sleep(Duration::from_millis(time)).await;
        let date_ms = Some(self.date());
        Ok(match got {
            Got::Object { bytes, version, .. } => Got::Object { bytes, version, date_ms },
            Got::Unchanged { .. } => Got::Unchanged { date_ms },
            Got::Absent { .. } => Got::Absent { date_ms },
        })
    }

    async fn put_if(&self, key: &str, body: Bytes, expect: &Expect) -> Put {
        if let Some(code) = self.refuses {
            return Put::Unknown { error: Error::new(code, "as told"), sent: true, retry_after: None };
        }
        let now = self.env.monotonic();
        let last = self.last.lock().expect("nothing panics here").replace(now);
        if self.least.is_some_and(|least| last.is_some_and(|last| now - last < least)) {
            *self.last.lock().expect("nothing panics here") = last;
            let (error, retry_after) =
                (Error::new(Code::Throttled, "slow down"), Some(Duration::from_millis(250)));
            return Put::Unknown { error, sent: true, retry_after };
        }
        let slow = if self.puts.fetch_add(1, Ordering::Relaxed) % 10 == 5 { 100.0 } else { 0.0 };
        let time = 20.0 + 64.0 * body.len() as f64 / MIB + slow;
        self.env.sleep(Duration::from_micros((time * 1000.0) as u64)).await;
        match self.inner.put_if(key, body, expect).await {
            Put::Stored { version, .. } => Put::Stored { version, date_ms: Some(self.date()) },
            other => other,
        }
    }

    async fn put_new(&self, key: &str, body: Bytes) -> Result<()> {
        self.env.sleep(Duration::from_millis(100)).await;
        self.inner.put_new(key, body).await
    }

    fn describe(&self) -> String {
        "a store of known habits".to_owned()
    }

    fn needs_probe(&self) -> bool {
        true
    }

    bucketq::forward_to_inner!(delete list default_max_skew);
}

async fn measured(habits: Habits, env: &Env) -> (Result<Measured>, Arc<dyn Store>) {
    let store: Arc<dyn Store> = Arc::new(habits);
    (measure(&store, "jobs", 100, DEADLINE, env, &|_| true).await, store)
}

fn close(have: f64, want: f64, off: f64) -> bool {
    (have - want).abs() <= off
}

#[tokio::test(start_paused = true)]
async fn a_store_of_known_habits_is_found_to_have_them() {
    let env = env();
    let (found, store) = measured(Habits::new(&env), &env).await;
    let found = found.expect("it answers");
    let bytes: Vec<u64> = found.sizes.iter().map(|s| s.bytes).collect();
    assert_eq!(bytes, [1024, 16_384, 131_072, 1_048_576]);
    let head = found.sizes[1];
    assert_eq!((head.put.samples, head.get.samples, head.unchanged.samples), (100, 100, 100));
    assert_eq!(found.sizes[3].put.samples, 20);
    // tokio's timer counts whole milliseconds, and rounds up.
    assert!(close(head.put.min_ms, 21.0, 1.1) && close(head.put.p50_ms, 21.0, 1.1), "{head:?}");
    assert!(close(head.put.p99_ms, 121.0, 1.1), "one in ten is slow: {head:?}");
    assert!(close(head.get.p50_ms, 15.0, 1.1) && close(head.unchanged.p50_ms, 12.0, 1.1), "{head:?}");
    assert!(close(found.sizes[3].put.p50_ms, 84.0, 1.1), "{found:?}");
    assert!(close(found.commits_per_s, 1000.0 / 31.0, 2.0), "{found:?}");
    // Eight of 100 ms at a time, and eight of 15.
    assert!(close(found.upload_mib_s, 80.0, 2.0) && close(found.download_mib_s, 533.0, 40.0), "{found:?}");
    let clock = found.clock.expect("it tells its time");
    assert!(close(clock.offset_ms, AHEAD_MS as f64, clock.within_ms), "{clock:?}");
    assert!(clock.within_ms < 100.0, "many dates say more than one: {clock:?}");
    assert_eq!(found.throttled, 0);
    assert_eq!(store.list("").await.expect("memory answers"), []);
}

#[tokio::test(start_paused = true)]
async fn the_fit_model_gets_a_put_without_its_bytes_and_the_price_of_a_mib() {
    let env = env();
    let found = measured(Habits::new(&env), &env).await.0.expect("it answers");
    let inputs = found.inputs.on(&Inputs { arrival: 7.0, ..Inputs::default() });
    assert_eq!(inputs.problems(), []);
    assert!(close(inputs.latency_ms, 20.0, 1.1) && close(inputs.latency_min_ms, 20.0, 1.1), "{inputs:?}");
    assert!(close(inputs.latency_p99_ms, 120.0, 1.1) && close(inputs.per_mib_ms, 64.0, 2.0), "{inputs:?}");
    assert_eq!((inputs.arrival, inputs.writes_per_s), (7.0, 0.0));
}

#[tokio::test(start_paused = true)]
async fn a_limit_on_writes_to_one_key_is_found() {
    let env = env();
    let habits = Habits { least: Some(Duration::from_secs(1)), ..Habits::new(&env) };
    let found = measured(habits, &env).await.0.expect("it answers, slowly");
    assert!(found.throttled > 10, "{found:?}");
    assert!(close(found.inputs.writes_per_s, 1.0, 0.15), "{found:?}");
    assert!(close(found.sizes[1].put.p50_ms, 21.0, 1.1), "waiting is not latency: {found:?}");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_does_not_answer_ends_it() {
    let env = env();
    for code in [Code::Unreachable, Code::Denied, Code::Throttled] {
        let habits = Habits { refuses: Some(code), ..Habits::new(&env) };
        let (found, _) = measured(habits, &env).await;
        assert_eq!(found.expect_err("nothing was written").code(), code);
    }
}

#[tokio::test(start_paused = true)]
async fn who_stops_it_leaves_nothing_behind() {
    let env = env();
    let store: Arc<dyn Store> = Arc::new(Habits::new(&env));
    let stop = |p: Progress| p.done < p.of - 20;
    let error = measure(&store, "jobs", 10, DEADLINE, &env, &stop).await.expect_err("it was stopped");
    assert_eq!(error.code(), Code::Closed);
    assert_eq!(store.list("").await.expect("memory answers"), []);
}

#[tokio::test]
async fn progress_counts_every_request_to_the_last() {
    let store: Arc<dyn Store> = Arc::new(Memory::new());
    let seen = std::sync::Mutex::new(vec![]);
    let note = |p: Progress| {
        seen.lock().expect("nothing panics here").push((p.done, p.of));
        true
    };
    measure(&store, "jobs", 10, DEADLINE, &Env::default(), &note).await.expect("memory answers");
    let seen = seen.into_inner().expect("nothing panics here");
    let of = seen[0].1;
    assert_eq!(seen, (1..=of).map(|done| (done, of)).collect::<Vec<_>>());
}

#[tokio::test]
async fn the_s3_server_is_measured_and_left_as_it_was() {
    let Some(server) = servers::s3().await else { return };
    let store = Ground::server(&server).await.stores(1).remove(0);
    let found = measure(&store, "jobs", 5, DEADLINE, &Env::default(), &|_| true).await.expect("it answers");
    assert!(found.commits_per_s > 0.0 && found.clock.is_some(), "{found:?}");
    assert_eq!(store.list("").await.expect("it answers"), []);
}
