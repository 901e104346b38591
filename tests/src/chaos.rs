//! One Rust process of a chaos run (`make chaos`): it enqueues, claims and finishes jobs, or does maintenance, until it
//! is killed. Its diary has its calls and the replies, in the format of `tests/chaos/diary.py`.
//!
//! Used by the program `chaos`. The runs, the faults and the checks are in `tests/chaos`, which share no code with this.

mod diary;
mod janitor;
mod worker;

use std::path::PathBuf;
use std::time::Duration;

use bucketq::policy::Changes;
use bucketq::settings::Setting;
use bucketq::{Kind, Options, QueueFile, Result};
use serde_json::{Value, json};

pub use diary::Diary;

/// Callers at work in one process.
const TASKS: u64 = 3;

/// The orders of a process.
#[derive(Clone, Debug)]
pub struct Orders {
    /// The queue file.
    pub url: String,
    /// How it is opened.
    pub options: Options,
    /// The role: `setup`, `worker` or `janitor`.
    pub role: String,
    /// Decides what it does.
    pub seed: u64,
    /// The number of the process.
    pub number: u64,
    /// The path of its diary.
    pub diary: PathBuf,
    /// It stops working once this file exists.
    pub idle: PathBuf,
}

impl Orders {
    /// Read the orders from the command line; returns what is wrong with them.
    pub fn from_text(text: &str) -> std::result::Result<Self, String> {
        let told: Value = serde_json::from_str(text).map_err(|e| e.to_string())?;
        let word = |name: &str| told[name].as_str().map(str::to_owned).ok_or(format!("no {name}"));
        let number = |name: &str| told[name].as_u64().ok_or(format!("no {name}"));
        let mut options = options(&told["settings"])?;
        if let Some(rule) = told["broken"].as_str() {
            break_rule(rule, &mut options)?;
        }
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

/// Break a rule of the engine, in the program that `.ci/mutants` builds.
#[cfg(feature = "mutants")]
fn break_rule(rule: &str, options: &mut Options) -> std::result::Result<(), String> {
    use bucketq::broken::Broken;
    options.broken = Some(match rule {
        "timeout_is_failure" => Broken::TimeoutIsFailure,
        "token_not_compared" => Broken::TokenNotCompared,
        other => return Err(format!("no rule {other}")),
    });
    Ok(())
}

#[cfg(not(feature = "mutants"))]
fn break_rule(rule: &str, _: &mut Options) -> std::result::Result<(), String> {
    Err(format!("{rule} needs the program that `.ci/mutants build chaos` makes"))
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

/// Open the file; returns it with its newest commit.
async fn opened(orders: &Orders) -> Result<(QueueFile, u64)> {
    let file = QueueFile::open(&orders.url, orders.options.clone()).await?;
    let seq = file.stats(None).await?.commit_seq;
    Ok((file, seq))
}

/// Create the file, with queues that keep all their finished jobs: the checks want to see them.
async fn setup(orders: &Orders) -> Result<()> {
    let file = QueueFile::open(&orders.url, orders.options.clone()).await?;
    for number in 0..TASKS {
        let changes = Changes { keep: Some(10_000_000), ..Changes::default() };
        file.queue(&format!("q{number}"))?.configure(changes).await?;
    }
    file.close().await
}

/// Errors that are normal for a process under faults.
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
