//! Caps, rates, turns and schedules are kept however many writers compete.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use bucketq::{
    Changes, Code, Ended, Filter, Kind, Missed, Overflow, Payload, Queue, QueueFile, Result, Schedule, State,
    Timing,
};
use bucketq_tests::clock::now;
use bucketq_tests::given::{opened, refused};
use bucketq_tests::ground::Ground;
use futures_util::future::try_join_all;

bucketq_tests::on_every_store! {
    a_policy_set_by_one_writer_is_that_of_all
    racing_producers_never_pass_the_cap
    room_is_made_by_cancelling_the_oldest_and_every_drop_is_told
    racing_workers_never_pass_the_concurrency_and_groups_stay_in_order
    a_rate_holds_for_all_writers_together
    a_time_of_a_schedule_fires_once_however_many_writers_claim
    a_pause_stops_the_claims_of_every_writer_at_once
    a_drain_waits_for_what_runs_and_then_nothing_goes_in
    dead_jobs_can_be_looked_at_and_live_again
    the_same_content_is_enqueued_once_by_racing_writers
    an_enqueue_into_a_full_queue_waits_until_another_writer_claims
}

const LONG: Duration = Duration::from_mins(5);

/// Several writers on one queue file, and the queue as each of them sees it.
async fn writers(ground: &Ground, count: usize) -> Result<(Vec<QueueFile>, Vec<Queue>)> {
    let mut files = vec![];
    for _ in 0..count {
        files.push(opened(ground.store()).await?);
    }
    let queues = files.iter().map(|f| f.queue("q")).collect::<Result<_>>()?;
    Ok((files, queues))
}

async fn close(files: Vec<QueueFile>) -> Result<()> {
    for file in files {
        file.close().await?;
    }
    Ok(())
}

async fn pending(q: &QueueFile) -> Result<u64> {
    let queues = q.queues(None).await?;
    Ok(queues[0].counts[&State::Ready] + queues[0].counts[&State::Scheduled])
}

async fn a_policy_set_by_one_writer_is_that_of_all(ground: &Ground) -> Result<()> {
    let (files, q) = writers(ground, 2).await?;
    q[0].configure(Changes { max_attempts: Some(2), ..Changes::default() }).await?;
    assert_eq!(q[1].policy().await?.max_attempts, 2);
    let job = q[1].enqueue(Payload::text("x")).await?.id;
    assert_eq!(files[0].get(job).await?.expect("it is there").job.max_attempts, 2);
    let changes = |max_attempts, concurrency| Changes { max_attempts, concurrency, ..Changes::default() };
    tokio::try_join!(q[0].configure(changes(Some(7), None)), q[1].configure(changes(None, Some(Some(3)))))?;
    let now = q[0].policy().await?;
    assert_eq!((now.max_attempts, now.concurrency), (7, Some(3)), "each changed what it named");
    let error = refused(q[1].configure(changes(Some(0), None)).await);
    assert_eq!(error.kind(), Kind::Invalid);
    close(files).await
}

async fn racing_producers_never_pass_the_cap(ground: &Ground) -> Result<()> {
    let (files, q) = writers(ground, 3).await?;
    q[0].configure(Changes { max_pending: Some(Some(20)), ..Changes::default() }).await?;
    let produce = |q: Queue| async move {
        let mut stored = 0;
        for n in 0..20 {
            match q.enqueue(Payload::text(n.to_string())).await {
                Ok(_) => stored += 1,
                Err(e) => assert_eq!((e.kind(), e.code()), (Kind::Full, Code::QueueFull), "{e:?}"),
            }
        }
        Ok::<_, bucketq::Error>(stored)
    };
    let stored = try_join_all(q.iter().cloned().map(produce)).await?;
    assert_eq!(stored.iter().sum::<u64>(), 20, "{stored:?}");
    assert_eq!(pending(&files[2]).await?, 20);
    close(files).await
}

async fn room_is_made_by_cancelling_the_oldest_and_every_drop_is_told(ground: &Ground) -> Result<()> {
    let (files, q) = writers(ground, 2).await?;
    let overflow = Some(Overflow::DropOldest);
    q[0].configure(Changes { max_pending: Some(Some(5)), overflow, ..Changes::default() }).await?;
    let produce = |q: Queue| async move {
        let mut told = vec![];
        for n in 0..15 {
            told.push(q.enqueue(Payload::text(n.to_string())).await?);
        }
        Ok::<_, bucketq::Error>(told)
    };
    let told = try_join_all(q.iter().cloned().map(produce)).await?.concat();
    let dropped: BTreeSet<_> = told.iter().flat_map(|t| t.dropped.clone()).collect();
    assert_eq!((dropped.len(), pending(&files[1]).await?), (25, 5));
    assert_eq!(files[0].queues(None).await?[0].dropped, 25);
    let left: BTreeSet<_> = files[0]
        .list(Filter { states: vec![State::Ready], ..Filter::default() }, None, 100)
        .await?
        .jobs
        .into_iter()
        .map(|j| (j.seq, j.id))
        .collect();
    let all: BTreeSet<_> = told.iter().map(|t| t.id).collect();
    assert_eq!(all.len(), 30);
    assert!(left.iter().all(|(_, id)| !dropped.contains(id)));
    for id in dropped {
        let detail = files[0].get(id).await?.expect("it can be looked at");
        assert_eq!((detail.job.state, detail.attempts[0].ended), (State::Cancelled, Ended::Dropped));
        assert!(detail.job.seq < left.first().expect("five").0, "older than what is left");
    }
    close(files).await
}

