//! Whether a base delays commits: one caller commits while a base of a large file is compressed and written.

use std::sync::Arc;
use std::time::Duration;

use bucketq::error::Result;
use bucketq::op::Op;
use bucketq::store::{Memory, Store};
use bucketq::{Env, Options, QueueFile};
use serde_json::{Value, json};

use crate::load::{QUEUE, fresh_job};
use crate::stats::{median, now, number};

/// Commits that fill the queue.
const CHUNKS: usize = 20;
/// Bytes of commits before the base begins: the tail, and some more.
const MARGIN: u64 = 64 * 1024;
/// A number of commits that surely fits into the margin.
const SURE: usize = 50;

/// Returns the longest commit beside a base, minus the median, in milliseconds; and the same without a base.
pub async fn measure(jobs: usize, rounds: usize) -> Result<(Value, Value)> {
    let (mut beside, mut alone) = (Duration::ZERO, Duration::ZERO);
    let (mut medians, mut bases) = (vec![], vec![]);
    for _ in 0..rounds {
        let store: Arc<dyn Store> = Arc::new(Memory::new());
        let open = |base_after| {
            let options = Options { base_after, ..Options::default() };
            QueueFile::open_with(Arc::clone(&store), "jobs", options, Env::default())
        };
        let file = open(u64::MAX).await?;
        let env = Env::default();
        for _ in 0..CHUNKS {
            let some = (0..jobs / CHUNKS).map(|_| fresh_job(&env)).collect();
            file.call(Op::Enqueue { queue: QUEUE.to_owned(), jobs: some }).await?;
        }
        file.close().await?;
        let log: u64 = store.list("jobs.seg-").await?.iter().map(|object| object.size).sum();
        // The log grows beyond this some tens of commits later, so that the beginning of the base is timed too.
        let file = open(log + MARGIN).await?;
        let before = store.list("jobs.base-").await?.len();
        let mut with = vec![];
        let mut began = now();
        while store.list("jobs.base-").await?.len() == before {
            with.push(commit(&file).await?);
            if with.len() == SURE {
                began = now();
            }
        }
        bases.push(now() - began);
        let mut without = vec![];
        for _ in 0..with.len() {
            without.push(commit(&file).await?);
        }
        let middle = median(&without);
        beside = beside.max(longest(&with).saturating_sub(middle));
        alone = alone.max(longest(&without).saturating_sub(middle));
        medians.push(middle);
        file.close().await?;
    }
    let ms = |time: Duration| number(time.as_secs_f64() * 1e3, 3);
    let detail = json!({
        "median_commit_ms": ms(median(&medians)), "base_takes_ms": ms(median(&bases)),
        "longest_beside_no_base_ms": ms(alone),
    });
    Ok((ms(beside), detail))
}

async fn commit(file: &QueueFile) -> Result<Duration> {
    let job = fresh_job(&Env::default());
    let before = now();
    file.call(Op::Enqueue { queue: QUEUE.to_owned(), jobs: vec![job] }).await?;
    Ok(now() - before)
}

fn longest(samples: &[Duration]) -> Duration {
    samples.iter().max().copied().unwrap_or_default()
}
