//! The whole engine on real servers behind a network that loses, hangs and resets: no acknowledged op is lost or
//! doubled, and every caller gets a true reply.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bucketq::config::S3Options;
use bucketq::store::{Got, S3Store, Store};
use bucketq::{Code, Env, Kind, Options, Payload, QueueFile, Result, State};
use bucketq_tests::servers::{self, BUCKET, Network, Server};
use serde_json::json;

/// Jobs each producer tries to enqueue.
const JOBS: usize = 40;
const PRODUCERS: usize = 3;

fn options(s3: S3Options) -> Options {
    let s3 = S3Options { request_timeout: Some(Duration::from_millis(700)), ..s3 };
    Options { s3, deadline: Duration::from_secs(20), ..Options::default() }
}

/// The reply that a producer got for each payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reply {
    Stored,
    NotStored,
    Unknown,
}

async fn produce(file: QueueFile, producer: usize) -> Result<Vec<(String, Reply)>> {
    let q = file.queue("q")?;
    let mut told = vec![];
    for n in 0..JOBS {
        let text = format!("{producer}-{n}");
        let answer = match q.enqueue(Payload::text(text.clone())).await {
            Ok(_) => Reply::Stored,
            Err(e) if e.kind() == Kind::Unknown => Reply::Unknown,
            Err(e) => {
                assert!(matches!(e.kind(), Kind::Unavailable | Kind::Contended), "{e:?}");
                Reply::NotStored
            }
        };
        told.push((text, answer));
    }
    Ok(told)
}

/// Wait until the writer has sent a request in the present state of the network, and a little longer.
async fn under_way(file: &QueueFile) -> Result<()> {
    let requests = |m: bucketq::Metrics| m.puts + m.gets;
    let before = requests(file.metrics()?);
    let mut look = tokio::time::interval(Duration::from_millis(5));
    while requests(file.metrics()?) < before + 2 {
        look.tick().await;
    }
    Ok(())
}

