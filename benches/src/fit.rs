//! Checks the fit model: workloads on a real server behind a slow network, in processes of their own, against the
//! predictions that `bucketq::fit` makes from a measurement of the same store.
//!
//! Each workload has three stretches. *Full*: every process enqueues and claims as fast as it can; jobs per second are
//! the capacity. *Busy*: workers always find a job, and each takes its time; the share of time that is not work is the
//! overhead. *Stream*: jobs arrive at random while workers wait; PUTs per job, and the time until a worker has the job.

pub mod child;
pub mod report;

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bucketq::config::S3Options;
use bucketq::error::{Code, Error, Result};
use bucketq::fit::{Engine, Inputs, evaluate};
use bucketq::op::Op;
use bucketq::store::measure::Latency;
use bucketq::store::{S3Store, Store, measure};
use bucketq::{Env, Options, QueueFile};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::load::fresh_job;
use crate::servers::{BUCKET, SlowServer, keys_for_child};
use child::{Enqueue, Order, PAYLOAD, Seen};
use report::{Figures, Row};

/// PUTs of the size of a HEAD from which the latency is measured.
const SAMPLES: u32 = 20;
/// Longer than any step takes.
const DEADLINE: Duration = Duration::from_mins(5);

/// Jobs per op while the backlog is made.
const CHUNK: usize = 2_000;

/// One workload.
#[derive(Clone, Copy, Debug)]
pub struct Workload {
    /// Round trip of the network.
    pub round_trip_ms: u64,
    /// Processes.
    pub writers: usize,
    /// Workers in all processes together.
    pub workers: usize,
    /// Work per job.
    pub work_ms: u64,
    /// Jobs per second of the stream.
    pub arrival: f64,
}

/// The eight workloads.
pub const WORKLOADS: [Workload; 8] = [
    Workload { round_trip_ms: 5, writers: 1, workers: 8, work_ms: 50, arrival: 40.0 },
    Workload { round_trip_ms: 5, writers: 1, workers: 32, work_ms: 100, arrival: 100.0 },
    Workload { round_trip_ms: 25, writers: 1, workers: 1, work_ms: 200, arrival: 1.0 },
    Workload { round_trip_ms: 25, writers: 1, workers: 64, work_ms: 250, arrival: 60.0 },
    Workload { round_trip_ms: 80, writers: 1, workers: 16, work_ms: 500, arrival: 10.0 },
    Workload { round_trip_ms: 80, writers: 1, workers: 64, work_ms: 1000, arrival: 30.0 },
    Workload { round_trip_ms: 25, writers: 2, workers: 16, work_ms: 500, arrival: 10.0 },
    Workload { round_trip_ms: 80, writers: 4, workers: 24, work_ms: 2000, arrival: 5.0 },
];

impl Workload {
    /// Returns the name for tables.
    pub fn name(&self) -> String {
        let (ms, workers, writers) = (self.round_trip_ms, self.workers, self.writers);
        let plural = |n: usize| if n == 1 { "" } else { "s" };
        format!("{ms} ms, {workers} worker{}", plural(workers))
            + &if writers == 1 { String::new() } else { format!(", {writers} processes") }
    }

    /// Returns the callers that enqueue in the full stretch: enough for the workers, which call twice per job.
    fn producers(&self) -> usize {
        (self.workers / 2).max(self.writers)
    }

    /// Returns the workload as the model's input.
    pub fn inputs(&self, store: &Latency) -> Inputs {
        store.on(&Inputs {
            producers: self.producers() as f64,
            consumers: self.workers as f64,
            writers: self.writers as f64,
            work_ms: self.work_ms as f64,
            payload: PAYLOAD as f64,
            prefetch: 1.0,
            ..Inputs::default()
        })
    }
}

/// The lengths of the warm-up and of the full, busy and stream stretches.
#[derive(Clone, Copy, Debug)]
pub struct Lengths {
    /// Warm-up before each stretch.
    pub warm: Duration,
    /// The full stretch.
    pub full: Duration,
    /// The busy stretch.
    pub busy: Duration,
    /// The stream.
    pub stream: Duration,
}

