//! The process that gets killed. Until then it works on a queue file at random, and writes each promise to its standard
//! output, one line each, as soon as it has it.
//!
//! | line | meaning |
//! |---|---|
//! | `E job` | the enqueue of this job was acknowledged |
//! | `C job claim start until` | this process holds the job from `start` until `until`, in ms of the wall clock |
//! | `X job claim until` | the process may hold the job until this time instead |
//! | `F job claim at` | the process stops working on the job now, and sends the op that ends it |
//! | `A job at`, `R job at`, `K job at` | the job's ack, reject or cancel was acknowledged |
//! | `L` | it leads from now on |
//! | `J` | it does not lead any more |
//! | `! text` | something happened that must never happen |

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bucketq::config::{Credentials, S3Options};
use bucketq::{
    ClaimedJob, Env, Error, Fsync, Held, HostRole, Kind, Mode, New, Op, Options, Payload, QueueFile, Result,
};
use serde_json::{Value, json};

use crate::clock::pass;

/// Callers at work in one process.
const TASKS: u64 = 3;

/// The pause between two looks at its role.
const ROLE: Duration = Duration::from_millis(10);

/// How a victim lies, to test that a hunt notices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// It reports an enqueue as acknowledged too early.
    Early,
    /// It relies on its leases for too long.
    Greedy,
}

/// The orders of a victim.
#[derive(Clone, Debug)]
pub struct Orders {
    /// The queue file.
    pub url: String,
    /// How to reach its store.
    pub s3: S3Options,
    /// Decides what it does.
    pub seed: u64,
    /// The number of the victim, unique in a hunt.
    pub number: u64,
    /// Whether it lies.
    pub lie: Option<Lie>,
    /// The directory for its state, if it works in Local mode.
    pub state: Option<String>,
    /// The directory in which it finds the process that leads.
    pub meeting: PathBuf,
}

impl Orders {
    /// For the command line.
    pub fn to_text(&self) -> String {
        let keys = self.s3.credentials.as_ref().map(|c| [c.access_key.clone(), c.secret_key.clone()]);
        json!({
            "url": self.url, "endpoint": self.s3.endpoint, "keys": keys, "seed": self.seed, "number": self.number,
            "state": self.state, "meeting": self.meeting,
            "lie": match self.lie { None => 0, Some(Lie::Early) => 1, Some(Lie::Greedy) => 2 },
        })
        .to_string()
    }

    /// From the command line.
    pub fn from_text(text: &str) -> Option<Self> {
        let told: Value = serde_json::from_str(text).ok()?;
        let credentials = told["keys"].as_array().and_then(|keys| {
            Some(Credentials {
                access_key: keys.first()?.as_str()?.to_owned(),
                secret_key: keys.get(1)?.as_str()?.to_owned(),
                session_token: None,
            })
        });
        let endpoint = told["endpoint"].as_str().map(str::to_owned);
        let region = endpoint.is_some().then(|| "us-east-1".to_owned());
        Some(Self {
            url: told["url"].as_str()?.to_owned(),
            s3: S3Options { endpoint, region, credentials, ..S3Options::default() },
            seed: told["seed"].as_u64()?,
            number: told["number"].as_u64()?,
            state: told["state"].as_str().map(str::to_owned),
            meeting: told["meeting"].as_str()?.into(),
            lie: match told["lie"].as_u64()? {
                1 => Some(Lie::Early),
                2 => Some(Lie::Greedy),
                _ => None,
            },
        })
    }
}

/// Options under which segments and bases change all the time, and the replaced ones are collected.
pub fn frantic(s3: &S3Options, meeting: &Path) -> Options {
    Options {
        s3: s3.clone(),
        host_dir: Some(meeting.to_owned()),
        // One machine, one clock.
        max_skew: Some(Duration::ZERO),
        tail: 2 * 1024,
        max_head: 24 * 1024,
        base_after: 64 * 1024,
        deadline: Duration::from_secs(3),
        grace: Duration::from_secs(3),
        ..Options::default()
    }
}

