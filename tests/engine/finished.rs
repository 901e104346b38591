//! Waiting until a job is finished.

use std::time::Duration;

use bucketq::policy::Changes;
use bucketq::{Code, Detail, JobId, Kind, Op, Options, Payload, QueueFile, Result, State};
use bucketq_tests::clock::{now, pass};
use bucketq_tests::given::{HEAD, inline, on_puppet, puppet, refused};
use bucketq_tests::puppet::OnGet;
use futures_util::future::join_all;
use tokio::task::JoinHandle;

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
    assert!((590..=610).contains(&gets), "{gets} gets in ten minutes");
    let taken = other.claim(1).lease(LEASE).await?;
    other.nack(taken[0].held(), None, None).await?;
    other.cancel(receipt.id).await?;
    let began = now();
    let detail = waiting.await.expect("no panic")?.expect("it is finished");
    assert_eq!(detail.job.state, State::Cancelled);
    assert!(now() - began <= Duration::from_millis(1_100), "{:?}", now() - began);
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

type Waiting = JoinHandle<Result<Option<Detail>>>;

/// This number of callers, each waiting for its own job that no worker takes.
async fn waiting(file: &QueueFile, callers: usize) -> Result<Vec<Waiting>> {
    let q = file.queue("waited-for")?;
    let jobs = (0..callers).map(|_| q.new_job(Payload::text("x"))).collect::<Result<Vec<_>>>()?;
    let ids: Vec<JobId> = jobs.iter().map(|job| job.id).collect();
    for some in jobs.chunks(1_000) {
        q.enqueue_many(some.to_vec()).await?;
    }
    let wait = |id| {
        let file = file.clone();
        tokio::spawn(async move { file.finished(id, None).await })
    };
    let waiting = ids.into_iter().map(wait).collect();
    pass(Duration::from_secs(1)).await;
    Ok(waiting)
}

