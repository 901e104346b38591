//! Measures how a queue file grows, opens and shrinks. `make bench-growth`; `--quick` only shows that it runs.
//!
//! A table with the aims goes to standard error, JSON to the last line of standard output. README.md beside `src`
//! explains each key.

use std::path::Path;
use std::time::Duration;

use bucketq::error::{Code, Error, Result};
use bucketq_benches::growth::{beside, cold, contention, million, shrink, stall};
use bucketq_benches::stats::{Aim, judge, number};
use serde_json::{Value, json};

/// The size of each measurement.
struct Effort {
    small: usize,
    large: usize,
    openings: usize,
    rounds: usize,
    million: usize,
    one_call: usize,
    window: Duration,
    light: Duration,
}

const FULL: Effort = Effort {
    small: 10_000,
    large: 100_000,
    openings: 9,
    rounds: 5,
    million: 1_000_000,
    one_call: 20_000,
    window: Duration::from_secs(8),
    light: Duration::from_mins(1),
};

const QUICK: Effort = Effort {
    small: 1_000,
    large: 5_000,
    openings: 3,
    rounds: 1,
    million: 10_000,
    one_call: 1_000,
    window: Duration::from_millis(500),
    light: Duration::from_secs(2),
};

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let told = match words[..] {
        [] => measure(&FULL).await?,
        ["--quick"] => measure(&QUICK).await?,
        ["--only", "bases"] => {
            let (base_stall_ms, beside) = stall::measure(FULL.large, 3 * FULL.rounds).await?;
            json!({ "base_stall_ms": base_stall_ms, "base_stall": beside })
        }
        ["--only", "shrinking"] => {
            let (bytes_stored_per_job, shrink_ratio, shrinking) = shrink::measure(FULL.large).await?;
            json!({
                "bytes_stored_per_job": bytes_stored_per_job, "shrink_ratio": shrink_ratio, "shrinking": shrinking,
            })
        }
        ["--only", "contention"] => {
            json!({ "contention": contention::measure(FULL.window).await? })
        }
        ["--only", "sharing"] => sharing(&FULL).await?,
        ["--child", ref child @ ..] => {
            println!("{}", be_child(child).await?);
            return Ok(());
        }
        _ => {
            eprintln!(
                "{words:?} is not known; there is --quick, and --only with bases, shrinking, contention or sharing"
            );
            std::process::exit(2);
        }
    };
    print_table(&told);
    println!("{told}");
    Ok(())
}

async fn be_child(words: &[&str]) -> Result<Value> {
    let count = |word: &str| word.parse::<u64>().map_err(|_| Error::invalid(format!("{word} is no number")));
    match *words {
        ["memory", dir] => cold::memory_child(Path::new(dir)).await,
        ["million", dir, jobs] => {
            million::commit_child(Path::new(dir), count(jobs)?.try_into().unwrap_or(usize::MAX)).await
        }
        ["open", dir] => million::open_child(Path::new(dir)).await,
        ["contend", endpoint, place, window] => {
            contention::contend_child(endpoint, place, Duration::from_millis(count(window)?)).await
        }
        _ => Err(Error::invalid(format!("{words:?} is no child"))),
    }
}

fn directory() -> Result<tempfile::TempDir> {
    tempfile::tempdir().map_err(|e| Error::new(Code::Internal, "no temporary directory").because(e))
}

async fn measure(effort: &Effort) -> Result<Value> {
    say("opening");
    let (small, large) = (directory()?, directory()?);
    cold::make(small.path(), effort.small).await?;
    cold::make(large.path(), effort.large).await?;
    let ms = |time: Duration| number(time.as_secs_f64() * 1e3, 1);
    let cold_small = ms(cold::cold_open(small.path(), effort.openings).await?);
    let cold_large = ms(cold::cold_open(large.path(), effort.openings).await?);
    say("memory");
    let (memory_ratio, memory) = cold::memory_ratio(large.path()).await?;
    drop((small, large));
    say("bases");
    let (base_stall_ms, beside) = stall::measure(effort.large, effort.rounds).await?;
    say("draining");
    let (stored, shrink_ratio, shrink) = shrink::measure(effort.large).await?;
    say("a very large commit");
    let dir = directory()?;
    let million = million::measure(dir.path(), effort.million).await?;
    drop(dir);
    say("large commits beside small ones, and uploads");
    let sharing = sharing(effort).await?;
    say("processes on one file");
    let contention = contention::measure(effort.window).await?;
    Ok(json!({
        "cold_open_ms": { "10000": cold_small, "100000": cold_large },
        "base_stall_ms": base_stall_ms,
        "bytes_stored_per_job": stored,
        "shrink_ratio": shrink_ratio,
        "memory_ratio": memory_ratio,
        "million_commit": million,
        "contention": contention,
        "base_stall": beside,
        "shrink": shrink,
        "memory": memory,
        "large_beside_small": sharing["large_beside_small"],
        "upload_ratio": sharing["upload_ratio"],
        "occasional": sharing["occasional"],
        "sharing": sharing["sharing"],
    }))
}

/// Measures how much writers slow each other down.
async fn sharing(effort: &Effort) -> Result<Value> {
    let (ratio, large) = beside::large(effort.one_call, effort.rounds).await?;
    let occasional = beside::occasional(3 * effort.window).await?;
    let (uploads, light) = beside::uploads(effort.light).await?;
    Ok(json!({
        "large_beside_small": ratio, "upload_ratio": uploads, "occasional": occasional,
        "sharing": { "large": large, "uploads": light },
    }))
}

/// Returns the results next to their aims, one line each.
fn print_table(told: &Value) {
    use Aim::AtMost;
    let aims = [
        ("/cold_open_ms/10000", AtMost(60.0)),
        ("/cold_open_ms/100000", AtMost(300.0)),
        ("/base_stall_ms", AtMost(5.0)),
        ("/shrink_ratio", AtMost(0.02)),
        ("/memory_ratio", AtMost(2.5)),
        ("/large_beside_small", AtMost(3.0)),
        ("/upload_ratio/4", AtMost(1.3)),
        ("/upload_ratio/16", AtMost(2.0)),
    ];
    for (path, aim) in aims {
        eprintln!("{}", judge(&path[1..], told.pointer(path).unwrap_or(&Value::Null), aim));
    }
    if let Some(why) = told.pointer("/contention/why_null").and_then(Value::as_str) {
        eprintln!("contention is null: {why}");
    }
}

fn say(what: &str) {
    eprintln!("measuring: {what}");
}
