//! How a worker finishes its job, and what each call returns.

use std::time::Duration;

use bucketq::{ClaimedJob, Code, Kind, Payload, QueueFile, Result, State};
use bucketq_tests::clock::now;
use bucketq_tests::given::{opened, refused};
use bucketq_tests::ground::Ground;

bucketq_tests::on_every_store! {
    an_ack_keeps_its_result
    an_ack_twice_is_an_ack
    a_nack_with_a_delay_schedules_and_tells_why
    a_release_gives_back_unharmed
    a_reject_is_dead_at_once
    an_extend_moves_the_end_of_the_lease
    a_finished_job_has_no_holder
}

async fn one(file: &QueueFile) -> Result<ClaimedJob> {
    let q = file.queue("q")?;
    q.enqueue(Payload::text("x")).await?;
    Ok(q.claim(1).await?.remove(0))
}

async fn job(file: &QueueFile, taken: &ClaimedJob) -> Result<bucketq::Job> {
    Ok(file.get(taken.job.id).await?.expect("there").job)
}

async fn an_ack_keeps_its_result(ground: &Ground) -> Result<()> {
    let file = opened(ground.store()).await?;
    let taken = one(&file).await?;
    // Larger than a row can hold.
    let result = Payload::text("r".repeat(5_000));
    file.ack_with(taken.held(), result.clone()).await?;
    let detail = file.get(taken.job.id).await?.expect("there");
    assert_eq!((detail.job.state, detail.result), (State::Done, Some(result)));
    assert_eq!(detail.payload.bytes, "x");
    assert!(detail.job.finished_ms.is_some());
    file.close().await
}

async fn an_ack_twice_is_an_ack(ground: &Ground) -> Result<()> {
    let file = opened(ground.store()).await?;
    let taken = one(&file).await?;
    file.ack(taken.held()).await?;
    file.ack(taken.held()).await?;
    assert_eq!(file.queues(None).await?[0].counts[&State::Done], 1);
    file.close().await
}

async fn a_nack_with_a_delay_schedules_and_tells_why(ground: &Ground) -> Result<()> {
    let file = opened(ground.store()).await?;
    let taken = one(&file).await?;
    let delay = Duration::from_hours(1);
    assert_eq!(file.nack(taken.held(), Some(delay), Some("no route".into())).await?, State::Scheduled);
    let seen = job(&file, &taken).await?;
    assert_eq!((seen.state, seen.last_error.as_deref()), (State::Scheduled, Some("no route")));
    assert!(seen.run_at_ms - seen.claimed_ms.expect("claimed") >= 3_600_000);
    assert!(file.claim(1).await?.is_empty());

    let next = one(&file).await?;
    assert_eq!(file.nack(next.held(), Some(Duration::ZERO), Some("busy".into())).await?, State::Ready);
    let again = file.claim(1).await?.remove(0);
    assert_eq!((again.job.id, again.job.attempt), (next.job.id, 2));
    assert_eq!(again.job.last_error.as_deref(), Some("busy"));
    file.close().await
}

async fn a_release_gives_back_unharmed(ground: &Ground) -> Result<()> {
    let file = opened(ground.store()).await?;
    let taken = one(&file).await?;
    file.release(taken.held()).await?;
    let seen = job(&file, &taken).await?;
    assert_eq!((seen.state, seen.attempt), (State::Ready, 0));
    let again = file.claim(1).await?.remove(0);
    assert_eq!((again.job.id, again.job.attempt), (taken.job.id, 1));
    file.close().await
}

async fn a_reject_is_dead_at_once(ground: &Ground) -> Result<()> {
    let file = opened(ground.store()).await?;
    let taken = one(&file).await?;
    file.reject(taken.held(), Some("not a number".into())).await?;
    let seen = job(&file, &taken).await?;
    assert_eq!((seen.state, seen.last_error.as_deref()), (State::Dead, Some("not a number")));
    file.close().await
}

async fn an_extend_moves_the_end_of_the_lease(ground: &Ground) -> Result<()> {
    let file = opened(ground.store()).await?;
    let taken = one(&file).await?;
    let before = now();
    let lease = Duration::from_mins(10);
    let deadline = file.extend(taken.held(), lease).await?;
    assert!(deadline >= before + lease - file.max_skew()? && deadline > taken.deadline);
    let seen = job(&file, &taken).await?;
    assert!(seen.expires_ms.expect("leased") >= taken.lease.expires_ms + 500_000);
    file.ack(taken.held()).await?;
    file.close().await
}

async fn a_finished_job_has_no_holder(ground: &Ground) -> Result<()> {
    let file = opened(ground.store()).await?;
    let taken = one(&file).await?;
    file.ack(taken.held()).await?;
    for result in [
        file.release(taken.held()).await,
        file.reject(taken.held(), None).await,
        file.nack(taken.held(), None, None).await.map(drop),
        file.extend(taken.held(), Duration::from_mins(1)).await.map(drop),
    ] {
        let error = refused(result);
        assert_eq!((error.kind(), error.code()), (Kind::LeaseLost, Code::LeaseLost));
    }
    assert_eq!(job(&file, &taken).await?.state, State::Done);
    file.close().await
}
