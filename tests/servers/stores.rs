//! Every promise on every server, and their replies to wrong keys and buckets.

use bucketq::config::{Credentials, S3Options};
use bucketq::env::Env;
use bucketq::error::Code;
use bucketq::store::{Expect, Put, S3Store, Store};
use bucketq_tests::ground::{Ground, suite};
use bucketq_tests::servers::{self, BUCKET, Server};
use bytes::Bytes;

async fn every_promise(server: &Server) {
    for (name, promise) in suite::ALL {
        println!("{}: {name}", server.name);
        promise(&Ground::server(server).await).await;
    }
}

#[tokio::test]
async fn versitygw_keeps_every_promise() {
    let Some(server) = servers::versitygw().await else { return };
    every_promise(&server).await;
}

#[tokio::test]
async fn minio_keeps_every_promise() {
    let Some(server) = servers::minio().await else { return };
    every_promise(&server).await;
}

async fn wrong_keys_are_denied_and_a_missing_bucket_is_named(server: &Server) {
    let options = server.options();
    let missing = S3Store::open("no-such-bucket", "", &options).await.expect("the options are right");
    refused(&missing, Code::NoSuchBucket).await;
    let right = options.credentials.clone().expect("a server has credentials");
    for wrong in [
        Credentials { secret_key: "wrong-secret".to_owned(), ..right.clone() },
        Credentials { access_key: "nobody".to_owned(), ..right },
    ] {
        let options = S3Options { credentials: Some(wrong), ..options.clone() };
        refused(&S3Store::open(BUCKET, "", &options).await.expect("the options are right"), Code::Denied)
            .await;
    }
}

async fn refused(store: &S3Store, code: Code) {
    let random = u64::from_le_bytes(Env::default().bytes());
    let key = format!("jobs-{random:x}.head");
    for expect in [Expect::Absent, Expect::Is(bucketq::store::Version::new("\"0123\""))] {
        match store.put_if(&key, Bytes::from("x"), &expect).await {
            Put::Unknown { error, sent: false, .. } => assert_eq!(error.code(), code, "{error}"),
            other => panic!("{expect:?}: {other:?}"),
        }
    }
    assert_eq!(store.get(&key, None).await.expect_err("refused").code(), code);
    assert_eq!(store.list("").await.expect_err("refused").code(), code);
    assert_eq!(store.put_new(&key, Bytes::new()).await.expect_err("refused").code(), code);
}

#[tokio::test]
async fn versitygw_names_its_refusals() {
    let Some(server) = servers::versitygw().await else { return };
    wrong_keys_are_denied_and_a_missing_bucket_is_named(&server).await;
}

#[tokio::test]
async fn minio_names_its_refusals() {
    let Some(server) = servers::minio().await else { return };
    wrong_keys_are_denied_and_a_missing_bucket_is_named(&server).await;
}
