//! One commit pinned for readers: the same database from the bytes of its HEAD, and the staged objects.

use std::sync::Arc;

use bucketq::internals::{archive, keys};
use bucketq::operate::Objects;
use bucketq::query::{Answer, Query};
use bucketq::store::Store;
use bucketq::{Code, Options, Payload, Result, State};
use bucketq_tests::clock::TestClock;
use bucketq_tests::given::{NAME, inline};
use bytes::Bytes;
use std::time::Duration;

use crate::{grown, open};

fn objects(store: &Arc<dyn Store>) -> Result<Objects> {
    Objects::with(Arc::clone(store), NAME, &Options::default(), TestClock::start().env())
}

#[tokio::test]
async fn a_pinned_commit_stays_what_it_was_and_is_built_again_from_its_head() -> Result<()> {
    let store = grown(20).await?;
    let here = objects(&store)?;
    let pinned = here.pin().await?;
    let lives = pinned.lives(0, u64::MAX, 100)?.expect("two jobs are finished");
    let (about, told) = archive::decode("it", lives.clone().into())?;
    assert_eq!((told.len(), about.commit_seq), (2, pinned.head().commit_seq));
    let file = open(&store).await?;
    file.queue("q")?.enqueue(Payload::text("later")).await?;
    file.close().await?;
    let again = objects(&store)?.at(pinned.bytes().clone()).await?;
    assert_eq!(again.lives(0, u64::MAX, 100)?, Some(lives));
    assert_eq!(again.image()?, pinned.image()?);
    let queues = |p: &bucketq::operate::Pinned| match p.ask(&Query::Queues) {
        Ok(Answer::Queues(queues)) => queues,
        other => panic!("{other:?}"),
    };
    assert_eq!(queues(&again), queues(&pinned));
    assert_ne!(queues(&here.pin().await?), queues(&pinned));
    Ok(())
}

#[tokio::test]
async fn the_jobs_of_a_commit_are_read_in_parts_by_queue_and_by_state() -> Result<()> {
    let pinned = objects(&grown(20).await?)?.pin().await?;
    let all = pinned.jobs(0, 100, None, None)?.expect("there are 20 jobs");
    assert_eq!(pinned.jobs(0, 100, Some(&["q".into()]), Some(&State::ALL))?, Some(all.clone()));
    let first = pinned.jobs(0, 1, None, None)?.expect("there is a first job");
    assert!(first.starts_with(b"PAR1") && first.len() < all.len() / 10);
    let leased = pinned.jobs(0, 100, None, Some(&[State::Leased]))?;
    assert_eq!(leased, pinned.jobs(0, 1, None, Some(&[State::Leased]))?, "one job is leased");
    assert!(leased.is_some());
    for (from, queues, states) in [
        (u64::MAX, None, None),
        (0, Some(vec!["other".to_owned()]), None),
        (0, Some(vec![]), None),
        (0, None, Some(vec![State::Cancelled])),
        (0, None, Some(vec![])),
    ] {
        let found = pinned.jobs(from, 100, queues.as_deref(), states.as_deref())?;
        assert_eq!(found, None, "{from} {queues:?} {states:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_commit_whose_objects_are_collected_is_told_as_such() -> Result<()> {
    let store = grown(260).await?;
    let pinned = objects(&store)?.pin().await?;
    let base = keys::base(NAME, &pinned.head().file_id, pinned.head().base.seq, &pinned.head().base.rand);
    store.delete(&base).await?;
    let error = objects(&store)?.at(pinned.bytes().clone()).await.expect_err("its base is gone");
    assert_eq!(error.code(), Code::Collected);
    assert_eq!(objects(&store)?.pin().await.expect_err("HEAD refers to it still").code(), Code::Corrupt);
    Ok(())
}

#[tokio::test]
async fn what_is_put_aside_is_listed_by_group_and_collected_after_seven_days() -> Result<()> {
    let store = grown(2).await?;
    let here = objects(&store)?;
    let id = here.pin().await?.head().file_id;
    let mine = here.stage(&id, &[1; 8], Bytes::from_static(b"rows")).await?;
    let other = here.stage(&id, &[2; 8], Bytes::from_static(b"rows")).await?;
    assert_eq!(here.staged(&id, &[1; 8]).await?, std::slice::from_ref(&mine));
    assert_eq!(here.get(&mine, None).await?.as_deref(), Some(&b"rows"[..]));
    assert_eq!(here.get(&mine, Some([0; 16])).await.expect_err("another hash").code(), Code::Corrupt);
    assert!(here.unstage(&keys::head(NAME)).await.is_err(), "only what was put aside is deleted");
    here.unstage(&other).await?;
    let clock = TestClock::start();
    let late = |clock: &TestClock| {
        let (store, env) = (Arc::clone(&store), clock.env());
        async move { bucketq::QueueFile::open_with(store, NAME, inline(), env).await }
    };
    let file = late(&clock).await?;
    file.collect(Duration::ZERO).await?;
    assert!(here.get(&mine, None).await?.is_some(), "it is young");
    clock.step(keys::STAGED_MS + 60_000);
    file.queue("q")?.enqueue(Payload::text("later")).await?;
    file.collect(Duration::ZERO).await?;
    assert!(here.get(&mine, None).await?.is_none());
    file.close().await
}
