//! The cost of an op in a process that another one serves.

use std::time::Duration;

use bucketq::error::{Code, Error, Result};
use serde_json::{Value, json};

use super::process::{Place, Process, Program, Team};
use super::{Effort, Ground, say, stretch};
use crate::stats::number;

const CALLERS: usize = 64;
/// Microseconds of a tick of processor time.
const TICK_US: f64 = 10_000.0;

/// Returns the microseconds of processor time, of both processes together, that an op in the second process takes beyond
/// one in the first. The queue files are in a directory, in memory where the system allows it.
pub async fn measure(ground: &Ground, effort: &Effort) -> Result<Value> {
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let dir = dir.map_err(|e| Error::new(Code::Internal, "no temporary directory").because(e))?;
    let mut costs = [vec![], vec![]];
    for round in 0..2 * effort.rounds {
        // A fresh file for each pair of stretches: the bases of a large one take more than the ops.
        let url = format!("file://{}/jobs{round}", dir.path().display());
        let place = Place { url, s3: None, ..ground.place("link") };
        let mut team = Team::start(place, Program::Rust, 2).await?;
        // In turns, so that the growing file costs both sides the same.
        for which in if round % 2 == 0 { [0, 1] } else { [1, 0] } {
            let Some(cost) = cost(&mut team, which, effort).await? else { return Ok(Value::Null) };
            costs[which].push(cost);
        }
        team.end().await;
    }
    say(&format!("  us of processor time per op: first {:.1?}, second {:.1?}", costs[0], costs[1]));
    let mean = |of: &[f64]| of.iter().sum::<f64>() / of.len() as f64;
    Ok(number(mean(&costs[1]) - mean(&costs[0]), 1))
}

/// Returns the processor time of both processes per op of one of them, in microseconds.
async fn cost(team: &mut Team, which: usize, effort: &Effort) -> Result<Option<f64>> {
    let ticks = |team: &Team| team.all.iter().map(Process::processor_ticks).sum::<Option<u64>>();
    let group = json!({ "do": "enqueue", "callers": CALLERS });
    let Some(before) = ticks(team) else { return Ok(None) };
    let seen = team.all[which].run(&stretch(Duration::ZERO, effort.window / 2, &[group])).await?;
    let Some(after) = ticks(team) else { return Ok(None) };
    Ok(Some((after - before) as f64 * TICK_US / seen.all as f64))
}