async fn racing_workers_never_pass_the_concurrency_and_groups_stay_in_order(ground: &Ground) -> Result<()> {
    const CAP: usize = 3;
    let (files, q) = writers(ground, 3).await?;
    q[0].configure(Changes { concurrency: Some(Some(CAP as u32)), ..Changes::default() }).await?;
    let mut jobs = vec![];
    for n in 0..36 {
        let mut job = q[0].new_job(Payload::text(format!("{} {n}", n % 4)))?;
        job.group = Some(format!("g{}", n % 4));
        jobs.push(job);
    }
    q[0].enqueue_many(jobs).await?;
    let (holding, left) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(36)));
    let order = Arc::new(std::sync::Mutex::new(BTreeMap::<String, Vec<u32>>::new()));
    let work = |file: QueueFile| {
        let (holding, left, order) = (Arc::clone(&holding), Arc::clone(&left), Arc::clone(&order));
        async move {
            while left.load(SeqCst) > 0 {
                let taken = file.claim(2).lease(LONG).await?;
                if taken.is_empty() {
                    tokio::task::yield_now().await;
                }
                let held = holding.fetch_add(taken.len(), SeqCst) + taken.len();
                assert!(held <= CAP, "{held} held at once");
                for t in taken {
                    let text = String::from_utf8_lossy(&t.payload.bytes).into_owned();
                    let (group, n) = text.split_once(' ').expect("two words");
                    let n = n.parse().expect("a number");
                    order.lock().expect("no panic").entry(group.to_owned()).or_default().push(n);
                    holding.fetch_sub(1, SeqCst);
                    file.ack(t.held()).await?;
                    left.fetch_sub(1, SeqCst);
                }
            }
            Ok::<_, bucketq::Error>(())
        }
    };
    try_join_all(files.iter().cloned().map(work)).await?;
    for (group, numbers) in order.lock().expect("no panic").iter() {
        assert!(numbers.is_sorted() && numbers.len() == 9, "group {group}: {numbers:?}");
    }
    close(files).await
}

async fn a_rate_holds_for_all_writers_together(ground: &Ground) -> Result<()> {
    let (files, q) = writers(ground, 2).await?;
    let rate = "20/s burst 4".parse()?;
    q[0].configure(Changes { rate: Some(Some(rate)), ..Changes::default() }).await?;
    let jobs: Result<Vec<_>> = (0..100).map(|n| q[0].new_job(Payload::text(n.to_string()))).collect();
    q[0].enqueue_many(jobs?).await?;
    let began = now();
    let work = |file: QueueFile| async move {
        let mut times = vec![];
        while began.elapsed() < Duration::from_millis(900) {
            let wait = Duration::from_millis(900).saturating_sub(began.elapsed());
            let taken = file.claim(3).lease(LONG).wait(wait).await?;
            times.extend(taken.iter().map(|t| t.job.claimed_ms.expect("it is claimed")));
        }
        Ok::<_, bucketq::Error>(times)
    };
    let mut times = try_join_all(files.iter().cloned().map(work)).await?.concat();
    times.sort_unstable();
    assert!(times.len() >= 5, "the burst and more: {}", times.len());
    // One token each 50 ms, and four at the start, measured by commit times.
    for (n, at) in times.iter().enumerate().skip(4) {
        assert!(at - times[0] >= (n as i64 - 3) * 50 - 1, "claim {n} after {} ms", at - times[0]);
    }
    close(files).await
}

async fn a_time_of_a_schedule_fires_once_however_many_writers_claim(ground: &Ground) -> Result<()> {
    let (files, q) = writers(ground, 3).await?;
    let tick = |missed| {
        let from_ms = Some(bucketq::Env::default().wall_ms() + 20);
        let timing = Timing::Every { every_ms: 20, from_ms };
        Ok::<_, bucketq::Error>(Schedule { timing, missed, job: q[0].new_job(Payload::text("tick"))? })
    };
    q[0].schedule("tick", tick(Missed::CatchUp)?).await?;
    let began = now();
    let work = |file: QueueFile| async move {
        let mut due = vec![];
        while began.elapsed() < Duration::from_millis(600) {
            for t in file.claim(5).lease(LONG).wait(Duration::from_millis(50)).await? {
                due.push(t.job.headers["bucketq-due-ms"].parse::<i64>().expect("a number"));
            }
        }
        Ok::<_, bucketq::Error>(due)
    };
    let mut due = try_join_all(files.iter().cloned().map(work)).await?.concat();
    due.sort_unstable();
    assert!(due.len() > 5, "{due:?}");
    assert!(due.windows(2).all(|w| w[1] - w[0] == 20), "each time once and none left out: {due:?}");
    let told = q[1].schedules().await?.remove(0);
    assert!(told.fired >= due.len() as u64 && told.last_ms >= due.last().copied());
    assert!(q[2].unschedule("tick").await? && files[0].schedules().await?.is_empty());
    close(files).await
}

