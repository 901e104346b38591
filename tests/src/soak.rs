//! The Rust process of a soak (`make soak`): producers at a steady rate, workers, and a report at regular times.
//!
//! Used by the program `soak`. It does the same as `tests/chaos/load.py`, in the same proportions and with the same
//! reports. Its standard input says when to rest and when to stop.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bucketq::{
    ClaimedJob, Dedup, DedupScope, Env, Error, Held, Kind, New, Op, Options, Payload, Queue, QueueFile,
    Result, State, When,
};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::chaos::{Dice, options};

const PRODUCERS: u64 = 6;
const WORKERS: u64 = 8;
const LEASE: Duration = Duration::from_secs(30);

/// The orders of the process.
#[derive(Clone, Debug)]
pub struct Orders {
    url: String,
    options: Options,
    seed: u64,
    /// Jobs a second.
    rate: f64,
    /// The time unit of jobs.
    beat: Duration,
    /// Between two reports.
    every: Duration,
}

impl Orders {
    /// Read the orders from the command line; returns what is wrong with them.
    pub fn from_text(text: &str) -> std::result::Result<Self, String> {
        let told: Value = serde_json::from_str(text).map_err(|e| e.to_string())?;
        let number = |name: &str| told[name].as_f64().ok_or(format!("no {name}"));
        Ok(Self {
            url: told["url"].as_str().ok_or("no url")?.to_owned(),
            options: options(&told["settings"])?,
            seed: told["seed"].as_u64().ok_or("no seed")?,
            rate: number("rate")?,
            beat: Duration::from_secs_f64(number("beat")?),
            every: Duration::from_secs_f64(number("every")?),
        })
    }
}

/// The phase of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Load,
    Rest,
    Stop,
}

#[derive(Debug, Default)]
struct Tally {
    done: BTreeMap<&'static str, u64>,
    errors: BTreeMap<String, u64>,
    /// The durations of each op since the last report, in milliseconds.
    took: BTreeMap<&'static str, Vec<f64>>,
}

impl Tally {
    fn report(&mut self) -> Value {
        let mut told = json!({ "done": self.done, "errors": self.errors });
        for (op, mut times) in std::mem::take(&mut self.took) {
            times.sort_by(f64::total_cmp);
            let part = |share: f64| times[((times.len() as f64 * share) as usize).min(times.len() - 1)];
            told[format!("{op}_ms")] = json!([part(0.5), part(0.99)]);
        }
        told
    }
}

struct Load {
    file: QueueFile,
    queue: Queue,
    orders: Orders,
    phase: watch::Receiver<Phase>,
    tally: Arc<Mutex<Tally>>,
    /// Bytes in use.
    live: fn() -> usize,
    dice: Dice,
    env: Env,
}

/// Work until the standard input says stop; `live` returns the number of bytes in use.
pub async fn work(orders: Orders, live: fn() -> usize) -> Result<()> {
    let file = loop {
        match QueueFile::open(&orders.url, orders.options.clone()).await {
            // The other processes are at work already, and faster.
            Err(error) if error.kind() == Kind::Contended => {}
            opened => break opened?,
        }
    };
    let (tx, phase) = watch::channel(Phase::Load);
    tokio::spawn(async move {
        let mut lines = BufReader::new(tokio::io::stdin()).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            tx.send_replace(if line == "rest" { Phase::Rest } else { Phase::Stop });
        }
        tx.send_replace(Phase::Stop);
        tx.closed().await;
    });
    let tally = Arc::<Mutex<Tally>>::default();
    let load = |number: u64| -> Result<Load> {
        Ok(Load {
            file: file.clone(),
            queue: file.queue("soak")?,
            orders: orders.clone(),
            phase: phase.clone(),
            tally: Arc::clone(&tally),
            live,
            dice: Dice::new(orders.seed ^ (number << 24)),
            env: Env::default(),
        })
    };
    let mut tasks = vec![];
    for number in 0..PRODUCERS + WORKERS {
        let mut load = load(number)?;
        tasks.push(tokio::spawn(async move {
            if number < PRODUCERS { load.produce().await } else { load.work().await }
        }));
    }
    load(0)?.report().await;
    for ended in futures_util::future::join_all(tasks).await {
        ended.unwrap_or_else(|e| panic!("{e}"));
    }
    let mut told = tally.lock().unwrap_or_else(PoisonError::into_inner).report();
    told["last"] = true.into();
    println!("{told}");
    file.close().await
}

impl Load {
    fn is(&self, phase: Phase) -> bool {
        *self.phase.borrow() >= phase
    }

