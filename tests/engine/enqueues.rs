//! The promises of an enqueue.

use std::collections::BTreeMap;
use std::time::Duration;

use bucketq::{Backoff, Code, Dedup, DedupScope, Payload, Result, State, When};
use bucketq_tests::given::{opened, refused};
use bucketq_tests::ground::Ground;

const HOUR_MS: i64 = 3_600_000;

bucketq_tests::on_every_store! {
    many_jobs_go_in_by_one_commit_and_come_out_in_order
    lower_priority_numbers_come_first_and_equal_ones_by_age
    a_delayed_job_waits_and_a_due_one_is_claimed
    a_job_for_a_time_that_has_passed_is_ready
    headers_type_and_every_setting_come_back
    the_same_id_twice_is_one_job
    a_dedup_key_answers_with_the_first_job_while_it_is_unfinished
    a_dedup_window_outlives_its_job
    jobs_of_one_group_run_one_at_a_time_in_order
    a_job_that_fails_for_good_is_dead
    back_off_schedules_the_next_attempt
}

async fn many_jobs_go_in_by_one_commit_and_come_out_in_order(ground: &Ground) -> Result<()> {
    let file = opened(ground.store()).await?;
    let q = file.queue("q")?;
    let jobs: Result<Vec<_>> = (0..50).map(|i| q.new_job(Payload::text(i.to_string()))).collect();
    let receipts = q.enqueue_many(jobs?).await?;
    assert_eq!(receipts.len(), 50);
    assert!(receipts.iter().all(|r| r.commit_seq == receipts[0].commit_seq && !r.deduplicated));
    assert_eq!(file.metrics()?.commits, 1);
    let claimed = q.claim(50).await?;
    let ids = |i: usize| (claimed[i].job.id, receipts[i].id);
    assert!((0..50).all(|i| ids(i).0 == ids(i).1), "the order of the enqueue is the order of the claim");
    file.close().await
}

async fn lower_priority_numbers_come_first_and_equal_ones_by_age(ground: &Ground) -> Result<()> {
    let file = opened(ground.store()).await?;
    let q = file.queue("q")?;
    for (name, priority) in [("c", 0), ("e", 7), ("d", 0), ("a", -3), ("b", -1)] {
        let mut job = q.new_job(Payload::text(name))?;
        job.priority = priority;
        q.enqueue_job(job).await?;
    }
    let order: Vec<_> = q.claim(5).await?.into_iter().map(|t| t.payload.bytes).collect();
    assert_eq!(order, ["a", "b", "c", "d", "e"]);
    file.close().await
}

async fn a_delayed_job_waits_and_a_due_one_is_claimed(ground: &Ground) -> Result<()> {
    let file = opened(ground.store()).await?;
    let q = file.queue("q")?;
    let mut later = q.new_job(Payload::text("later"))?;
    later.when = When::In(HOUR_MS);
    let later = q.enqueue_job(later).await?;
    assert_eq!(file.get(later.id).await?.expect("there").job.state, State::Scheduled);
    assert!(q.claim(9).await?.is_empty());

    let mut soon = q.new_job(Payload::text("soon"))?;
    soon.when = When::In(30);
    let soon = q.enqueue_job(soon).await?;
    let jobs = q.claim(9).wait(Duration::from_mins(1)).await?;
    assert_eq!(jobs.iter().map(|t| t.job.id).collect::<Vec<_>>(), [soon.id]);
    assert_eq!(jobs[0].job.run_at_ms - jobs[0].job.enqueued_ms, 30);
    assert!(jobs[0].job.claimed_ms >= Some(jobs[0].job.run_at_ms), "not before its time");
    file.close().await
}

async fn a_job_for_a_time_that_has_passed_is_ready(ground: &Ground) -> Result<()> {
    let file = opened(ground.store()).await?;
    let q = file.queue("q")?;
    let mut job = q.new_job(Payload::text("x"))?;
    job.when = When::At(1_000);
    let receipt = q.enqueue_job(job).await?;
    assert_eq!(q.claim(1).await?[0].job.id, receipt.id);
    file.close().await
}

async fn headers_type_and_every_setting_come_back(ground: &Ground) -> Result<()> {
    let file = opened(ground.store()).await?;
    let q = file.queue("q")?;
    let mut job = q.new_job(Payload::json(&[1, 2])?)?;
    job.headers = BTreeMap::from([("trace".into(), "abc".into()), ("ü".into(), "\"quoted\"\n".into())]);
    job.priority = 3;
    job.max_attempts = Some(4);
    job.group = Some("g".into());
    job.backoff = Some(Backoff::Exponential { base_ms: 5, max_ms: 50, jitter_percent: 10 });
    job.dedup = Some(Dedup { key: "k".into(), scope: DedupScope::Unfinished });
    let asked = job.clone();
    q.enqueue_job(job).await?;
    let taken = q.claim(1).worker("ada").await?.remove(0);
    assert_eq!(taken.payload, asked.payload);
    assert_eq!(taken.payload.content_type, "application/json");
    let got = &taken.job;
    assert_eq!((&got.headers, got.priority, got.max_attempts), (&asked.headers, 3, 4));
    assert_eq!(
        (got.group.as_deref(), got.dedup.as_deref(), Some(&got.backoff)),
        (Some("g"), Some("k"), asked.backoff.as_ref())
    );
    assert_eq!((got.attempt, got.run, got.worker.as_deref()), (1, 0, Some("ada")));
    assert_eq!((got.queue.as_str(), got.payload_len), ("q", 5));
    file.close().await
}

