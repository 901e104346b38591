//! `crash`: kills processes at work and compares their promises with the file. `make crash` runs it.
//!
//! The last line is JSON. `crash victim ORDERS` is one of the processes that get killed.

use std::process::ExitCode;

use bucketq::config::S3Options;
use bucketq::{Env, Error};
use bucketq_tests::crash::{Found, Place, Plan, hunt, victim};
use bucketq_tests::servers::{self, Server};
use serde_json::json;

/// Kills on one queue file; then a new one, so that files stay small enough to be read again and again.
const KILLS_A_FILE: u64 = 35;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime can be made");
    if let [what, orders] = &args[..]
        && what == "victim"
    {
        let orders = victim::Orders::from_text(orders).expect("orders are as a hunt writes them");
        if let Err(error) = runtime.block_on(victim::work(orders)) {
            victim::complain(&error);
        }
        return ExitCode::SUCCESS;
    }
    let number = |name: &str, default: u64| {
        let at = args.iter().position(|a| a == name);
        at.and_then(|at| args.get(at + 1)?.parse().ok()).unwrap_or(default)
    };
    let fresh = u64::from_le_bytes(Env::default().bytes()) >> 16;
    let (kills, seed) = (number("--kills", 1_000), number("--seed", fresh));
    match runtime.block_on(run(kills, seed)) {
        Ok((found, stores)) => {
            for bad in found.lost.iter().chain(&found.doubled).chain(&found.problems) {
                println!("{bad}");
            }
            let clean = found.is_clean();
            if !clean {
                println!("run it again: make crash KILLS={kills} SEED={seed}");
            }
            let told = json!({
                "kills": found.kills, "leaders": found.leaders, "stops": found.stops, "acked": found.acked, "lost": found.lost.len(),
                "doubled": found.doubled.len(), "unreferenced": found.unreferenced,
                "problems": found.problems.len(), "commits": found.commits, "stores": stores, "seed": seed,
            });
            println!("{told}");
            if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            println!("{error:?}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the kills, divided among the available stores.
async fn run(kills: u64, seed: u64) -> Result<(Found, Vec<&'static str>), Error> {
    let s3 = [servers::s3().await, servers::minio().await];
    let names: Vec<&str> = std::iter::once("file").chain(s3.iter().flatten().map(|s| s.name)).collect();
    let mut found = Found::default();
    let program = std::env::current_exe().expect("this program has a file");
    let share = kills.div_ceil(names.len() as u64);
    let mut hunts = 0;
    for (at, name) in names.iter().enumerate() {
        let mut left = share;
        while left > 0 {
            let kills = left.min(KILLS_A_FILE);
            left -= kills;
            let seed = seed.wrapping_add(at as u64 * 1_000 + left);
            let dir = tempfile::tempdir().expect("a temporary directory can be made");
            let server = s3.iter().flatten().find(|s| s.name == *name);
            let url = server.map_or_else(
                || dir.path().join("jobs").display().to_string(),
                |_| format!("s3://{}/crash-{seed}/jobs", servers::BUCKET),
            );
            let s3 = server.map_or_else(S3Options::default, Server::options);
            // Every other hunt is in Local mode.
            hunts += 1;
            let state = (hunts % 2 == 0).then(|| dir.path().join("state").display().to_string());
            // Every fourth hunt also stops victims for a while, until the others continue without them.
            let stops = cfg!(unix) && hunts % 4 == 1;
            let mode = if state.is_some() { "Local" } else { "Durable" };
            let place = Place { url, s3, state, meeting: dir.path().to_owned() };
            let plan = Plan { program: program.clone(), kills, at_once: 4, seed, lie: None, stops };
            let one = hunt(&plan, &place).await?;
            println!(
                "{name}, {mode}: {} kills, {} of them of leaders, {} stops, {} acknowledged in {} commits, base at {}",
                one.kills, one.leaders, one.stops, one.acked, one.commits, one.base
            );
            found.add(one);
        }
    }
    Ok((found, names))
}
