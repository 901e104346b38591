//! The cost of idle and waiting handles, and when a waiting claim wakes.

use std::time::Duration;

use bucketq::{Kind, Options, Payload, Result, State, When};
use bucketq_tests::clock::{now, pass};
use bucketq_tests::given::{inline, on_puppet, puppet, refused};
use bucketq_tests::puppet::OnGet;
use futures_util::future::join_all;

#[tokio::test(start_paused = true)]
async fn an_idle_queue_file_asks_nothing() -> Result<()> {
    let (puppet, file) = puppet(inline()).await?;
    let q = file.queue("q")?;
    q.enqueue(Payload::text("x")).await?;
    let mut later = q.new_job(Payload::text("later"))?;
    later.when = When::In(1_000);
    q.enqueue_job(later).await?;
    q.claim(1).lease(Duration::from_secs(2)).await?;
    pass(Duration::from_secs(1)).await;
    let before = puppet.requests();
    pass(Duration::from_hours(24)).await;
    assert_eq!(puppet.requests(), before);
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn waiting_claims_cost_gets_only_and_fewer_with_time() -> Result<()> {
    let (puppet, file) = puppet(inline()).await?;
    let waiting: Vec<_> =
        (0..100).map(|_| tokio::spawn(file.claim(1).wait_forever().into_future())).collect();
    pass(Duration::from_secs(1)).await;
    let (before, metrics) = (puppet.requests(), file.metrics()?);
    pass(Duration::from_secs(59)).await;
    let minute = puppet.requests();
    assert_eq!((minute.puts, minute.new, minute.lists), (before.puts, before.new, before.lists));
    let gets = minute.gets - before.gets;
    assert!((55..=62).contains(&gets), "{gets} gets in a minute for a hundred claims");
    pass(Duration::from_mins(10)).await;
    let later = puppet.requests();
    assert!((599..=601).contains(&(later.gets - minute.gets)), "one a second: {later:?}");
    assert_eq!(later.puts, minute.puts);
    let after = file.metrics()?;
    assert_eq!(
        after.gets_unchanged - metrics.gets_unchanged,
        after.gets - metrics.gets,
        "none carried a body"
    );
    file.close().await?;
    assert!(
        join_all(waiting).await.into_iter().all(|r| refused(r.expect("no panic")).kind() == Kind::Closed)
    );
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn the_poll_intervals_are_the_options() -> Result<()> {
    let poll = Duration::from_secs(2);
    let (puppet, file) = puppet(Options { poll_min: poll, poll_max: poll, ..inline() }).await?;
    let before = puppet.requests().gets;
    assert!(file.claim(1).wait(Duration::from_secs(21)).await?.is_empty());
    let gets = puppet.requests().gets - before;
    assert!((10..=12).contains(&gets), "{gets} gets");
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn a_job_of_this_process_wakes_at_once_and_one_of_another_by_the_next_poll() -> Result<()> {
    let (puppet, file) = puppet(inline()).await?;
    let other = on_puppet(&puppet, inline()).await?;
    for (enqueuer, within) in [(&file, 20), (&other, 5_100)] {
        let waiting = tokio::spawn(file.claim(1).wait_forever().into_future());
        pass(Duration::from_mins(5)).await;
        let before = now();
        enqueuer.queue("q")?.enqueue(Payload::text("x")).await?;
        let jobs = waiting.await.expect("no panic")?;
        assert_eq!(jobs.len(), 1);
        assert!(now() - before <= Duration::from_millis(within), "{:?}", now() - before);
    }
    file.close().await?;
    other.close().await
}

#[tokio::test(start_paused = true)]
async fn due_times_and_ends_of_leases_wake_without_a_poll() -> Result<()> {
    let slow = Options { poll_min: Duration::from_hours(2), poll_max: Duration::from_hours(2), ..inline() };
    let (puppet, file) = puppet(slow).await?;
    let q = file.queue("q")?;
    let mut job = q.new_job(Payload::text("x"))?;
    job.when = When::In(600_000);
    q.enqueue_job(job).await?;
    let gets = puppet.requests().gets;
    let before = now();
    let taken = q.claim(1).lease(Duration::from_mins(1)).wait_forever().await?.remove(0);
    let waited = now() - before;
    assert!(waited >= Duration::from_mins(10) && waited < Duration::from_secs(601), "{waited:?}");

    let before = now();
    let again = q.claim(1).wait_forever().await?.remove(0);
    let waited = now() - before;
    assert!(waited >= Duration::from_secs(59) && waited < Duration::from_secs(62), "{waited:?}");
    assert_eq!((again.job.id, again.job.attempt), (taken.job.id, 2));
    assert!(puppet.requests().gets <= gets + 2, "only the looks before saying empty");
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn one_job_wakes_one_claim_and_the_others_go_on_waiting() -> Result<()> {
    let (_, file) = puppet(inline()).await?;
    let q = file.queue("q")?;
    let mut waiting: Vec<_> =
        (0..10).map(|_| tokio::spawn(q.claim(1).wait(Duration::from_mins(1)).into_future())).collect();
    pass(Duration::from_secs(1)).await;
    for done in 1..=3 {
        q.enqueue(Payload::text("x")).await?;
        pass(Duration::from_secs(1)).await;
        assert_eq!(waiting.iter().filter(|t| t.is_finished()).count(), done);
    }
    // First come, first served.
    let rest = waiting.split_off(3);
    for claim in waiting {
        assert_eq!(claim.await.expect("no panic")?.len(), 1);
    }
    for claim in rest {
        assert!(claim.await.expect("no panic")?.is_empty());
    }
    assert_eq!(file.queues(None).await?[0].counts[&State::Leased], 3);
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn a_wait_outlives_a_store_that_is_away_for_a_while() -> Result<()> {
    let (puppet, file) = puppet(inline()).await?;
    let other = on_puppet(&puppet, inline()).await?;
    let waiting = tokio::spawn(file.claim(1).wait_forever().into_future());
    pass(Duration::from_secs(10)).await;
    puppet.every_get(OnGet::Fail(bucketq::Code::Unreachable));
    pass(Duration::from_mins(10)).await;
    assert!(!waiting.is_finished(), "it waits for ever");
    puppet.every_get(OnGet::Pass);
    other.queue("q")?.enqueue(Payload::text("x")).await?;
    assert_eq!(waiting.await.expect("no panic")?.len(), 1);
    file.close().await?;
    other.close().await
}
