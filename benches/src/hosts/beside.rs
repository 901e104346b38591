//! A rare caller beside busy workers, and a waiting claim that another process wakes.

use std::time::Duration;

use bucketq::error::Result;
use serde_json::{Value, json};

use super::process::{Program, Team};
use super::puts::Puts;
use super::{Effort, Ground, p50, p99, say, stretch};
use crate::stats::number;

const WORKERS: usize = 4;
const WORK_MS: u64 = 50;
/// The mean pause of a process that enqueues for one that waits.
const WAKE_MS: u64 = 150;

/// Returns the 99th percentile in PUTs of a process that enqueues once a second, beside four that work without pause.
pub async fn web(ground: &Ground, effort: &Effort) -> Result<Value> {
    let mut team = Team::start(ground.place("web"), Program::Rust, 1 + WORKERS).await?;
    let total = (effort.warm + effort.web).as_millis() as u64;
    // More than the workers can take.
    team.all[0].run(&json!({ "fill": WORKERS as u64 * total / WORK_MS + 100 })).await?;
    let puts = Puts::start(ground, "web").await?;
    let replies = team.run(|index| {
        let group = match index {
            0 => json!({ "do": "enqueue", "pause_ms": 1_000 }),
            _ => json!({ "do": "work", "work_ms": WORK_MS }),
        };
        stretch(effort.warm, effort.web, &[group])
    });
    let seen = replies.await?;
    let put = puts.end().await?;
    team.end().await;
    let us = |at: Option<f64>| at.unwrap_or(f64::NAN);
    let (times, acked) = (&seen[0].times_us, seen[1..].iter().map(|s| s.ops).sum::<u64>());
    say(&format!(
        "  {} calls, p50 {:.0} ms, p99 {:.0} ms, PUT {:.1} ms; workers: {:.1} jobs/s{}",
        times.len(),
        us(p50(times)) / 1e3,
        us(p99(times)) / 1e3,
        put.as_secs_f64() * 1e3,
        acked as f64 / effort.web.as_secs_f64(),
        seen[0].failures(),
    ));
    Ok(number(us(p99(times)) / (put.as_secs_f64() * 1e6), 1))
}

/// Returns the 99th percentile of the milliseconds from the call of an enqueue in one process to the return of a
/// waiting claim in another, minus the time of a PUT. A third process was there first.
pub async fn wake(ground: &Ground, effort: &Effort) -> Result<Value> {
    let mut team = Team::start(ground.place("wake"), Program::Rust, 3).await?;
    let puts = Puts::start(ground, "wake").await?;
    let replies = team.run(|index| {
        let groups = match index {
            0 => vec![],
            1 => vec![json!({ "do": "enqueue", "pause_ms": WAKE_MS })],
            _ => vec![json!({ "do": "listen" })],
        };
        stretch(effort.warm, effort.whole(), &groups)
    });
    let seen = replies.await?;
    let put = puts.end().await?;
    team.end().await;
    let ms = |at: Option<f64>| at.unwrap_or(f64::NAN) / 1e3;
    let times = &seen[2].times_us;
    say(&format!(
        "  {} jobs, p50 {:.0} ms, p99 {:.0} ms from enqueue to claim; PUT {:.1} ms, enqueue p99 {:.0} ms{}",
        times.len(),
        ms(p50(times)),
        ms(p99(times)),
        put.as_secs_f64() * 1e3,
        ms(p99(&seen[1].times_us)),
        seen[2].failures(),
    ));
    Ok(number(ms(p99(times)) - in_ms(put), 1))
}

fn in_ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
