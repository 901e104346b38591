//! Waiting for jobs that the policy allows later, and the cost of that, on paused time.

use std::time::Duration;

use bucketq::{Changes, Code, Enqueued, Missed, Overflow, Payload, Queue, Result, Schedule, Timing};
use bucketq_tests::clock::{now, pass};
use bucketq_tests::given::{inline, on_puppet, puppet, refused};

const LONG: Duration = Duration::from_hours(1);

fn full_after(jobs: u64, timeout: Duration) -> Changes {
    let timeout_ms = timeout.as_millis() as i64;
    Changes {
        max_pending: Some(Some(jobs)),
        overflow: Some(Overflow::Block { timeout_ms }),
        ..Changes::default()
    }
}

/// An enqueue in a task, not awaited yet.
fn enqueued_beside(q: &Queue) -> tokio::task::JoinHandle<Result<Enqueued>> {
    let q = q.clone();
    tokio::spawn(async move { q.enqueue(Payload::text("2")).await })
}

#[tokio::test(start_paused = true)]
async fn a_blocked_enqueue_goes_on_at_once_when_this_process_claims() -> Result<()> {
    let (_, file) = puppet(inline()).await?;
    let q = file.queue("q")?;
    q.configure(full_after(1, LONG)).await?;
    q.enqueue(Payload::text("1")).await?;
    let waiting: Vec<_> = (2..5)
        .map(|n: u32| {
            let q = q.clone();
            tokio::spawn(async move { q.enqueue(Payload::text(n.to_string())).await })
        })
        .collect();
    // Longer than any deadline of a call.
    pass(Duration::from_mins(50)).await;
    let began = now();
    for (n, waiting) in (1..).zip(waiting) {
        let taken = q.claim(1).lease(LONG).await?;
        assert_eq!(&taken[0].payload.bytes[..], n.to_string().as_bytes(), "in the order of their coming");
        waiting.await.expect("no panic")?;
    }
    assert!(now() - began < Duration::from_secs(1));
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn a_blocked_enqueue_ends_full_at_its_time_and_writes_nothing() -> Result<()> {
    for timeout in [Duration::ZERO, Duration::from_secs(3), Duration::from_mins(10)] {
        let (puppet, file) = puppet(inline()).await?;
        let q = file.queue("q")?;
        q.configure(full_after(1, timeout)).await?;
        q.enqueue(Payload::text("1")).await?;
        let (before, began) = (puppet.requests(), now());
        let error = refused(q.enqueue(Payload::text("2")).await);
        assert_eq!(error.code(), Code::Blocked, "{error}");
        assert_eq!((now() - began).as_secs(), timeout.as_secs());
        let after = puppet.requests();
        assert_eq!((after.puts, after.new, after.lists), (before.puts, before.new, before.lists));
        file.close().await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_blocked_enqueue_sees_at_the_next_poll_that_another_process_has_made_room() -> Result<()> {
    let (puppet, file) = puppet(inline()).await?;
    let other = on_puppet(&puppet, inline()).await?;
    let q = file.queue("q")?;
    q.configure(full_after(1, LONG)).await?;
    q.enqueue(Payload::text("1")).await?;
    let waiting = enqueued_beside(&q);
    pass(Duration::from_mins(1)).await;
    other.claim(1).lease(LONG).await?;
    let began = now();
    waiting.await.expect("no panic")?;
    assert!(now() - began <= Duration::from_millis(5_500), "{:?}", now() - began);
    other.close().await?;
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn a_blocked_enqueue_whose_caller_has_gone_is_not_made() -> Result<()> {
    let (_, file) = puppet(inline()).await?;
    let q = file.queue("q")?;
    q.configure(full_after(1, LONG)).await?;
    q.enqueue(Payload::text("1")).await?;
    let waiting = enqueued_beside(&q);
    pass(Duration::from_secs(30)).await;
    waiting.abort();
    pass(Duration::from_secs(30)).await;
    assert_eq!(q.claim(9).lease(LONG).await?.len(), 1);
    pass(Duration::from_secs(30)).await;
    assert!(q.claim(9).lease(LONG).await?.is_empty());
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn closing_ends_a_blocked_enqueue() -> Result<()> {
    let (_, file) = puppet(inline()).await?;
    let q = file.queue("q")?;
    q.configure(full_after(1, LONG)).await?;
    q.enqueue(Payload::text("1")).await?;
    let waiting = enqueued_beside(&q);
    pass(Duration::from_secs(30)).await;
    drop(q);
    let began = now();
    file.close().await?;
    assert_eq!(refused(waiting.await.expect("no panic")).code(), Code::Closed);
    assert!(now() - began < Duration::from_mins(2));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_waiting_claim_wakes_when_the_rate_allows_it_and_asks_no_more_than_a_poll() -> Result<()> {
    let (puppet, file) = puppet(inline()).await?;
    let q = file.queue("q")?;
    q.configure(Changes { rate: Some(Some("2/min burst 1".parse()?)), ..Changes::default() }).await?;
    for n in 0..4 {
        q.enqueue(Payload::text(n.to_string())).await?;
    }
    let began = now();
    q.claim(1).lease(LONG).await?;
    let before = puppet.requests();
    for n in 1..4 {
        assert_eq!(q.claim(3).lease(LONG).wait_forever().await?.len(), 1);
        assert_eq!((now() - began).as_secs(), 30 * n);
    }
    let after = puppet.requests();
    assert_eq!(after.puts - before.puts, 3);
    assert!(after.gets - before.gets < 100, "{after:?}");
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn a_waiting_claim_wakes_when_a_schedule_is_due_and_an_idle_file_asks_nothing() -> Result<()> {
    let (puppet, file) = puppet(inline()).await?;
    let q = file.queue("q")?;
    let timing = Timing::Cron { expression: "0 * * * *".into(), zone: "UTC".into() };
    let schedule = Schedule { timing, missed: Missed::Skip, job: q.new_job(Payload::text("hourly"))? };
    q.schedule("hourly", schedule).await?;
    let before = puppet.requests();
    pass(Duration::from_hours(48)).await;
    assert_eq!(puppet.requests(), before, "nothing fires while nobody asks");
    let missed = q.claim(9).lease(LONG).await?;
    assert_eq!(missed.len(), 1, "the newest of those missed");
    file.ack(missed[0].held()).await?;
    let taken = q.claim(9).lease(LONG).wait_forever().await?;
    let due: i64 = taken[0].job.headers["bucketq-due-ms"].parse().expect("a number");
    let late = taken[0].job.claimed_ms.expect("claimed") - due;
    assert!(due % 3_600_000 == 0 && (0..50).contains(&late), "{late} ms late");
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn a_drain_that_is_not_waited_for_long_enough_says_how_many_still_run() -> Result<()> {
    let (_, file) = puppet(inline()).await?;
    let q = file.queue("q")?;
    q.enqueue(Payload::text("1")).await?;
    q.claim(1).lease(Duration::from_mins(2)).await?;
    let began = now();
    assert_eq!(q.drain(Some(Duration::from_secs(9))).await?, 1);
    assert_eq!((now() - began).as_secs(), 9);
    // No worker holds a job whose lease has expired.
    assert_eq!(q.drain(None).await?, 0);
    assert!((now() - began).as_secs() < 130);
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn a_lease_of_the_policy_is_told_and_kept_and_one_without_end_needs_no_keeping() -> Result<()> {
    let (puppet, file) = puppet(inline()).await?;
    let q = file.queue("q")?;
    let lease = |lease_ms| Changes { lease_ms: Some(lease_ms), ..Changes::default() };
    q.configure(lease(Some(30_000))).await?;
    q.enqueue(Payload::text("1")).await?;
    q.enqueue(Payload::text("2")).await?;
    let taken = q.claim(1).await?.remove(0);
    assert_eq!(taken.lasts, Some(Duration::from_secs(30)));
    q.configure(lease(None)).await?;
    let forever = q.claim(1).await?.remove(0);
    assert_eq!(forever.lasts, None);
    let (keeper, task) = bucketq::Keeper::new(&file)?;
    tokio::spawn(task);
    let kept = [keeper.keep(&taken, Duration::from_secs(30)), keeper.keep(&forever, Duration::from_secs(30))];
    kept.iter().for_each(bucketq::LeaseGuard::work);
    let before = puppet.requests().puts;
    pass(Duration::from_secs(65)).await;
    assert!(kept.iter().all(|k| !k.is_lost()));
    assert!((5..=8).contains(&(puppet.requests().puts - before)), "one of the two is extended");
    file.close().await
}