    fn tally<T>(&self, change: impl FnOnce(&mut Tally) -> T) -> T {
        change(&mut self.tally.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn did(&self, what: &'static str) {
        self.tally(|tally| *tally.done.entry(what).or_default() += 1);
    }

    fn failed(&self, op: &str, error: &Error) {
        self.tally(|t| *t.errors.entry(format!("{op}: {}", error.code().as_str())).or_default() += 1);
    }

    async fn asked<T>(&self, op: &'static str, call: impl Future<Output = Result<T>>) -> Option<T> {
        let begin = self.env.monotonic();
        match call.await {
            Ok(answer) => {
                let took = (self.env.monotonic() - begin).as_secs_f64() * 1_000.0;
                self.tally(|tally| tally.took.entry(op).or_default().push(took));
                Some(answer)
            }
            Err(error) => {
                self.failed(op, &error);
                None
            }
        }
    }

    /// Wait until `due`, or until the phase changes to this one.
    async fn until(&mut self, due: Instant, phase: Phase) {
        tokio::select! {
            () = tokio::time::sleep_until(due) => {}
            _ = self.phase.wait_for(|now| *now >= phase) => {}
        }
    }

    fn job(&mut self) -> Result<New> {
        let len = [60, 200, 200, 1_500, 6_000][self.dice.below(5) as usize];
        let payload: Vec<u8> = (0..len).map(|_| self.dice.below(256) as u8).collect();
        let mut job = self.file.new_job(Payload::bytes(payload))?;
        job.priority = self.dice.below(3) as i32 - 1;
        if self.dice.below(4) == 0 {
            job.when = When::In(self.dice.below(2 * self.orders.beat.as_millis() as u64) as i64);
        }
        if self.dice.below(10) < 3 {
            job.group = Some(format!("g{}", self.dice.below(20)));
        }
        if self.dice.below(10) == 0 {
            let key = format!("k{}", self.dice.below(200));
            job.dedup = Some(Dedup { key, scope: DedupScope::default() });
        }
        Ok(job)
    }

    async fn produce(&mut self) {
        let period = Duration::from_secs_f64(PRODUCERS as f64 / self.orders.rate);
        let mut due = self.env.monotonic() + period.mul_f64(self.dice.below(1_000) as f64 / 1_000.0);
        loop {
            self.until(due, Phase::Rest).await;
            if self.is(Phase::Rest) {
                return;
            }
            let many = if self.dice.below(50) == 0 { 5 } else { 1 };
            due = (due + period * many)
                .max(self.env.monotonic().checked_sub(Duration::from_secs(5)).unwrap_or(due));
            let Ok(jobs) = (0..many).map(|_| self.job()).collect::<Result<Vec<_>>>() else { return };
            let told = self.asked("enqueue", self.queue.enqueue_many(jobs)).await;
            for one in told.unwrap_or_default() {
                self.did(if one.deduplicated { "deduplicated" } else { "enqueued" });
            }
        }
    }

    async fn work(&mut self) {
        while !self.is(Phase::Stop) {
            match self.queue.claim(8).lease(LEASE).wait(Duration::from_secs(1)).await {
                Ok(jobs) => {
                    for taken in jobs {
                        self.finish(&taken).await;
                    }
                }
                Err(error) => self.failed("claim", &error),
            }
        }
    }

    async fn finish(&mut self, taken: &ClaimedJob) {
        let held: Held = taken.held();
        let (file, roll) = (self.file.clone(), self.dice.below(100));
        let (what, done) = match roll {
            0 => ("rejected", self.asked("ack", file.reject(held, Some("no good".into()))).await),
            1 => ("released", self.asked("ack", file.release(held)).await),
            2..7 => {
                let delay = Some(self.orders.beat / 10);
                ("nacked", self.asked("ack", file.nack(held, delay, Some("not yet".into()))).await.map(drop))
            }
            7..10 => {
                let Ok(next) = file.new_job(Payload::text("the next step")) else { return };
                let enqueue = Op::Enqueue { queue: self.queue.name().to_owned(), jobs: vec![next] };
                let ops = vec![Op::Ack { held, result: None }, enqueue];
                ("acked", self.asked("ack", file.atomic(ops)).await.map(drop))
            }
            10..40 => {
                let result = Payload::text(r#"{"it":"is done"}"#);
                ("acked", self.asked("ack", file.ack_with(held, result)).await)
            }
            _ => ("acked", self.asked("ack", file.ack(held)).await),
        };
        if done.is_none() {
            return;
        }
        self.did(what);
        if (7..10).contains(&roll) {
            self.did("enqueued");
        }
        if matches!(what, "acked" | "rejected") && taken.job.headers.contains_key("bucketq-schedule") {
            self.did("fired");
        }
    }

    /// Print a line at regular times.
    async fn report(&mut self) {
        let mut due = self.env.monotonic();
        while !self.is(Phase::Stop) {
            due += self.orders.every;
            self.until(due, Phase::Stop).await;
            let mut told = self.tally(Tally::report);
            told["live_mb"] = ((self.live)() as f64 / 1_048_576.0).into();
            let stats = match self.file.stats(Some(Duration::from_mins(1))).await {
                Ok(stats) => stats,
                Err(error) => {
                    self.failed("stats", &error);
                    continue;
                }
            };
            told["pages"] = stats.pages.into();
            told["free_pages"] = stats.free_pages.into();
            let unfinished = [State::Scheduled, State::Ready, State::Leased];
            let backlog: u64 = stats.queues.iter().flat_map(|q| unfinished.map(|s| q.counts[&s])).sum();
            told["backlog"] = backlog.into();
            println!("{told}");
        }
    }
}
