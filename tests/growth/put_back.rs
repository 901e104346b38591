//! An older HEAD put back while a newer one, which the process saw, could not be read yet (P21).

use std::sync::Arc;

use bucketq::store::{Memory, Store};
use bucketq::{Code, Kind, Options, QueueFile, Result};
use bucketq_tests::clock::TestClock;
use bucketq_tests::given::{HEAD, NAME, inline, object, refused};
use bytes::Bytes;

use crate::kit::{calm, fill, head, referred};

/// Its log moves into segments at once, and no base replaces them.
async fn open(store: &Arc<dyn Store>, clock: &TestClock) -> Result<QueueFile> {
    let options = Options { base_after: 64 * 1024 * 1024, tail: 1024, ..inline() };
    QueueFile::open_with(Arc::clone(store), NAME, options, clock.env()).await
}

/// An older HEAD, and a segment with its bytes that only the current HEAD needs.
struct Before {
    head: Bytes,
    segment: String,
    bytes: Bytes,
}

/// Other writers continue; the newest segment of the queue file cannot be read.
async fn going_on(store: &Arc<dyn Store>, clock: &TestClock) -> Result<Before> {
    let others = open(store, clock).await?;
    fill(&others, 4).await?;
    calm(&others).await?;
    let (old, known) = (object(store, HEAD).await?.expect("there"), referred(&head(store).await?));
    fill(&others, 4).await?;
    others.close().await?;
    let segment =
        referred(&head(store).await?).into_iter().rfind(|key| !known.contains(key)).expect("a new one");
    let bytes = object(store, &segment).await?.expect("there");
    store.put_new(&segment, bytes.slice(..bytes.len() / 2)).await?;
    Ok(Before { head: old, segment, bytes })
}

async fn put_back(store: &Arc<dyn Store>, before: Before) -> Result<()> {
    store.put_new(&before.segment, before.bytes).await?;
    store.put_new(HEAD, before.head).await
}

#[tokio::test(start_paused = true)]
async fn a_head_that_could_not_be_followed_yet_is_known_all_the_same() -> Result<()> {
    let (store, clock): (Arc<dyn Store>, _) = (Arc::new(Memory::new()), TestClock::start());
    let file = open(&store, &clock).await?;
    fill(&file, 1).await?;
    let before = going_on(&store, &clock).await?;
    assert_eq!(refused(file.stats(None).await).kind(), Kind::Corrupt);
    put_back(&store, before).await?;
    for _ in 0..2 {
        let error = refused(file.stats(None).await);
        assert_eq!(error.code(), Code::RolledBack, "{error}");
    }
    file.close().await?;
    let fresh = open(&store, &clock).await?;
    assert_eq!(fresh.claim(99).await?.len(), 5, "the state that was put back");
    fresh.close().await
}

#[tokio::test(start_paused = true)]
async fn who_is_still_opening_goes_back_to_no_older_head() -> Result<()> {
    let (store, clock): (Arc<dyn Store>, _) = (Arc::new(Memory::new()), TestClock::start());
    let before = going_on(&store, &clock).await?;
    let opening = tokio::spawn({
        let (store, clock) = (Arc::clone(&store), clock.clone());
        async move { open(&store, &clock).await }
    });
    bucketq_tests::clock::pass(std::time::Duration::from_millis(1)).await;
    assert!(!opening.is_finished(), "it looks again");
    put_back(&store, before).await?;
    let error = refused(opening.await.expect("no panic"));
    assert_eq!(error.code(), Code::RolledBack, "{error}");
    let fresh = open(&store, &clock).await?;
    assert_eq!(fresh.claim(99).await?.len(), 4, "the state that was put back");
    fresh.close().await
}