/// The same in Local mode, with the state in this directory. A kill loses nothing under any policy: victims take turns.
pub fn local(s3: &S3Options, meeting: &Path, state: &str, number: u64) -> Options {
    let policies = [Fsync::EachCommit, Fsync::Interval(Duration::from_millis(20)), Fsync::Never];
    let policy = policies[number as usize % policies.len()];
    Options { mode: Mode::Local, fsync: policy, cache: Some(state.into()), ..frantic(s3, meeting) }
}

/// Work until killed.
pub async fn work(orders: Orders) -> Result<()> {
    let options = match &orders.state {
        Some(state) => local(&orders.s3, &orders.meeting, state, orders.number),
        None => frantic(&orders.s3, &orders.meeting),
    };
    let file = QueueFile::open(&orders.url, options).await?;
    say("O");
    let watched = file.clone();
    let watch = async move {
        let mut leads = false;
        loop {
            let now = matches!(watched.host_role()?, HostRole::Leads { .. });
            if now != leads {
                say(if now { "L" } else { "J" });
                leads = now;
            }
            pass(ROLE).await;
        }
    };
    tokio::spawn(async move {
        let ended: Result<()> = watch.await;
        ended
    });
    let tasks = (0..TASKS).map(|task| {
        let mut victim = Victim {
            file: file.clone(),
            orders: orders.clone(),
            dice: Dice((orders.seed ^ (orders.number << 8) ^ task).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1),
            env: Env::default(),
            mine: vec![],
        };
        tokio::spawn(async move { victim.work().await })
    });
    for ended in futures_util::future::join_all(tasks).await {
        ended.unwrap_or_else(|e| panic!("{e}"));
    }
    Ok(())
}

/// Write one line in one write: a kill leaves complete lines.
fn say(line: &str) {
    let line = format!("{line}\n");
    // The hunt is over: no one reads the lines any more.
    if std::io::stdout().lock().write_all(line.as_bytes()).is_err() {
        std::process::exit(0);
    }
}

struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }

    fn noise(&mut self, len: u64) -> Vec<u8> {
        (0..len).map(|_| self.below(256) as u8).collect()
    }
}

static JOBS: AtomicU64 = AtomicU64::new(0);
static CLAIMS: AtomicU64 = AtomicU64::new(0);

struct Victim {
    file: QueueFile,
    orders: Orders,
    dice: Dice,
    env: Env,
    /// Jobs it enqueued, to cancel some.
    mine: Vec<(String, bucketq::JobId)>,
}

fn name(taken: &ClaimedJob) -> String {
    taken.job.headers.get("name").cloned().unwrap_or_default()
}

impl Victim {
    async fn work(&mut self) {
        loop {
            let done = match self.dice.below(100) {
                0..42 => self.enqueue().await,
                42..84 => self.claim().await,
                84..90 => self.cancel().await,
                _ if self.orders.state.is_some() => self.file.sync().await.map(drop),
                90..97 => self.claim().await,
                // Without grace: a process that reads while others collect has to start over (P18).
                _ => self.file.collect(Duration::ZERO).await.map(drop),
            };
            let Err(error) = done else { continue };
            match error.kind() {
                // Others were faster, a lease expired, the network failed: there is no promise to report.
                Kind::LeaseLost
                | Kind::NotFound
                | Kind::Invalid
                | Kind::Contended
                | Kind::Unavailable
                | Kind::Unknown => {}
                _ => return say(&format!("! {error:?}")),
            }
        }
    }

    fn job(&mut self) -> Result<(String, New)> {
        let name = format!("{}-{}", self.orders.number, JOBS.fetch_add(1, Relaxed));
        let len = self.dice.below(6_000);
        let payload = Payload::bytes(self.dice.noise(len));
        let mut job = self.file.new_job(payload)?;
        job.headers.insert("name".into(), name.clone());
        job.max_attempts = Some(1_000);
        Ok((name, job))
    }

