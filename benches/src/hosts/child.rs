//! One process: opens the queue file, carries out orders of one line each, and prints the results.
//!
//! Every loop ends with its stretch. The process ends with its input, even in the middle of a stretch.

use std::time::Duration;

use bucketq::config::S3Options;
use bucketq::error::{Error, Result};
use bucketq::job::{JobId, New, Payload};
use bucketq::op::Op;
use bucketq::{Env, Options, QueueFile};
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader, Lines, Stdin};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::seen::Seen;
use crate::servers::options_of_child;
use crate::stats::now;

const QUEUE: &str = "bench";
/// Bytes of a job; the first eight are the time of the call that enqueues it.
const PAYLOAD: usize = 200;
const LEASE: Duration = Duration::from_mins(10);
/// After a failed call: a loop of failing calls must not take the processor.
const AFTER_ERROR: Duration = Duration::from_millis(10);

/// Returns the options of a process. Nothing else decides whether it shares a writer with the others.
fn options(s3: S3Options, share: bool) -> Options {
    Options { s3, share, ..Options::default() }
}

type Input = Lines<BufReader<Stdin>>;

async fn next(input: &mut Input) -> Result<Option<Value>> {
    let line = input.next_line().await.map_err(|e| Error::invalid("no input").because(e))?;
    let parse = |line: String| serde_json::from_str(&line).map_err(|e| Error::invalid(line).because(e));
    line.map(parse).transpose()
}

/// Runs the child until its input ends.
pub async fn run() -> Result<()> {
    let mut input = BufReader::new(tokio::io::stdin()).lines();
    let Some(place) = next(&mut input).await? else { return Ok(()) };
    let s3 = place["endpoint"].as_str().map(options_of_child);
    let options = options(s3.unwrap_or_default(), place["share"] == true);
    let before = now();
    let file = QueueFile::open(place["url"].as_str().unwrap_or_default(), options).await?;
    println!("{}", json!({ "open_us": (now() - before).as_micros() as u64 }));
    while let Some(order) = next(&mut input).await? {
        if order == "role" {
            println!("{}", json!(file.host_role()?));
            continue;
        }
        let seen = tokio::select! {
            biased;
            // No order comes before the reply to the last one: the parent is gone.
            _ = input.next_line() => return Ok(()),
            seen = carry_out(&file, &order) => seen?,
        };
        println!("{}", seen.told());
    }
    file.close().await
}

/// One group of callers in a stretch.
#[derive(Clone, Debug)]
struct Group {
    file: QueueFile,
    env: Env,
    from: Instant,
    until: Instant,
    pause_ms: u64,
    jobs: u64,
    work: Duration,
    logged: bool,
}

async fn carry_out(file: &QueueFile, order: &Value) -> Result<Seen> {
    let number = |of: &Value, key: &str| of[key].as_u64().unwrap_or(0);
    if let Some(jobs) = order["fill"].as_u64() {
        let env = Env::default();
        let jobs = (0..jobs).map(|_| job(&env)).collect();
        file.call(Op::Enqueue { queue: QUEUE.to_owned(), jobs }).await?;
        return Ok(Seen::default());
    }
    let from = now() + Duration::from_millis(number(order, "warm_ms"));
    let until = from + Duration::from_millis(number(order, "window_ms"));
    let mut callers = JoinSet::new();
    for told in order["groups"].as_array().into_iter().flatten() {
        let group = Group {
            file: file.clone(),
            env: Env::default(),
            from,
            until,
            pause_ms: number(told, "pause_ms"),
            jobs: number(told, "jobs").max(1),
            work: Duration::from_millis(number(told, "work_ms")),
            logged: told["logged"] == true,
        };
        for _ in 0..number(told, "callers").max(1) {
            let group = group.clone();
            match told["do"].as_str() {
                Some("enqueue") => callers.spawn(group.enqueue()),
                Some("work") => callers.spawn(group.work()),
                Some("listen") => callers.spawn(group.listen()),
                Some("extend") => callers.spawn(group.extend()),
                other => return Err(Error::invalid(format!("{other:?} is no work for callers"))),
            };
        }
    }
    let ended = callers.join_all().await;
    Ok(Seen::together(ended))
}

fn job(env: &Env) -> New {
    let mut body = env.bytes::<PAYLOAD>();
    body[..8].copy_from_slice(&env.wall_ms().to_le_bytes());
    New::new(JobId::new(env.wall_ms(), env.bytes()), Payload::bytes(Bytes::copy_from_slice(&body)))
}

