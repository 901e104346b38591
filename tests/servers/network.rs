//! Lost replies, hangs, resets and cuts: a conditional put is never reported as stored unless that is known, and a
//! later get returns the current body.

use std::time::Duration;

use bucketq::store::{Expect, Got, Put, S3Store, Store, Version};
use bucketq_tests::ground::suite::{must_get, must_put};
use bucketq_tests::servers::{self, BUCKET, Network, Server};
use bytes::Bytes;
use serde_json::json;

const KEY: &str = "jobs.head";

/// A server behind a network, a client on each side of it, and an object to start from.
struct Scene {
    network: Network,
    near: S3Store,
    far: S3Store,
    version: Version,
}

impl Scene {
    async fn set(server: &Server, prefix: &str) -> Option<Self> {
        let network = Network::before(server).await?;
        let near = S3Store::open(BUCKET, prefix, &server.options()).await.expect("the options are right");
        let mut options = server.options_at(&network.endpoint);
        options.request_timeout = Some(Duration::from_secs(1));
        let far = S3Store::open(BUCKET, prefix, &options).await.expect("the options are right");
        let version = must_put(&near, KEY, "old", &Expect::Absent).await;
        // The connection exists before the fault, as in real use.
        assert_eq!(must_get(&far, KEY).await, (Bytes::from("old"), version.clone()));
        Some(Self { network, near, far, version })
    }

    /// Put under a fault and remove the fault again.
    async fn put_under(&self, kind: &str, stream: &str, attributes: serde_json::Value, body: &Bytes) -> Put {
        self.network.add("fault", kind, stream, attributes).await;
        let put = self.far.put_if(KEY, body.clone(), &Expect::Is(self.version.clone())).await;
        self.network.remove("fault").await;
        put
    }

    /// Reads through the repaired network: true for the new body, false for the old one. Anything else fails.
    async fn landed(&self, body: &Bytes) -> bool {
        let (seen, version) = must_get(&self.far, KEY).await;
        assert_eq!(
            must_get(&self.near, KEY).await,
            (seen.clone(), version.clone()),
            "both sides see the same"
        );
        if seen == *body {
            assert_ne!(version, self.version);
            return true;
        }
        assert_eq!(
            (seen, version),
            (Bytes::from("old"), self.version.clone()),
            "neither the old nor the new"
        );
        false
    }
}

fn sent(put: &Put) -> bool {
    matches!(put, Put::Unknown { sent: true, .. })
}

async fn every_fault(server: &Server) {
    let small = Bytes::from("new");
    let large = Bytes::from(vec![b'n'; 120_000]);

    let Some(scene) = Scene::set(server, "lost-answer/").await else { return };
    let put = scene.put_under("limit_data", "downstream", json!({ "bytes": 10 }), &small).await;
    assert!(sent(&put), "a lost answer: {put:?}");
    assert!(scene.landed(&small).await, "the put had landed, only its answer was lost");
    let again = scene.far.put_if(KEY, small.clone(), &Expect::Is(scene.version.clone())).await;
    assert!(matches!(again, Put::Conflict), "the resent body meets itself: {again:?}");

    let scene = Scene::set(server, "hang/").await.expect("toxiproxy was there before");
    let put = scene.put_under("timeout", "downstream", json!({ "timeout": 0 }), &small).await;
    assert!(sent(&put), "a hang after the commit: {put:?}");
    assert!(scene.landed(&small).await, "the put had landed, only its answer was held back");

    let scene = Scene::set(server, "reset/").await.expect("toxiproxy was there before");
    let put = scene.put_under("reset_peer", "upstream", json!({ "timeout": 0 }), &small).await;
    assert!(sent(&put), "a reset: {put:?}");
    scene.landed(&small).await;

    let scene = Scene::set(server, "cut/").await.expect("toxiproxy was there before");
    let put = scene.put_under("limit_data", "upstream", json!({ "bytes": 40_000 }), &large).await;
    assert!(sent(&put), "a body cut off on the way: {put:?}");
    assert!(!scene.landed(&large).await, "a body that never arrived whole is not there");

    let scene = Scene::set(server, "down/").await.expect("toxiproxy was there before");
    scene.network.set_enabled(false).await;
    let put = scene.far.fork().put_if(KEY, small.clone(), &Expect::Is(scene.version.clone())).await;
    assert!(matches!(put, Put::Unknown { sent: false, .. }), "no connection: {put:?}");
    scene.network.set_enabled(true).await;
    assert!(!scene.landed(&small).await, "what was not sent is not there");
    let put = scene.far.put_if(KEY, small.clone(), &Expect::Is(scene.version.clone())).await;
    assert!(matches!(put, Put::Stored { .. }), "the network is back: {put:?}");
    let got = scene.far.get(KEY, Some(&scene.version)).await.expect("the network is back");
    assert!(matches!(got, Got::Object { .. }), "{got:?}");
}

#[tokio::test]
async fn versitygw_behind_a_faulty_network_tells_the_truth_afterwards() {
    let Some(server) = servers::versitygw().await else { return };
    every_fault(&server).await;
}

#[tokio::test]
async fn minio_behind_a_faulty_network_tells_the_truth_afterwards() {
    let Some(server) = servers::minio().await else { return };
    every_fault(&server).await;
}
