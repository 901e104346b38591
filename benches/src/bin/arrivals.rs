//! Do arrivals make the batches that the fit model says? Workloads of a random stream of jobs and workers that take
//! their time, on the simulated store; each beside what `bucketq::fit` says of it.
//!
//! A worker waits for a claim, works (sleeps), acks. A job's delay runs from the call of its enqueue to the return of
//! the claim that has it. JSON on the last line: measured over predicted, by workload.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bucketq::error::{Code, Error, Result};
use bucketq::fit::{self, Inputs};
use bucketq::store::{Store, memory::Memory};
use bucketq::{Env, Options, Payload, QueueFile};
use bucketq_benches::delayed::Delayed;
use bucketq_benches::stats::now;
use bytes::Bytes;
use serde_json::{Map, json};
use tokio::task::JoinSet;

const PAYLOAD: usize = 200;
const WAIT: Duration = Duration::from_secs(3);

struct Workload {
    name: &'static str,
    round_trip_ms: u64,
    arrival: f64,
    consumers: usize,
    work_ms: u64,
    writers: usize,
}

const WORKLOADS: &[Workload] = &[
    Workload { name: "few", round_trip_ms: 25, arrival: 2.0, consumers: 8, work_ms: 500, writers: 1 },
    Workload { name: "some", round_trip_ms: 25, arrival: 20.0, consumers: 40, work_ms: 500, writers: 1 },
    Workload { name: "many", round_trip_ms: 25, arrival: 200.0, consumers: 64, work_ms: 100, writers: 1 },
    Workload { name: "fast store", round_trip_ms: 5, arrival: 300.0, consumers: 64, work_ms: 50, writers: 1 },
    Workload { name: "far store", round_trip_ms: 80, arrival: 5.0, consumers: 16, work_ms: 1000, writers: 1 },
    Workload {
        name: "two writers",
        round_trip_ms: 25,
        arrival: 5.0,
        consumers: 16,
        work_ms: 500,
        writers: 2,
    },
    Workload {
        name: "four writers",
        round_trip_ms: 25,
        arrival: 10.0,
        consumers: 32,
        work_ms: 500,
        writers: 4,
    },
];

/// What the workers saw: when jobs were called for, how long they took to come, how long acks took.
#[derive(Default)]
struct Seen {
    called: HashMap<String, Duration>,
    taken: HashMap<String, Duration>,
    acks: Vec<Duration>,
}

type Shared = Arc<Mutex<Seen>>;

fn lock(seen: &Shared) -> std::sync::MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// What a PUT takes here and now, with all that the machine adds: the median of 31.
async fn put_ms(round_trip: Duration) -> Result<f64> {
    let store = Delayed::new(Arc::new(Memory::new()));
    store.set_round_trip(round_trip);
    let mut times = Vec::new();
    for index in 0..31 {
        let begin = now();
        store.put_new(&format!("k{index}"), Bytes::from(vec![1; 16_000])).await?;
        times.push(now() - begin);
    }
    times.sort();
    Ok(times[15].as_secs_f64() * 1000.0)
}

async fn work(
    file: QueueFile,
    seen: Shared,
    stop: Arc<AtomicBool>,
    begin: tokio::time::Instant,
    time: Duration,
) -> Result<()> {
    while !stop.load(Ordering::Relaxed) {
        for job in &file.claim(1).lease(Duration::from_mins(1)).wait(WAIT).await? {
            lock(&seen).taken.insert(job.job.id.to_string(), now() - begin);
            tokio::time::sleep(time).await;
            let acked = now();
            file.ack(job.held()).await?;
            lock(&seen).acks.push(now() - acked);
        }
    }
    Ok(())
}

