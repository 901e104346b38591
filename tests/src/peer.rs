//! `host peer`: a process with one open queue file, for `tests/host`. It reads orders from its standard input and carries
//! them out at the same time, each begun in the order of its line. It writes a line for each when its call returns.
//!
//! An order is `{"id": 7, "order": {"do": "get", "job": "..."}}`, its reply `{"id": 7, "ok": ...}`, or `"error"` with
//! `code` and `message` instead of `ok`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{BufRead, Write};
use std::rc::Rc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, LocalSet};

use crate::clock;
use bucketq::settings::Setting;
use bucketq::{Code, Detail, Error, Events, Held, JobId, Options, Payload, QueueFile, Result};

/// The queue that the orders mean.
pub const QUEUE: &str = "q";

/// An order.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Order {
    /// Open the queue file. The settings are as in the environment. Replies with nothing.
    Open {
        /// Its URL.
        url: String,
        /// The settings.
        settings: BTreeMap<String, String>,
        /// The broken rule, if the engine is built with them.
        broken: Option<String>,
    },
    /// Enqueue a job with this text. Replies with its id.
    Enqueue {
        /// The text.
        text: String,
    },
    /// Claim jobs. Replies with a list of [`Got`].
    Claim {
        /// At most this number.
        max: u32,
        /// How long they are held.
        lease_ms: u64,
        /// How long the claim waits.
        wait_ms: u64,
    },
    /// The callers of all claims that have not returned leave. Replies with nothing.
    LeaveClaims,
    /// Acknowledge a job. Replies with nothing.
    Ack {
        /// The job.
        held: Held,
    },
    /// Extend a lease. Replies with nothing.
    Extend {
        /// The job.
        held: Held,
        /// From now.
        lease_ms: u64,
    },
    /// Look at a job. Replies with its [`Look`], or with nothing.
    Get {
        /// The job.
        job: JobId,
    },
    /// The statistics, at most this old.
    Stats {
        /// The age limit, if there is one.
        max_age_ms: Option<u64>,
    },
    /// `HostRole`.
    Role,
    /// `Metrics`.
    Metrics,
    /// The number of observed waits and runs.
    Times,
    /// Listen to events from now on. Replies with nothing.
    Listen,
    /// The events that have arrived.
    Events,
    /// Fork, as Python does. Replies with the number of the child, which lives until it is killed.
    Fork,
    /// Close the queue file. Replies with nothing.
    Close,
}

/// A claimed job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Got {
    /// For acks and extends.
    pub held: Held,
    /// Its text.
    pub text: String,
    /// How long its holder may still work on it.
    pub left_ms: u64,
}

/// A job as a look shows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Look {
    /// Its state.
    pub state: String,
    /// Its claims so far.
    pub attempt: u32,
    /// Its text.
    pub text: String,
}

/// A line of the input.
#[derive(Debug, Serialize, Deserialize)]
pub struct Line {
    /// Its number.
    pub id: u64,
    /// The order.
    pub order: Order,
}

/// The process.
#[derive(Default)]
struct Peer {
    file: RefCell<Option<QueueFile>>,
    events: RefCell<Option<Events>>,
    claims: RefCell<Vec<AbortHandle>>,
}

/// Carries out the orders on the standard input, until its end.
pub fn play() {
    let (tx, mut orders) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(std::result::Result::ok) {
            let line: Line = serde_json::from_str(&line).expect("a test writes orders");
            if tx.send(line).is_err() {
                return;
            }
        }
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime can be made");
    let peer = Rc::new(Peer::default());
    LocalSet::new().block_on(&runtime, async move {
        while let Some(Line { id, order }) = orders.recv().await {
            let (player, is_claim) = (Rc::clone(&peer), matches!(order, Order::Claim { .. }));
            let task = tokio::task::spawn_local(async move {
                let reply = match player.obey(order).await {
                    Ok(value) => json!({ "id": id, "ok": value }),
                    Err(error) => json!({
                        "id": id, "error": { "code": error.code().as_str(), "message": error.message() },
                    }),
                };
                // A test that has failed no longer reads.
                let _ = writeln!(std::io::stdout(), "{reply}");
            });
            if is_claim {
                peer.claims.borrow_mut().push(task.abort_handle());
            }
        }
    });
}

