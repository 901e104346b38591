//! The time of an opening, and the memory of an open file compared with its pages.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bucketq::error::Result;
use bucketq::store::FileStore;
use bucketq::{Env, Options, QueueFile};
use serde_json::{Value, json};

use super::{child, fill, memory, told};
use crate::load::QUEUE;
use crate::stats::{median, now, number};

/// Opens the queue file in this directory.
pub async fn open(dir: &Path) -> Result<QueueFile> {
    let store = FileStore::open(dir, &Env::default())?;
    QueueFile::open_with(Arc::new(store), "jobs", Options::default(), Env::default()).await
}

/// Makes a queue file with this number of jobs in this directory, with bases, segments and a tail as work leaves them.
pub async fn make(dir: &Path, jobs: usize) -> Result<()> {
    let file = open(dir).await?;
    fill(&file, jobs).await?;
    file.close().await
}

/// Returns the median time of an opening.
pub async fn cold_open(dir: &Path, times: usize) -> Result<Duration> {
    let mut samples = Vec::new();
    for _ in 0..times {
        let before = now();
        let file = open(dir).await?;
        samples.push(now() - before);
        file.close().await?;
    }
    Ok(median(&samples))
}

/// Returns process memory over page bytes, of a process that opens the file and does some ops.
pub async fn memory_ratio(dir: &Path) -> Result<(Value, Value)> {
    let told = told(child(&["memory", &dir.to_string_lossy()])?).await?;
    let over_pages = |field: &str| {
        let bytes = told.pointer(field)?.as_f64()?;
        Some(bytes / told["page_bytes"].as_f64()?)
    };
    let ratio = over_pages("/memory/now").map_or(Value::Null, |r| number(r, 2));
    Ok((ratio, told))
}

/// Runs the child that opens the file and reports its memory.
pub async fn memory_child(dir: &Path) -> Result<Value> {
    let file = open(dir).await?;
    let queue = file.queue(QUEUE)?;
    for i in 0..200 {
        queue.enqueue(bucketq::Payload::text(format!("small {i}"))).await?;
        for job in queue.claim(1).await? {
            file.ack(job.held()).await?;
        }
    }
    let page_bytes = file.stats(None).await?.pages * 4096;
    let told = json!({ "memory": memory(), "page_bytes": page_bytes });
    file.close().await?;
    Ok(told)
}
