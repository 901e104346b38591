//! Checks the fit model's predictions. See `bucketq_benches::fit`. Last line: `worst_error_pct`, details.
//!
//! `--quick` only shows that it runs; `--svg PATH` writes the plot; `--only N` runs one workload.

use std::time::Duration;

use bucketq::error::{Code, Error, Result};
use bucketq_benches::fit::report::{HEAD, json, svg};
use bucketq_benches::fit::{Lengths, WORKLOADS, child, measure_one};
use bucketq_benches::servers::{Missing, SlowServer};
use serde_json::json;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let after = |name: &str| arguments.iter().position(|a| a == name).and_then(|at| arguments.get(at + 1));
    if let (Some(endpoint), Some(place)) = (after("--child"), arguments.get(3)) {
        return child::run(endpoint, place).await;
    }
    let seconds = |n: f64| Duration::from_secs_f64(n);
    let lengths = if arguments.iter().any(|a| a == "--quick") {
        Lengths { warm: seconds(0.3), full: seconds(0.5), busy: seconds(1.0), stream: seconds(1.0) }
    } else {
        Lengths { warm: seconds(1.5), full: seconds(6.0), busy: seconds(11.0), stream: seconds(20.0) }
    };
    let server = match SlowServer::start_in_memory(Duration::from_millis(1), Duration::from_millis(1)).await {
        Ok(server) => server,
        Err(Missing::NotInstalled(why)) => {
            println!("{}", json!({ "worst_error_pct": null, "why_null": why }));
            return Ok(());
        }
        Err(Missing::Failed(error)) => return Err(error),
    };
    let only: Option<usize> = after("--only").and_then(|n| n.parse().ok());
    let mut rows = vec![];
    eprintln!("{}, measured / predicted\n{HEAD}", server.name);
    for (index, workload) in WORKLOADS.iter().enumerate() {
        if only.is_none_or(|n| n == index) {
            let row = measure_one(&server, workload, &lengths).await?;
            eprintln!("{}", row.line());
            rows.push(row);
        }
    }
    if let Some(path) = after("--svg") {
        std::fs::write(path, svg(&rows)).map_err(|e| Error::new(Code::Internal, "the plot").because(e))?;
    }
    println!("{}", json(&rows));
    Ok(())
}