fn failed(what: &str) -> impl Fn(std::io::Error) -> Error + '_ {
    move |e| Error::new(Code::Internal, format!("{what} of the benchmark failed")).because(e)
}

/// Runs one workload on the server. Returns the measurement and the prediction.
pub async fn measure_one(server: &SlowServer, w: &Workload, lengths: &Lengths) -> Result<Row> {
    let there = w.round_trip_ms / 2;
    server.slow(Duration::from_millis(there), Duration::from_millis(w.round_trip_ms - there)).await?;
    let place = format!("fit/{}-{}-{}/", w.round_trip_ms, w.workers, w.writers);
    let s3 = Arc::new(S3Store::open(BUCKET, &place, &server.options).await?);
    let store: Arc<dyn Store> = s3.clone();
    let file = QueueFile::open_with(s3, "jobs", Options::default(), Env::default()).await?;
    let found = measure(&store, "jobs", SAMPLES, DEADLINE, &Env::default(), &|_| true).await?;
    let mut processes = Processes::start(&server.options, &place, w.writers).await?;
    let row = compare(w, &w.inputs(&found.inputs), lengths, &file, &mut processes).await?;
    processes.end().await;
    file.close().await?;
    Ok(row)
}

/// The writers of a workload, wherever they run.
#[async_trait]
pub trait Writers: Send {
    /// Sends each writer its order, and collects the results.
    async fn run(&mut self, order: &(dyn Fn(usize) -> Order + Sync)) -> Result<Seen>;
}

/// Runs the workload on the writers, and puts their results next to the prediction. `file` makes the backlog.
pub async fn compare(
    w: &Workload,
    inputs: &Inputs,
    lengths: &Lengths,
    file: &QueueFile,
    writers: &mut dyn Writers,
) -> Result<Row> {
    let full = |_| Order {
        queue: "full".to_owned(),
        enqueue: Enqueue::Callers(share(w.producers(), w.writers)),
        workers: share(w.workers, w.writers),
        work_ms: 0,
        warm: lengths.warm,
        window: lengths.full,
    };
    let full = writers.run(&full).await?;

    // With several processes, the first one enqueues and the others work: the worse case, which the model assumes.
    let apart = w.writers > 1;
    let working = if apart { w.writers - 1 } else { 1 };
    let stream = |queue: &'static str, rate: f64, window: Duration| {
        let (work_ms, warm) = (w.work_ms, lengths.warm);
        move |index: usize| Order {
            queue: queue.to_owned(),
            enqueue: if index == 0 { Enqueue::Random(rate) } else { Enqueue::No },
            workers: if apart && index == 0 { 0 } else { share(w.workers, working) },
            work_ms,
            warm,
            window,
        }
    };
    // Approximately the rate of the workers: the prediction includes the wait for acks and claims.
    let workers = share(w.workers, working) * working;
    let at = |arrival: f64, work_ms: f64| {
        Ok::<Engine, Error>(evaluate(&Inputs { arrival, work_ms, ..*inputs })?.engine)
    };
    let taken =
        rate(workers, w.work_ms as f64, at(rate(workers, w.work_ms as f64, 0.0), w.work_ms as f64)?.queue_ms);
    let backlog = rate(workers, w.work_ms as f64, 0.0) * (lengths.warm + lengths.busy).as_secs_f64();
    fill(file, "busy", backlog as usize + 4 * workers).await?;
    let busy = writers.run(&stream("busy", taken, lengths.busy)).await?;
    let streamed = writers.run(&stream("stream", w.arrival, lengths.stream)).await?;

    let served = busy.acked as f64 / lengths.busy.as_secs_f64();
    let (filled, worked, came) =
        (at(w.arrival, 0.0)?, at(served, busy.work_ms())?, at(w.arrival, streamed.work_ms())?);
    Ok(Row {
        name: w.name(),
        latency_ms: inputs.latency_ms,
        measured: Figures {
            capacity: full.acked as f64 / lengths.full.as_secs_f64(),
            overhead: busy.overhead(),
            puts_per_job: streamed.puts as f64 * 2.0 / (streamed.enqueued + streamed.acked) as f64,
            dispatch_ms: streamed.dispatch_ms(),
        },
        predicted: Figures {
            capacity: filled.capacity,
            overhead: worked.overhead,
            puts_per_job: came.puts_per_job,
            dispatch_ms: came.dispatch_ms,
        },
        plain: plain(inputs, w, served)?,
        errors: full.errors + busy.errors + streamed.errors,
    })
}

