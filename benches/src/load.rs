//! The closed loop: callers that each enqueue a job, claim one and ack it, over and over.
//!
//! Used by the grid and by the real server. A turn is three ops; each counts when its call returns. Any error
//! ends the benchmark: a loop of failing calls measures nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bucketq::config::Options;
use bucketq::env::Env;
use bucketq::error::{Code, Error, Result};
use bucketq::job::{JobId, New, Payload};
use bucketq::op::Op;
use bucketq::store::Store;
use bucketq::{Queue, QueueFile};
use bytes::Bytes;
use tokio::task::JoinSet;

use crate::delayed::Delayed;
use crate::null::NullLoop;
use crate::stats::now;

/// Bytes of a job's payload.
pub const PAYLOAD: usize = 200;
/// Name of the queue in every queue file of the benchmarks.
pub const QUEUE: &str = "bench";

const LEASE: Duration = Duration::from_mins(10);
/// Jobs per commit while the backlog is made.
const CHUNK: usize = 5_000;

/// The turn that a caller repeats.
#[async_trait]
pub trait Turn: Clone + Send + Sync + 'static {
    /// Does one turn; adds one to `done` for each op that returned.
    async fn turn(&self, done: &AtomicU64) -> Result<()>;
}

/// A queue file with a backlog, on a store whose delay can be set.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The queue file.
    pub file: QueueFile,
    /// The queue in it that has the backlog.
    pub queue: Queue,
    /// The store with the delay.
    pub store: Delayed,
}

impl Subject {
    /// Makes a queue file with `backlog` ready jobs, the store without delay.
    pub async fn create(store: Arc<dyn Store>, name: &str, backlog: usize) -> Result<Self> {
        let store = Delayed::new(store);
        let file =
            QueueFile::open_with(Arc::new(store.clone()), name, Options::default(), Env::default()).await?;
        let queue = file.queue(QUEUE)?;
        let env = Env::default();
        let mut left = backlog;
        while left > 0 {
            let count = left.min(CHUNK);
            let jobs = (0..count).map(|_| fresh_job(&env)).collect();
            file.call(Op::Enqueue { queue: QUEUE.to_owned(), jobs }).await?;
            left -= count;
        }
        Ok(Self { file, queue, store })
    }
}

/// Returns a job with every default and a payload that does not compress.
pub fn fresh_job(env: &Env) -> New {
    New::new(JobId::new(env.wall_ms(), env.bytes()), fresh_payload(env))
}

fn fresh_payload(env: &Env) -> Payload {
    Payload::bytes(Bytes::copy_from_slice(&env.bytes::<PAYLOAD>()))
}

#[async_trait]
impl Turn for Subject {
    async fn turn(&self, done: &AtomicU64) -> Result<()> {
        self.queue.enqueue(fresh_payload(&Env::default())).await?;
        done.fetch_add(1, Ordering::Relaxed);
        let taken = self.queue.claim(1).lease(LEASE).await?;
        done.fetch_add(1, Ordering::Relaxed);
        let Some(job) = taken.first() else {
            return Err(Error::new(Code::Internal, "a claim on a queue with a backlog came back empty"));
        };
        self.file.ack(job.held()).await?;
        done.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

#[async_trait]
impl Turn for NullLoop {
    async fn turn(&self, done: &AtomicU64) -> Result<()> {
        for _ in 0..3 {
            self.op().await?;
            done.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// One stretch of a closed loop.
#[derive(Clone, Copy, Debug)]
pub struct Stretch {
    /// Ops that returned in it.
    pub ops: u64,
    /// Its length.
    pub time: Duration,
}

/// Runs `callers` at once; counts after `warm` for `window`. Every caller ends its turn before this returns.
pub async fn closed_loop<T: Turn>(
    subject: &T,
    callers: usize,
    warm: Duration,
    window: Duration,
) -> Result<Stretch> {
    let done = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let mut tasks = JoinSet::new();
    for _ in 0..callers {
        let (subject, done, stop) = (subject.clone(), done.clone(), stop.clone());
        tasks.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                subject.turn(&done).await?;
            }
            Ok::<(), Error>(())
        });
    }
    tokio::time::sleep(warm).await;
    let (start, before) = (now(), done.load(Ordering::Relaxed));
    tokio::time::sleep(window).await;
    let stretch = Stretch { ops: done.load(Ordering::Relaxed) - before, time: now() - start };
    stop.store(true, Ordering::Relaxed);
    while let Some(ended) = tasks.join_next().await {
        ended.map_err(|e| Error::new(Code::Internal, "a caller panicked").because(e))??;
    }
    Ok(stretch)
}
