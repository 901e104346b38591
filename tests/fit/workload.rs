//! The workload that a queue file reports is the one it had.

use std::sync::Arc;
use std::time::Duration;

use bucketq::fit::{Inputs, Workload, evaluate};
use bucketq::store::Memory;
use bucketq::{Host, Options, Payload, QueueFile, Result};
use bucketq_tests::clock::{TestClock, pass};
use bytes::Bytes;

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

async fn open() -> Result<QueueFile> {
    QueueFile::open_with(
        Arc::new(Memory::new()),
        "jobs",
        Options { host: Host::CurrentRuntime, ..Options::default() },
        TestClock::start().env(),
    )
    .await
}

/// A job each half second, claimed 100 ms later, worked on for 200 ms.
async fn steady(file: &QueueFile, jobs: u32) -> Result<()> {
    let queue = file.queue("mail")?;
    for _ in 0..jobs {
        queue.enqueue(Payload::bytes(Bytes::from_static(&[7; 50]))).await?;
        pass(ms(100)).await;
        let taken = queue.claim(1).lease(ms(9_000)).worker("ada").await?;
        pass(ms(200)).await;
        for job in &taken {
            file.ack(job.held()).await?;
        }
        pass(ms(200)).await;
    }
    Ok(())
}

fn near(have: Option<f64>, want: f64) -> bool {
    have.is_some_and(|have| (have - want).abs() <= 0.03 * want)
}

#[tokio::test(start_paused = true)]
async fn a_steady_workload_is_told_as_it_was() -> Result<()> {
    let file = open().await?;
    steady(&file, 40).await?;
    let told = file.workload().await?;
    let i = told.inputs;
    assert!(told.complete && told.jobs == 40, "{told:?}");
    assert!(near(i.arrival, 2.0) && near(i.work_ms, 200.0) && near(i.mutations, 3.0), "{told:?}");
    assert!(near(told.dispatch.map(|d| d.mean_ms), 100.0), "{told:?}");
    assert_eq!(
        (i.payload, i.retries, i.consumers, i.prefetch),
        (Some(50.0), Some(0.0), Some(1.0), Some(1.0))
    );
    assert_eq!((i.writers, i.batch, told.commits >= 120), (Some(1.0), Some(1.0), true), "{told:?}");
    assert_eq!(i.lease_ms, None, "nothing is held");
    let inputs = i.on(&Inputs { latency_ms: 70.0, ..Inputs::default() });
    assert!((inputs.latency_ms, inputs.work_ms) == (70.0, i.work_ms.unwrap_or(0.0)), "{inputs:?}");
    evaluate(&inputs)?;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn deleted_jobs_do_not_make_arrivals_look_rare() -> Result<()> {
    let file = open().await?;
    // Long ago: one job of which only the finish is kept, or not even that.
    steady(&file, 1).await?;
    pass(Duration::from_hours(100)).await;
    steady(&file, 1_200).await?;
    let told = file.workload().await?;
    assert!(told.jobs < 1_100, "finished ones are kept for a while only: {}", told.jobs);
    assert!(near(told.inputs.arrival, 2.0), "{told:?}");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn retries_and_workers_at_the_same_time_are_seen() -> Result<()> {
    let file = open().await?;
    let queue = file.queue("mail")?;
    for round in 0..20 {
        for _ in 0..4 {
            queue.enqueue(Payload::bytes(Bytes::from_static(b"x"))).await?;
        }
        if round % 2 == 0 {
            for job in &queue.claim(4).lease(ms(9_000)).worker("ada").await? {
                file.nack(job.held(), Some(Duration::ZERO), None).await?;
            }
        }
        let taken = queue.claim(4).lease(ms(9_000)).worker("ada").await?;
        pass(ms(1_000)).await;
        for job in &taken {
            file.ack(job.held()).await?;
        }
    }
    let held = queue.enqueue(Payload::bytes(Bytes::from_static(b"x"))).await?;
    let _kept = queue.claim(1).lease(ms(9_000)).await?;
    let i = file.workload().await?.inputs;
    assert!(near(i.retries, 0.5), "{i:?} {held:?}");
    assert_eq!((i.consumers, i.prefetch, i.lease_ms), (Some(4.0), Some(4.0), Some(9_000.0)), "{i:?}");
    // 1 enqueue, 1.5 claims a quarter, 1.5 acks or nacks, less two for each retry.
    assert!(near(i.mutations, 1.0 + 1.5 / 4.0 + 1.5 - 1.0), "{i:?}");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn an_empty_file_says_that_it_knows_nothing() -> Result<()> {
    let Workload { jobs, work, dispatch, inputs, .. } = open().await?.workload().await?;
    assert_eq!((jobs, work, dispatch, inputs.arrival, inputs.work_ms), (0, None, None, None, None));
    evaluate(&inputs.on(&Inputs::default()))?;
    Ok(())
}
