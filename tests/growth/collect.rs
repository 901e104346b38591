//! When the floor moves, which objects are deleted, and the cost (P13 to P16, G9).

use std::sync::Arc;
use std::time::Duration;

use bucketq::store::{Memory, Store};
use bucketq::{Code, Options, Payload, QueueFile, Result};
use bucketq_tests::clock::{TestClock, pass};
use bucketq_tests::given::{NAME, inline, objects, on_puppet, opened, puppet, refused};

use crate::kit::{Busy, calm, drain, fill, garbage, hasty, head, noise, referred};

const DAY: Duration = Duration::from_hours(24);

#[tokio::test(start_paused = true)]
async fn the_floor_follows_a_grace_period_behind_and_what_lies_below_goes() -> Result<()> {
    let (puppet, file) = puppet(hasty()).await?;
    let store = puppet.beneath();
    fill(&file, 60).await?;
    calm(&file).await?;
    let first_day = garbage(store).await?;
    assert!(first_day.len() > 4, "{first_day:?}");
    assert_eq!((puppet.requests().lists, puppet.requests().deletes), (3, 0), "three lists made the file");

    // A day later the floor moves to the first candidate, commit 0: nothing is below it.
    pass(DAY).await;
    fill(&file, 1).await?;
    pass(Duration::from_secs(1)).await;
    let noted = head(store).await?;
    assert_eq!((noted.gc_floor, noted.floor_candidate), (0, noted.commit_seq));
    assert!(first_day.iter().all(|key| !referred(&noted).contains(key)));
    fill(&file, 60).await?;
    assert_eq!(head(store).await?.gc_floor, 0, "within the grace period it stays");

    pass(DAY).await;
    fill(&file, 1).await?;
    pass(Duration::from_secs(1)).await;
    let raised = head(store).await?;
    assert_eq!(raised.gc_floor, noted.commit_seq);
    let left = garbage(store).await?;
    assert!(first_day.iter().all(|key| !left.contains(key)), "the first day's garbage is gone: {left:?}");
    assert!(!left.is_empty(), "the second day's is not");
    let old = |seq: u64| seq < raised.gc_floor;
    assert!(raised.retired.iter().any(|r| old(r.at)), "they leave the list in a later commit ...");
    fill(&file, 1).await?;
    assert!(!head(store).await?.retired.iter().any(|r| old(r.at)), "... which is this one");
    assert_eq!(puppet.requests().lists, 4, "one for the floor, and the three that made the file");
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn an_idle_queue_file_collects_nothing_and_asks_nothing() -> Result<()> {
    let (puppet, file) = puppet(hasty()).await?;
    fill(&file, 60).await?;
    pass(Duration::from_secs(1)).await;
    let before = puppet.requests();
    pass(10 * DAY).await;
    assert_eq!(puppet.requests(), before);
    file.close().await
}

/// The number of lists in an hour of commits, with a grace of ten minutes.
async fn lists_in_an_hour(options: Options) -> Result<u64> {
    let (puppet, file) = puppet(Options { grace: Duration::from_mins(10), ..options }).await?;
    let start = puppet.requests().lists;
    for _ in 0..60 {
        fill(&file, 5).await?;
        pass(Duration::from_mins(1)).await;
    }
    let lists = puppet.requests().lists - start;
    file.close().await?;
    Ok(lists)
}

#[tokio::test(start_paused = true)]
async fn there_is_one_list_a_grace_period_however_many_commits() -> Result<()> {
    let lists = lists_in_an_hour(hasty()).await?;
    assert!((4..=6).contains(&lists), "{lists} lists in an hour with a grace of ten minutes");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn with_no_grace_everything_goes_that_head_does_not_refer_to() -> Result<()> {
    let (puppet, file) = puppet(hasty()).await?;
    let store = puppet.beneath();
    fill(&file, 60).await?;
    let before = objects(store).await?.len();
    let told = file.collect(Duration::ZERO).await?;
    assert_eq!(garbage(store).await?, [""; 0]);
    assert_eq!((told.left, told.left_bytes), (0, 0));
    assert!(told.objects > 4 && told.bytes > 100_000, "{told:?}");
    assert!(objects(store).await?.len() < before);

    // Repeating it needs no commit.
    let puts = puppet.requests().puts;
    let again = file.collect(Duration::ZERO).await?;
    assert_eq!((again.objects, again.left, puppet.requests().puts), (0, 0, puts));

    // The file is complete: a new process opens it, and work continues.
    let other = on_puppet(&puppet, hasty()).await?;
    assert_eq!(other.stats(None).await?.queues[0].counts[&bucketq::State::Ready], 60);
    drain(&other).await?;
    assert!(file.claim(1).await?.is_empty());
    other.close().await?;
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn what_was_needed_within_the_grace_period_stays_and_costs_no_commit() -> Result<()> {
    let (puppet, file) = puppet(hasty()).await?;
    fill(&file, 60).await?;
    // Bases and merged segments come into HEAD by a commit, and the commits below must not include them.
    for _ in 0..3 {
        pass(Duration::from_secs(1)).await;
        file.settle().await?;
    }
    let (before, puts) = (garbage(puppet.beneath()).await?, puppet.requests().puts);
    let told = file.collect(Duration::from_mins(1)).await?;
    assert_eq!((told.objects, told.left), (0, before.len() as u64));
    assert!(told.left_bytes > 0);
    assert_eq!(garbage(puppet.beneath()).await?, before);
    assert_eq!(puppet.requests().puts, puts);

    // With a grace shorter than the file's own: one request notes HEAD's commit as a candidate, a later one moves the
    // floor.
    pass(Duration::from_mins(2)).await;
    let told = file.collect(Duration::from_mins(1)).await?;
    assert_eq!(told.objects, 0, "nothing was noted before: {told:?}");
    let soon = file.collect(Duration::from_mins(1)).await?;
    assert_eq!((soon.objects, puppet.requests().puts), (0, puts + 1));
    pass(Duration::from_mins(2)).await;
    let told = file.collect(Duration::from_mins(1)).await?;
    assert!(told.objects > 4, "{told:?}");
    assert_eq!(garbage(puppet.beneath()).await?, [""; 0]);
    file.close().await
}

/// A process whose options let the log grow has left more than 4 MiB that does not compress: a base saves next to
/// nothing, so only the length of the log makes it due. It must come before the floor rises and not after: at close.
#[tokio::test(start_paused = true)]
async fn a_base_that_is_due_comes_before_the_collection_and_not_at_close() -> Result<()> {
    let patient = Options { base_after: 1 << 40, tail: 1024, ..inline() };
    let (puppet, file) = puppet(hasty()).await?;
    let store = puppet.beneath();
    let other = on_puppet(&puppet, patient).await?;
    let queue = other.queue("q")?;
    for seed in 0..20 {
        queue.enqueue(noise(seed, 250_000)).await?;
    }
    calm(&other).await?;
    other.close().await?;
    let before = head(store).await?;
    assert_eq!(before.base.len, 0, "the file has no base yet");

    file.collect(Duration::ZERO).await?;
    file.close().await?;
    assert!(head(store).await?.base.len > 4 << 20, "a base was due");
    assert_eq!(garbage(store).await?, [""; 0]);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_base_under_way_is_waited_for_and_its_forerunner_goes() -> Result<()> {
    let (puppet, file) = puppet(hasty()).await?;
    let store = puppet.beneath();
    puppet.takes(Duration::from_millis(500));
    // Until the log is longer than the base: then another base is being written.
    let begun = loop {
        fill(&file, 1).await?;
        let now = head(store).await?;
        if now.base.len > 0 && now.log_len() > now.base.len.max(hasty().base_after) {
            break now;
        }
    };
    file.collect(Duration::ZERO).await?;
    let found = head(store).await?;
    assert!(found.base.seq >= begun.commit_seq, "the newest base is in: {}", found.base.seq);
    assert_eq!(garbage(store).await?, [""; 0]);
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn a_store_that_refuses_deletes_and_lists_costs_nobody_anything() -> Result<()> {
    let memory: Arc<dyn Store> = Arc::new(Memory::new());
    let busy = Busy::over(Arc::clone(&memory));
    let options = Options { grace: Duration::from_mins(1), ..hasty() };
    let file = QueueFile::open_with(busy.clone(), NAME, options, TestClock::start().env()).await?;
    busy.stubborn.store(true, std::sync::atomic::Ordering::Relaxed);
    for _ in 0..4 {
        fill(&file, 20).await?;
        pass(Duration::from_mins(2)).await;
    }
    let error = refused(file.collect(Duration::ZERO).await);
    assert_eq!(error.code(), Code::Denied, "{error}");
    assert!(garbage(&memory).await?.len() > 10);

    // Once it is repaired, the next floor finds everything.
    busy.stubborn.store(false, std::sync::atomic::Ordering::Relaxed);
    for _ in 0..2 {
        pass(Duration::from_mins(2)).await;
        file.queue("q")?.enqueue(Payload::text("small")).await?;
    }
    pass(Duration::from_secs(1)).await;
    assert_eq!(garbage(&memory).await?, [""; 0]);
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn closing_waits_for_the_pass_under_way() -> Result<()> {
    let (puppet, file) = puppet(Options { grace: Duration::from_mins(1), ..hasty() }).await?;
    fill(&file, 40).await?;
    calm(&file).await?;
    for _ in 0..2 {
        pass(Duration::from_mins(2)).await;
        file.queue("q")?.enqueue(Payload::text("small")).await?;
    }
    file.close().await?;
    assert_eq!(garbage(puppet.beneath()).await?, [""; 0]);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_file_that_was_put_back_is_not_collected_by_who_knows_better() -> Result<()> {
    let (puppet, file) = puppet(Options { grace: Duration::from_mins(1), ..hasty() }).await?;
    let store = puppet.beneath();
    fill(&file, 20).await?;
    let old = bucketq_tests::given::object(store, "jobs.head").await?.expect("there");
    fill(&file, 20).await?;
    pass(Duration::from_secs(1)).await;
    store.put_new("jobs.head", old).await?;
    let before = objects(store).await?;
    let error = refused(file.collect(Duration::ZERO).await);
    assert_eq!(error.code(), Code::RolledBack, "{error}");
    assert_eq!(objects(store).await?, before);
    file.close().await
}

#[tokio::test]
async fn a_grace_too_short_to_read_in_is_refused() {
    let options = Options { grace: Duration::from_secs(1), ..Options::default() };
    assert_eq!(refused(options.check()).code(), Code::Option);
}

#[tokio::test]
async fn it_works_on_a_thread_of_its_own_too() -> Result<()> {
    let store: Arc<dyn Store> = Arc::new(Memory::new());
    let file = opened(Arc::clone(&store)).await?;
    fill(&file, 300).await?;
    let told = file.collect(Duration::ZERO).await?;
    assert!(told.objects > 0, "{told:?}");
    assert_eq!(garbage(&store).await?, [""; 0]);
    file.close().await
}

/// The test above notices a writer that lists after every commit.
#[cfg(feature = "mutants")]
#[allow(non_snake_case, reason = "a test has the name of its variant")]
mod mutants {
    use bucketq::broken::Broken;
    use bucketq::{Options, Result};

    use super::lists_in_an_hour;
    use crate::kit::hasty;

    #[tokio::test(start_paused = true)]
    async fn EveryCommitCollects() -> Result<()> {
        let broken = Options { broken: Some(Broken::EveryCommitCollects), ..hasty() };
        let lists = lists_in_an_hour(broken).await?;
        println!("caught EveryCommitCollects: {lists} lists");
        assert!(lists > 6, "{lists} lists");
        Ok(())
    }
}
