//! When objects are written, when they are deleted, and what a check reports about them.

use std::sync::Arc;
use std::time::Duration;

use bucketq::internals::keys;
use bucketq::policy::Changes;
use bucketq::store::{Memory, Store};
use bucketq::{Options, Payload, Result, operate};
use bucketq_tests::clock::pass;
use bucketq_tests::given::{NAME, inline, objects, opened, puppet};

use crate::kit::{Q, finish, keep, patient, read, set, whole};

async fn keys_of_archives(store: &Arc<dyn Store>) -> Result<Vec<String>> {
    let all = objects(store).await?.into_iter().map(|(key, _)| key);
    Ok(all.filter(|key| key.contains(".arch-")).collect())
}

#[tokio::test(start_paused = true)]
async fn the_archive_is_written_by_itself_once_the_oldest_has_waited() -> Result<()> {
    let (puppet, file) = puppet(Options { archive_every: Duration::from_mins(10), ..inline() }).await?;
    set(&file, keep(2)).await?;
    finish(&file, 5).await?;
    pass(Duration::from_mins(9)).await;
    finish(&file, 1).await?;
    pass(Duration::from_secs(1)).await;
    assert_eq!(file.archives(None, 0).await?.objects, []);
    pass(Duration::from_mins(4)).await;
    let idle = puppet.requests();
    pass(Duration::from_hours(10)).await;
    assert_eq!(puppet.requests(), idle, "an idle queue file costs nothing (G9)");
    finish(&file, 1).await?;
    pass(Duration::from_secs(1)).await;
    assert_eq!(file.archives(None, 0).await?.objects[0].jobs, 4);
    assert_eq!(whole(puppet.beneath(), &file).await?.len(), 7);
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn closing_lists_what_is_on_its_way() -> Result<()> {
    let (puppet, file) = puppet(Options { archive_every: Duration::from_millis(1), ..inline() }).await?;
    set(&file, keep(0)).await?;
    puppet.takes(Duration::from_millis(20));
    finish(&file, 3).await?;
    file.close().await?;
    puppet.takes(Duration::ZERO);
    let file = bucketq_tests::given::on_puppet(&puppet, patient()).await?;
    let listed = file.archives(None, 0).await?.objects;
    let there = keys_of_archives(puppet.beneath()).await?;
    assert_eq!(listed.iter().map(|a| a.key.clone()).collect::<Vec<_>>(), there, "no upload was for nothing");
    assert_eq!(whole(puppet.beneath(), &file).await?.len(), 3);
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn a_collection_leaves_what_is_listed_and_takes_orphans() -> Result<()> {
    let (puppet, file) = puppet(patient()).await?;
    let store = puppet.beneath();
    set(&file, keep(0)).await?;
    finish(&file, 4).await?;
    file.archive().await?;
    let id = crate::objects::file_id(store).await?;
    let orphan = keys::archive(NAME, &keys::file8(&id), 2, &[3; 8]);
    let mut other = id;
    other[0] ^= 1;
    let alien = keys::archive(NAME, &keys::file8(&other), 2, &[3; 8]);
    let ahead = keys::archive(NAME, &keys::file8(&id), 1 << 30, &[3; 8]);
    for key in [&orphan, &alien, &ahead] {
        store.put_new(key, "x".into()).await?;
    }
    finish(&file, 1).await?;
    let told = file.collect(Duration::ZERO).await?;
    assert_eq!(told.left, 1, "the one ahead: {told:?}");
    let there = keys_of_archives(store).await?;
    assert!(!there.contains(&orphan), "{there:?}");
    assert!(there.contains(&alien) && there.contains(&ahead), "{there:?}");
    assert_eq!(whole(store, &file).await?.len(), 5);
    file.close().await
}

pub async fn file_id(store: &Arc<dyn Store>) -> Result<[u8; 16]> {
    let bytes =
        bucketq_tests::given::object(store, bucketq_tests::given::HEAD).await?.expect("there is a HEAD");
    Ok(bucketq::internals::head::Head::decode("head", &bytes)?.file_id)
}

#[tokio::test(start_paused = true)]
async fn objects_that_are_too_old_leave_the_list_and_go_when_the_floor_has_passed() -> Result<()> {
    let (puppet, file) = puppet(patient()).await?;
    let store = puppet.beneath();
    set(&file, Changes { archive_ms: Some(Some(3_600_000)), ..keep(0) }).await?;
    finish(&file, 2).await?;
    file.archive().await?;
    let old = file.archives(None, 0).await?.objects[0].clone();
    pass(Duration::from_mins(61)).await;
    finish(&file, 2).await?;
    file.archive().await?;
    let listed = file.archives(None, 0).await?.objects;
    assert_eq!(listed.len(), 1);
    assert_eq!(read(store, &old).await?.len(), 2, "who is reading it goes on");
    // A first floor, not above the commit that expired it, leaves it for readers.
    file.collect(Duration::ZERO).await?;
    assert_eq!(keys_of_archives(store).await?, [listed[0].key.clone()]);
    finish(&file, 1).await?;
    file.archive().await?;
    let report = operate::check_with(Arc::clone(store), NAME, Options::default()).await?;
    assert_eq!(report.problems, []);
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn what_is_given_up_by_itself_waits_for_the_next_commit_that_is_due() -> Result<()> {
    let interval = Duration::from_secs(10);
    let (_, file) = puppet(Options { commit_interval: interval, ..inline() }).await?;
    set(&file, Changes { archive_ms: Some(Some(3_600_000)), ..keep(0) }).await?;
    finish(&file, 1).await?;
    assert_eq!(file.archive().await?, 1);
    pass(Duration::from_mins(61)).await;
    file.queue(Q)?.enqueue(Payload::text("any")).await?;
    let commits = file.metrics()?.commits;
    pass(interval / 2).await;
    assert_eq!(file.metrics()?.commits, commits);
    pass(interval).await;
    assert_eq!(file.metrics()?.commits, commits + 1);
    assert_eq!(file.archives(None, 0).await?.objects, []);
    file.close().await
}

#[tokio::test]
async fn a_check_reads_what_is_listed_and_misses_what_is_not_there() -> Result<()> {
    let store: Arc<dyn Store> = Arc::new(Memory::new());
    let file = opened(Arc::clone(&store)).await?;
    set(&file, keep(0)).await?;
    finish(&file, 4).await?;
    assert_eq!(file.archive().await?, 4);
    let listed = file.archives(None, 0).await?.objects[0].clone();
    file.close().await?;
    let check = || operate::check_with(Arc::clone(&store), NAME, Options::default());
    let report = check().await?;
    assert_eq!(report.problems, []);
    assert_eq!(report.unreferenced.map(|t| t.count), Some(0));
    let bytes = bucketq_tests::given::object(&store, &listed.key).await?.expect("it is there");
    store.delete(&listed.key).await?;
    let report = check().await?;
    assert_eq!(report.problems[0].object, listed.key);
    let mut damaged = bytes.to_vec();
    damaged[10] ^= 1;
    store.put_new(&listed.key, damaged.into()).await?;
    let report = check().await?;
    assert!(report.problems[0].found.contains("hash"), "{report:?}");
    Ok(())
}