    /// The newest thousand finished jobs of a queue are kept; with a queue for each 500 jobs of a victim none has more.
    fn queue(&self) -> String {
        format!("q{}-{}", self.orders.number, JOBS.load(Relaxed) / 500)
    }

    async fn enqueue(&mut self) -> Result<()> {
        let jobs: Vec<_> = (0..=self.dice.below(3)).map(|_| self.job()).collect::<Result<_>>()?;
        let (names, jobs): (Vec<_>, Vec<_>) = jobs.into_iter().unzip();
        let lies = self.orders.lie == Some(Lie::Early);
        if lies {
            for name in &names {
                say(&format!("E {name}"));
            }
        }
        let queue = self.file.queue(&self.queue())?;
        let enqueued = queue.enqueue_many(jobs).await?;
        for (name, told) in names.into_iter().zip(enqueued) {
            if !lies {
                say(&format!("E {name}"));
            }
            self.mine.push((name, told.id));
        }
        Ok(())
    }

    async fn cancel(&mut self) -> Result<()> {
        if self.mine.is_empty() {
            return Ok(());
        }
        let at = self.dice.below(self.mine.len() as u64) as usize;
        let (name, id) = self.mine.swap_remove(at);
        self.file.cancel(id).await?;
        say(&format!("K {name} {}", self.env.wall_ms()));
        Ok(())
    }

    /// The wall-clock time of a moment on this process's steady clock.
    fn wall(&self, at: tokio::time::Instant) -> i64 {
        let greed = if self.orders.lie == Some(Lie::Greedy) { 5_000 } else { 0 };
        let left = at.saturating_duration_since(self.env.monotonic()).as_millis() as i64;
        self.env.wall_ms() + left + greed
    }

    async fn claim(&mut self) -> Result<()> {
        let lease = Duration::from_millis(100 + self.dice.below(300));
        let max = 1 + self.dice.below(4) as u32;
        let taken = self.file.claim(max).lease(lease).await?;
        let mut held = vec![];
        for t in taken {
            let claim = CLAIMS.fetch_add(1, Relaxed);
            say(&format!("C {} {claim} {} {}", name(&t), self.env.wall_ms(), self.wall(t.deadline)));
            held.push((claim, t));
        }
        for (claim, t) in held {
            self.finish(claim, &t).await?;
        }
        Ok(())
    }

    async fn finish(&mut self, claim: u64, t: &ClaimedJob) -> Result<()> {
        let (name, held): (String, Held) = (name(t), t.held());
        if self.dice.below(6) == 0 {
            let until = self.file.extend(held, Duration::from_millis(300)).await?;
            say(&format!("X {name} {claim} {}", self.wall(until)));
        }
        let choice = self.dice.below(20);
        if choice >= 18 {
            // Forgotten: the lease expires by itself.
            return Ok(());
        }
        if self.orders.lie != Some(Lie::Greedy) {
            say(&format!("F {name} {claim} {}", self.env.wall_ms()));
        }
        match choice {
            0..9 => self.file.ack(held).await?,
            9..11 => self.file.ack_with(held, Payload::text("it is done")).await?,
            11..13 => {
                let (next, job) = self.job()?;
                let queue = self.queue();
                let ops = vec![Op::Ack { held, result: None }, Op::Enqueue { queue, jobs: vec![job] }];
                self.file.atomic(ops).await?;
                say(&format!("E {next}"));
            }
            13..15 => {
                let delay = Duration::from_millis(self.dice.below(100));
                self.file.nack(held, Some(delay), Some("not yet".into())).await?;
                return Ok(());
            }
            15..17 => return self.file.release(held).await,
            _ => {
                self.file.reject(held, None).await?;
                say(&format!("R {name} {}", self.env.wall_ms()));
                return Ok(());
            }
        }
        say(&format!("A {name} {}", self.env.wall_ms()));
        Ok(())
    }
}

/// Report the error that ends a victim before its kill.
pub fn complain(error: &Error) {
    say(&format!("! {error:?}"));
}
