//! Before its first write to an existing queue file, a process tests the store's compare-and-swap (G10).

use std::sync::Arc;
use std::time::Duration;

use bucketq::operate::restore_with;
use bucketq::store::Memory;
use bucketq::{Code, Kind, Mode, Options, Payload, Result};
use bucketq_tests::clock::{TestClock, now, pass};
use bucketq_tests::given::{HEAD, NAME, inline, object, on_puppet, refused};
use bucketq_tests::puppet::{OnPut, Puppet};

/// A queue file with one job, in a store that requires the probe from now on.
async fn found() -> Result<Puppet> {
    let puppet = Puppet::over(Arc::new(Memory::new()));
    let file = on_puppet(&puppet, inline()).await?;
    file.queue("q")?.enqueue(Payload::text("first")).await?;
    file.close().await?;
    puppet.wants_probe(true);
    Ok(puppet)
}

#[tokio::test(start_paused = true)]
async fn a_queue_file_copied_to_a_store_that_ignores_conditions_is_read_and_never_written() -> Result<()> {
    let puppet = found().await?;
    let before = object(puppet.beneath(), HEAD).await?;
    puppet.every_put(OnPut::Overwrite);
    let file = on_puppet(&puppet, inline()).await?;
    assert_eq!(file.queues(None).await?.len(), 1, "a reader needs no proof");
    let (began, asked) = (now(), puppet.requests().puts);
    let error = refused(file.queue("q")?.enqueue(Payload::text("second")).await);
    assert_eq!((error.kind(), error.code()), (Kind::Unavailable, Code::NoCompareAndSwap), "{error}");
    assert!(error.message().contains("If-Match and a wrong ETag"), "{error}");
    assert_eq!(now(), began, "it is told at once");
    assert_eq!(puppet.requests().puts - asked, 3);
    assert_eq!(refused(file.claim(1).await).code(), Code::NoCompareAndSwap);
    assert_eq!(refused(file.settle().await).code(), Code::NoCompareAndSwap);
    assert_eq!(puppet.requests().puts - asked, 3, "the verdict is remembered");
    file.close().await?;
    assert_eq!(object(puppet.beneath(), HEAD).await?, before, "HEAD is what it was");
    assert!(puppet.beneath().list(&format!("{NAME}.probe-")).await?.is_empty(), "nothing is left behind");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_sync_and_a_restore_ask_for_the_same_proof() -> Result<()> {
    let puppet = found().await?;
    let before = object(puppet.beneath(), HEAD).await?;
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let image = dir.path().join("image.sqlite");
    let options = Options { mode: Mode::Local, cache: Some(dir.path().join("local")), ..inline() };
    let file = on_puppet(&puppet, options).await?;
    file.export(&image, false).await?;
    file.queue("q")?.enqueue(Payload::text("second")).await?;
    puppet.every_put(OnPut::Overwrite);
    let error = refused(file.sync().await);
    assert_eq!((error.kind(), error.code()), (Kind::Unavailable, Code::NoCompareAndSwap), "{error}");
    assert_eq!(file.dirty()?.commits, 1, "nothing is lost");
    let env = TestClock::start().env();
    let restored = restore_with(puppet.store(), NAME, &image, inline(), env).await;
    assert_eq!(refused(restored).code(), Code::NoCompareAndSwap);
    assert_eq!(object(puppet.beneath(), HEAD).await?, before, "HEAD is what it was");
    puppet.every_put(OnPut::Pass);
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn the_proof_costs_three_puts_before_the_first_commit_and_none_without_one() -> Result<()> {
    let puppet = found().await?;
    let file = on_puppet(&puppet, inline()).await?;
    let q = file.queue("other")?;
    let puts = || puppet.requests().puts;
    let begun = puts();
    file.stats(None).await?;
    assert!(q.claim(1).await?.is_empty());
    pass(Duration::from_mins(10)).await;
    assert_eq!(puts() - begun, 0, "a reader and a worker without work cost nothing");
    q.enqueue(Payload::text("x")).await?;
    assert_eq!(puts() - begun, 4, "the proof and the commit");
    pass(Duration::from_millis(1)).await;
    assert_eq!(puppet.requests().deletes, 1);
    for _ in 0..3 {
        q.enqueue(Payload::text("x")).await?;
    }
    assert_eq!(puts() - begun, 7, "one put a commit");
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn a_process_that_made_the_queue_file_needs_no_second_proof() -> Result<()> {
    let puppet = Puppet::over(Arc::new(Memory::new()));
    puppet.wants_probe(true);
    let file = on_puppet(&puppet, inline()).await?;
    let begun = puppet.requests().puts;
    file.queue("q")?.enqueue(Payload::text("x")).await?;
    assert_eq!(puppet.requests().puts - begun, 1);
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn a_store_that_gives_no_answer_to_the_probe_is_asked_again() -> Result<()> {
    let puppet = found().await?;
    let file = on_puppet(&puppet, inline()).await?;
    puppet.next_puts([OnPut::Refuse(Code::Unreachable), OnPut::LoseAnswer, OnPut::Pass, OnPut::LoseRequest]);
    file.queue("q")?.enqueue(Payload::text("x")).await?;
    assert_eq!(file.claim(9).await?.len(), 2);
    puppet.every_put(OnPut::Pass);
    file.close().await?;
    // A call whose probe never gets a reply has applied nothing.
    let file = on_puppet(&puppet, inline()).await?;
    puppet.every_put(OnPut::Swallow);
    assert_eq!(refused(file.queue("q")?.enqueue(Payload::text("y")).await).kind(), Kind::Unavailable);
    puppet.every_put(OnPut::Pass);
    file.settle().await?;
    file.close().await
}
