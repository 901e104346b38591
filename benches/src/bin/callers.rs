//! The Rust side of `make bench-python`: the closed loop on a simulated store, run at the Python side's request.
//!
//! Reads lines `callers milliseconds` and replies to each with `ops seconds`. The queue file has a backlog of a
//! hundred jobs, like the one of the Python side.

use std::io::{BufRead, Write};
use std::sync::Arc;
use std::time::Duration;

use bucketq::error::{Error, Result};
use bucketq::store::memory::Memory;
use bucketq_benches::load::{Subject, closed_loop};

const ROUND_TRIP: Duration = Duration::from_millis(25);
const WARM: Duration = Duration::from_millis(200);

#[tokio::main]
async fn main() -> Result<()> {
    let subject = Subject::create(Arc::new(Memory::new()), "jobs", 100).await?;
    subject.store.set_round_trip(ROUND_TRIP);
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(|e| Error::invalid("standard input ends early").because(e))?;
        let numbers: Vec<u64> = line.split_whitespace().filter_map(|n| n.parse().ok()).collect();
        let [callers, ms] = numbers[..] else {
            return Err(Error::invalid(format!("{line:?}: a line is `callers milliseconds`")));
        };
        let window = Duration::from_millis(ms);
        let stretch = closed_loop(&subject, usize::try_from(callers).unwrap_or(1), WARM, window).await?;
        println!("{} {}", stretch.ops, stretch.time.as_secs_f64());
        // The Python side waits for this line.
        let _ = std::io::stdout().flush();
    }
    Ok(())
}
