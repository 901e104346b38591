//! Local mode: the ops per second in a directory of this machine, and the bytes of a sync.
//!
//! Called by the program `local`. The store is memory without delay, because Local mode does not wait for a store.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bucketq::config::{Fsync, Mode, Options};
use bucketq::env::Env;
use bucketq::error::{Code, Error, Result};
use bucketq::op::Op;
use bucketq::store::memory::Memory;
use bucketq::{Held, QueueFile};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::load::{QUEUE, fresh_job};
use crate::stats::{median, now};

/// Ready jobs in the queue file.
const BACKLOG: usize = 10_000;

async fn open(dir: &Path, fsync: Fsync) -> Result<QueueFile> {
    let options = Options { mode: Mode::Local, fsync, cache: Some(dir.to_owned()), ..Options::default() };
    let file = QueueFile::open_with(Arc::new(Memory::new()), "local", options, Env::default()).await?;
    let env = Env::default();
    let jobs = (0..BACKLOG).map(|_| fresh_job(&env)).collect();
    file.call(Op::Enqueue { queue: QUEUE.to_owned(), jobs }).await?;
    file.sync().await?;
    Ok(file)
}

/// Enqueues, claims and acks a job: three ops.
async fn turn(file: &QueueFile, env: &Env) -> Result<()> {
    file.call(Op::Enqueue { queue: QUEUE.to_owned(), jobs: vec![fresh_job(env)] }).await?;
    let taken = file.queue(QUEUE)?.claim(1).lease(Duration::from_mins(10)).await?;
    let job = taken.first().ok_or_else(|| Error::new(Code::Internal, "the backlog is gone"))?;
    file.ack(Held { id: job.job.id, token: job.lease.token }).await
}

/// Returns the ops per second of this number of callers for this time, in a directory below `dir`.
pub async fn ops_s(dir: &Path, fsync: Fsync, callers: usize, time: Duration) -> Result<f64> {
    let place = dir.join(format!("{callers}-{}", u64::from_le_bytes(Env::default().bytes())));
    let file = open(&place, fsync).await?;
    let begin = now();
    let until = begin + time;
    let mut all = JoinSet::new();
    for _ in 0..callers {
        let (file, env) = (file.clone(), Env::default());
        all.spawn(async move {
            let mut ops = 0_u32;
            while now() < until {
                turn(&file, &env).await?;
                ops += 3;
            }
            Ok::<u32, Error>(ops)
        });
    }
    let mut ops = 0;
    while let Some(done) = all.join_next().await {
        ops += done.map_err(|e| Error::new(Code::Internal, "a caller ended early").because(e))??;
    }
    let took = now() - begin;
    file.close().await?;
    Ok(f64::from(ops) / took.as_secs_f64())
}

/// Returns the median time of a plain append of `bytes` bytes and its fsync in this directory: the cost of the disk.
pub fn raw_append(dir: &Path, bytes: usize, times: usize) -> Result<Duration> {
    let failed = |e: std::io::Error| Error::new(Code::Disk, "the disk fails").because(e);
    let mut file = File::create(dir.join("raw")).map_err(failed)?;
    let body = vec![7; bytes];
    let mut samples = Vec::with_capacity(times);
    for _ in 0..times {
        let start = now();
        file.write_all(&body).and_then(|()| file.sync_data()).map_err(failed)?;
        samples.push(now() - start);
    }
    Ok(median(&samples))
}

/// Returns the mean bytes of a sync after every 16 ops, in turns of enqueue, claim and ack: the bytes that the commit
/// adds to HEAD, and all bytes sent.
pub async fn sync_bytes_16(dir: &Path, syncs: u64) -> Result<Value> {
    let file = open(&dir.join("sync"), Fsync::Never).await?;
    let env = Env::default();
    let before = file.metrics()?;
    let mut held = None;
    for sync in 0..syncs {
        for op in 0..16 {
            match ((sync * 16 + op) % 3, held.take()) {
                (0, _) => {
                    file.call(Op::Enqueue { queue: QUEUE.to_owned(), jobs: vec![fresh_job(&env)] }).await?;
                }
                (2, Some(job)) => file.ack(job).await?,
                _ => {
                    let taken = file.queue(QUEUE)?.claim(1).lease(Duration::from_mins(10)).await?;
                    held = taken.first().map(|j| Held { id: j.job.id, token: j.lease.token });
                }
            }
        }
        file.sync().await?;
    }
    let after = file.metrics()?;
    file.close().await?;
    let sent = after.put_bytes + after.upload_bytes - before.put_bytes - before.upload_bytes;
    Ok(json!({ "delta": (after.delta_bytes - before.delta_bytes) / syncs, "sent": sent / syncs }))
}