async fn the_same_id_twice_is_one_job(ground: &Ground) -> Result<()> {
    let file = opened(ground.store()).await?;
    let q = file.queue("q")?;
    let job = q.new_job(Payload::text("x"))?;
    let first = q.enqueue_job(job.clone()).await?;
    let again = q.enqueue_job(job.clone()).await?;
    assert_eq!((again.id, again.existing, again.commit_seq), (first.id, true, first.commit_seq));
    assert!(!first.existing);
    let other = bucketq::New { payload: Payload::text("y"), ..job };
    assert_eq!(refused(q.enqueue_job(other).await).code(), Code::IdTaken);
    assert_eq!(q.claim(9).await?.len(), 1);
    file.close().await
}

async fn a_dedup_key_answers_with_the_first_job_while_it_is_unfinished(ground: &Ground) -> Result<()> {
    let file = opened(ground.store()).await?;
    let q = file.queue("q")?;
    let keyed = || {
        q.new_job(Payload::text("x")).map(|mut job| {
            job.dedup = Some(Dedup { key: "k".into(), scope: DedupScope::Unfinished });
            job
        })
    };
    let first = q.enqueue_job(keyed()?).await?;
    let second = q.enqueue_job(keyed()?).await?;
    assert_eq!((second.id, second.deduplicated, second.commit_seq), (first.id, true, first.commit_seq));
    let held = q.claim(9).await?;
    assert_eq!(held.len(), 1);
    assert!(q.enqueue_job(keyed()?).await?.deduplicated, "a leased job is unfinished");
    file.ack(held[0].held()).await?;
    let third = q.enqueue_job(keyed()?).await?;
    assert!(!third.deduplicated && third.id != first.id);
    // Another queue has separate keys.
    assert!(!file.queue("other")?.enqueue_job(keyed()?).await?.deduplicated);
    file.close().await
}

async fn a_dedup_window_outlives_its_job(ground: &Ground) -> Result<()> {
    let file = opened(ground.store()).await?;
    let q = file.queue("q")?;
    let keyed = || {
        q.new_job(Payload::text("x")).map(|mut job| {
            job.dedup = Some(Dedup { key: "k".into(), scope: DedupScope::Window(HOUR_MS) });
            job
        })
    };
    let first = q.enqueue_job(keyed()?).await?;
    let held = q.claim(1).await?;
    file.ack(held[0].held()).await?;
    let again = q.enqueue_job(keyed()?).await?;
    assert_eq!((again.id, again.deduplicated), (first.id, true));
    file.close().await
}

async fn jobs_of_one_group_run_one_at_a_time_in_order(ground: &Ground) -> Result<()> {
    let file = opened(ground.store()).await?;
    let q = file.queue("q")?;
    for (name, group) in [("a1", "a"), ("a2", "a"), ("b1", "b"), ("a3", "a")] {
        let mut job = q.new_job(Payload::text(name))?;
        job.group = Some(group.into());
        q.enqueue_job(job).await?;
    }
    let first = q.claim(9).await?;
    assert_eq!(first.iter().map(|t| &t.payload.bytes[..]).collect::<Vec<_>>(), [b"a1", b"b1"]);
    file.nack(first[0].held(), Some(Duration::ZERO), None).await?;
    // The first one is still at the front of its group.
    let again = q.claim(9).await?;
    assert_eq!(again[0].payload.bytes, "a1");
    let mut held = again[0].held();
    for name in ["a2", "a3"] {
        file.ack(held).await?;
        let jobs = q.claim(9).await?;
        assert_eq!(jobs.iter().map(|t| &t.payload.bytes[..]).collect::<Vec<_>>(), [name.as_bytes()]);
        held = jobs[0].held();
    }
    file.close().await
}

async fn a_job_that_fails_for_good_is_dead(ground: &Ground) -> Result<()> {
    let file = opened(ground.store()).await?;
    let q = file.queue("q")?;
    let mut job = q.new_job(Payload::text("x"))?;
    (job.max_attempts, job.backoff) = (Some(2), Some(Backoff::None));
    let id = q.enqueue_job(job).await?.id;
    for (attempt, then) in [(1, State::Ready), (2, State::Dead)] {
        let taken = q.claim(1).await?.remove(0);
        assert_eq!(taken.job.attempt, attempt);
        assert_eq!(file.nack(taken.held(), None, Some(format!("no {attempt}"))).await?, then);
    }
    let job = file.get(id).await?.expect("a dead job is kept").job;
    assert_eq!((job.state, job.last_error.as_deref(), job.attempt), (State::Dead, Some("no 2"), 2));
    assert!(job.finished_ms.is_some());
    assert!(q.claim(1).await?.is_empty());
    file.close().await
}

async fn back_off_schedules_the_next_attempt(ground: &Ground) -> Result<()> {
    let file = opened(ground.store()).await?;
    let q = file.queue("q")?;
    let mut job = q.new_job(Payload::text("x"))?;
    job.backoff = Some(Backoff::Exponential { base_ms: HOUR_MS, max_ms: 10 * HOUR_MS, jitter_percent: 50 });
    let id = q.enqueue_job(job).await?.id;
    let taken = q.claim(1).await?.remove(0);
    assert_eq!(file.nack(taken.held(), None, None).await?, State::Scheduled);
    let job = file.get(id).await?.expect("there").job;
    let waits = job.run_at_ms - job.claimed_ms.expect("it was claimed");
    assert!((HOUR_MS / 2..HOUR_MS + 60_000).contains(&waits), "{waits} ms");
    assert!(q.claim(1).await?.is_empty());
    file.close().await
}
