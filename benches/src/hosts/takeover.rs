//! Killing the process that leads, and opening beside another process.

use std::time::Duration;

use bucketq::error::Result;
use serde_json::{Value, json};

use super::process::{Program, Team};
use super::seen::Seen;
use super::{Effort, Ground, p50, say, stretch};
use crate::stats::number;

const PROCESSES: usize = 4;
const CALLERS: usize = 4;
/// From the beginning of the counted time to the kill.
const BEFORE_KILL: Duration = Duration::from_millis(500);
/// Jobs in the file that a process joins.
const JOBS: u64 = 1_000;

/// Returns the position of the process that leads. Nothing else decides which process is killed.
async fn leader(team: &mut Team) -> Result<usize> {
    for (index, process) in team.all.iter_mut().enumerate() {
        process.order(&json!("role")).await?;
        if process.reply().await?["role"] == "leads" {
            return Ok(index);
        }
    }
    // Without a shared writer, the process that started first.
    Ok(0)
}

/// Kills the process that leads, several times, and returns the median and the maximum of the longest time in which a
/// caller of the others had no success, in milliseconds. A new process comes after each kill.
pub async fn kills(ground: &Ground, effort: &Effort) -> Result<Value> {
    let mut team = Team::start(ground.place("takeover"), Program::Rust, PROCESSES).await?;
    let (mut gaps, mut errors) = (vec![], Seen::default());
    let group = json!({ "do": "enqueue", "callers": CALLERS });
    let order = stretch(effort.warm, BEFORE_KILL + effort.after_kill, &[group]);
    for _ in 0..effort.kills {
        let leads = leader(&mut team).await?;
        team.order(|_| order.clone()).await?;
        tokio::time::sleep(effort.warm + BEFORE_KILL).await;
        team.all.remove(leads).kill().await?;
        let seen = Seen::together(team.replies().await?);
        gaps.push(seen.gap_us);
        errors.add(Seen { times_us: vec![], ..seen });
        team.join().await?;
    }
    team.end().await;
    say(&format!(
        "  gaps in ms: {:?}{}",
        gaps.iter().map(|us| us / 1_000).collect::<Vec<_>>(),
        errors.failures()
    ));
    let max = gaps.iter().max().map_or(f64::NAN, |us| *us as f64);
    Ok(json!({
        "p50": number(p50(&gaps).unwrap_or(f64::NAN) / 1e3, 0), "max": number(max / 1e3, 0),
    }))
}

/// Returns the median time of `QueueFile::open` in a fresh process while another one has the file open, in milliseconds.
pub async fn joins(ground: &Ground, effort: &Effort) -> Result<Value> {
    let mut team = Team::start(ground.place("joins"), Program::Rust, 1).await?;
    team.all[0].run(&json!({ "fill": JOBS })).await?;
    let mut times = vec![];
    for _ in 0..effort.joins {
        let opened = team.join().await?;
        times.push(opened.as_micros() as u64);
        if let Some(joined) = team.all.pop() {
            joined.end().await;
        }
    }
    team.end().await;
    say(&format!("  in ms: {:?}", times.iter().map(|us| us / 1_000).collect::<Vec<_>>()));
    Ok(number(p50(&times).unwrap_or(f64::NAN) / 1e3, 1))
}
