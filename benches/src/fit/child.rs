//! One process of a workload: opens the queue file, carries out orders of one line each, and prints its results.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bucketq::error::{Error, Result};
use bucketq::{Env, Payload, QueueFile};
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::failed;
use crate::servers::open_for_child;
use crate::stats::now;

/// Bytes of a job; the first eight are the time of its enqueue.
pub const PAYLOAD: usize = 200;
const LEASE: Duration = Duration::from_mins(2);
const DAY_MS: i64 = 86_400_000;

/// How jobs are enqueued.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Enqueue {
    /// This process enqueues none.
    No,
    /// By this number of callers, one job after the other.
    Callers(usize),
    /// At random, this many per second.
    Random(f64),
}

/// One stretch.
#[derive(Clone, Debug)]
pub struct Order {
    /// The queue of this stretch alone.
    pub queue: String,
    /// How jobs are enqueued.
    pub enqueue: Enqueue,
    /// Workers of this process.
    pub workers: usize,
    /// Work per job.
    pub work_ms: u64,
    /// Warm-up, not counted.
    pub warm: Duration,
    /// The counted time.
    pub window: Duration,
}

impl Order {
    /// Returns the order as JSON for a child.
    pub fn line(&self) -> String {
        let (callers, rate) = match self.enqueue {
            Enqueue::No => (0, 0.0),
            Enqueue::Callers(count) => (count, 0.0),
            Enqueue::Random(rate) => (0, rate),
        };
        let order = json!({
            "queue": self.queue, "callers": callers, "rate": rate, "workers": self.workers, "work_ms": self.work_ms,
            "warm_ms": self.warm.as_millis() as u64, "window_ms": self.window.as_millis() as u64,
        });
        format!("{order}\n")
    }

    fn of(told: &Value) -> Self {
        let number = |key: &str| told[key].as_u64().unwrap_or(0);
        let enqueue = match (number("callers") as usize, told["rate"].as_f64().unwrap_or(0.0)) {
            (0, rate) if rate > 0.0 => Enqueue::Random(rate),
            (0, _) => Enqueue::No,
            (count, _) => Enqueue::Callers(count),
        };
        Self {
            queue: told["queue"].as_str().unwrap_or_default().to_owned(),
            enqueue,
            workers: number("workers") as usize,
            work_ms: number("work_ms"),
            warm: Duration::from_millis(number("warm_ms")),
            window: Duration::from_millis(number("window_ms")),
        }
    }
}

