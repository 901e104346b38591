//! Measures the speed of Local mode and the size of a sync. `make bench-local`; `--quick` only shows that it runs.
//!
//! A table goes to standard error, JSON to the last line of standard output. README.md beside `src` explains each key.
//! `--dir PATH` names the disk to measure; the default is the directory of temporary files.

use std::path::PathBuf;
use std::time::Duration;

use bucketq::config::Fsync;
use bucketq::error::{Code, Error, Result};
use bucketq_benches::local::{ops_s, raw_append, sync_bytes_16};
use serde_json::{Map, Value, json};

const CALLERS: [usize; 2] = [1, 64];
/// Approximate bytes that one op adds to the local log.
const APPEND: usize = 512;

async fn run(quick: bool, disk: PathBuf) -> Result<Value> {
    let (rounds, time) = if quick { (1, Duration::from_millis(100)) } else { (3, Duration::from_secs(2)) };
    let scratch = tempfile::tempdir_in(disk)
        .map_err(|e| Error::new(Code::Disk, "no directory can be made there").because(e))?;
    let policies = [
        ("each_commit", Fsync::EachCommit),
        ("interval", Fsync::Interval(Duration::from_millis(100))),
        ("never", Fsync::Never),
    ];
    let mut best: Map<String, Value> = Map::new();
    let mut raw = vec![];
    // The policies take turns, so that a slow moment hits all of them.
    let mut all = vec![[0_f64; 2]; policies.len()];
    for _ in 0..rounds {
        raw.push(raw_append(scratch.path(), APPEND, if quick { 20 } else { 300 })?);
        for (policy, (_, fsync)) in policies.iter().enumerate() {
            for (n, callers) in CALLERS.into_iter().enumerate() {
                all[policy][n] += ops_s(scratch.path(), *fsync, callers, time).await? / f64::from(rounds);
            }
        }
    }
    for (policy, (name, _)) in policies.iter().enumerate() {
        let by_callers: Map<String, Value> = CALLERS
            .into_iter()
            .zip(all[policy])
            .map(|(callers, ops)| (callers.to_string(), json!(ops.round())))
            .collect();
        eprintln!("{name:>12}: {by_callers:?} ops/s");
        best.insert((*name).to_owned(), by_callers.into());
    }
    let raw = bucketq_benches::stats::median(&raw);
    let ratio = 1.0 / all[0][0] / raw.as_secs_f64();
    eprintln!("an op of one caller takes {ratio:.2} times an append and fsync of {APPEND} bytes ({raw:?})");
    let bytes = sync_bytes_16(scratch.path(), if quick { 5 } else { 200 }).await?;
    eprintln!("a sync every 16 ops: {bytes}");
    Ok(json!({
        "local_ops_s": best,
        "local_fsync_ratio": (ratio * 100.0).round() / 100.0,
        "raw_append_us": raw.as_micros() as u64,
        "sync_bytes_16": bytes,
    }))
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let dir = args.iter().position(|a| a == "--dir").and_then(|at| args.get(at + 1));
    let disk = dir.map_or_else(std::env::temp_dir, PathBuf::from);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|e| Error::new(Code::Internal, "no runtime").because(e))?;
    let told = runtime.block_on(run(args.iter().any(|a| a == "--quick"), disk))?;
    println!("{told}");
    Ok(())
}