async fn a_pause_stops_the_claims_of_every_writer_at_once(ground: &Ground) -> Result<()> {
    let (files, q) = writers(ground, 2).await?;
    q[0].enqueue(Payload::text("x")).await?;
    q[1].enqueue(Payload::text("y")).await?;
    q[0].pause().await?;
    assert!(files[1].claim(9).await?.is_empty(), "though it has not looked since");
    q[1].resume().await?;
    assert_eq!(files[0].claim(9).await?.len(), 2);
    close(files).await
}

async fn a_drain_waits_for_what_runs_and_then_nothing_goes_in(ground: &Ground) -> Result<()> {
    let (files, q) = writers(ground, 2).await?;
    q[0].enqueue(Payload::text("runs")).await?;
    q[0].enqueue(Payload::text("stays")).await?;
    let taken = files[1].claim(1).lease(LONG).await?.remove(0);
    assert_eq!(q[0].drain(Some(Duration::ZERO)).await?, 1);
    let error = refused(q[1].enqueue(Payload::text("late")).await);
    assert_eq!((error.kind(), error.code()), (Kind::Closed, Code::Draining));
    assert!(files[1].claim(1).await?.is_empty());
    let (left, acked) = tokio::join!(q[0].drain(None), files[1].ack(taken.held()));
    acked?;
    assert_eq!(left?, 0);
    q[1].resume().await?;
    assert_eq!(files[0].claim(9).await?.len(), 1);
    close(files).await
}

async fn dead_jobs_can_be_looked_at_and_live_again(ground: &Ground) -> Result<()> {
    let (files, q) = writers(ground, 2).await?;
    let dead_letter = Some(Some("dead".to_owned()));
    q[0].configure(Changes { max_attempts: Some(1), dead_letter, ..Changes::default() }).await?;
    for n in 0..3 {
        q[0].enqueue(Payload::text(n.to_string())).await?;
    }
    for t in q[1].claim(3).worker("ann").await? {
        files[1].nack(t.held(), None, Some("no route".into())).await?;
    }
    let letters = files[0].queue("dead")?.claim(3).await?;
    assert_eq!(letters.len(), 3);
    for t in &letters {
        let detail = files[1].get(t.job.id).await?.expect("it is there");
        let first = &detail.attempts[0];
        assert_eq!((&*first.queue, first.worker.as_deref()), ("q", Some("ann")));
        files[1].reject(t.held(), Some("really".into())).await?;
    }
    let filter = Filter { queue: Some("dead".into()), error: Some("really".into()), ..Filter::default() };
    assert_eq!(files[1].requeue_all(&filter).await?, 3);
    assert_eq!(files[0].claim(9).await?.len(), 3);
    close(files).await
}

async fn the_same_content_is_enqueued_once_by_racing_writers(ground: &Ground) -> Result<()> {
    let (files, q) = writers(ground, 3).await?;
    q[0].configure(Changes { dedup_content: Some(true), ..Changes::default() }).await?;
    let produce = |q: Queue| async move {
        let mut told = vec![];
        for n in 0..5 {
            told.push(q.enqueue(Payload::json(&serde_json::json!({ "n": n, "to": "ada" }))?).await?);
        }
        Ok::<_, bucketq::Error>(told)
    };
    let told = try_join_all(q.iter().cloned().map(produce)).await?.concat();
    let ids: BTreeSet<_> = told.iter().map(|t| t.id).collect();
    assert_eq!((ids.len(), told.iter().filter(|t| !t.deduplicated).count()), (5, 5));
    assert_eq!(pending(&files[0]).await?, 5);
    close(files).await
}

async fn an_enqueue_into_a_full_queue_waits_until_another_writer_claims(ground: &Ground) -> Result<()> {
    let (files, q) = writers(ground, 2).await?;
    let overflow = Some(Overflow::Block { timeout_ms: 60_000 });
    q[0].configure(Changes { max_pending: Some(Some(2)), overflow, ..Changes::default() }).await?;
    q[0].enqueue(Payload::text("1")).await?;
    q[0].enqueue(Payload::text("2")).await?;
    let waiting = tokio::spawn({
        let q = q[0].clone();
        async move { q.enqueue(Payload::text("3")).await }
    });
    while q[1].policy().await? == bucketq::Policy::default() {}
    assert_eq!(q[1].claim(1).lease(LONG).await?.len(), 1);
    let told = waiting.await.expect("no panic")?;
    assert_eq!(files[1].get(told.id).await?.expect("it is there").job.state, State::Ready);
    assert_eq!(pending(&files[1]).await?, 2);
    close(files).await
}
