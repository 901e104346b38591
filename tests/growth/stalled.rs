//! Writers that stop in the middle and continue after others have collected (P13).

use std::sync::Arc;
use std::time::Duration;

use bucketq::store::Memory;
use bucketq::{Options, Payload, QueueFile, Result, State};
use bucketq_tests::clock::{TestClock, pass};
use bucketq_tests::given::NAME;
use bucketq_tests::puppet::Puppet;

use crate::kit::{fill, garbage, hasty, head};

/// Another writer; all have one clock.
async fn open(puppet: &Puppet, clock: &TestClock, options: Options) -> Result<QueueFile> {
    QueueFile::open_with(puppet.store(), NAME, options, clock.env()).await
}

/// A writer stalls with a base on its way into HEAD, while another one raises the floor above it and collects. Returns
/// the stalled writer, another handle, the base HEAD had before, and the number of jobs.
async fn overtaken(
    slow: &Puppet,
    quick: &Puppet,
    options: Options,
) -> Result<(QueueFile, QueueFile, u64, u64)> {
    let clock = TestClock::start();
    let a = open(slow, &clock, options).await?;
    // Until a base exists that no HEAD refers to yet.
    let based = head(slow.beneath()).await?.base.seq;
    let mut jobs = 0;
    loop {
        fill(&a, 1).await?;
        jobs += 1;
        let left = garbage(slow.beneath()).await?;
        let waits = left.iter().any(|key| key.contains(".base-"));
        if waits && head(slow.beneath()).await?.base.seq == based {
            break;
        }
    }
    // The body that refers to it hangs ...
    slow.hold();
    let queue = a.queue("q")?;
    let sent = tokio::spawn(async move { queue.enqueue(Payload::text("late")).await });
    slow.until_held(1).await;
    pass(Duration::from_secs(1)).await;
    // ... while another writer commits, raises the floor above it and collects.
    let b = open(quick, &clock, Options { base_after: 1 << 30, ..hasty() }).await?;
    b.queue("q")?.enqueue(Payload::text("b")).await?;
    b.collect(Duration::ZERO).await?;
    assert_eq!(garbage(quick.beneath()).await?, [""; 0], "the upload is gone");
    slow.let_go();
    sent.await.expect("no panic")?;
    Ok((a, b, based, jobs + 2))
}

#[tokio::test(start_paused = true)]
async fn a_stalled_writer_drops_the_upload_that_fell_below_the_floor_and_makes_another() -> Result<()> {
    let store = Arc::new(Memory::new());
    let (slow, quick) = (Puppet::over(store.clone()), Puppet::over(store));
    let (a, b, based, jobs) = overtaken(&slow, &quick, hasty()).await?;
    garbage(slow.beneath()).await?;
    assert_eq!(head(slow.beneath()).await?.base.seq, based, "HEAD does not refer to what is gone");

    fill(&a, 10).await?;
    assert!(head(slow.beneath()).await?.base.seq > based, "another base was made");
    garbage(slow.beneath()).await?;
    assert_eq!(b.stats(None).await?.queues[0].counts[&State::Ready], jobs + 10);
    a.close().await?;
    b.close().await
}

#[tokio::test(start_paused = true)]
async fn many_writers_with_frantic_collections_never_lose_an_object_or_a_job() -> Result<()> {
    let puppet = Puppet::over(Arc::new(Memory::new()));
    puppet.takes(Duration::from_millis(20));
    let (clock, mut files) = (TestClock::start(), vec![]);
    for _ in 0..3 {
        files.push(open(&puppet, &clock, hasty()).await?);
    }
    let work = files.iter().enumerate().map(|(i, file)| {
        let file = file.clone();
        tokio::spawn(async move {
            for round in 0..25 {
                fill(&file, 2).await?;
                if (round + i) % 3 == 0 {
                    file.collect(Duration::ZERO).await?;
                }
            }
            Ok::<_, bucketq::Error>(())
        })
    });
    for done in futures_util::future::join_all(work.collect::<Vec<_>>()).await {
        done.expect("no panic")?;
    }
    garbage(puppet.beneath()).await?;
    let fresh = open(&puppet, &clock, hasty()).await?;
    assert_eq!(fresh.stats(None).await?.queues[0].counts[&State::Ready], 150);
    fresh.collect(Duration::ZERO).await?;
    files.push(fresh);
    for file in files {
        file.close().await?;
    }
    Ok(())
}

/// A writer that has stored a commit loses a hundred races with the next one, which is stored in the end.
async fn lost_a_hundred_races(options: Options) -> Result<()> {
    let store = Arc::new(Memory::new());
    let (slow, quick) = (Puppet::over(store.clone()), Puppet::over(store));
    let clock = TestClock::start();
    let (a, b) = (open(&slow, &clock, options).await?, open(&quick, &clock, hasty()).await?);
    a.queue("q")?.enqueue(Payload::text("its newest commit")).await?;
    slow.hold();
    let queue = a.queue("q")?;
    let sent = tokio::spawn(async move { queue.enqueue(Payload::text("late")).await });
    for race in 1..=100 {
        slow.until_held(1).await;
        // In the last race, the base has replaced the records that show the outcome: only the map of writers shows it.
        fill(&b, if race == 100 { 100 } else { 1 }).await?;
        slow.let_these_go().await;
    }
    slow.let_go();
    sent.await.expect("no panic")?;
    assert_eq!(a.stats(None).await?.queues[0].counts[&State::Ready], 201);
    a.close().await?;
    b.close().await
}

#[tokio::test(start_paused = true)]
async fn a_writer_that_lost_a_hundred_races_still_knows_its_own_newest_commit() -> Result<()> {
    lost_a_hundred_races(hasty()).await
}

/// The first test above notices a writer that ignores the floor: it refers to a deleted object. The last one notices a
/// writer that does not recognise its own newest commit any more.
#[cfg(feature = "mutants")]
#[allow(non_snake_case, reason = "a test has the name of its variant")]
mod mutants {
    use std::sync::Arc;

    use bucketq::broken::Broken;
    use bucketq::store::Memory;
    use bucketq::{Code, Options, Result};
    use bucketq_tests::given::refused;
    use bucketq_tests::puppet::Puppet;

    use super::{lost_a_hundred_races, overtaken};
    use crate::kit::{hasty, head, referred};

    #[tokio::test(start_paused = true)]
    async fn ReferBelowFloor() -> Result<()> {
        let store = Arc::new(Memory::new());
        let (slow, quick) = (Puppet::over(store.clone()), Puppet::over(store));
        let broken = Options { broken: Some(Broken::ReferBelowFloor), ..hasty() };
        let (_a, _b, _, _) = overtaken(&slow, &quick, broken).await?;
        let now = head(slow.beneath()).await?;
        let there = slow.beneath().list("").await?;
        let missing = referred(&now).into_iter().filter(|key| !there.iter().any(|l| l.key == *key)).count();
        assert_eq!(missing, 1, "the base HEAD refers to");
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn NewestForgotten() {
        let broken = Options { broken: Some(Broken::NewestForgotten), ..hasty() };
        assert_eq!(refused(lost_a_hundred_races(broken).await).code(), Code::OutcomeUnknown);
    }
}
