//! How much writers of one queue file slow each other down, on a simulated store with a round trip of 25 ms: a very
//! large commit beside small ones, occasional commits beside a busy writer, and the uploads of light writers.

use std::sync::Arc;
use std::time::Duration;

use bucketq::error::{Code, Error, Result};
use bucketq::op::Op;
use bucketq::store::memory::Memory;
use bucketq::{Env, Options, QueueFile};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::delayed::Delayed;
use crate::load::{QUEUE, fresh_job};
use crate::stats::{now, number};

const ROUND_TRIP: Duration = Duration::from_millis(25);
/// Seven commits a second.
const SMALL_EVERY: Duration = Duration::from_millis(143);

/// Opens another writer on the queue file in this store.
async fn writer(memory: &Arc<Memory>) -> Result<(Delayed, QueueFile)> {
    let store = Delayed::new(memory.clone());
    let options = Options::default();
    let file = QueueFile::open_with(Arc::new(store.clone()), "jobs", options, Env::default()).await?;
    store.set_round_trip(ROUND_TRIP);
    Ok((store, file))
}

async fn enqueue(file: &QueueFile, jobs: usize) -> Result<Duration> {
    let env = Env::default();
    let jobs = (0..jobs).map(|_| fresh_job(&env)).collect();
    let before = now();
    file.call(Op::Enqueue { queue: QUEUE.to_owned(), jobs }).await?;
    Ok(now() - before)
}

/// Enqueues one job after the other, with this pause, until an error or until `into` is dropped.
fn keep_enqueuing(file: QueueFile, pause: Duration, into: &mut JoinSet<Error>) {
    into.spawn(async move {
        loop {
            if let Err(error) = enqueue(&file, 1).await {
                return error;
            }
            tokio::time::sleep(pause).await;
        }
    });
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// Returns the seconds of one call with this number of jobs beside a writer with seven commits a second, over those of
/// the call alone; and both.
pub async fn large(jobs: usize, rounds: usize) -> Result<(Value, Value)> {
    let (mut alone, mut beside) = (vec![], vec![]);
    for _ in 0..rounds {
        let (_, file) = writer(&Arc::new(Memory::new())).await?;
        alone.push(enqueue(&file, jobs).await?);
        file.close().await?;

        let memory = Arc::new(Memory::new());
        let ((_, small), (_, file)) = (writer(&memory).await?, writer(&memory).await?);
        let mut tasks = JoinSet::new();
        keep_enqueuing(small.clone(), SMALL_EVERY, &mut tasks);
        tokio::time::sleep(Duration::from_secs(1)).await;
        beside.push(enqueue(&file, jobs).await?);
        failed(&mut tasks)?;
        tasks.shutdown().await;
        file.close().await?;
        small.close().await?;
    }
    let (alone, beside) = (median(alone).as_secs_f64(), median(beside).as_secs_f64());
    Ok((number(beside / alone, 2), json!({ "alone_s": number(alone, 3), "beside_s": number(beside, 3) })))
}

/// Returns the error of a task that has ended: only a failed one ends.
fn failed(tasks: &mut JoinSet<Error>) -> Result<()> {
    match tasks.try_join_next() {
        None => Ok(()),
        Some(Ok(error)) => Err(error),
        Some(Err(e)) => Err(Error::new(Code::Internal, "a writer panicked").because(e)),
    }
}

/// Makes a call about every second beside a caller that never pauses. Returns its median and 99th percentile in round
/// trips, and the busy caller's ops over those it does alone.
pub async fn occasional(window: Duration) -> Result<Value> {
    let memory = Arc::new(Memory::new());
    let ((store, busy), (_, rare)) = (writer(&memory).await?, writer(&memory).await?);
    let mut tasks = JoinSet::new();
    keep_enqueuing(busy.clone(), Duration::ZERO, &mut tasks);
    let before = store.requests().puts;
    tokio::time::sleep(window).await;
    let alone = store.requests().puts - before;
    let (before, conflicts, end) = (store.requests().puts, busy.metrics()?.conflicts, now() + window);
    let mut times = vec![];
    for n in 0.. {
        if now() >= end {
            break;
        }
        times.push(enqueue(&rare, 1).await?);
        tokio::time::sleep(Duration::from_millis(700 + n * 13 % 600)).await;
    }
    let lost = busy.metrics()?.conflicts - conflicts;
    let together = store.requests().puts - before - lost;
    failed(&mut tasks)?;
    tasks.shutdown().await;
    rare.close().await?;
    busy.close().await?;
    times.sort_unstable();
    let puts = |at: usize| number(times[at].as_secs_f64() / ROUND_TRIP.as_secs_f64(), 1);
    Ok(json!({
        "calls": times.len(), "p50_puts": puts(times.len() / 2), "p99_puts": puts(times.len() * 99 / 100),
        "busy": number(together as f64 / alone as f64, 3),
    }))
}

/// Returns the bytes that several light writers upload per job, over those of one writer at their total rate.
pub async fn uploads(window: Duration) -> Result<(Value, Value)> {
    let (mut ratios, mut beside) = (json!({}), json!({}));
    for (writers, pause) in [(4_u32, 250), (16, 500)] {
        let pause = Duration::from_millis(pause);
        let share = ((pause + ROUND_TRIP) / writers).saturating_sub(ROUND_TRIP);
        // Both at the same time, each on its own store: they hardly load the machine.
        let (one, all) = tokio::try_join!(light(1, share, window), light(writers, pause, window))?;
        ratios[writers.to_string()] = number(all / one, 2);
        beside[writers.to_string()] =
            json!({ "one_bytes_a_job": number(one, 0), "all_bytes_a_job": number(all, 0) });
    }
    Ok((ratios, beside))
}

async fn light(writers: u32, pause: Duration, window: Duration) -> Result<f64> {
    let memory = Arc::new(Memory::new());
    let mut tasks = JoinSet::new();
    for _ in 0..writers {
        let (store, file) = writer(&memory).await?;
        tasks.spawn(async move {
            let (env, end, mut jobs) = (Env::default(), now() + window, 0_u64);
            while now() < end {
                enqueue(&file, 1).await?;
                jobs += 1;
                tokio::time::sleep(Duration::from_micros(env.below(2 * pause.as_micros() as u64))).await;
            }
            let bytes = store.requests().upload_bytes;
            file.close().await?;
            Ok::<_, Error>((jobs, bytes))
        });
    }
    let (mut jobs, mut bytes) = (0, 0);
    while let Some(ended) = tasks.join_next().await {
        let its = ended.map_err(|e| Error::new(Code::Internal, "a writer panicked").because(e))??;
        (jobs, bytes) = (jobs + its.0, bytes + its.1);
    }
    Ok(bytes as f64 / jobs as f64)
}
