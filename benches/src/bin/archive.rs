//! Measures how fast finished jobs leave for the archive, and how many bytes they take there. Part of
//! `make bench-lifecycle`; `--quick` only shows that it runs.
//!
//! A table with the aims goes to standard error, JSON to the last line of standard output.

use std::sync::Arc;
use std::time::Duration;

use bucketq::error::{Code, Error, Result};
use bucketq::internals::archive;
use bucketq::life::Life;
use bucketq::op::{Held, Op};
use bucketq::policy::Changes;
use bucketq::store::{Got, Memory, Store};
use bucketq::{Env, JobId, New, Options, Payload, QueueFile};
use bucketq_benches::load::QUEUE;
use bucketq_benches::stats::{Aim, judge, now, number};
use serde_json::{Value, json};

/// Jobs per commit while the queue is filled.
const CHUNK: u32 = 1_000;

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let jobs = match words[..] {
        [] => 1_000_000,
        ["--quick"] => 20_000,
        _ => {
            eprintln!("{words:?} is not known; the only option is --quick");
            std::process::exit(2);
        }
    };
    let told = measure(jobs).await?;
    println!("{told}");
    Ok(())
}

async fn measure(jobs: u32) -> Result<Value> {
    let store: Arc<dyn Store> = Arc::new(Memory::new());
    let options = Options {
        max_file: 8 * 1024 * 1024 * 1024,
        archive_every: Duration::from_hours(1_000),
        ..Options::default()
    };
    let file = QueueFile::open_with(Arc::clone(&store), "jobs", options, Env::default()).await?;
    // Retention keeps them for now: otherwise they leave while the file is filled.
    file.queue(QUEUE)?.configure(Changes { keep: Some(10_000_000), ..Changes::default() }).await?;
    for n in 0..jobs / CHUNK {
        finish(&file, n).await?;
    }
    let before = file.metrics()?;
    let started = now();
    file.queue(QUEUE)?
        .configure(Changes { keep: Some(0), archive: Some(true), ..Changes::default() })
        .await?;
    file.archive().await?;
    let took = now() - started;
    let after = file.metrics()?;
    let archived = after.archived_jobs;
    if archived != u64::from(jobs) {
        return Err(Error::new(Code::Internal, format!("{archived} of {jobs} jobs were archived")));
    }
    let objects = file.archives(None, 0).await?.objects;
    let bytes: u64 = objects.iter().map(|a| a.bytes).sum();
    let first = objects.first().ok_or_else(|| Error::new(Code::Internal, "no object"))?;
    let Got::Object { bytes: body, .. } = store.get(&first.key, None).await? else {
        return Err(Error::new(Code::Internal, "an object is gone"));
    };
    let size = body.len();
    let (_, lives) = archive::decode(&first.key, body)?;
    let encoded = encode(&lives)?;
    let rows_s = f64::from(jobs) / took.as_secs_f64();
    let told = json!({
        "archive_rows_s": number(rows_s, 0),
        "archive_bytes_per_row": number(bytes as f64 / f64::from(jobs), 1),
        "archive_objects": objects.len(),
        "archive_object_rows": first.jobs,
        "archive_object_bytes": size,
        "archive_encode_rows_s": number(encoded, 0),
        "archive_delta_bytes_per_row":
            number((after.delta_bytes - before.delta_bytes) as f64 / f64::from(jobs), 1),
        "jobs": jobs,
    });
    eprintln!("{}", judge("archive_rows_s", &told["archive_rows_s"], Aim::AtLeast(200_000.0)));
    file.close().await?;
    Ok(told)
}

/// Enqueues, claims and acks one chunk of jobs.
async fn finish(file: &QueueFile, chunk: u32) -> Result<()> {
    let env = Env::default();
    let job = |n: u32| {
        let payload = json!({ "to": format!("user-{}@example.org", chunk * CHUNK + n), "template": "welcome", "try": n % 3 });
        Ok(New::new(JobId::new(env.wall_ms(), env.bytes()), Payload::json(&payload)?))
    };
    let jobs = (0..CHUNK).map(job).collect::<Result<_>>()?;
    file.call(Op::Enqueue { queue: QUEUE.to_owned(), jobs }).await?;
    let taken = file.claim(CHUNK).worker("bench").await?;
    let ack = |held: Held| Op::Ack { held, result: Some(Payload::text("ok")) };
    file.atomic(taken.iter().map(|t| ack(t.held())).collect()).await?;
    Ok(())
}

/// Rows per second of encoding alone.
fn encode(lives: &[Life]) -> Result<f64> {
    let started = now();
    let mut rows = 0;
    while now() - started < Duration::from_millis(500) {
        archive::encode(lives, &[1; 16], 1)?;
        rows += lives.len();
    }
    Ok(rows as f64 / (now() - started).as_secs_f64())
}