#[tokio::test(start_paused = true)]
async fn five_thousand_callers_who_wait_cost_nothing_until_their_job_is_finished() -> Result<()> {
    let (puppet, file) = puppet(Options { mailbox: 20_000, ..inline() }).await?;
    let waiting = waiting(&file, 5_000).await?;
    let (before, requests) = (file.metrics()?.wait_looks, puppet.requests());
    let q = file.queue("q")?;
    for _ in 0..100 {
        q.enqueue(Payload::text("x")).await?;
        let taken = q.claim(1).lease(LEASE).await?;
        file.ack(taken[0].held()).await?;
    }
    assert_eq!(file.metrics()?.wait_looks, before, "three hundred commits looked for nobody's job");
    assert!(puppet.requests().gets - requests.gets <= 10, "they share one poll");
    let taken = file.queue("waited-for")?.claim(10).lease(LEASE).await?;
    file.atomic(taken.iter().map(|t| Op::Ack { held: t.held(), result: None }).collect()).await?;
    pass(Duration::from_millis(1)).await;
    assert_eq!(waiting.iter().filter(|w| w.is_finished()).count(), 10);
    assert_eq!(file.metrics()?.wait_looks, before + 10);
    file.close().await?;
    let ends = join_all(waiting).await;
    let closed = |r: &Result<Option<Detail>>| matches!(r, Err(e) if e.kind() == Kind::Closed);
    assert_eq!(ends.iter().filter(|r| r.as_ref().is_ok_and(closed)).count(), 4_990);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn commits_of_another_process_are_looked_through_seldom_when_many_callers_wait() -> Result<()> {
    let (puppet, file) = puppet(Options { mailbox: 20_000, ..inline() }).await?;
    let other = on_puppet(&puppet, inline()).await?;
    let waiting = waiting(&file, 5_000).await?;
    let before = file.metrics()?.wait_looks;
    let began = now();
    // Each commit here competes with one of the other's.
    for _ in 0..100 {
        other.queue("q")?.enqueue(Payload::text("x")).await?;
        file.queue("q")?.enqueue(Payload::text("x")).await?;
    }
    pass(Duration::from_millis(1)).await;
    let looks = file.metrics()?.wait_looks - before;
    let most = 5_000 * (2 + (now() - began).as_millis() as u64 / 250);
    assert!(looks <= most, "{looks} jobs were looked up");
    let taken = other.queue("waited-for")?.claim(1).lease(LEASE).await?;
    other.ack(taken[0].held()).await?;
    pass(Duration::from_millis(5_300)).await;
    assert_eq!(waiting.iter().filter(|w| w.is_finished()).count(), 1);
    other.close().await?;
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn a_caller_who_begins_to_wait_is_told_of_another_process_within_the_shortest_poll() -> Result<()> {
    let (puppet, file) = puppet(inline()).await?;
    let other = on_puppet(&puppet, inline()).await?;
    let long = waiting(&file, 1).await?;
    // By now the store is read every five seconds.
    pass(Duration::from_mins(5)).await;
    let receipt = file.queue("q")?.enqueue(Payload::text("x")).await?;
    let taken = other.queue("q")?.claim(1).lease(LEASE).await?;
    let waiting = tokio::spawn({
        let file = file.clone();
        async move { file.finished(receipt.id, None).await }
    });
    pass(Duration::from_millis(10)).await;
    let began = now();
    other.ack(taken[0].held()).await?;
    waiting.await.expect("no panic")?.expect("it is finished");
    assert!(now() - began <= Duration::from_millis(210), "{:?}", now() - began);
    assert!(!long[0].is_finished());
    other.close().await?;
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn a_job_deleted_here_or_elsewhere_ends_the_wait_for_it() -> Result<()> {
    let (puppet, file) = puppet(inline()).await?;
    let other = on_puppet(&puppet, inline()).await?;
    for (purger, within) in [(&file, 1), (&other, 5_100)] {
        let waiting = waiting(&file, 1).await?.remove(0);
        pass(Duration::from_mins(1)).await;
        purger.call(Op::Purge { queue: "waited-for".into(), states: vec![State::Ready] }).await?;
        pass(Duration::from_millis(within)).await;
        assert!(waiting.is_finished(), "within {within} ms");
        assert_eq!(refused(waiting.await.expect("no panic")).code(), Code::NoSuchJob);
    }
    other.close().await?;
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn a_job_that_moves_to_another_queue_is_waited_for_until_it_is_finished_there() -> Result<()> {
    let (_, file) = puppet(inline()).await?;
    let changes = Changes { dead_letter: Some(Some("dead".into())), ..Changes::default() };
    file.queue("waited-for")?.configure(changes).await?;
    let waiting = waiting(&file, 1).await?.remove(0);
    let taken = file.claim(1).lease(LEASE).await?;
    file.reject(taken[0].held(), None).await?;
    pass(Duration::from_secs(20)).await;
    assert!(!waiting.is_finished());
    let taken = file.queue("dead")?.claim(1).lease(LEASE).await?;
    file.ack(taken[0].held()).await?;
    assert_eq!(waiting.await.expect("no panic")?.expect("finished").job.state, State::Done);
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn a_wait_outlives_an_outage_and_at_its_end_says_that_it_cannot_know() -> Result<()> {
    let (puppet, file) = puppet(inline()).await?;
    let long = waiting(&file, 1).await?.remove(0);
    let receipt = file.queue("q")?.enqueue(Payload::text("x")).await?;
    let short = tokio::spawn({
        let file = file.clone();
        async move { file.finished(receipt.id, Some(Duration::from_mins(2))).await }
    });
    pass(Duration::from_secs(1)).await;
    puppet.every_get(OnGet::Fail(Code::Unreachable));
    assert_eq!(refused(short.await.expect("no panic")).kind(), Kind::Unavailable);
    assert!(!long.is_finished());
    puppet.every_get(OnGet::Pass);
    let taken = file.queue("waited-for")?.claim(1).lease(LEASE).await?;
    file.ack(taken[0].held()).await?;
    long.await.expect("no panic")?.expect("it is finished");
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn callers_who_have_left_are_forgotten_and_ask_the_store_nothing() -> Result<()> {
    let (puppet, file) = puppet(inline()).await?;
    let waiting = waiting(&file, 100).await?;
    waiting.iter().for_each(JoinHandle::abort);
    pass(Duration::from_secs(10)).await;
    let before = (puppet.requests(), file.metrics()?.wait_looks);
    pass(Duration::from_hours(3)).await;
    let taken = file.claim(100).lease(LEASE).await?;
    file.atomic(taken.iter().map(|t| Op::Ack { held: t.held(), result: None }).collect()).await?;
    assert_eq!(puppet.requests().gets - before.0.gets, 0);
    assert_eq!(file.metrics()?.wait_looks, before.1);
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn a_writer_that_halts_tells_those_who_wait() -> Result<()> {
    let (puppet, file) = puppet(inline()).await?;
    let waiting = waiting(&file, 2).await?;
    puppet.beneath().delete(HEAD).await?;
    pass(Duration::from_secs(6)).await;
    for one in waiting {
        assert_eq!(refused(one.await.expect("it ends")).code(), Code::HeadMissing);
    }
    Ok(())
}
