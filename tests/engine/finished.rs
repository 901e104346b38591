//! Waiting until a job is finished.

use std::time::Duration;

use bucketq::{Code, JobId, Payload, Result, State};
use bucketq_tests::clock::{now, pass};
use bucketq_tests::given::{inline, on_puppet, puppet, refused};

const LEASE: Duration = Duration::from_mins(1);

#[tokio::test(start_paused = true)]
async fn a_job_finished_in_this_process_is_noticed_at_once() -> Result<()> {
    let (puppet, file) = puppet(inline()).await?;
    let receipt = file.queue("q")?.enqueue(Payload::text("x")).await?;
    let waiting = tokio::spawn({
        let file = file.clone();
        async move { file.finished(receipt.id, None).await }
    });
    pass(Duration::from_mins(1)).await;
    let taken = file.claim(1).lease(LEASE).await?;
    let (began, before) = (now(), puppet.requests().gets);
    file.ack_with(taken[0].held(), Payload::text("y")).await?;
    let detail = waiting.await.expect("no panic")?.expect("it is finished");
    assert_eq!(detail.result, Some(Payload::text("y")));
    assert!(now() - began < Duration::from_millis(100));
    assert!(puppet.requests().gets - before <= 1);
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn a_job_finished_by_another_process_is_noticed_at_the_next_poll_and_polls_get_rarer() -> Result<()> {
    let (puppet, file) = puppet(inline()).await?;
    let other = on_puppet(&puppet, inline()).await?;
    let receipt = file.queue("q")?.enqueue(Payload::text("x")).await?;
    let waiting = tokio::spawn({
        let file = file.clone();
        async move { file.finished(receipt.id, None).await }
    });
    let before = puppet.requests().gets;
    pass(Duration::from_mins(10)).await;
    let gets = puppet.requests().gets - before;
    assert!((110..=130).contains(&gets), "{gets} gets in ten minutes");
    let taken = other.claim(1).lease(LEASE).await?;
    other.nack(taken[0].held(), None, None).await?;
    other.cancel(receipt.id).await?;
    let began = now();
    let detail = waiting.await.expect("no panic")?.expect("it is finished");
    assert_eq!(detail.job.state, State::Cancelled);
    assert!(now() - began <= Duration::from_millis(5_100), "{:?}", now() - began);
    other.close().await?;
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn the_wait_ends_in_time_without_a_job() -> Result<()> {
    let (_, file) = puppet(inline()).await?;
    let receipt = file.queue("q")?.enqueue(Payload::text("x")).await?;
    let began = now();
    assert_eq!(file.finished(receipt.id, Some(Duration::from_secs(7))).await?, None);
    assert_eq!((now() - began).as_secs(), 7);
    assert_eq!(file.finished(receipt.id, Some(Duration::ZERO)).await?, None);
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn a_job_that_is_not_there_and_a_handle_that_closes_end_the_wait() -> Result<()> {
    let (_, file) = puppet(inline()).await?;
    let nobody = JobId::new(0, [7; 10]);
    assert_eq!(refused(file.finished(nobody, None).await).code(), Code::NoSuchJob);
    let receipt = file.queue("q")?.enqueue(Payload::text("x")).await?;
    let waiting = tokio::spawn({
        let file = file.clone();
        async move { file.finished(receipt.id, None).await }
    });
    pass(Duration::from_secs(1)).await;
    file.close().await?;
    assert_eq!(refused(waiting.await.expect("no panic")).code(), Code::Closed);
    Ok(())
}
