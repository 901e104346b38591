//! The bytes of a job in the bucket, and the bytes that are left when all jobs are done.

use std::sync::Arc;
use std::time::Duration;

use bucketq::error::Result;
use bucketq::store::{Memory, Store};
use bucketq::{Env, Options, QueueFile};
use futures_util::future::try_join_all;
use serde_json::{Value, json};

use super::fill;
use crate::stats::number;

const STEP: u32 = 500;

/// Returns `bytes_stored_per_job` and `shrink_ratio`, and the sizes behind them.
pub async fn measure(jobs: usize) -> Result<(Value, Value, Value)> {
    let store: Arc<dyn Store> = Arc::new(Memory::new());
    let file = QueueFile::open_with(Arc::clone(&store), "jobs", Options::default(), Env::default()).await?;
    fill(&file, jobs).await?;
    let with_garbage = bytes(&store).await?;
    file.collect(Duration::ZERO).await?;
    let full = bytes(&store).await?;
    let pages = file.stats(None).await?.pages;
    let before = file.metrics()?;
    loop {
        let taken = file.claim(STEP).lease(Duration::from_hours(1)).await?;
        if taken.is_empty() {
            break;
        }
        try_join_all(taken.iter().map(|job| file.ack(job.held()))).await?;
    }
    let after = file.metrics()?;
    let undisturbed = bytes(&store).await?;
    file.collect(Duration::ZERO).await?;
    let left = bytes(&store).await?;
    let base = store.list("jobs.base-").await?.iter().map(|l| l.size).sum::<u64>();
    let stats = file.stats(None).await?;
    file.close().await?;
    let detail = json!({
        "bytes_full": full, "bytes_full_before_collecting": with_garbage,
        "bytes_drained_before_collecting": undisturbed, "bytes_left": left, "base_bytes_left": base,
        "pages_full": pages, "pages_left": stats.pages, "free_pages_left": stats.free_pages,
        "delta_bytes_per_job_drained": number((after.delta_bytes - before.delta_bytes) as f64 / jobs as f64, 1),
    });
    Ok((number(full as f64 / jobs as f64, 1), number(left as f64 / full as f64, 4), detail))
}

async fn bytes(store: &Arc<dyn Store>) -> Result<u64> {
    Ok(store.list("").await?.iter().map(|l| l.size).sum())
}
