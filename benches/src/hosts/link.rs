//! The cost of an op in a process that another one serves.

use bucketq::error::{Code, Error, Result};
use serde_json::{Value, json};

use super::process::{Place, Process, Program, Team};
use super::{Effort, Ground, say, stretch};
use crate::stats::number;

const CALLERS: usize = 64;
/// Microseconds of a tick of processor time.
const TICK_US: f64 = 10_000.0;

/// Returns the microseconds of processor time, of both processes together, that an op in the second process takes beyond
/// one in the first. The queue file is in a directory, in memory where the system allows it.
pub async fn measure(ground: &Ground, effort: &Effort) -> Result<Value> {
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let dir = dir.map_err(|e| Error::new(Code::Internal, "no temporary directory").because(e))?;
    let place = Place { url: format!("file://{}/jobs", dir.path().display()), s3: None, share: ground.share };
    let mut team = Team::start(place, Program::Rust, 2).await?;
    let mut costs: [Vec<(f64, f64)>; 2] = [vec![], vec![]];
    // Forth and back, so that the growing file costs both sides the same.
    for which in [0, 1, 1, 0].repeat(effort.rounds.div_ceil(2)) {
        let Some(cost) = cost(&mut team, which, effort).await? else { return Ok(Value::Null) };
        costs[which].push(cost);
    }
    team.end().await;
    let mean = |of: &[(f64, f64)]| of.iter().map(|(cpu, _)| cpu).sum::<f64>() / of.len() as f64;
    say(&format!(
        "  us of processor time and of the clock per op: first {:.1?}, second {:.1?}",
        costs[0], costs[1]
    ));
    Ok(number(mean(&costs[1]) - mean(&costs[0]), 1))
}

/// Returns the processor time of both processes and the time of the clock per op of one of them, in microseconds.
async fn cost(team: &mut Team, which: usize, effort: &Effort) -> Result<Option<(f64, f64)>> {
    let ticks = |team: &Team| team.all.iter().map(Process::processor_ticks).sum::<Option<u64>>();
    let group = json!({ "do": "enqueue", "callers": CALLERS });
    let Some(before) = ticks(team) else { return Ok(None) };
    let seen = team.all[which].run(&stretch(effort.warm, effort.window, &[group])).await?;
    let Some(after) = ticks(team) else { return Ok(None) };
    let clock = (effort.warm + effort.window).as_secs_f64() * 1e6;
    let ops = seen.all as f64;
    Ok(Some(((after - before) as f64 * TICK_US / ops, clock / ops)))
}