/// One fault after the other while two writers in this process and their callers work; then count the jobs.
async fn survives(server: &Server, name: &str) -> Result<()> {
    let Some(network) = Network::before(server).await else { return Ok(()) };
    let url = format!("s3://{BUCKET}/{name}/jobs");
    let through = options(server.options_at(&network.endpoint));
    // The direct connection is another endpoint, hence another writer: two compete.
    let far = QueueFile::open(&url, through).await?;
    let near = QueueFile::open(&url, options(server.options())).await?;

    let mut producers = vec![];
    for p in 0..PRODUCERS {
        producers.push(tokio::spawn(produce(far.clone(), p)));
    }
    producers.push(tokio::spawn(produce(near.clone(), PRODUCERS)));
    let reader = tokio::spawn({
        let far = far.clone();
        // There is always an op to send, also after the producers are done.
        async move {
            loop {
                let _ = far.stats(None).await;
            }
        }
    });

    for _ in 0..3 {
        // Landed, and the caller gets a broken connection.
        network.add("lost", "limit_data", "downstream", json!({"bytes": 10})).await;
        under_way(&far).await?;
        network.remove("lost").await;
        // Landed, and the reply never comes.
        network.add("hang", "timeout", "downstream", json!({"timeout": 0})).await;
        under_way(&far).await?;
        network.remove("hang").await;
        // Lost on the way there.
        network.add("reset", "reset_peer", "upstream", json!({"timeout": 0})).await;
        under_way(&far).await?;
        network.remove("reset").await;
        network.set_enabled(false).await;
        under_way(&far).await?;
        network.set_enabled(true).await;
    }
    reader.abort();
    let mut told = BTreeMap::new();
    for p in producers {
        told.extend(p.await.expect("no panic")?);
    }
    far.settle().await?;

    let mut seen: BTreeMap<String, u32> = BTreeMap::new();
    loop {
        let jobs = near.claim(50).lease(Duration::from_mins(5)).await?;
        if jobs.is_empty() {
            break;
        }
        for job in jobs {
            *seen.entry(String::from_utf8_lossy(&job.payload.bytes).into_owned()).or_default() += 1;
            near.ack(job.held()).await?;
        }
    }
    for (text, told) in &told {
        let times = seen.get(text).copied().unwrap_or(0);
        match told {
            Reply::Stored => assert_eq!(times, 1, "{text} was acknowledged"),
            Reply::NotStored => assert_eq!(times, 0, "{text} was told as not stored"),
            Reply::Unknown => assert!(times <= 1, "{text} is there {times} times"),
        }
    }
    let stored = told.values().filter(|t| **t == Reply::Stored).count();
    assert!(stored > JOBS, "only {stored} jobs made it: {told:?}");
    let unsettled =
        near.list(bucketq::Filter { states: vec![State::Leased], ..Default::default() }, None, 10).await?;
    assert!(unsettled.jobs.is_empty());
    far.close().await?;
    near.close().await
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_or_doubled_on_gofakes3_behind_a_faulty_network() -> Result<()> {
    match servers::gofakes3().await {
        Some(server) => survives(&server, "faulty-gofakes3").await,
        None => Ok(()),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_or_doubled_on_versitygw_behind_a_faulty_network() -> Result<()> {
    match servers::versitygw().await {
        Some(server) => survives(&server, "faulty-versitygw").await,
        None => Ok(()),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_or_doubled_on_minio_behind_a_faulty_network() -> Result<()> {
    match servers::minio().await {
        Some(server) => survives(&server, "faulty-minio").await,
        None => Ok(()),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_bucket_and_refused_credentials_are_told_at_open() -> Result<()> {
    let Some(server) = servers::versitygw().await else { return Ok(()) };
    let missing = QueueFile::open("s3://no-such-bucket-here/jobs", options(server.options())).await;
    assert_eq!(missing.expect_err("no bucket").code(), Code::NoSuchBucket);

    let mut s3 = server.options();
    if let Some(credentials) = &mut s3.credentials {
        credentials.secret_key = "wrong".into();
    }
    let denied = QueueFile::open(&format!("s3://{BUCKET}/denied/jobs"), options(s3)).await;
    assert_eq!(denied.expect_err("denied").code(), Code::Denied);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_without_compare_and_swap_is_refused_when_a_queue_file_is_made() -> Result<()> {
    let Some(server) = servers::s3rver().await else { return Ok(()) };
    let refused = QueueFile::open(&format!("s3://{BUCKET}/jobs"), options(server.options())).await;
    assert_eq!(refused.expect_err("refused").code(), Code::NoCompareAndSwap);
    Ok(())
}

/// Copies the objects of a queue file like a backup tool.
async fn copy(from: &Server, to: &Server, prefix: &str) -> Result<()> {
    let from = S3Store::open(BUCKET, prefix, &from.options()).await?;
    let to = S3Store::open(BUCKET, prefix, &to.options()).await?;
    for listed in from.list("").await? {
        if let Got::Object { bytes, .. } = from.get(&listed.key, None).await? {
            to.put_new(&listed.key, bytes).await?;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_file_copied_to_a_store_without_compare_and_swap_is_read_and_never_written() -> Result<()> {
    let (Some(good), Some(bad)) = (servers::gofakes3().await, servers::s3rver().await) else { return Ok(()) };
    let url = format!("s3://{BUCKET}/copied/jobs");
    let file = QueueFile::open(&url, options(good.options())).await?;
    for n in 0..20 {
        file.queue("q")?.enqueue(Payload::text(n.to_string())).await?;
    }
    file.close().await?;
    copy(&good, &bad, "copied/").await?;
    let store = S3Store::open(BUCKET, "copied/", &bad.options()).await?;
    let before = format!("{:?}", store.get("jobs.head", None).await?);
    let file = QueueFile::open(&url, options(bad.options())).await?;
    assert_eq!(file.queues(None).await?.len(), 1, "it can be read");
    let error = file.queue("q")?.enqueue(Payload::text("lost")).await.expect_err("it must not be written");
    assert_eq!((error.kind(), error.code()), (Kind::Unavailable, Code::NoCompareAndSwap), "{error}");
    assert_eq!(file.claim(9).await.expect_err("nor be claimed from").code(), Code::NoCompareAndSwap);
    file.close().await?;
    let strip = |shown: &str| shown.split("date_ms").next().map(str::to_owned);
    let after = format!("{:?}", store.get("jobs.head", None).await?);
    assert_eq!(strip(&after), strip(&before), "HEAD is what it was");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn one_proof_serves_every_queue_file_of_a_bucket_in_a_process() -> Result<()> {
    let Some(server) = servers::gofakes3().await else { return Ok(()) };
    let store = S3Store::open(BUCKET, "proofs/", &server.options()).await?;
    for name in ["a", "b"] {
        // Created through another store object: handles on a store that the caller opened share no proof.
        let made = QueueFile::open_with(Arc::new(store.clone()), name, Options::default(), Env::default());
        made.await?.close().await?;
    }
    let mut puts = vec![];
    for name in ["a", "b"] {
        let file =
            QueueFile::open(&format!("s3://{BUCKET}/proofs/{name}"), options(server.options())).await?;
        file.queue("q")?.enqueue(Payload::text("x")).await?;
        puts.push(file.metrics()?.puts);
        file.close().await?;
    }
    assert_eq!(puts, [4, 1], "three puts for the proof, and one a commit");
    Ok(())
}
