//! The probe on real servers: those that keep their promises pass, the others are refused.

use std::sync::Arc;
use std::time::Duration;

use bucketq::env::Env;
use bucketq::error::{Code, Result};
use bucketq::store::probe::{ROUNDS_AT_CREATION, ROUNDS_THOROUGH, WRITERS};
use bucketq::store::{ProbeReport, S3Store, Store, probe};
use bucketq_tests::servers::{self, BUCKET, Network, Server};
use serde_json::json;

/// Longer than any probe takes.
const DEADLINE: Duration = Duration::from_mins(10);

async fn probed(endpoint: &str, server: &Server, rounds: u32) -> Result<ProbeReport> {
    let store = S3Store::open(BUCKET, "", &server.options_at(endpoint)).await?;
    let stores: Vec<Arc<dyn Store>> =
        (0..WRITERS).map(|_| Arc::new(store.fork()) as Arc<dyn Store>).collect();
    probe(&stores, "jobs", rounds, WRITERS, DEADLINE, &Env::default()).await
}

async fn passes(server: &Server) {
    let report = probed(&server.endpoint, server, ROUNDS_THOROUGH).await;
    println!("{}: {report:?}", server.name);
    report.unwrap_or_else(|e| panic!("{}: {e}", server.name));
}

#[tokio::test]
async fn gofakes3_passes_the_thorough_probe() {
    let Some(server) = servers::gofakes3().await else { return };
    passes(&server).await;
}

#[tokio::test]
async fn versitygw_passes_the_thorough_probe() {
    let Some(server) = servers::versitygw().await else { return };
    passes(&server).await;
}

#[tokio::test]
async fn minio_passes_the_thorough_probe() {
    let Some(server) = servers::minio().await else { return };
    passes(&server).await;
}

#[tokio::test]
async fn the_probe_at_creation_takes_less_than_two_seconds_at_25_ms_a_request() {
    let Some(server) = servers::gofakes3().await else { return };
    let Some(network) = Network::before(&server).await else { return };
    network.add("down", "latency", "downstream", json!({ "latency": 12 })).await;
    network.add("up", "latency", "upstream", json!({ "latency": 13 })).await;
    let report = probed(&network.endpoint, &server, ROUNDS_AT_CREATION).await.expect("it keeps its word");
    println!("{report:?}");
    assert!(report.took < Duration::from_secs(2), "{report:?}");
}

#[tokio::test]
async fn s3rver_is_refused_even_by_the_short_probe() {
    let Some(server) = servers::s3rver().await else { return };
    let error = probed(&server.endpoint, &server, 1).await.expect_err("it ignores every condition");
    assert_eq!(error.code(), Code::NoCompareAndSwap, "{error}");
    assert!(error.message().contains("wrote twice with If-None-Match: *"), "{error}");
}

/// Two of its writers win about once in forty rounds. With this number of rounds the probe misses it once in many
/// thousand runs; the first double win ends the probe.
#[tokio::test]
async fn moto_is_refused_by_a_long_probe() {
    let Some(server) = servers::moto().await else { return };
    let error =
        probed(&server.endpoint, &server, 8 * ROUNDS_THOROUGH).await.expect_err("two win now and then");
    println!("{error}");
    assert_eq!(error.code(), Code::NoCompareAndSwap, "{error}");
    assert!(error.message().contains("2 of 16 writers won round"), "{error}");
}
