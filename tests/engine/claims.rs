//! The promises of a claim.

use std::time::Duration;

use bucketq::op::{Claim, Op, Outcome};
use bucketq::{Code, Done, Held, Kind, Payload, QueueFile, Queues, Result, State, Token};
use bucketq_tests::clock::now;
use bucketq_tests::given::{opened, refused};
use bucketq_tests::ground::Ground;

bucketq_tests::on_every_store! {
    a_claim_takes_at_most_what_it_asks_for
    a_claim_takes_from_the_queues_it_names_and_any_from_all
    a_claimed_job_has_one_holder
    the_deadline_lies_within_the_lease
    a_lease_that_ran_out_is_claimable_again_and_its_token_is_worth_nothing
    a_late_ack_counts_while_nobody_claimed_again
    a_claim_sent_again_gets_the_same_jobs
    a_waiting_claim_ends_empty_at_its_time
    a_waiting_claim_gets_what_another_writer_enqueues
    a_waiting_claim_wakes_when_a_job_is_given_back
}

async fn fill(file: &QueueFile, queue: &str, jobs: usize) -> Result<()> {
    let q = file.queue(queue)?;
    let jobs: Result<Vec<_>> = (0..jobs).map(|i| q.new_job(Payload::text(format!("{queue}{i}")))).collect();
    q.enqueue_many(jobs?).await.map(drop)
}

/// A claim as one op: no jobs are handed back when the reply is late.
fn raw(lease_ms: i64, token: u8, again: bool) -> Op {
    let token = Token([token; 16]);
    Op::Claim(Claim {
        queues: Queues::Any,
        max: 9,
        lease_ms: Some(lease_ms),
        worker: "raw".into(),
        token,
        again,
    })
}

fn held(done: Done) -> Vec<Held> {
    let Outcome::Claimed(jobs) = done.outcome else { panic!("{done:?}") };
    jobs.iter().map(|c| Held { id: c.job.id, token: c.lease.token }).collect()
}

async fn a_claim_takes_at_most_what_it_asks_for(ground: &Ground) -> Result<()> {
    let file = opened(ground.store()).await?;
    fill(&file, "q", 5).await?;
    assert_eq!(file.claim(3).await?.len(), 3);
    assert_eq!(file.claim(3).await?.len(), 2);
    assert_eq!(file.claim(3).await?.len(), 0);
    file.close().await
}

async fn a_claim_takes_from_the_queues_it_names_and_any_from_all(ground: &Ground) -> Result<()> {
    let file = opened(ground.store()).await?;
    for queue in ["a", "b", "c", "d"] {
        fill(&file, queue, 2).await?;
    }
    let named = |names: &[&str]| Queues::Named(names.iter().map(ToString::to_string).collect());
    let queues = |jobs: Vec<bucketq::ClaimedJob>| jobs.into_iter().map(|t| t.job.queue).collect::<Vec<_>>();
    assert_eq!(queues(file.queue("b")?.claim(1).await?), ["b"]);
    assert_eq!(queues(file.claim(9).queues(named(&["c", "a", "nowhere", "a"])).await?), ["a", "a", "c", "c"]);
    assert_eq!(queues(file.claim(9).queues(Queues::Any).await?), ["b", "d", "d"]);
    file.close().await
}

async fn a_claimed_job_has_one_holder(ground: &Ground) -> Result<()> {
    let (a, b) = (opened(ground.store()).await?, opened(ground.store()).await?);
    fill(&a, "q", 1).await?;
    let mine = a.claim(1).worker("ada").await?.remove(0);
    assert!(b.claim(1).await?.is_empty());
    let seen = b.get(mine.job.id).await?.expect("there").job;
    assert_eq!((seen.state, seen.worker.as_deref(), seen.attempt), (State::Leased, Some("ada"), 1));
    assert_eq!(seen.fence, Some(mine.lease.fence));
    let other = Held { token: Token([9; 16]), ..mine.held() };
    let error = refused(b.ack(other).await);
    assert_eq!((error.kind(), error.code()), (Kind::LeaseLost, Code::LeaseLost));
    // The token counts, whichever process presents it.
    b.ack(mine.held()).await?;
    a.close().await?;
    b.close().await
}

async fn the_deadline_lies_within_the_lease(ground: &Ground) -> Result<()> {
    let file = opened(ground.store()).await?;
    fill(&file, "q", 1).await?;
    let before = now();
    let taken = file.claim(1).lease(Duration::from_mins(2)).await?.remove(0);
    let lease = Duration::from_mins(2).saturating_sub(file.max_skew()?);
    assert!(taken.deadline >= before + lease && taken.deadline <= now() + lease);
    assert_eq!(taken.lease.expires_ms - taken.job.claimed_ms.expect("claimed"), 120_000);
    file.close().await
}

