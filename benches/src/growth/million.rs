//! One commit of very many jobs, in a process of its own: how long it takes, and how much memory.

use std::path::Path;

use bucketq::Env;
use bucketq::error::Result;
use bucketq::op::Op;
use serde_json::{Value, json};

use super::cold::open;
use super::{child, memory, told};
use crate::load::{QUEUE, fresh_job};
use crate::stats::{now, number};

/// Measures a commit of this number of jobs by one process, and an opening by another.
pub async fn measure(dir: &Path, jobs: usize) -> Result<Value> {
    let place = dir.to_string_lossy();
    let commit = told(child(&["million", &place, &jobs.to_string()])?).await?;
    let opening = told(child(&["open", &place])?).await?;
    Ok(json!({ "jobs": jobs, "commit": commit, "opening": opening }))
}

/// The child that commits.
pub async fn commit_child(dir: &Path, jobs: usize) -> Result<Value> {
    let file = open(dir).await?;
    let env = Env::default();
    let op = Op::Enqueue { queue: QUEUE.to_owned(), jobs: (0..jobs).map(|_| fresh_job(&env)).collect() };
    let before = (now(), memory());
    file.call(op).await?;
    let took = now() - before.0;
    let after = memory();
    let page_bytes = file.stats(None).await?.pages * 4096;
    file.close().await?;
    Ok(json!({
        "seconds": number(took.as_secs_f64(), 2), "memory_before": before.1["now"], "memory_peak": after["peak"],
        "page_bytes": page_bytes,
    }))
}

/// The child that opens.
pub async fn open_child(dir: &Path) -> Result<Value> {
    let before = now();
    let file = open(dir).await?;
    let took = now() - before;
    let told = json!({ "seconds": number(took.as_secs_f64(), 2), "memory_peak": memory()["peak"] });
    file.close().await?;
    Ok(told)
}
