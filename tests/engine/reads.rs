//! Queries of a queue file, and how fresh their results are.

use std::sync::Arc;
use std::time::Duration;

use bucketq::{Code, Cursor, Filter, Kind, Payload, QueueFile, Result, State, When};
use bucketq_tests::given::{inline, on_puppet, opened, puppet, refused};
use bucketq_tests::ground::Ground;
use bucketq_tests::puppet::Puppet;
use futures_util::future::try_join_all;

bucketq_tests::on_every_store! {
    a_list_goes_page_by_page_in_the_order_of_enqueues
    a_list_shows_what_its_filter_lets_through
    counts_tell_every_queue_and_state
    the_oldest_ready_age_grows_from_the_enqueue
    stats_tell_the_commit_and_the_size
    an_answer_with_a_max_age_may_be_old_and_one_without_is_not
}

async fn fill(file: &QueueFile, queue: &str, jobs: usize) -> Result<()> {
    let q = file.queue(queue)?;
    let jobs: Result<Vec<_>> = (0..jobs).map(|i| q.new_job(Payload::text(format!("{queue}{i}")))).collect();
    q.enqueue_many(jobs?).await.map(drop)
}

async fn a_list_goes_page_by_page_in_the_order_of_enqueues(ground: &Ground) -> Result<()> {
    let file = opened(ground.store()).await?;
    fill(&file, "a", 7).await?;
    fill(&file, "b", 6).await?;
    let (mut seen, mut after, mut pages) = (vec![], None, 0);
    loop {
        let page = file.list(Filter::default(), after, 5).await?;
        seen.extend(page.jobs.into_iter().map(|j| j.seq));
        pages += 1;
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!((seen.len(), pages), (13, 3));
    assert!(seen.is_sorted());
    let page = file.list(Filter::default(), Some(Cursor(u64::MAX)), 5).await?;
    assert!(page.jobs.is_empty() && page.next.is_none());
    for limit in [0, 1_001] {
        let error = refused(file.list(Filter::default(), None, limit).await);
        assert_eq!((error.kind(), error.code()), (Kind::Invalid, Code::Argument));
    }
    file.close().await
}

async fn a_list_shows_what_its_filter_lets_through(ground: &Ground) -> Result<()> {
    let file = opened(ground.store()).await?;
    fill(&file, "a", 3).await?;
    let q = file.queue("b")?;
    let mut job = q.new_job(Payload::text("grouped"))?;
    job.group = Some("g".into());
    let grouped = q.enqueue_job(job).await?.id;
    let held = file.queue("a")?.claim(1).await?.remove(0);
    let list = async |filter: Filter| -> Result<Vec<_>> {
        Ok(file.list(filter, None, 100).await?.jobs.into_iter().map(|j| j.id).collect())
    };
    assert_eq!(list(Filter::default()).await?.len(), 4);
    assert_eq!(list(Filter { queue: Some("a".into()), ..Filter::default() }).await?.len(), 3);
    assert_eq!(list(Filter { queue: Some("nowhere".into()), ..Filter::default() }).await?.len(), 0);
    assert_eq!(list(Filter { states: vec![State::Leased], ..Filter::default() }).await?, [held.job.id]);
    assert_eq!(list(Filter { group: Some("g".into()), ..Filter::default() }).await?, [grouped]);
    assert_eq!(list(Filter { expired: true, ..Filter::default() }).await?.len(), 0);
    let page = file.queue("a")?.list(&[State::Ready, State::Done], None, 100).await?;
    assert_eq!(page.jobs.len(), 2);
    assert!(page.jobs.iter().all(|j| j.queue == "a" && j.state == State::Ready));
    file.close().await
}

async fn counts_tell_every_queue_and_state(ground: &Ground) -> Result<()> {
    let file = opened(ground.store()).await?;
    assert!(file.queues(None).await?.is_empty());
    fill(&file, "b", 5).await?;
    fill(&file, "a", 1).await?;
    let q = file.queue("b")?;
    let mut later = q.new_job(Payload::text("later"))?;
    later.when = When::In(3_600_000);
    q.enqueue_job(later).await?;
    let taken = q.claim(4).await?;
    file.ack(taken[0].held()).await?;
    file.reject(taken[1].held(), None).await?;
    let cancelled = q.list(&[State::Ready], None, 1).await?.jobs[0].id;
    file.cancel(cancelled).await?;
    let queues = file.queues(None).await?;
    assert_eq!(queues.iter().map(|q| q.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    let counts: Vec<u64> = State::ALL.iter().map(|s| queues[1].counts[s]).collect();
    assert_eq!(counts, [1, 0, 2, 1, 1, 1], "scheduled, ready, leased, done, dead, cancelled");
    assert_eq!((queues[1].expired, queues[1].due, queues[1].oldest_ready_ms), (0, 0, None));
    assert_eq!(queues[0].counts[&State::Ready], 1);
    file.close().await
}

async fn the_oldest_ready_age_grows_from_the_enqueue(ground: &Ground) -> Result<()> {
    let file = opened(ground.store()).await?;
    fill(&file, "q", 2).await?;
    let first = file.queues(None).await?[0].oldest_ready_ms.expect("two are ready");
    assert!((0..60_000).contains(&first), "{first} ms");
    let taken = file.claim(2).await?;
    assert_eq!(file.queues(None).await?[0].oldest_ready_ms, None, "nothing is claimable");
    file.release(taken[1].held()).await?;
    assert!(file.queues(None).await?[0].oldest_ready_ms.is_some());
    file.close().await
}

async fn stats_tell_the_commit_and_the_size(ground: &Ground) -> Result<()> {
    let file = opened(ground.store()).await?;
    let empty = file.stats(None).await?;
    fill(&file, "q", 500).await?;
    let full = file.stats(None).await?;
    assert_eq!(full.commit_seq, empty.commit_seq + 1);
    assert!(full.pages > empty.pages + 10 && full.commit_ms >= empty.commit_ms, "{empty:?} {full:?}");
    file.queue("q")?.purge(&[State::Ready]).await?;
    let purged = file.stats(None).await?;
    assert!(purged.free_pages > 10, "{purged:?}");
    file.close().await
}

async fn an_answer_with_a_max_age_may_be_old_and_one_without_is_not(ground: &Ground) -> Result<()> {
    let (a, b) = (opened(ground.store()).await?, opened(ground.store()).await?);
    fill(&a, "q", 1).await?;
    let hour = Some(Duration::from_hours(1));
    assert!(b.queues(hour).await?.is_empty(), "what was known at the opening is good enough");
    assert_eq!(b.queues(Some(Duration::ZERO)).await?.len(), 1);
    fill(&a, "r", 1).await?;
    assert_eq!(b.queues(hour).await?.len(), 1);
    assert_eq!(b.queues(None).await?.len(), 2);
    a.close().await?;
    b.close().await
}

#[tokio::test(start_paused = true)]
async fn readers_that_ask_together_share_one_get_and_a_max_age_spares_it() -> Result<()> {
    let (puppet, file) = puppet(inline()).await?;
    fill(&file, "q", 3).await?;
    puppet.takes(Duration::from_millis(20));
    bucketq_tests::clock::pass(Duration::from_millis(1)).await;
    let before = puppet.requests();
    try_join_all((0..50).map(|_| file.queues(None))).await?;
    assert_eq!(puppet.requests().gets, before.gets + 1);
    try_join_all((0..50).map(|_| file.stats(Some(Duration::from_mins(1))))).await?;
    assert_eq!(puppet.requests().gets, before.gets + 1);
    bucketq_tests::clock::pass(Duration::from_mins(2)).await;
    file.stats(Some(Duration::from_mins(1))).await?;
    assert_eq!(puppet.requests().gets, before.gets + 2);
    assert_eq!(puppet.requests().puts, before.puts);
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn a_read_shares_no_get_that_was_sent_before_it_came() -> Result<()> {
    let (puppet, file) = puppet(inline()).await?;
    let other = on_puppet(&puppet, inline()).await?;
    // The store carries out the first reader's get at once and replies late; meanwhile a job is enqueued.
    puppet.takes(Duration::from_secs(2));
    let early = tokio::spawn({
        let file = file.clone();
        async move { file.stats(None).await }
    });
    bucketq_tests::clock::pass(Duration::from_millis(1_500)).await;
    puppet.takes(Duration::ZERO);
    fill(&other, "q", 1).await?;
    assert_eq!(file.queues(None).await?.len(), 1, "the answer shows what was there when the question came");
    early.await.expect("no panic")?;
    file.close().await?;
    other.close().await
}

/// A read sent at the very moment a reader arrives may show the state before it.
#[tokio::test(start_paused = true)]
async fn a_reader_shares_no_look_issued_before_it_arrived_nor_at_that_moment() -> Result<()> {
    let (puppet, file) = puppet(inline()).await?;
    let other = on_puppet(&Puppet::over(Arc::clone(puppet.beneath())), inline()).await?;
    for i in 1..4 {
        other.queue("q")?.enqueue(Payload::text("x")).await?;
        let ready: u64 = file.queues(None).await?.iter().map(|q| q.counts[&State::Ready]).sum();
        assert_eq!(ready, i);
    }
    other.queue("fresh")?.enqueue(Payload::text("x")).await?;
    assert_eq!(file.queue("fresh")?.claim(1).await?.len(), 1);
    other.close().await?;
    file.close().await
}
