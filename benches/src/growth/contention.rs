//! Several processes on one queue file on a real server: their total speed, and the cost of racing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bucketq::config::S3Options;
use bucketq::error::{Code, Error, Result};
use bucketq::{Env, Payload, QueueFile};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::task::JoinSet;

use super::{child, last_line};
use crate::load::QUEUE;
use crate::servers::{Missing, SlowServer, keys_for_child, open_for_child};
use crate::stats::{now, number};

const CALLERS: usize = 8;
const UPSTREAM: Duration = Duration::from_millis(13);
const DOWNSTREAM: Duration = Duration::from_millis(12);

/// Returns by number of processes: total ops per second, wasted PUTs as a share of all, the 99th percentile of an op.
pub async fn measure(window: Duration) -> Result<Value> {
    let server = match SlowServer::start(UPSTREAM, DOWNSTREAM).await {
        Ok(server) => server,
        Err(Missing::NotInstalled(why)) => return Ok(json!({ "why_null": why })),
        Err(Missing::Failed(error)) => return Err(error),
    };
    let mut told = json!({ "server": server.name, "callers_a_process": CALLERS });
    for processes in [1, 2, 4, 8] {
        told[processes.to_string()] = together(&server.options, processes, window).await?;
    }
    Ok(told)
}

fn failed(e: std::io::Error) -> Error {
    Error::new(Code::Internal, "a child of the benchmark failed").because(e)
}

async fn together(s3: &S3Options, processes: usize, window: Duration) -> Result<Value> {
    let endpoint = s3.endpoint.clone().unwrap_or_default();
    let mut children = vec![];
    for _ in 0..processes {
        let (place, window) = (format!("contention-{processes}/"), window.as_millis().to_string());
        let mut command = child(&["contend", &endpoint, &place, &window])?;
        command.envs(keys_for_child(s3));
        let mut child = command.spawn().map_err(failed)?;
        let mut out =
            BufReader::new(child.stdout.take().ok_or_else(|| failed(std::io::ErrorKind::Other.into()))?);
        let mut ready = String::new();
        out.read_line(&mut ready).await.map_err(failed)?;
        children.push((child, out));
    }
    for (child, _) in &mut children {
        if let Some(stdin) = &mut child.stdin {
            stdin.write_all(b"go\n").await.map_err(failed)?;
        }
    }
    let (mut ops, mut puts, mut conflicts, mut errors) = (0, 0, 0, 0);
    let (mut rate, mut p99) = (0.0, 0.0_f64);
    for (mut child, mut out) in children {
        let mut text = vec![];
        out.read_to_end(&mut text).await.map_err(failed)?;
        child.wait().await.map_err(failed)?;
        let told = last_line(&text).ok_or_else(|| failed(std::io::ErrorKind::UnexpectedEof.into()))?;
        let count = |key: &str| told[key].as_u64().unwrap_or(0);
        ops += count("ops");
        puts += count("puts");
        conflicts += count("conflicts");
        errors += count("errors");
        rate += count("ops") as f64 / told["seconds"].as_f64().unwrap_or(f64::INFINITY);
        p99 = p99.max(told["p99_ms"].as_f64().unwrap_or(f64::NAN));
    }
    let wasted = conflicts as f64 / (puts as f64).max(1.0);
    Ok(json!({
        "ops_s": number(rate, 0), "wasted_puts": number(wasted, 3), "p99_ms": number(p99, 0), "ops": ops,
        "errors": errors,
    }))
}

/// Runs the child: opens the file, says so, waits for the start signal, and works for `window`.
pub async fn contend_child(endpoint: &str, place: &str, window: Duration) -> Result<Value> {
    let file = open_for_child(endpoint, place).await?;
    println!("ready");
    tokio::task::block_in_place(|| std::io::stdin().read_line(&mut String::new())).map_err(failed)?;

    let before = file.metrics()?;
    let (began, stop) = (now(), Arc::new(AtomicBool::new(false)));
    let mut callers = JoinSet::new();
    for _ in 0..CALLERS {
        let (file, stop) = (file.clone(), Arc::clone(&stop));
        callers.spawn(async move {
            let (mut times, mut errors) = (vec![], 0_u64);
            while !stop.load(Ordering::Relaxed) {
                turn(&file, &mut times, &mut errors).await;
            }
            (times, errors)
        });
    }
    tokio::time::sleep(window).await;
    stop.store(true, Ordering::Relaxed);
    let (mut times, mut errors) = (vec![], 0);
    while let Some(ended) = callers.join_next().await {
        let (its, wrong) = ended.map_err(|e| Error::new(Code::Internal, "a caller panicked").because(e))?;
        times.extend(its);
        errors += wrong;
    }
    let seconds = (now() - began).as_secs_f64();
    let after = file.metrics()?;
    times.sort_unstable();
    let p99 = times.get(times.len() * 99 / 100).copied().unwrap_or_default();
    file.close().await?;
    Ok(json!({
        "ops": times.len(), "seconds": seconds, "errors": errors, "p99_ms": p99.as_secs_f64() * 1e3,
        "puts": after.puts - before.puts, "conflicts": after.conflicts - before.conflicts,
    }))
}

/// Enqueues, claims and acks. Counts each op when its call returns, and counts errors instead of hiding them.
async fn turn(file: &QueueFile, times: &mut Vec<Duration>, errors: &mut u64) {
    let payload = Payload::bytes(Env::default().bytes::<200>().to_vec());
    let Ok(queue) = file.queue(QUEUE) else { return *errors += 1 };
    let before = now();
    let enqueued = queue.enqueue(payload).await;
    times.push(now() - before);
    *errors += u64::from(enqueued.is_err());
    let before = now();
    let taken = queue.claim(1).lease(Duration::from_mins(10)).await;
    times.push(now() - before);
    match taken {
        Err(_) => *errors += 1,
        Ok(jobs) => {
            for job in jobs {
                let before = now();
                *errors += u64::from(file.ack(job.held()).await.is_err());
                times.push(now() - before);
            }
        }
    }
}