/// Returns the plain model's prediction, given the batch that the engine's model predicts: its best case.
fn plain(inputs: &Inputs, w: &Workload, served: f64) -> Result<Figures> {
    let with = |arrival: f64, full: bool| {
        let engine = evaluate(&Inputs { arrival, ..*inputs })?.engine;
        let batch = if full { engine.batch_max } else { engine.batch };
        Ok::<_, Error>(evaluate(&Inputs { arrival, batch: batch.clamp(1.0, 4096.0), ..*inputs })?.plain)
    };
    let (filled, worked, came) = (with(w.arrival, true)?, with(served, false)?, with(w.arrival, false)?);
    Ok(Figures {
        capacity: filled.capacity,
        overhead: worked.overhead,
        puts_per_job: came.puts_per_job,
        dispatch_ms: came.dispatch_ms,
    })
}

/// Returns this many of `all` for each of `of`.
fn share(all: usize, of: usize) -> usize {
    all.div_ceil(of)
}

/// Returns the jobs per second of busy workers.
fn rate(workers: usize, work_ms: f64, queue_ms: f64) -> f64 {
    workers as f64 * 1000.0 / (work_ms + queue_ms)
}

async fn fill(file: &QueueFile, queue: &str, mut left: usize) -> Result<()> {
    while left > 0 {
        let count = left.min(CHUNK);
        let jobs = (0..count).map(|_| fresh_job(&Env::default())).collect();
        file.call(Op::Enqueue { queue: queue.to_owned(), jobs }).await?;
        left -= count;
    }
    Ok(())
}

/// The processes of one workload: this program again.
struct Processes(Vec<(Child, Lines<BufReader<ChildStdout>>)>);

impl Processes {
    async fn start(s3: &S3Options, place: &str, count: usize) -> Result<Self> {
        let mut all = vec![];
        for _ in 0..count {
            let program = std::env::current_exe().map_err(failed("finding this program"))?;
            let mut command = Command::new(program);
            command.args(["--child", s3.endpoint.as_deref().unwrap_or_default(), place]);
            command.envs(keys_for_child(s3));
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
            let mut child = command.spawn().map_err(failed("starting a process"))?;
            let out =
                child.stdout.take().ok_or_else(|| Error::new(Code::Internal, "a process without output"))?;
            let mut lines = BufReader::new(out).lines();
            // The child says that it is ready.
            lines.next_line().await.map_err(failed("a process"))?;
            all.push((child, lines));
        }
        Ok(Self(all))
    }

    /// Closes the children's input, which ends them.
    async fn end(self) {
        for (mut child, _) in self.0 {
            drop(child.stdin.take());
            let _ = child.wait().await;
        }
    }
}

#[async_trait]
impl Writers for Processes {
    async fn run(&mut self, order: &(dyn Fn(usize) -> Order + Sync)) -> Result<Seen> {
        for (index, (child, _)) in self.0.iter_mut().enumerate() {
            let line = order(index).line();
            let stdin =
                child.stdin.as_mut().ok_or_else(|| Error::new(Code::Internal, "a process without input"))?;
            stdin.write_all(line.as_bytes()).await.map_err(failed("a process"))?;
            stdin.flush().await.map_err(failed("a process"))?;
        }
        let mut seen = Seen::default();
        for (_, lines) in &mut self.0 {
            let line = lines.next_line().await.map_err(failed("a process"))?.unwrap_or_default();
            let told: Value = serde_json::from_str(&line).map_err(|e| {
                Error::new(Code::Internal, "a process of the benchmark ended early").because(e)
            })?;
            seen.add(&told);
        }
        Ok(seen)
    }
}
