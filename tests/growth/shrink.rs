//! A drained queue file becomes small again: its pages, its base, the objects in the bucket.

use std::time::Duration;

use bucketq::internals::pages::{PageFile, Pages};
use bucketq::op::Op;
use bucketq::{QueueFile, Result, State};
use bucketq_tests::clock::pass;
use bucketq_tests::given::{inline, on_puppet, puppet};
use bucketq_tests::queue_db::{World, check, enqueue, job};
use futures_util::future::join_all;

use crate::kit::{garbage, head, noise};

const JOBS: u64 = 20_000;

async fn fill(file: &QueueFile, jobs: u64) -> Result<()> {
    let queue = file.queue("q")?;
    for from in (0..jobs).step_by(2_000) {
        let some = (from..from + 2_000).map(|i| queue.new_job(noise(i, 200)));
        queue.enqueue_many(some.collect::<Result<_>>()?).await?;
    }
    Ok(())
}

/// Claim and ack in steps of this many. Returns the largest delta of a commit.
async fn drain(file: &QueueFile, step: u32) -> Result<u64> {
    let mut largest = 0;
    loop {
        let taken = file.claim(step).lease(Duration::from_hours(1)).await?;
        if taken.is_empty() {
            return Ok(largest);
        }
        let before = file.metrics()?;
        for done in join_all(taken.iter().map(|job| file.ack(job.held()))).await {
            done?;
        }
        let after = file.metrics()?;
        let commits = (after.commits - before.commits).max(1);
        largest = largest.max((after.delta_bytes - before.delta_bytes) / commits);
    }
}

#[tokio::test(start_paused = true)]
async fn a_drained_file_shrinks_in_memory_and_in_the_bucket() -> Result<()> {
    let (puppet, file) = puppet(inline()).await?;
    let store = puppet.beneath();
    fill(&file, JOBS).await?;
    file.collect(Duration::ZERO).await?;
    let bytes = || async { Ok::<u64, bucketq::Error>(store.list("").await?.iter().map(|l| l.size).sum()) };
    let (full, peak) = (file.stats(None).await?, bytes().await?);
    assert!(full.pages > 1_500 && peak > 4_000_000, "{} pages, {peak} bytes", full.pages);

    // The ids of jobs that leave within an hour are remembered (decision 24); these are older.
    pass(Duration::from_hours(1)).await;

    let largest = drain(&file, 500).await?;
    assert!(largest < 1_000_000, "the largest delta has {largest} bytes");
    let drained = file.stats(None).await?;
    // A thousand finished jobs are kept; their pages and some free ones are left.
    let live = drained.pages - drained.free_pages;
    assert!(drained.free_pages <= (live / 4).max(32), "{} of {} are free", drained.free_pages, drained.pages);
    assert!(drained.pages * 8 < full.pages, "{} of {} pages", drained.pages, full.pages);

    // The base of the full file is replaced by a base of the remaining pages.
    file.collect(Duration::ZERO).await?;
    assert_eq!(garbage(store).await?, [""; 0]);
    let left = bytes().await?;
    assert!(left * 8 < peak, "{left} of {peak} bytes");
    let head = head(store).await?;
    assert!(head.base.len < peak / 8);
    // And the log of the draining is gone with it.
    assert!(head.log_len() < 128 * 1024, "{} bytes of log, {} of base", head.log_len(), head.base.len);

    let before = puppet.requests();
    pass(Duration::from_hours(48)).await;
    assert_eq!(puppet.requests(), before, "shrinking asks for nothing when nothing happens");
    let other = on_puppet(&puppet, inline()).await?;
    assert_eq!(other.stats(None).await?.queues[0].counts[&State::Ready], 0);
    other.close().await?;
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn jobs_acked_one_by_one_pay_for_it_in_small_coins() -> Result<()> {
    let (_, file) = puppet(inline()).await?;
    fill(&file, 4_000).await?;
    let full = file.stats(None).await?.pages;
    let mut largest = 0;
    loop {
        let taken = file.claim(100).lease(Duration::from_hours(1)).await?;
        for job in &taken {
            let before = file.metrics()?.delta_bytes;
            file.ack(job.held()).await?;
            largest = largest.max(file.metrics()?.delta_bytes - before);
        }
        if taken.is_empty() {
            break;
        }
    }
    // If retention deletes a batch, half a megabyte at once would be noticeable; this is a few pages.
    assert!(largest < 128 * 1024, "the largest delta has {largest} bytes");
    let stats = file.stats(None).await?;
    assert!(stats.pages * 2 < full, "{} of {full} pages", stats.pages);
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn a_purge_of_everything_shrinks_the_file_at_once() -> Result<()> {
    let (_, file) = puppet(inline()).await?;
    fill(&file, JOBS).await?;
    file.call(Op::Purge { queue: "q".into(), states: vec![State::Ready] }).await?;
    let stats = file.stats(None).await?;
    // An empty table or index is a page, and 32 free pages may stay.
    assert!(stats.pages < 155, "{} pages, {} of them free", stats.pages, stats.free_pages);
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn claims_that_find_nothing_shrink_nothing_and_put_nothing() -> Result<()> {
    let (puppet, file) = puppet(inline()).await?;
    fill(&file, 4_000).await?;
    drain(&file, 4_000).await?;
    let (before, pages) = (puppet.requests().puts, file.stats(None).await?.pages);
    for _ in 0..20 {
        assert!(file.claim(1).await?.is_empty());
    }
    assert_eq!((puppet.requests().puts, file.stats(None).await?.pages), (before, pages));
    file.close().await
}

/// The database alone, on separate pages: sound after every step, and the same if a batch runs again.
#[test]
fn giving_back_pages_keeps_the_database_sound_and_depends_on_nothing_but_the_batch() {
    let file = PageFile::new(Pages::new());
    let mut w = World::on(file.connect(100_000).expect("it connects"));
    for from in (0..4_000).step_by(500) {
        w.ok(&enqueue("q", (from..from + 500).map(job)));
    }
    file.with(Pages::take_changes);
    let full = file.with(|p| p.page_count());
    for round in 0..40 {
        let purge = if round == 39 {
            Op::Purge { queue: "q".into(), states: vec![State::Ready, State::Cancelled] }
        } else {
            Op::Atomic(
                (0..100)
                    .map(|i| Op::Cancel { id: bucketq_tests::queue_db::id(round * 100 + i), leased: false })
                    .collect(),
            )
        };
        let mut sums = vec![];
        for again in [true, false] {
            w.db.begin().expect("begins");
            w.apply(&purge).expect("it is done");
            w.db.commit().expect("commits");
            let changes = file.with(Pages::take_changes);
            sums.push(changes.new_checksum());
            if again {
                file.with(|p| p.undo(changes)).expect("nothing is open");
                w.db.forget();
                file.reset_cache(w.db.connection()).expect("nothing is open");
            }
        }
        assert_eq!(sums[0], sums[1], "round {round}");
        w.commit_seq += 1;
        check(w.db.connection());
    }
    let left = file.with(|p| p.page_count());
    assert!(left * 2 < full, "{left} of {full} pages");
}
