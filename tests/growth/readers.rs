//! Readers whose objects are collected during the read start over, on every store (P18).

use std::sync::Arc;
use std::time::Duration;

use bucketq::store::Store;
use bucketq::{Env, Host, Options, Payload, QueueFile, Result, State};
use bucketq_tests::given::NAME;
use bucketq_tests::ground::Ground;
use bucketq_tests::servers;

use crate::kit::{Busy, fill, garbage, hasty};

fn options() -> Options {
    Options { host: Host::OwnThread, ..hasty() }
}

async fn open(ground: &Ground, store: Option<Arc<Busy>>) -> Result<QueueFile> {
    open_as(ground, store, options()).await
}

async fn open_as(ground: &Ground, store: Option<Arc<Busy>>, options: Options) -> Result<QueueFile> {
    let store: Arc<dyn Store> = match store {
        Some(busy) => busy,
        None => ground.store(),
    };
    QueueFile::open_with(store, NAME, options, Env::default()).await
}

/// The writer commits until bases and segments have been replaced, and deletes unreferenced objects.
fn replace_all(writer: &QueueFile) -> futures_util::future::BoxFuture<'static, ()> {
    let writer = writer.clone();
    Box::pin(async move {
        fill(&writer, 60).await.expect("it commits");
        let told = writer.collect(Duration::ZERO).await.expect("it collects");
        assert!(told.objects > 0, "{told:?}");
    })
}

async fn an_opening_starts_over(ground: &Ground) -> Result<()> {
    let writer = open(ground, None).await?;
    fill(&writer, 60).await?;
    let busy = Busy::over(ground.store());
    let for_writer = writer.clone();
    busy.before_next_get(move || replace_all(&for_writer));
    let reader = open(ground, Some(busy.clone())).await?;
    assert!(busy.happened());
    assert_eq!(reader.stats(None).await?.queues[0].counts[&State::Ready], 120);
    reader.close().await?;
    writer.close().await
}

async fn a_follower_starts_over(ground: &Ground, options: Options) -> Result<()> {
    let writer = open(ground, None).await?;
    let busy = Busy::over(ground.store());
    let reader = open_as(ground, Some(busy.clone()), options).await?;
    reader.queue("q")?.enqueue(Payload::text("known")).await?;
    // Further behind than HEAD alone can bridge.
    fill(&writer, 60).await?;
    let for_writer = writer.clone();
    busy.before_next_get(move || replace_all(&for_writer));
    assert_eq!(reader.stats(None).await?.queues[0].counts[&State::Ready], 121);
    assert!(busy.happened());
    // And one that loses a race: it settles by what it reads.
    fill(&writer, 60).await?;
    let for_writer = writer.clone();
    busy.before_next_get(move || replace_all(&for_writer));
    reader.queue("q")?.enqueue(Payload::text("more")).await?;
    assert!(busy.happened());
    assert_eq!(reader.stats(None).await?.queues[0].counts[&State::Ready], 242);
    garbage(&ground.store()).await?;
    reader.close().await?;
    writer.close().await
}

#[tokio::test]
async fn on_memory() -> Result<()> {
    an_opening_starts_over(&Ground::memory()).await?;
    a_follower_starts_over(&Ground::memory(), options()).await
}

#[tokio::test]
async fn on_a_directory() -> Result<()> {
    for test in 0..2 {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let ground = Ground::directory(dir.path());
        if test == 0 {
            an_opening_starts_over(&ground).await?;
        } else {
            a_follower_starts_over(&ground, options()).await?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn on_s3() -> Result<()> {
    let Some(server) = servers::s3().await else { return Ok(()) };
    an_opening_starts_over(&Ground::server(&server).await).await?;
    a_follower_starts_over(&Ground::server(&server).await, options()).await
}

/// The test above notices a reader that takes a collected object for damage.
#[cfg(feature = "mutants")]
#[allow(non_snake_case, reason = "a test has the name of its variant")]
mod mutants {
    use bucketq::broken::Broken;
    use bucketq::{Kind, Options};
    use bucketq_tests::ground::Ground;

    use super::{a_follower_starts_over, options};

    #[tokio::test]
    async fn MissingIsDamage() {
        let broken = Options { broken: Some(Broken::MissingIsDamage), ..options() };
        let error =
            a_follower_starts_over(&Ground::memory(), broken).await.expect_err("an object was collected");
        println!("caught MissingIsDamage: {error}");
        assert_eq!(error.kind(), Kind::Corrupt, "{error}");
    }
}
