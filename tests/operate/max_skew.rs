//! How far clocks may differ is changed while no worker holds a job, and with a lineage of its own.

use std::sync::Arc;
use std::time::Duration;

use bucketq::operate::{check_with, set_max_skew_with};
use bucketq::store::{Memory, Store};
use bucketq::{Code, Options, Payload, QueueFile, Result, State};
use bucketq_tests::clock::TestClock;
use bucketq_tests::given::{NAME, inline, objects, refused};

use crate::head;

const SECOND: Duration = Duration::from_secs(1);

async fn given() -> Result<(Arc<dyn Store>, TestClock, QueueFile)> {
    let (store, clock): (Arc<dyn Store>, _) = (Arc::new(Memory::new()), TestClock::start());
    let options = Options { max_skew: Some(5 * SECOND), ..inline() };
    let file = QueueFile::open_with(Arc::clone(&store), NAME, options, clock.env()).await?;
    file.queue("q")?.enqueue(Payload::text("a")).await?;
    Ok((store, clock, file))
}

#[tokio::test(start_paused = true)]
async fn the_new_value_counts_for_every_process_that_opens_the_file() -> Result<()> {
    let (store, clock, file) = given().await?;
    let error = refused(file.claim(1).lease(9 * SECOND).await);
    assert!(error.message().contains("set-max-skew"), "{error}");
    let done = set_max_skew_with(Arc::clone(&store), NAME, SECOND, inline(), clock.env()).await?;
    assert_eq!((done.was_ms, done.max_skew_ms), (5_000, 1_000));
    assert_eq!(done.commit_seq, Some(head(&store).await?.commit_seq));
    assert_eq!(head(&store).await?.max_skew_ms, 1_000);
    // A process that judges leases by the old value halts.
    assert_eq!(refused(file.stats(None).await).code(), Code::RolledBack);

    let file = QueueFile::open_with(Arc::clone(&store), NAME, inline(), clock.env()).await?;
    let job = file.claim(1).lease(9 * SECOND).await?.remove(0);
    file.ack(job.held()).await?;
    assert_eq!(file.stats(None).await?.queues[0].counts[&State::Done], 1, "no job was lost");
    file.close().await?;
    let report = check_with(Arc::clone(&store), NAME, Options::default()).await?;
    assert!(report.is_clean(), "{report:?}");

    let before = objects(&store).await?;
    let again = set_max_skew_with(Arc::clone(&store), NAME, SECOND, inline(), clock.env()).await?;
    assert_eq!((again.was_ms, again.commit_seq), (1_000, None));
    assert_eq!(objects(&store).await?, before, "the second time nothing is written");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn nothing_changes_while_a_worker_holds_a_job_or_the_value_is_out_of_bounds() -> Result<()> {
    let (store, clock, file) = given().await?;
    let held = file.claim(1).lease(20 * SECOND).await?.remove(0);
    let before = objects(&store).await?;
    let change = |skew, options| set_max_skew_with(Arc::clone(&store), NAME, skew, options, clock.env());
    let error = refused(change(SECOND, inline()).await);
    assert_eq!(error.code(), Code::State);
    assert!(error.message().contains("workers hold 1 job,"), "{error}");
    assert_eq!(refused(change(Duration::from_hours(2), inline()).await).code(), Code::Option);
    let reading = Options { read_only: true, ..inline() };
    assert_eq!(refused(change(SECOND, reading).await).code(), Code::ReadOnly);
    assert_eq!(objects(&store).await?, before);
    file.ack(held.held()).await?;
    assert_eq!(change(SECOND, inline()).await?.was_ms, 5_000);
    let missing = set_max_skew_with(Arc::new(Memory::new()), NAME, SECOND, inline(), clock.env()).await;
    assert!(missing.is_err(), "no queue file is created");
    Ok(())
}
