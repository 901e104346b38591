//! Measures how much several writers of one queue file slow each other down. The penalty of the fit model rests on it.
//!
//! The writers are in one process, each a `QueueFile` of its own on one simulated store with a round trip of 25 ms,
//! each with eight callers in a closed loop. Each number of writers takes turns with one writer, so that a slow moment
//! hits both. The last line is JSON: commits per second over those of one writer, and PUTs per commit.

use std::sync::Arc;
use std::time::Duration;

use bucketq::error::{Code, Error, Result};
use bucketq::store::memory::Memory;
use bucketq::{Env, Options, QueueFile};
use bucketq_benches::delayed::Delayed;
use bucketq_benches::load::{QUEUE, Subject, closed_loop};
use bucketq_benches::stats::now;
use serde_json::{Map, json};
use tokio::task::JoinSet;

const CALLERS: usize = 8;
const BACKLOG: usize = 5_000;
const ROUND_TRIP: Duration = Duration::from_millis(25);
const WARM: Duration = Duration::from_millis(500);

/// Commits per second and PUTs per commit of one stretch.
async fn stretch(writers: usize, window: Duration) -> Result<(f64, f64)> {
    let store = Arc::new(Memory::new());
    let first = Subject::create(store.clone(), "contention", BACKLOG).await?;
    let mut all = Vec::new();
    for _ in 0..writers {
        let store = Delayed::new(store.clone());
        let file =
            QueueFile::open_with(Arc::new(store.clone()), "contention", Options::default(), Env::default())
                .await?;
        let queue = file.queue(QUEUE)?;
        store.set_round_trip(ROUND_TRIP);
        all.push(Subject { file, queue, store });
    }
    let puts = || all.iter().map(|s| s.store.requests().puts).sum::<u64>();
    let (seq, sent, begin) = (first.file.settle().await?, puts(), now());
    let mut loops = JoinSet::new();
    for subject in all.clone() {
        loops.spawn(async move { closed_loop(&subject, CALLERS, WARM, window).await });
    }
    while let Some(ended) = loops.join_next().await {
        ended.map_err(|e| Error::new(Code::Internal, "a writer's loop panicked").because(e))??;
    }
    let time = (now() - begin).as_secs_f64();
    let commits = (first.file.settle().await? - seq) as f64;
    Ok((commits / time, (puts() - sent) as f64 / commits))
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<()> {
    let quick = std::env::args().any(|a| a == "--quick");
    let (rounds, window) = if quick { (1, Duration::from_millis(500)) } else { (3, Duration::from_secs(5)) };
    let mut rates = Map::new();
    let mut tries = Map::new();
    for writers in [2, 4, 8, 16] {
        let (mut alone, mut racing, mut puts) = (0.0, 0.0, 0.0);
        for _ in 0..rounds {
            alone += stretch(1, window).await?.0;
            let (rate, per_commit) = stretch(writers, window).await?;
            racing += rate;
            puts += per_commit / f64::from(rounds);
        }
        eprintln!(
            "{writers:>2} writers: {:.3} of one writer's commits, {puts:.2} PUTs a commit",
            racing / alone
        );
        rates.insert(writers.to_string(), json!((racing / alone * 1000.0).round() / 1000.0));
        tries.insert(writers.to_string(), json!((puts * 100.0).round() / 100.0));
    }
    println!("{}", json!({"commit_ratio": rates, "puts_per_commit": tries}));
    Ok(())
}
