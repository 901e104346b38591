//! Measures the cost of groups, dedup keys, policies and listeners. `make bench-lifecycle`; `--quick` only shows that
//! it runs.
//!
//! A table with the aims goes to standard error, JSON to the last line of standard output. README.md beside `src`
//! explains each key.

use bucketq::error::Result;
use bucketq_benches::lifecycle;
use bucketq_benches::stats::{Aim, judge};
use serde_json::json;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<()> {
    let quick = std::env::args().any(|a| a == "--quick");
    let (live, backlog, rounds) = if quick { (2_000, 2_000, 20) } else { (100_000, 100_000, 400) };
    let (claim_us, claim_groups_ratio) = lifecycle::claims(if quick { 50 } else { 3_000 })?;
    let (dedup_sql, dedup_us) = lifecycle::dedup(live, rounds)?;
    let (policies_sql, policies_us) = lifecycle::policies(backlog, rounds)?;
    let turns = if quick { 2 } else { 30 };
    let dedup_ratio = lifecycle::dedup_engine(live, turns).await?;
    let policies_cost_ratio = lifecycle::policies_engine(backlog, turns, true).await?;
    let policies_but_dedup_ratio = lifecycle::policies_engine(backlog, turns, false).await?;
    let events_cost_ratio = lifecycle::events_engine(backlog, turns).await?;
    let waiters_ratio = lifecycle::waiters_engine(if quick { 1_000 } else { 5_000 }, turns).await?;
    let told = json!({
        "claim_us": claim_us,
        "claim_groups_ratio": claim_groups_ratio,
        "dedup_ratio": dedup_ratio,
        "policies_cost_ratio": policies_cost_ratio,
        "policies_but_dedup_ratio": policies_but_dedup_ratio,
        "events_cost_ratio": events_cost_ratio,
        "waiters_ratio": waiters_ratio,
        "sql": {
            "dedup_ratio": dedup_sql,
            "dedup_us": dedup_us,
            "policies_cost_ratio": policies_sql,
            "policies_us": policies_us,
        },
    });
    eprintln!("{}", judge("claim with many groups over one", &told["claim_groups_ratio"], Aim::AtMost(1.5)));
    eprintln!("{}", judge("enqueue with dedup over without", &told["dedup_ratio"], Aim::AtMost(1.5)));
    eprintln!("{}", judge("all policies on over all off", &told["policies_cost_ratio"], Aim::AtMost(1.4)));
    eprintln!(
        "{}",
        judge("enqueues beside 5,000 who wait over alone", &told["waiters_ratio"], Aim::AtLeast(0.8))
    );
    println!("{told}");
    Ok(())
}
