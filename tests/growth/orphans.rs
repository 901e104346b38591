//! Uploads without a HEAD, and objects that a collection must not delete (P12, P14).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bucketq::internals::keys;
use bucketq::store::{Memory, Store};
use bucketq::{QueueFile, Result, State};
use bucketq_tests::clock::{TestClock, pass};
use bucketq_tests::given::{NAME, puppet};

use crate::kit::{Busy, fill, garbage, hasty, head};

#[tokio::test(start_paused = true)]
async fn orphans_of_this_file_go_and_everything_else_stays() -> Result<()> {
    let (puppet, file) = puppet(hasty()).await?;
    let store = puppet.beneath();
    fill(&file, 30).await?;
    let id = head(store).await?.file_id;
    let mut other = id;
    other[0] ^= 1;
    let mine = [
        keys::base(NAME, &id, 7, &[7; 8]),
        keys::segment(NAME, &id, 3, 9, &[9; 8]),
        keys::archive(NAME, &keys::file8(&id), 5, &[5; 8]),
    ];
    let alien = [
        keys::base(NAME, &other, 7, &[7; 8]),
        keys::segment(NAME, &other, 3, 9, &[9; 8]),
        keys::base("jobs2", &id, 7, &[7; 8]),
        keys::base("jobs", &id, 7, &[7; 8]).to_uppercase(),
        format!("{}x", keys::base(NAME, &id, 7, &[7; 8])),
        format!("jobs.arch-{}-0000000000000001-0000000000000001", keys::file8(&id)),
        "jobs.probe-0123456789abcdef".to_owned(),
        "jobs.notes".to_owned(),
        "jobs".to_owned(),
    ];
    // Ahead of every known commit: another writer may be about to refer to it.
    let ahead = keys::base(NAME, &id, 1 << 30, &[1; 8]);
    for key in mine.iter().chain(&alien).chain([&ahead]) {
        store.put_new(key, "x".into()).await?;
    }
    let told = file.collect(Duration::ZERO).await?;
    assert_eq!((told.left, told.left_bytes), (1, 1), "the one ahead: {told:?}");
    let there: Vec<String> = store.list("").await?.into_iter().map(|l| l.key).collect();
    assert!(mine.iter().all(|key| !there.contains(key)), "{there:?}");
    assert!(alien.iter().chain([&ahead]).all(|key| there.contains(key)), "{there:?}");
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn a_base_whose_writer_died_before_it_was_referred_to_is_collected_and_written_anew() -> Result<()> {
    let memory: Arc<dyn Store> = Arc::new(Memory::new());
    let busy = Busy::over(Arc::clone(&memory));
    busy.no_bases.store(true, Ordering::Relaxed);
    let open = |store: Arc<dyn Store>| {
        let env = TestClock::start().env();
        async move { QueueFile::open_with(store, NAME, hasty(), env).await }
    };
    let file = open(busy.clone()).await?;
    fill(&file, 30).await?;
    file.close().await?;
    let orphan: Vec<String> =
        garbage(&memory).await?.into_iter().filter(|key| key.contains(".base-")).collect();
    assert_eq!(orphan.len(), 1, "its upload arrived and nobody was told");
    assert_eq!(head(&memory).await?.base.len, 0);

    let file = open(Arc::clone(&memory)).await?;
    fill(&file, 10).await?;
    pass(Duration::from_secs(1)).await;
    file.collect(Duration::ZERO).await?;
    assert_eq!(garbage(&memory).await?, [""; 0]);
    assert!(head(&memory).await?.base.len > 0, "the next writer made its own");
    file.close().await?;
    let file = open(memory).await?;
    assert_eq!(file.stats(None).await?.queues[0].counts[&State::Ready], 40);
    file.close().await
}
