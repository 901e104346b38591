//! `peer ORDERS`: the engine itself as one process of `make bench-peers`. It speaks the same protocol as
//! `benches/peers/caller.py`: it opens the queue, says `ready`, and replies to each line of input with a line of JSON.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use bucketq::config::{Credentials, S3Options};
use bucketq::{Env, Error, Options, Payload, Queue, QueueFile, State};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};

const LEASE: Duration = Duration::from_mins(5);

#[derive(Default)]
struct Tally {
    times: BTreeMap<&'static str, Vec<f64>>,
    enqueued: Vec<String>,
    claimed: Vec<String>,
    acked: Vec<String>,
    errors: BTreeMap<String, u64>,
}

struct Callers {
    queue: Queue,
    env: Env,
    tally: Mutex<Tally>,
    /// Results after the warm-up.
    measuring: AtomicBool,
    stopped: AtomicBool,
}

impl Callers {
    fn tell<T>(&self, change: impl FnOnce(&mut Tally) -> T) -> T {
        change(&mut self.tally.lock().unwrap_or_else(PoisonError::into_inner))
    }

    async fn timed<T>(
        &self,
        op: &'static str,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let (began, measuring) = (self.env.monotonic(), self.measuring.load(Relaxed));
        let answer = call.await;
        let took = (self.env.monotonic() - began).as_secs_f64() * 1000.0;
        self.tell(|tally| match &answer {
            Ok(_) if measuring => tally.times.entry(op).or_default().push(took),
            Ok(_) => {}
            Err(error) => *tally.errors.entry(format!("{op}: {:?}", error.kind())).or_default() += 1,
        });
        answer
    }

    fn payload(&self) -> Payload {
        Payload::bytes(self.env.bytes::<200>().to_vec())
    }

    async fn job(&self) -> Result<(), Error> {
        let told = self.timed("enqueue", self.queue.enqueue(self.payload())).await?;
        self.tell(|tally| tally.enqueued.push(told.id.to_string()));
        let claim = async { self.queue.claim(1).lease(LEASE).await };
        let taken = self.timed("claim", claim).await?;
        for t in taken {
            let id = t.job.id.to_string();
            self.tell(|tally| tally.claimed.push(id.clone()));
            self.timed("ack", self.queue.file().ack(t.held())).await?;
            self.tell(|tally| tally.acked.push(id));
        }
        Ok(())
    }
}

async fn run(orders: &Value) -> Result<(), Error> {
    let word = |name: &str| orders["store"][name].as_str().unwrap_or_default().to_owned();
    let options = Options {
        s3: S3Options {
            endpoint: Some(word("endpoint")),
            region: Some("us-east-1".to_owned()),
            credentials: Some(Credentials {
                access_key: word("access_key"),
                secret_key: word("secret_key"),
                session_token: None,
            }),
            ..S3Options::default()
        },
        ..Options::default()
    };
    let url = format!("s3://{}/{}/jobs", word("bucket"), orders["place"].as_str().unwrap_or("bench"));
    let file = QueueFile::open(&url, options).await?;
    let callers = Arc::new(Callers {
        queue: file.queue("bench")?,
        env: Env::default(),
        tally: Mutex::default(),
        measuring: AtomicBool::new(false),
        stopped: AtomicBool::new(false),
    });
    let number = |name: &str| orders[name].as_u64().unwrap_or(0);
    if number("fill") > 0 {
        let jobs = (0..number("fill"))
            .map(|_| callers.queue.new_job(callers.payload()))
            .collect::<Result<_, _>>()?;
        callers.queue.enqueue_many(jobs).await?;
    }
    println!("\"ready\"");
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        match line.split_once(' ') {
            Some((_, seconds)) => {
                let wait = Duration::from_secs_f64(seconds.parse().unwrap_or(1.0));
                let until = callers.env.monotonic() + wait;
                while let Some(left) = until.checked_duration_since(callers.env.monotonic()) {
                    callers.queue.claim(1).lease(LEASE).wait(left).await?;
                }
                println!("\"waited\"");
            }
            None if line == "go" => {
                let time = |name: &str| Duration::from_secs_f64(orders[name].as_f64().unwrap_or(1.0));
                println!("{}", measured(&callers, number("callers"), time("warm"), time("seconds")).await);
            }
            None if line == "drain" => {
                while let [taken] = &callers.queue.claim(1).lease(LEASE).await?[..] {
                    callers.queue.file().ack(taken.held()).await?;
                }
                println!("\"empty\"");
            }
            None => println!("{}", left(&callers.queue).await?),
        }
    }
    file.close().await
}

/// Returns the ids of the jobs that are not finished.
async fn left(queue: &Queue) -> Result<Value, Error> {
    let (mut left, mut after) = (vec![], None);
    loop {
        let page = queue.list(&[State::Ready, State::Scheduled, State::Leased], after, 1_000).await?;
        left.extend(page.jobs.iter().map(|job| job.id.to_string()));
        after = page.next;
        if after.is_none() {
            return Ok(json!(left));
        }
    }
}

async fn measured(callers: &Arc<Callers>, count: u64, warm: Duration, time: Duration) -> Value {
    let tasks: Vec<_> = (0..count)
        .map(|_| {
            let callers = Arc::clone(callers);
            tokio::spawn(async move {
                while !callers.stopped.load(Relaxed) {
                    if callers.job().await.is_err() {
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                }
            })
        })
        .collect();
    tokio::time::sleep(warm).await;
    callers.measuring.store(true, Relaxed);
    let (began, before) = (callers.env.monotonic(), callers.tell(|tally| tally.acked.len()));
    tokio::time::sleep(time).await;
    let took = (callers.env.monotonic() - began).as_secs_f64();
    let done = callers.tell(|tally| tally.acked.len()) - before;
    callers.stopped.store(true, Relaxed);
    for task in tasks {
        if task.await.is_err() {
            callers.tell(|tally| *tally.errors.entry("never answered".into()).or_default() += 1);
        }
    }
    callers.tell(|tally| {
        json!({
            "jobs_s": done as f64 / took, "times_ms": tally.times, "enqueued": tally.enqueued,
            "claimed": tally.claimed, "acked": tally.acked, "errors": tally.errors,
        })
    })
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), String> {
    let orders = std::env::args().nth(1).unwrap_or_default();
    let orders: Value = serde_json::from_str(&orders).map_err(|e| format!("the orders: {e}"))?;
    run(&orders).await.map_err(|e| e.to_string())
}