macro_rules! seen {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The results of a stretch; times are sums in microseconds.
        #[derive(Clone, Copy, Debug, Default)]
        pub struct Seen { $($(#[$doc])* pub $name: u64,)* }

        impl Seen {
            /// Adds the results of another process.
            pub fn add(&mut self, told: &Value) {
                $(self.$name += told[stringify!($name)].as_u64().unwrap_or(0);)*
            }

            /// Returns the results as JSON for the parent.
            pub fn told(&self) -> Value {
                json!({ $(stringify!($name): self.$name,)* })
            }
        }
    };
}

seen! {
    /// Jobs enqueued.
    enqueued,
    /// Jobs acked.
    acked,
    /// Time of the acked jobs in claims.
    claim_us,
    /// Time of the acked jobs at work.
    work_us,
    /// Time of the acked jobs in acks.
    ack_us,
    /// From the call of the enqueue to the return of the claim.
    dispatch_us,
    /// PUTs, segments and bases included.
    puts,
    /// Calls that failed.
    errors,
}

impl Seen {
    /// Returns the share of a worker's time that is not work.
    pub fn overhead(&self) -> f64 {
        let queue = (self.claim_us + self.ack_us) as f64;
        queue / (queue + self.work_us as f64)
    }

    /// Returns the mean work.
    pub fn work_ms(&self) -> f64 {
        self.work_us as f64 / 1000.0 / self.acked.max(1) as f64
    }

    /// Returns the mean time until a worker has a job.
    pub fn dispatch_ms(&self) -> f64 {
        self.dispatch_us as f64 / 1000.0 / self.acked.max(1) as f64
    }
}

type Shared = Arc<Mutex<Seen>>;

fn note(seen: &Shared, with: impl FnOnce(&mut Seen)) {
    with(&mut seen.lock().unwrap_or_else(PoisonError::into_inner));
}

/// Runs the child until its input ends.
pub async fn run(endpoint: &str, place: &str) -> Result<()> {
    let file = open_for_child(endpoint, place).await?;
    println!("ready");
    let next = || {
        let mut line = String::new();
        let read = tokio::task::block_in_place(|| std::io::stdin().read_line(&mut line));
        read.map(|bytes| (bytes > 0).then_some(line)).map_err(failed("a process"))
    };
    while let Some(line) = next()? {
        let order = Order::of(&serde_json::from_str(&line).unwrap_or_default());
        println!("{}", stretch(&file, &order, &Env::default()).await?.told());
    }
    file.close().await
}

/// Carries out one order. `env` is the clock for the times of enqueues.
pub async fn stretch(file: &QueueFile, order: &Order, env: &Env) -> Result<Seen> {
    let (seen, (stop, stopped)) = (Shared::default(), watch::channel(false));
    let from = now() + order.warm;
    let mut tasks = JoinSet::new();
    for _ in 0..order.workers {
        tasks.spawn(work(file.clone(), order.clone(), seen.clone(), from, stopped.clone(), env.clone()));
    }
    match order.enqueue {
        Enqueue::No => {}
        Enqueue::Callers(count) => {
            for _ in 0..count {
                let (file, order, seen, stopped, env) =
                    (file.clone(), order.clone(), seen.clone(), stopped.clone(), env.clone());
                tasks.spawn(async move {
                    while !*stopped.borrow() {
                        enqueue(&file, &order.queue, &seen, from, &env).await;
                    }
                });
            }
        }
        Enqueue::Random(rate) => {
            let arrivals = arrivals(
                file.clone(),
                order.queue.clone(),
                seen.clone(),
                from,
                rate,
                stopped.clone(),
                env.clone(),
            );
            tasks.spawn(arrivals);
        }
    }
    tokio::time::sleep_until(from).await;
    let before = file.metrics()?;
    tokio::time::sleep(order.window).await;
    let after = file.metrics()?;
    let found = *seen.lock().unwrap_or_else(PoisonError::into_inner);
    stop.send_replace(true);
    while tasks.join_next().await.is_some() {}
    let puts = |m: &bucketq::Metrics| m.puts + m.uploads;
    Ok(Seen { puts: puts(&after) - puts(&before), ..found })
}

/// Enqueues jobs at random moments, each in its own task.
async fn arrivals(
    file: QueueFile,
    queue: String,
    seen: Shared,
    from: Instant,
    rate: f64,
    mut stopped: watch::Receiver<bool>,
    env: Env,
) {
    let (begin, mut at, mut tasks) = (now(), 0.0, JoinSet::new());
    loop {
        let share = (f64::from(u32::from_le_bytes(env.bytes())) + 1.0) / (f64::from(u32::MAX) + 2.0);
        at += -share.ln() / rate;
        tokio::select! {
            biased;
            _ = stopped.changed() => break,
            () = tokio::time::sleep_until(begin + Duration::from_secs_f64(at)) => {}
        }
        let (file, queue, seen, env) = (file.clone(), queue.clone(), seen.clone(), env.clone());
        tasks.spawn(async move { enqueue(&file, &queue, &seen, from, &env).await });
        while tasks.try_join_next().is_some() {}
    }
    while tasks.join_next().await.is_some() {}
}

async fn enqueue(file: &QueueFile, queue: &str, seen: &Shared, from: Instant, env: &Env) {
    let mut body = env.bytes::<PAYLOAD>();
    body[..8].copy_from_slice(&env.wall_ms().to_le_bytes());
    let sent = async { file.queue(queue)?.enqueue(Payload::bytes(Bytes::copy_from_slice(&body))).await };
    let done: std::result::Result<_, Error> = sent.await;
    if now() >= from {
        note(seen, |s| {
            s.enqueued += u64::from(done.is_ok());
            s.errors += u64::from(done.is_err());
        });
    }
}

/// Claims, works and acks, over and over; a job counts if its ack comes within the window.
async fn work(
    file: QueueFile,
    order: Order,
    seen: Shared,
    from: Instant,
    mut stopped: watch::Receiver<bool>,
    env: Env,
) {
    loop {
        let called = now();
        let claim = async { file.queue(&order.queue)?.claim(1).lease(LEASE).wait_forever().await };
        let taken = tokio::select! {
            biased;
            _ = stopped.changed() => return,
            taken = claim => taken,
        };
        let (came, came_ms) = (now(), env.wall_ms());
        let Ok(jobs) = taken else {
            note(&seen, |s| s.errors += 1);
            continue;
        };
        for job in &jobs {
            let stamp =
                job.payload.bytes.get(..8).and_then(|b| b.try_into().ok()).map_or(0, i64::from_le_bytes);
            if order.work_ms > 0 {
                // Half to one and a half times the mean: equal times would fall into step with the commits.
                let share = 0.5 + env.below(1_000_001) as f64 / 1e6;
                tokio::time::sleep(Duration::from_secs_f64(share * order.work_ms as f64 / 1000.0)).await;
            }
            let worked = now();
            let acked = file.ack(job.held()).await;
            let done = now();
            // A job that was claimed before the window is not counted: part of its time is missing.
            if done < from {
                continue;
            }
            note(&seen, |s| {
                s.errors += u64::from(acked.is_err());
                s.acked += u64::from(acked.is_ok());
                let us = |time: Duration| time.as_micros() as u64;
                s.claim_us += us(came - called);
                s.work_us += us(worked - came);
                s.ack_us += us(done - worked);
                // Jobs of the backlog have no time of enqueue.
                let waited = came_ms.checked_sub(stamp).filter(|ms| (0..DAY_MS).contains(ms));
                s.dispatch_us += waited.unwrap_or(0) as u64 * 1000;
            });
        }
        if *stopped.borrow() {
            return;
        }
    }
}