/// One workload for `length`: PUTs per job, mean delay in ms, mean time of an ack in ms.
async fn measure(w: &Workload, length: Duration) -> Result<[f64; 3]> {
    let memory = Arc::new(Memory::new());
    let (mut files, mut stores) = (Vec::new(), Vec::new());
    for _ in 0..w.writers {
        let store = Delayed::new(memory.clone());
        files.push(
            QueueFile::open_with(Arc::new(store.clone()), "arrivals", Options::default(), Env::default())
                .await?,
        );
        store.set_round_trip(Duration::from_millis(w.round_trip_ms));
        stores.push(store);
    }
    let (seen, stop, begin) = (Shared::default(), Arc::new(AtomicBool::new(false)), now());
    let mut workers = JoinSet::new();
    for index in 0..w.consumers {
        let file = files[if w.writers > 1 { 1 + index % (w.writers - 1) } else { 0 }].clone();
        workers.spawn(work(file, seen.clone(), stop.clone(), begin, Duration::from_millis(w.work_ms)));
    }
    let puts = || stores.iter().map(Delayed::requests).map(|r| r.puts + r.uploads).sum::<u64>();
    let (sent, env, mut at, mut jobs) = (puts(), Env::default(), 0.0, 0_usize);
    let mut enqueues = JoinSet::new();
    while at < length.as_secs_f64() {
        let share = (f64::from(u32::from_le_bytes(env.bytes())) + 1.0) / (f64::from(u32::MAX) + 2.0);
        at += -share.ln() / w.arrival;
        tokio::time::sleep(Duration::from_secs_f64(at).saturating_sub(now() - begin)).await;
        let (queue, seen) = (files[0].queue("q")?, seen.clone());
        enqueues.spawn(async move {
            let called = now() - begin;
            let receipt = queue.enqueue(Payload::bytes(Bytes::from(vec![7; PAYLOAD]))).await?;
            lock(&seen).called.insert(receipt.id.to_string(), called);
            Ok::<(), Error>(())
        });
        jobs += 1;
    }
    let sent = puts() - sent;
    stop.store(true, Ordering::Relaxed);
    for tasks in [&mut enqueues, &mut workers] {
        while let Some(ended) = tasks.join_next().await {
            ended.map_err(|e| Error::new(Code::Internal, "a task panicked").because(e))??;
        }
    }
    let seen = lock(&seen);
    let delays: Vec<_> =
        seen.taken.iter().filter_map(|(id, t)| Some(t.saturating_sub(*seen.called.get(id)?))).collect();
    Ok([sent as f64 / jobs as f64, mean_ms(&delays), mean_ms(&seen.acks)])
}

fn mean_ms(times: &[Duration]) -> f64 {
    times.iter().map(Duration::as_secs_f64).sum::<f64>() * 1000.0 / times.len().max(1) as f64
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<()> {
    let quick = std::env::args().any(|a| a == "--quick");
    let length = Duration::from_secs(if quick { 1 } else { 20 });
    let mut found = Map::new();
    for w in WORKLOADS {
        let put = put_ms(Duration::from_millis(w.round_trip_ms)).await?;
        let measured = measure(w, length).await?;
        let said = fit::evaluate(&Inputs {
            arrival: w.arrival,
            work_ms: w.work_ms as f64,
            latency_min_ms: put,
            latency_ms: put,
            latency_p99_ms: put,
            per_mib_ms: 0.0,
            payload: PAYLOAD as f64,
            producers: 1000.0,
            consumers: w.consumers as f64,
            prefetch: 1.0,
            writers: w.writers as f64,
            ..Inputs::default()
        })?
        .engine;
        // A worker's two calls a job take the queue time together; the claim that waits for work is none of it.
        let predicted = [said.puts_per_job, said.dispatch_ms, said.queue_ms / 2.0];
        let mut row = Map::new();
        for ((name, have), want) in
            ["puts_per_job", "dispatch", "ack"].into_iter().zip(measured).zip(predicted)
        {
            eprintln!(
                "{:>12} {name:>12}: {have:8.3} measured, {want:8.3} predicted, {:.2}",
                w.name,
                have / want
            );
            row.insert(name.to_owned(), json!((have / want * 1000.0).round() / 1000.0));
        }
        found.insert(w.name.to_owned(), row.into());
    }
    println!("{}", json!({ "measured_over_predicted": found }));
    Ok(())
}