impl Group {
    /// Waits between half and one and a half times the pause, or not at all.
    async fn pause(&self) {
        if self.pause_ms > 0 {
            let ms = self.pause_ms / 2 + self.env.below(self.pause_ms + 1);
            tokio::time::sleep(Duration::from_millis(ms)).await;
        }
    }

    /// Makes one call and notes the result. `last` is the time of the caller's last success.
    async fn call(&self, op: Op, seen: &mut Seen, last: &mut Instant) {
        let (began, began_ms) = (now(), self.env.wall_ms());
        let done = self.file.call(op).await;
        let (ended, ended_ms) = (now(), self.env.wall_ms());
        match done {
            Ok(done) => {
                seen.all += 1;
                if ended >= self.from {
                    seen.ops += u64::from(ended <= self.until);
                    seen.times_us.push((ended - began).as_micros() as u64);
                    seen.gap(ended - (*last).max(self.from));
                }
                if self.logged {
                    seen.calls.push((began_ms, ended_ms, done.commit_seq));
                }
                *last = ended;
            }
            Err(error) => {
                seen.fail(&error);
                tokio::time::sleep(AFTER_ERROR).await;
            }
        }
    }

    async fn enqueue(self) -> Seen {
        let (mut seen, mut last) = (Seen::default(), now());
        while now() < self.until {
            let jobs = (0..self.jobs).map(|_| job(&self.env)).collect();
            let op = Op::Enqueue { queue: QUEUE.to_owned(), jobs };
            self.call(op, &mut seen, &mut last).await;
            self.pause().await;
        }
        // A caller that never succeeds again has a gap too.
        seen.gap(now().saturating_duration_since(last.max(self.from)));
        seen
    }

    /// Claims, works and acks without pause. Counts the acks.
    async fn work(self) -> Seen {
        let (mut seen, mut last) = (Seen::default(), now());
        while let Some(left) = self.until.checked_duration_since(now()).filter(|left| !left.is_zero()) {
            let claim = async { self.file.queue(QUEUE)?.claim(1).lease(LEASE).wait(left).await };
            match claim.await {
                Ok(jobs) => {
                    for job in jobs {
                        tokio::time::sleep(self.work).await;
                        self.call(Op::Ack { held: job.held(), result: None }, &mut seen, &mut last).await;
                    }
                }
                Err(error) => {
                    seen.fail(&error);
                    tokio::time::sleep(AFTER_ERROR).await;
                }
            }
        }
        seen
    }

    /// Waits for jobs. Its times are those from the call of the enqueue to the return of the claim.
    async fn listen(self) -> Seen {
        let mut seen = Seen::default();
        while let Some(left) = self.until.checked_duration_since(now()).filter(|left| !left.is_zero()) {
            let claim = async { self.file.queue(QUEUE)?.claim(1).lease(LEASE).wait(left).await };
            let jobs = match claim.await {
                Ok(jobs) => jobs,
                Err(error) => {
                    seen.fail(&error);
                    tokio::time::sleep(AFTER_ERROR).await;
                    continue;
                }
            };
            let (came, came_ms) = (now(), self.env.wall_ms());
            for job in jobs {
                let stamp =
                    job.payload.bytes.get(..8).and_then(|b| b.try_into().ok()).map(i64::from_le_bytes);
                let waited = stamp.map_or(0, |stamp| u64::try_from(came_ms - stamp).unwrap_or(0));
                if came >= self.from {
                    seen.ops += 1;
                    seen.times_us.push(waited * 1_000);
                }
            }
        }
        seen
    }

    /// Claims a job, and extends its lease over and over.
    async fn extend(self) -> Seen {
        let (mut seen, mut last) = (Seen::default(), now());
        let mut held = None;
        while now() < self.until {
            match held {
                None => {
                    let claim = async { self.file.queue(QUEUE)?.claim(1).lease(LEASE).await };
                    match claim.await {
                        Ok(jobs) => held = jobs.first().map(bucketq::ClaimedJob::held),
                        Err(error) => seen.fail(&error),
                    }
                }
                Some(held) => {
                    let lease_ms = LEASE.as_millis() as i64;
                    let op = Op::Extend { held, lease_ms, at_least: false };
                    self.call(op, &mut seen, &mut last).await;
                }
            }
            self.pause().await;
        }
        seen
    }
}