/// Forks as Python does. The child runs the work, and then lives until it is killed. Returns its number, after its work.
#[cfg(unix)]
pub fn fork_and_park(in_child: impl FnOnce()) -> std::io::Result<i32> {
    use std::io::Read;
    let (mut done, leave) = std::io::pipe()?;
    bucketq::fork::before();
    if let fork::Fork::Parent(child) = fork::fork()? {
        bucketq::fork::in_parent();
        drop(leave);
        // Ends when the child has closed its end.
        done.read_to_end(&mut vec![])?;
        return Ok(child);
    }
    bucketq::fork::in_child();
    in_child();
    drop(leave);
    loop {
        std::thread::park();
    }
}

#[cfg(not(unix))]
fn fork_and_park(_: impl FnOnce()) -> std::io::Result<i32> {
    Err(std::io::ErrorKind::Unsupported.into())
}

impl Peer {
    fn file(&self) -> Result<QueueFile> {
        self.file.borrow().clone().ok_or_else(|| Error::new(Code::Closed, "it has not opened the queue file"))
    }

    async fn obey(&self, order: Order) -> Result<Value> {
        if let Order::Open { url, settings, broken } = order {
            let mut options = Options::default();
            for (name, text) in settings {
                let setting = Setting::named(&name).expect("a test names settings");
                setting.set(&mut options, setting.parse(&text)?)?;
            }
            break_rule(&mut options, broken.as_deref());
            let file = QueueFile::open(&url, options).await?;
            self.file.replace(Some(file));
            return Ok(Value::Null);
        }
        if let Order::Close = order {
            let file = self.file.borrow_mut().take();
            self.events.replace(None);
            if let Some(file) = file {
                file.close().await?;
            }
            return Ok(Value::Null);
        }
        let file = self.file()?;
        let ms = Duration::from_millis;
        Ok(match order {
            Order::Open { .. } | Order::Close => Value::Null,
            Order::Enqueue { text } => {
                json!(file.queue(QUEUE)?.enqueue(Payload::text(text)).await?.id)
            }
            Order::Claim { max, lease_ms, wait_ms } => {
                let claim = file.queue(QUEUE)?.claim(max).lease(ms(lease_ms));
                let jobs = if wait_ms == 0 { claim.await? } else { claim.wait(ms(wait_ms)).await? };
                let now = clock::now();
                let got = jobs.iter().map(|job| Got {
                    held: job.held(),
                    text: text(&job.payload),
                    left_ms: job.deadline.saturating_duration_since(now).as_millis() as u64,
                });
                json!(got.collect::<Vec<_>>())
            }
            Order::LeaveClaims => {
                self.claims.borrow_mut().drain(..).for_each(|claim| claim.abort());
                Value::Null
            }
            Order::Ack { held } => json!(file.ack(held).await?),
            Order::Extend { held, lease_ms } => {
                file.extend(held, ms(lease_ms)).await?;
                Value::Null
            }
            Order::Get { job } => json!(file.get(job).await?.map(|detail| look(&detail))),
            Order::Stats { max_age_ms } => json!(file.stats(max_age_ms.map(ms)).await?),
            Order::Role => json!(file.host_role()?),
            Order::Fork => {
                let child = fork_and_park(|| {});
                json!(child.map_err(|e| Error::new(Code::Internal, "it cannot fork").because(e))?)
            }
            Order::Metrics => json!(file.metrics()?),
            Order::Times => {
                let times = file.histograms()?;
                json!({ "waits": times.wait_ms.count, "runs": times.run_ms.count })
            }
            Order::Listen => {
                self.events.replace(Some(file.events(10_000)?));
                Value::Null
            }
            Order::Events => {
                let mut events = self.events.borrow_mut();
                let events = events.as_mut().expect("a test listens first");
                json!(std::iter::from_fn(|| events.try_next()).collect::<Vec<_>>())
            }
        })
    }
}

fn text(payload: &Payload) -> String {
    String::from_utf8_lossy(&payload.bytes).into_owned()
}

fn look(detail: &Detail) -> Look {
    let job = &detail.job;
    let state = json!(job.state).as_str().unwrap_or_default().to_owned();
    Look { state, attempt: job.attempt, text: text(&detail.payload) }
}

#[cfg(feature = "mutants")]
fn break_rule(options: &mut Options, name: Option<&str>) {
    use bucketq::broken::Broken;
    let named = |name: &str| Broken::ALL.iter().find(|broken| format!("{broken:?}") == name).copied();
    options.broken = name.map(|name| named(name).expect("a test names a variant"));
}

#[cfg(not(feature = "mutants"))]
fn break_rule(_: &mut Options, name: Option<&str>) {
    assert!(name.is_none(), "this engine has no broken rules");
}