/// Leases shorter than a second need a file created for clocks that agree.
async fn exact(ground: &Ground) -> Result<QueueFile> {
    let options = bucketq::Options { max_skew: Some(Duration::ZERO), ..bucketq::Options::default() };
    QueueFile::open_with(ground.store(), "exact", options, bucketq::Env::default()).await
}

async fn a_lease_that_ran_out_is_claimable_again_and_its_token_is_worth_nothing(
    ground: &Ground,
) -> Result<()> {
    let file = exact(ground).await?;
    fill(&file, "q", 1).await?;
    let first = held(file.call(raw(1, 1, false)).await?);
    let again = file.claim(1).wait(Duration::from_mins(1)).await?.remove(0);
    assert_eq!((again.job.id, again.job.attempt), (first[0].id, 2));
    assert!(again.lease.fence > 0 && again.lease.token != first[0].token);
    for result in [
        file.ack(first[0]).await,
        file.release(first[0]).await,
        file.reject(first[0], None).await,
        file.nack(first[0], None, None).await.map(drop),
        file.extend(first[0], Duration::from_mins(1)).await.map(drop),
    ] {
        assert_eq!(refused(result).code(), Code::LeaseLost);
    }
    let job = file.get(again.job.id).await?.expect("there").job;
    assert_eq!((job.state, job.attempt), (State::Leased, 2), "the stale token changed nothing");
    file.ack(again.held()).await?;
    file.close().await
}

async fn a_late_ack_counts_while_nobody_claimed_again(ground: &Ground) -> Result<()> {
    let file = exact(ground).await?;
    fill(&file, "q", 1).await?;
    let mine = held(file.call(raw(1, 1, false)).await?);
    // An enqueue after the lease's end: its commit time shows that the lease has expired.
    let mut at = 0;
    let ends = file.get(mine[0].id).await?.expect("there").job.expires_ms.expect("leased");
    while at <= ends {
        fill(&file, "clock", 1).await?;
        at = file.stats(None).await?.commit_ms;
    }
    assert!(file.get(mine[0].id).await?.expect("there").job.expired);
    file.ack(mine[0]).await?;
    assert_eq!(file.get(mine[0].id).await?.expect("there").job.state, State::Done);
    file.close().await
}

async fn a_claim_sent_again_gets_the_same_jobs(ground: &Ground) -> Result<()> {
    let file = opened(ground.store()).await?;
    fill(&file, "q", 12).await?;
    let first = held(file.call(raw(60_000, 1, false)).await?);
    assert_eq!(first.len(), 9);
    assert_eq!(held(file.call(raw(60_000, 1, true)).await?), first);
    assert_eq!(held(file.call(raw(60_000, 2, true)).await?).len(), 3, "a token that holds nothing claims");
    file.close().await
}

async fn a_waiting_claim_ends_empty_at_its_time(ground: &Ground) -> Result<()> {
    let file = opened(ground.store()).await?;
    let before = now();
    assert!(file.claim(1).wait(Duration::from_millis(50)).await?.is_empty());
    assert!(now() - before >= Duration::from_millis(50));
    file.close().await
}

async fn a_waiting_claim_gets_what_another_writer_enqueues(ground: &Ground) -> Result<()> {
    let (a, b) = (opened(ground.store()).await?, opened(ground.store()).await?);
    let waiting = tokio::spawn(a.queue("q")?.claim(1).wait_forever().into_future());
    tokio::task::yield_now().await;
    fill(&b, "q", 1).await?;
    let jobs = waiting.await.expect("no panic")?;
    assert_eq!(jobs[0].payload.bytes, "q0");
    a.close().await?;
    b.close().await
}

async fn a_waiting_claim_wakes_when_a_job_is_given_back(ground: &Ground) -> Result<()> {
    let file = opened(ground.store()).await?;
    fill(&file, "q", 1).await?;
    let first = file.claim(1).await?.remove(0);
    let waiting = tokio::spawn(file.claim(1).wait_forever().into_future());
    tokio::task::yield_now().await;
    file.release(first.held()).await?;
    let again = waiting.await.expect("no panic")?.remove(0);
    assert_eq!((again.job.id, again.job.attempt), (first.job.id, 1), "a release does not count");
    file.close().await
}
