//! Copied directories, old ones put back, stores put back: nothing published twice, nothing dropped silently (P6, P21).

use std::sync::Arc;

use bucketq::store::{Expect, Got, Memory, Store};
use bucketq::{Code, Kind, Result};
use bucketq_tests::given::{HEAD, object, refused};
use bucketq_tests::ground::Ground;
use bucketq_tests::puppet::{OnGet, OnPut, Puppet};

use crate::fixture::{Machine, abandon, durable, enqueue, texts, watch};

#[tokio::test]
async fn of_two_copies_one_publishes_and_the_other_is_diverged() -> Result<()> {
    let ground = Ground::memory();
    let machine = Machine::new();
    let file = machine.open(&ground).await?;
    enqueue(&file, "a").await?;
    abandon(file).await?;
    let copy = machine.copy();
    let (file, copied) = (machine.open(&ground).await?, copy.open(&ground).await?);
    enqueue(&file, "original").await?;
    enqueue(&copied, "copied").await?;
    file.sync().await?;
    assert_eq!(refused(copied.sync().await).kind(), Kind::Diverged);
    assert_eq!(texts(&copied).await?, ["a", "copied"]);
    let all = durable(&ground).await?;
    assert_eq!(texts(&all).await?, ["a", "original"]);
    copied.snapshot(true).await?;
    assert_eq!(texts(&copied).await?, ["a", "original"]);
    file.close().await?;
    copied.close().await?;
    all.close().await
}

#[tokio::test(start_paused = true)]
async fn copies_with_an_open_body_both_know_it_as_their_own() -> Result<()> {
    for landed in [false, true] {
        let machine = Machine::new();
        let puppet = Puppet::over(Arc::new(Memory::new()));
        let file = machine.open_paused(&puppet).await?;
        enqueue(&file, "a").await?;
        puppet.every_put(if landed { OnPut::LoseAnswer } else { OnPut::LoseRequest });
        puppet.every_get(OnGet::Fail(Code::Unreachable));
        refused(file.sync().await);
        abandon(file).await?;
        puppet.every_put(OnPut::Pass);
        puppet.every_get(OnGet::Pass);
        let copy = machine.copy();
        let (file, copied) = (machine.open_paused(&puppet).await?, copy.open_paused(&puppet).await?);
        file.sync().await?;
        copied.sync().await?;
        assert_eq!(copied.dirty()?.commits, 0, "it is published, by whomever");
        let all = watch(&machine, &puppet).await?;
        assert_eq!(texts(&all).await?, ["a"], "once");
        file.close().await?;
        copied.close().await?;
        all.close().await?;
    }
    Ok(())
}

#[tokio::test]
async fn an_old_directory_put_back_publishes_nothing_twice() -> Result<()> {
    let ground = Ground::memory();
    let machine = Machine::new();
    let file = machine.open(&ground).await?;
    enqueue(&file, "a").await?;
    abandon(file).await?;
    let old = machine.copy();
    let file = machine.open(&ground).await?;
    file.sync().await?;
    enqueue(&file, "b").await?;
    file.sync().await?;
    abandon(file).await?;
    machine.restore(&old);
    let file = machine.open(&ground).await?;
    assert_eq!(file.dirty()?.commits, 1, "as far as it knows");
    let error = refused(file.sync().await);
    assert_eq!(error.kind(), Kind::Diverged, "{error}");
    file.snapshot(true).await?;
    assert_eq!(texts(&file).await?, ["a", "b"]);
    file.close().await
}

#[tokio::test]
async fn a_store_put_back_is_rolled_back_also_for_a_directory_just_opened() -> Result<()> {
    let ground = Ground::memory();
    let machine = Machine::new();
    let file = machine.open(&ground).await?;
    enqueue(&file, "a").await?;
    file.sync().await?;
    let store = ground.store();
    let old = object(&store, HEAD).await?.expect("there");
    enqueue(&file, "b").await?;
    file.sync().await?;
    enqueue(&file, "c").await?;
    abandon(file).await?;
    let Got::Object { version, .. } = store.get(HEAD, None).await? else { panic!("HEAD is there") };
    store.put_if(HEAD, old.clone(), &Expect::Is(version)).await;
    let file = machine.open(&ground).await?;
    for _ in 0..2 {
        let error = refused(file.sync().await);
        assert_eq!((error.kind(), error.code()), (Kind::Corrupt, Code::RolledBack), "{error}");
    }
    assert_eq!(refused(enqueue(&file, "d").await).code(), Code::RolledBack);
    assert_eq!(texts(&file).await?, ["a", "b", "c"], "it can be looked at");
    assert_eq!(object(&store, HEAD).await?, Some(old), "and nothing was written");
    file.snapshot(true).await?;
    assert_eq!(texts(&file).await?, ["a"], "whoever discards takes what is there");
    enqueue(&file, "e").await?;
    file.sync().await?;
    file.close().await
}

#[tokio::test]
async fn another_file_of_the_same_name_is_not_taken_for_the_one_known() -> Result<()> {
    let (first, second) = (Memory::named("local-swap"), Machine::new());
    let machine = second;
    let file = machine.open_on(Arc::new(first)).await?;
    enqueue(&file, "a").await?;
    abandon(file).await?;
    Memory::forget("local-swap");
    let other: Arc<dyn Store> = Arc::new(Memory::named("local-swap"));
    let foreign = bucketq_tests::given::opened(Arc::clone(&other)).await?;
    let before = object(&other, HEAD).await?;
    let file = machine.open_on(Arc::clone(&other)).await?;
    assert_eq!(refused(file.sync().await).code(), Code::RolledBack);
    assert_eq!(object(&other, HEAD).await?, before, "nothing was written");
    file.snapshot(true).await?;
    assert!(texts(&file).await?.is_empty());
    file.close().await?;
    foreign.close().await
}

#[tokio::test]
async fn a_head_that_is_gone_is_not_made_again() -> Result<()> {
    let ground = Ground::memory();
    let machine = Machine::new();
    let file = machine.open(&ground).await?;
    enqueue(&file, "a").await?;
    ground.store().delete(HEAD).await?;
    for _ in 0..2 {
        assert_eq!(refused(file.sync().await).code(), Code::HeadMissing);
    }
    assert_eq!(object(&ground.store(), HEAD).await?, None);
    let saved = tempfile::tempdir().expect("made");
    file.export_pending(&saved.path().join("saved.sqlite")).await?;
    file.close().await
}

#[tokio::test]
async fn two_processes_cannot_have_one_directory() -> Result<()> {
    let ground = Ground::memory();
    let machine = Machine::new();
    let file = machine.open(&ground).await?;
    let error = refused(machine.open(&ground).await);
    assert_eq!((error.kind(), error.code()), (Kind::Unavailable, Code::InUse), "{error}");
    let pid = format!("process {}", std::process::id());
    assert!(error.message().contains(&pid), "{error}");
    file.close().await?;
    machine.open(&ground).await?.close().await
}
