//! Processes killed with SIGKILL at random moments lose nothing that was acknowledged, and nothing happens twice.
//!
//! A failure prints its seed; the kills happen in real time, so a run with the same seed is similar, not identical.

use bucketq::config::S3Options;
use bucketq::{Env, Result};
use bucketq_tests::crash::victim::Lie;
use bucketq_tests::crash::{Found, Place, Plan, hunt};
use bucketq_tests::servers::{self, BUCKET};

fn plan(kills: u64, lie: Option<Lie>) -> Plan {
    let seed = u64::from_le_bytes(Env::default().bytes()) >> 16;
    Plan { program: env!("CARGO_BIN_EXE_crash").into(), kills, at_once: 4, seed, lie, stops: false }
}

async fn in_a_directory(plan: &Plan) -> Result<Found> {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let url = dir.path().join("jobs").display().to_string();
    let meeting = dir.path().to_owned();
    hunt(plan, &Place { url, s3: S3Options::default(), state: None, meeting }).await
}

fn clean(plan: &Plan, found: &Found) {
    assert!(found.is_clean(), "seed {}: {found:#?}", plan.seed);
    assert!(found.kills >= plan.kills);
    assert!(found.acked > found.kills, "too little happened to mean anything: {found:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_processes_lose_and_double_nothing_in_a_directory() -> Result<()> {
    for _ in 0..2 {
        let plan = plan(55, None);
        let found = in_a_directory(&plan).await?;
        clean(&plan, &found);
        assert!(found.base > 0, "no base was made: {found:?}");
        assert!(found.leaders > 0, "no leader was killed: {found:?}");
    }
    Ok(())
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_processes_keep_nobody_off_and_lose_nothing() -> Result<()> {
    let plan = Plan { stops: true, ..plan(35, None) };
    let found = in_a_directory(&plan).await?;
    clean(&plan, &found);
    assert!(found.stops >= plan.kills);
    // A stop may hit the few microseconds of a turn once.
    assert!(found.stuck <= 1, "seed {}: {found:#?}", plan.seed);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_processes_lose_and_double_nothing_on_a_server() -> Result<()> {
    let Some(server) = servers::s3().await else { return Ok(()) };
    for _ in 0..2 {
        let plan = plan(55, None);
        let url = format!("s3://{BUCKET}/crash-{:x}/jobs", plan.seed);
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let place = Place { url, s3: server.options(), state: None, meeting: dir.path().to_owned() };
        let found = hunt(&plan, &place).await?;
        clean(&plan, &found);
        assert!(found.leaders > 0, "no leader was killed: {found:?}");
    }
    Ok(())
}

/// One process after another on the same local state; its acknowledged changes are published or pending, exactly once.
async fn locally(lie: Option<Lie>, kills: u64, s3: S3Options, url: Option<String>) -> Result<(Plan, Found)> {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let url = url.unwrap_or_else(|| dir.path().join("jobs").display().to_string());
    let state = Some(dir.path().join("state").display().to_string());
    let plan = plan(kills, lie);
    let found = hunt(&plan, &Place { url, s3, state, meeting: dir.path().to_owned() }).await?;
    Ok((plan, found))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_processes_in_local_mode_lose_and_double_nothing() -> Result<()> {
    let (plan, found) = locally(None, 40, S3Options::default(), None).await?;
    clean(&plan, &found);
    let Some(server) = servers::s3().await else { return Ok(()) };
    let url = format!("s3://{BUCKET}/crash-local-{:x}/jobs", plan.seed);
    let (plan, found) = locally(None, 40, server.options(), Some(url)).await?;
    clean(&plan, &found);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_in_local_mode_that_acknowledges_too_early_is_caught() -> Result<()> {
    let (_, found) = locally(Some(Lie::Early), 25, S3Options::default(), None).await?;
    assert!(!found.lost.is_empty(), "{found:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_acknowledges_too_early_is_caught() -> Result<()> {
    let found = in_a_directory(&plan(12, Some(Lie::Early))).await?;
    assert!(!found.lost.is_empty(), "{found:?}");
    assert!(found.doubled.is_empty() && found.problems.is_empty(), "{found:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_holds_on_for_too_long_is_caught() -> Result<()> {
    let found = in_a_directory(&plan(12, Some(Lie::Greedy))).await?;
    assert!(!found.doubled.is_empty(), "{found:?}");
    assert!(found.lost.is_empty() && found.problems.is_empty(), "{found:?}");
    Ok(())
}
