//! Measures the speed and the requests of the engine. `make bench-engine`; `--quick` only shows that it runs.
//!
//! A table with the aims goes to standard error, JSON to the last line of standard output. README.md beside `src`
//! explains each key.

use std::sync::Arc;
use std::time::Duration;

use bucketq::error::Result;
use bucketq::store::memory::Memory;
use bucketq_benches::cells::{Grid, Plan};
use bucketq_benches::load::Subject;
use bucketq_benches::stats::{Aim, judge, micros, number};
use bucketq_benches::{cost, delta, quiet, real, single};
use serde_json::{Value, json};

const ROUND_TRIP: Duration = Duration::from_millis(25);
const CALLERS: [usize; 4] = [1, 8, 64, 512];

/// The size of each measurement.
struct Effort {
    backlogs: Vec<usize>,
    far: Plan,
    near: Plan,
    turns: usize,
    samples: usize,
    quiet: Duration,
    real_rounds: usize,
}

impl Effort {
    fn full() -> Self {
        let ms = Duration::from_millis;
        Self {
            backlogs: vec![100, 10_000, 100_000],
            far: Plan { rounds: 2, warm: ms(400), window: ms(2_000) },
            near: Plan { rounds: 2, warm: ms(200), window: ms(800) },
            turns: 100,
            samples: 300,
            quiet: ms(6_000),
            real_rounds: 2,
        }
    }

    fn quick() -> Self {
        let ms = Duration::from_millis;
        let plan = Plan { rounds: 1, warm: ms(100), window: ms(200) };
        Self {
            backlogs: vec![100, 1_000, 2_000],
            far: plan,
            near: plan,
            turns: 5,
            samples: 20,
            quiet: ms(1_000),
            real_rounds: 1,
        }
    }

    /// Returns the largest backlog.
    fn most(&self) -> usize {
        self.backlogs.iter().copied().max().unwrap_or(0)
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let quick = match std::env::args().nth(1).as_deref() {
        None => false,
        Some("--quick") => true,
        Some(other) => {
            eprintln!("{other:?} is not known; the only option is --quick");
            std::process::exit(2);
        }
    };
    let told = measure(&if quick { Effort::quick() } else { Effort::full() }).await?;
    print_table(&told);
    println!("{told}");
    Ok(())
}

async fn measure(effort: &Effort) -> Result<Value> {
    say("databases alone");
    let us_per_op = cost::us_per_op(effort.most(), effort.samples)?;
    say("deltas");
    let delta_bytes = delta::mix(effort.most(), effort.turns / 5).await?;
    let delta_bytes_large = delta::large().await?;

    say("idle, waiting, catching up");
    let (idle, waiting) = tokio::join!(quiet::idle(effort.quiet), quiet::waiting(effort.quiet));
    let (idle, waiting) = (idle?, waiting?);
    let catch_up = quiet::catch_up(effort.samples).await?;

    say("backlogs");
    let mut subjects = Vec::new();
    for &backlog in &effort.backlogs {
        subjects.push((backlog, Subject::create(Arc::new(Memory::new()), "jobs", backlog).await?));
    }
    say("one caller against a raw PUT");
    // Before the grid: the file of the middle backlog has no finished jobs yet, which would slow the single caller.
    let single = match subjects.get(subjects.len() / 2) {
        Some((_, subject)) => single::measure(subject, "raw", ROUND_TRIP, effort.turns).await?,
        None => return Ok(Value::Null),
    };
    say("the grid at 25 ms");
    let far = Grid::measure(&subjects, &CALLERS, ROUND_TRIP, effort.far).await?;
    say("the grid at 0 ms");
    let near = Grid::measure(&subjects, &CALLERS, Duration::ZERO, effort.near).await?;
    drop(subjects);

    say("a real server");
    let (ratio, detail) =
        real::measure(effort.real_rounds, effort.far.warm, effort.far.window, effort.turns).await?;

    Ok(json!({
        "latency_ratio_1": number(single.ratio(), 4),
        "latency_us_1": { "op": micros(single.op), "raw_put": micros(single.raw) },
        "efficiency": { "64": number(far.efficiency(64), 3), "512": number(far.efficiency(512), 3) },
        "flat": { "64": number(far.flat(64), 3), "512": number(far.flat(512), 3) },
        "ops_s": far.to_json(),
        "ops_s_0ms": near.to_json(),
        "ops_s_0ms_512": number(near.ops_s(512, effort.most()), 0),
        "us_per_op": us_per_op,
        "delta_bytes": delta_bytes,
        "delta_bytes_large": delta_bytes_large,
        "catch_up_us": micros(catch_up),
        "idle": idle,
        "waiting": waiting,
        "real_server_ratio": ratio,
        "real_server": detail,
    }))
}

/// Returns the results next to their aims, one line each.
fn print_table(told: &Value) {
    use Aim::{AtLeast, AtMost};
    let aims = [
        ("/latency_ratio_1", AtMost(1.03)),
        ("/efficiency/64", AtLeast(0.93)),
        ("/efficiency/512", AtLeast(0.75)),
        ("/flat/64", AtLeast(0.90)),
        ("/flat/512", AtLeast(0.85)),
        ("/ops_s_0ms_512", AtLeast(45_000.0)),
        ("/us_per_op/enqueue", AtMost(5.0)),
        ("/us_per_op/claim", AtMost(8.0)),
        ("/us_per_op/ack", AtMost(8.0)),
        ("/us_per_op/claim_behind_10000_scheduled", AtMost(9.0)),
        ("/delta_bytes/1", AtMost(3_072.0)),
        ("/delta_bytes/100", AtMost(35_840.0)),
        ("/delta_bytes_large/claim", AtMost(4_095.0)),
        ("/delta_bytes_large/extend", AtMost(4_095.0)),
        ("/catch_up_us", AtMost(1_000.0)),
        ("/idle/PUT", AtMost(0.0)),
        ("/idle/LIST", AtMost(0.0)),
        ("/idle/GET", AtMost(0.0)),
        ("/waiting/PUT", AtMost(0.0)),
        ("/waiting/LIST", AtMost(0.0)),
        ("/real_server_ratio", AtLeast(0.85)),
    ];
    for (path, aim) in aims {
        eprintln!("{}", judge(&path[1..], told.pointer(path).unwrap_or(&Value::Null), aim));
    }
    if let Some(why) = told.pointer("/real_server/why_null").and_then(Value::as_str) {
        eprintln!("real_server_ratio is null: {why}");
    }
}

fn say(what: &str) {
    eprintln!("measuring: {what}");
}
