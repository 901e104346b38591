//! Growth: opening, bases, shrinking, very large commits, several processes on one file. Used by the program `growth`.
//!
//! Measurements that need their own process (memory, contention) run in a child: the same program started with
//! `--child`, which prints one line of JSON.

pub mod beside;
pub mod cold;
pub mod contention;
pub mod million;
pub mod shrink;
pub mod stall;

use std::process::Stdio;

use bucketq::error::{Code, Error, Result};
use bucketq::op::Op;
use bucketq::{Env, QueueFile};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::load::{QUEUE, fresh_job};

/// Jobs per commit while a file is filled.
const CHUNK: usize = 5_000;

/// Enqueues this number of jobs.
pub async fn fill(file: &QueueFile, jobs: usize) -> Result<()> {
    let env = Env::default();
    let mut left = jobs;
    while left > 0 {
        let count = left.min(CHUNK);
        let jobs = (0..count).map(|_| fresh_job(&env)).collect();
        file.call(Op::Enqueue { queue: QUEUE.to_owned(), jobs }).await?;
        left -= count;
    }
    Ok(())
}

/// Returns the memory of this process in bytes: now, and at its highest. Null on systems that do not report it.
pub fn memory() -> Value {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let bytes = |field: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
        Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? * 1024)
    };
    json!({ "now": bytes("VmRSS"), "peak": bytes("VmHWM") })
}

/// Runs this program again, as a child with these arguments.
pub fn child(arguments: &[&str]) -> Result<Command> {
    let program = std::env::current_exe()
        .map_err(|e| Error::new(Code::Internal, "no name of this program").because(e))?;
    let mut command = Command::new(program);
    command.arg("--child").args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    Ok(command)
}

/// Returns the last line that a child prints.
pub async fn told(mut command: Command) -> Result<Value> {
    let failed = || Error::new(Code::Internal, "a child of the benchmark failed");
    let out = command.output().await.map_err(|e| failed().because(e))?;
    last_line(&out.stdout).filter(|_| out.status.success()).ok_or_else(failed)
}

/// Parses the JSON on the last line.
pub fn last_line(out: &[u8]) -> Option<Value> {
    serde_json::from_str(String::from_utf8_lossy(out).trim().lines().last()?).ok()
}
