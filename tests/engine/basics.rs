//! A job's ordinary way through a queue file, with one and with several writers.

use std::sync::Arc;
use std::time::Duration;

use bucketq::store::{Memory, Store};
use bucketq::{Env, Kind, Options, Payload, QueueFile, Result, State};

async fn open(store: &Arc<dyn Store>) -> Result<QueueFile> {
    QueueFile::open_with(Arc::clone(store), "jobs", Options::default(), Env::default()).await
}

fn memory() -> Arc<dyn Store> {
    Arc::new(Memory::new())
}

#[tokio::test]
async fn a_job_is_enqueued_claimed_and_acked() -> Result<()> {
    let file = open(&memory()).await?;
    let emails = file.queue("emails")?;
    let receipt = emails.enqueue(Payload::text("hello")).await?;
    assert!(!receipt.deduplicated);

    let jobs = emails.claim(10).await?;
    assert_eq!(jobs.len(), 1);
    assert_eq!(jobs[0].job.id, receipt.id);
    assert_eq!(&jobs[0].payload.bytes[..], b"hello");
    assert!(emails.claim(10).await?.is_empty());

    file.ack(jobs[0].held()).await?;
    let detail = file.get(receipt.id).await?.expect("a finished job is kept for a while");
    assert_eq!(detail.job.state, State::Done);
    file.close().await
}

#[tokio::test]
async fn what_one_writer_acknowledged_another_sees_and_so_does_a_reopened_file() -> Result<()> {
    let store = memory();
    let (a, b) = (open(&store).await?, open(&store).await?);
    let receipt = a.queue("q")?.enqueue(Payload::text("x")).await?;
    assert_eq!(b.claim(1).await?[0].job.id, receipt.id);
    assert!(a.claim(1).await?.is_empty());
    a.close().await?;
    b.close().await?;
    let c = open(&store).await?;
    assert_eq!(c.get(receipt.id).await?.expect("there").job.state, State::Leased);
    c.close().await
}

#[tokio::test(flavor = "multi_thread")]
async fn sixteen_writers_in_a_race_lose_and_double_nothing() -> Result<()> {
    let store = memory();
    let mut tasks = vec![];
    for w in 0..16 {
        let store = Arc::clone(&store);
        tasks.push(tokio::spawn(async move {
            let file = open(&store).await?;
            let q = file.queue("q")?;
            let mut mine = vec![];
            for i in 0..20 {
                q.enqueue(Payload::text(format!("{w}-{i}"))).await?;
                for job in q.claim(2).await? {
                    file.ack(job.held()).await?;
                    mine.push(job.payload.bytes.clone());
                }
            }
            file.close().await?;
            Ok::<_, bucketq::Error>(mine)
        }));
    }
    let mut all = vec![];
    for t in tasks {
        all.extend(t.await.expect("no panic")?);
    }
    let file = open(&store).await?;
    for job in file.claim(1000).await? {
        file.ack(job.held()).await?;
        all.push(job.payload.bytes.clone());
    }
    all.sort();
    let n = all.len();
    all.dedup();
    assert_eq!((n, all.len()), (320, 320));
    file.close().await
}

#[tokio::test]
async fn a_claim_that_waits_gets_the_job_enqueued_meanwhile() -> Result<()> {
    let file = open(&memory()).await?;
    let q = file.queue("q")?;
    let waiting = tokio::spawn(q.claim(1).wait(Duration::from_secs(20)).into_future());
    tokio::task::yield_now().await;
    let receipt = q.enqueue(Payload::text("x")).await?;
    let jobs = waiting.await.expect("no panic")?;
    assert_eq!(jobs[0].job.id, receipt.id);
    file.close().await
}

#[tokio::test]
async fn a_closed_handle_says_so() -> Result<()> {
    let file = open(&memory()).await?;
    let copy = file.clone();
    file.close().await?;
    let error = copy.queues(None).await.expect_err("closed");
    assert_eq!(error.kind(), Kind::Closed);
    Ok(())
}

/// Bytes that do not compress.
fn xorshift(x: &mut u64) -> u8 {
    *x ^= *x << 13;
    *x ^= *x >> 7;
    *x ^= *x << 17;
    (*x >> 24) as u8
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_commits_move_through_segments_and_bases_and_open_again() -> Result<()> {
    let store = memory();
    let file = open(&store).await?;
    let q = file.queue("q")?;
    let mut i = 0_u64;
    // A base is made beside the commits: continue until one has come, and some commits have followed it.
    while i < 300 || (i < 5_000 && store.list("jobs.base-").await?.is_empty()) {
        i += 1;
        let mut x = i;
        let noise: Vec<u8> = (0..3000).map(|_| xorshift(&mut x)).collect();
        q.enqueue(Payload::bytes(noise)).await?;
    }
    let before = file.stats(None).await?;
    let metrics = file.metrics()?;
    assert!(metrics.uploads > 5, "{metrics:?}");
    file.close().await?;
    let bases = store.list("jobs.base-").await?;
    assert!(!bases.is_empty());
    let file = open(&store).await?;
    // The age grows with the clock.
    let ageless = |mut queues: Vec<bucketq::QueueInfo>| {
        queues[0].oldest_ready_ms = None;
        queues
    };
    assert_eq!(ageless(file.stats(None).await?.queues), ageless(before.queues));
    file.close().await
}
