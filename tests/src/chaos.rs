//! One Rust process of a chaos run (`make chaos`): it enqueues, claims and finishes jobs, or keeps house, until it is
//! killed. What it asks and what it is told stands in its diary, in the words of `tests/chaos/diary.py`.
//!
//! Used by the program `chaos`. The runs, the faults and the checks are in `tests/chaos`, which share no code with this.

mod diary;
mod janitor;
mod worker;

use std::path::PathBuf;
use std::time::Duration;

use bucketq::broken::Broken;
use bucketq::policy::Changes;
use bucketq::settings::Setting;
use bucketq::{Kind, Options, QueueFile, Result};
use serde_json::{Value, json};

pub use diary::Diary;

/// Callers at work in one process.
const TASKS: u64 = 3;

/// What a process is told at its start.
#[derive(Clone, Debug)]
pub struct Orders {
    /// The queue file.
    pub url: String,
    /// How it is opened.
    pub options: Options,
    /// What the process is: `setup`, `worker` or `janitor`.
    pub role: String,
    /// Decides what it does.
    pub seed: u64,
    /// Which process it is.
    pub number: u64,
    /// Where it writes down what it asks and is told.
    pub diary: PathBuf,
    /// It comes to rest once this file is there.
    pub idle: PathBuf,
}

impl Orders {
    /// From the command line; says what is wrong with it.
    pub fn from_text(text: &str) -> std::result::Result<Self, String> {
        let told: Value = serde_json::from_str(text).map_err(|e| e.to_string())?;
        let word = |name: &str| told[name].as_str().map(str::to_owned).ok_or(format!("no {name}"));
        let number = |name: &str| told[name].as_u64().ok_or(format!("no {name}"));
        let mut options = options(&told["settings"])?;
        options.broken = match told["broken"].as_str() {
            None => None,
            Some("timeout_is_failure") => Some(Broken::TimeoutIsFailure),
            Some("token_not_compared") => Some(Broken::TokenNotCompared),
            Some(other) => return Err(format!("no rule {other}")),
        };
        Ok(Self {
            url: word("url")?,
            options,
            role: word("role")?,
            seed: number("seed")? ^ (number("life")? << 32) ^ (number("number")? << 48),
            number: number("number")?,
            diary: word("diary")?.into(),
            idle: word("idle")?.into(),
        })
    }
}

/// Settings by name, as the processes in Python get them.
pub(crate) fn options(settings: &Value) -> std::result::Result<Options, String> {
    let mut options = Options::default();
    for (name, value) in settings.as_object().ok_or("no settings")? {
        let setting = Setting::named(name).ok_or(format!("no setting {name}"))?;
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let set = setting.parse(&value).and_then(|value| setting.set(&mut options, value));
        set.map_err(|e| e.to_string())?;
    }
    Ok(options)
}

/// Do what the orders say, until killed.
pub async fn work(orders: Orders) -> Result<()> {
    if orders.role == "setup" {
        return setup(&orders).await;
    }
    let diary = Diary::open(&orders.diary);
    let asked = diary.ask("open", json!({}));
    let file = loop {
        match opened(&orders).await {
            Ok((file, seq)) => {
                diary.note("up", json!({ "n": asked, "seq": seq }));
                break file;
            }
            Err(error) if passes(error.kind()) => {
                diary.note("trouble", json!({ "code": error.code().as_str(), "why": error.message() }));
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            Err(error) => {
                diary.note("!", json!({ "why": error.to_string() }));
                return Err(error);
            }
        }
    };
    if orders.role == "janitor" {
        janitor::work(&file, &orders, &diary).await;
    } else {
        let tasks = (0..TASKS).map(|task| {
            let (file, orders, diary) = (file.clone(), orders.clone(), diary.clone());
            tokio::spawn(async move { worker::work(file, orders, diary, task).await })
        });
        for ended in futures_util::future::join_all(tasks).await {
            if let Err(panic) = ended {
                diary.note("!", json!({ "why": panic.to_string() }));
            }
        }
    }
    diary.note("idle", json!({}));
    std::future::pending().await
}

/// The file, and the newest commit it shows.
async fn opened(orders: &Orders) -> Result<(QueueFile, u64)> {
    let file = QueueFile::open(&orders.url, orders.options.clone()).await?;
    let seq = file.stats(None).await?.commit_seq;
    Ok((file, seq))
}

/// Make the file, with queues that keep all their finished jobs: the checks want to see them.
async fn setup(orders: &Orders) -> Result<()> {
    let file = QueueFile::open(&orders.url, orders.options.clone()).await?;
    for number in 0..TASKS {
        let changes = Changes { keep: Some(10_000_000), ..Changes::default() };
        file.queue(&format!("q{number}"))?.configure(changes).await?;
    }
    file.close().await
}

/// Errors that a process lives with under faults.
fn passes(kind: Kind) -> bool {
    matches!(kind, Kind::Unavailable | Kind::Unknown | Kind::Contended)
}

/// Small random numbers from a seed.
#[derive(Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}
