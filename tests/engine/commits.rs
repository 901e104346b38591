//! Group commit: callers share commits and nothing else.

use std::sync::Arc;
use std::time::Duration;

use bucketq::store::{Memory, Store};
use bucketq::{Code, Held, Kind, Options, Payload, Result, State, Token};
use bucketq_tests::clock::{now, pass};
use bucketq_tests::given::{inline, noise, on_puppet, opened, puppet, refused};
use bucketq_tests::puppet::{OnPut, Puppet};
use futures_util::future::join_all;

fn spawn_enqueues(q: &bucketq::Queue, n: usize) -> Vec<tokio::task::JoinHandle<Result<bucketq::Enqueued>>> {
    (0..n)
        .map(|i| {
            let q = q.clone();
            tokio::spawn(async move { q.enqueue(Payload::text(i.to_string())).await })
        })
        .collect()
}

#[tokio::test(start_paused = true)]
async fn callers_that_come_during_a_put_share_the_next_commit() -> Result<()> {
    let (puppet, file) = puppet(inline()).await?;
    let q = file.queue("q")?;
    puppet.hold();
    let first = spawn_enqueues(&q, 1);
    puppet.until_held(1).await;
    let others = spawn_enqueues(&q, 300);
    pass(Duration::from_millis(1)).await;
    assert_eq!(puppet.requests().puts, 2, "one made the file, one is held");
    puppet.let_go();
    let seqs = async |sent| -> Result<Vec<u64>> {
        join_all(sent)
            .await
            .into_iter()
            .map(|r: std::result::Result<Result<bucketq::Enqueued>, _>| Ok(r.expect("no panic")?.commit_seq))
            .collect()
    };
    assert_eq!(seqs(first).await?, [2]);
    assert_eq!(seqs(others).await?, [3; 300]);
    let metrics = file.metrics()?;
    assert_eq!((metrics.commits, metrics.ops, metrics.conflicts), (2, 301, 0));
    assert_eq!(puppet.requests().puts, 3);
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn three_hundred_callers_in_a_loop_need_few_commits() -> Result<()> {
    let (puppet, file) = puppet(inline()).await?;
    puppet.takes(Duration::from_millis(25));
    let q = file.queue("q")?;
    let loops = (0..300).map(|_| {
        let q = q.clone();
        async move {
            for _ in 0..5 {
                q.enqueue(Payload::text("x")).await?;
            }
            Ok::<_, bucketq::Error>(())
        }
    });
    futures_util::future::try_join_all(loops).await?;
    let metrics = file.metrics()?;
    assert_eq!(metrics.ops, 1_500);
    assert!((5..=7).contains(&metrics.commits), "{metrics:?}");
    assert_eq!(file.claim(2_000).await?.len(), 1_500);
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn on_a_fast_store_a_commit_waits_for_callers_who_are_on_their_way() -> Result<()> {
    let (puppet, file) = puppet(inline()).await?;
    puppet.takes(Duration::from_millis(4));
    let q = file.queue("q")?;
    let loops = (0..8).map(|i| {
        let q = q.clone();
        async move {
            for _ in 0..10 {
                q.enqueue(Payload::text("x")).await?;
                pass(Duration::from_millis(1 + i % 2)).await;
            }
            Ok::<_, bucketq::Error>(())
        }
    });
    futures_util::future::try_join_all(loops).await?;
    let metrics = file.metrics()?;
    assert_eq!(metrics.ops, 80);
    // Otherwise half of them would get a separate commit each time.
    assert!(metrics.commits <= 12, "{metrics:?}");
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn nothing_is_answered_before_the_store_has_it() -> Result<()> {
    let (puppet, file) = puppet(inline()).await?;
    puppet.hold();
    let sent = spawn_enqueues(&file.queue("q")?, 3);
    puppet.until_held(1).await;
    pass(Duration::from_secs(5)).await;
    assert!(sent.iter().all(|t| !t.is_finished()));
    puppet.let_go();
    assert!(join_all(sent).await.into_iter().all(|r| r.expect("no panic").is_ok()));
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn an_op_that_fails_fails_for_its_caller_only() -> Result<()> {
    let (puppet, file) = puppet(Options { max_file: 512 * 1024, ..inline() }).await?;
    let q = file.queue("q")?;
    q.enqueue(Payload::text("first")).await?;
    let good = file.claim(1).await?.remove(0);
    let stale = Held { token: Token([3; 16]), ..good.held() };
    let nowhere = file.queue("nowhere")?;
    let before = puppet.requests().puts;
    let (bad, large, ok, acked, purge) = tokio::join!(
        file.ack(stale),
        // Breaks the transaction when SQLite finds no more space for it: the others run again without it.
        file.ack_with(good.held(), Payload::bytes(noise(7, 250_000))),
        q.enqueue(Payload::text("second")),
        file.ack(good.held()),
        nowhere.purge(&[State::Done]),
    );
    assert_eq!(refused(bad).code(), Code::LeaseLost);
    assert_eq!(purge?, 0);
    large?;
    ok?;
    acked?;
    assert_eq!(puppet.requests().puts, before + 1, "they shared a commit");

    let third = q.enqueue(Payload::text("third")).await?;
    let held = q.claim(2).await?;
    let before = puppet.requests().puts;
    let (full, ok) = tokio::join!(
        file.ack_with(held[0].held(), Payload::bytes(noise(7, 256 * 1024))),
        file.ack(held[1].held())
    );
    assert_eq!(refused(full).kind(), Kind::Full);
    ok?;
    assert_eq!(puppet.requests().puts, before + 1);
    assert_eq!(file.get(third.id).await?.expect("there").job.state, State::Done);
    assert_eq!(file.get(held[0].job.id).await?.expect("there").job.state, State::Leased);
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn commits_keep_their_interval() -> Result<()> {
    let interval = Duration::from_secs(1);
    let (_, file) = puppet(Options { commit_interval: interval, ..inline() }).await?;
    let q = file.queue("q")?;
    q.enqueue(Payload::text("0")).await?;
    let first = now();
    for i in 1..=5 {
        q.enqueue(Payload::text(i.to_string())).await?;
        let passed = now() - first;
        assert!(
            passed >= interval * i && passed < interval * i + Duration::from_millis(50),
            "{i}: {passed:?}"
        );
    }
    // Calls that arrive within the interval share its commit.
    let commits = file.metrics()?.commits;
    for sent in join_all(spawn_enqueues(&q, 40)).await {
        sent.expect("no panic")?;
    }
    assert_eq!(file.metrics()?.commits, commits + 1);
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn a_read_does_not_wait_for_the_commit_interval() -> Result<()> {
    let (_, file) = puppet(Options { commit_interval: Duration::from_secs(15), ..inline() }).await?;
    let receipt = file.queue("q")?.enqueue(Payload::text("0")).await?;
    let before = now();
    assert!(file.get(receipt.id).await?.is_some());
    assert!(now() - before < Duration::from_secs(1), "it took {:?}", now() - before);
    file.close().await
}

#[tokio::test]
async fn an_interval_as_long_as_the_deadline_is_refused() {
    let deadline = Duration::from_secs(10);
    let options = Options { commit_interval: deadline, deadline, ..Options::default() };
    assert_eq!(refused(options.check()).code(), Code::Option);
}

#[tokio::test(start_paused = true)]
async fn a_full_mailbox_refuses_at_once_and_recovers() -> Result<()> {
    let (puppet, file) = puppet(Options { mailbox: 10, ..inline() }).await?;
    let q = file.queue("q")?;
    puppet.hold();
    let sent = spawn_enqueues(&q, 10);
    puppet.until_held(1).await;
    pass(Duration::from_millis(1)).await;
    let before = now();
    for error in [refused(q.enqueue(Payload::text("x")).await), refused(file.stats(None).await)] {
        assert_eq!((error.kind(), error.code()), (Kind::Full, Code::MailboxFull));
    }
    assert_eq!(now(), before);
    puppet.let_go();
    assert!(join_all(sent).await.into_iter().all(|r| r.expect("no panic").is_ok()));
    q.enqueue(Payload::text("x")).await?;
    assert_eq!(file.claim(100).await?.len(), 11, "what was refused is not there");
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn conflicts_and_lost_answers_never_reach_callers() -> Result<()> {
    let (puppet, a) = puppet(inline()).await?;
    let b = on_puppet(&puppet, inline()).await?;
    puppet.takes(Duration::from_millis(20));
    puppet.next_puts([OnPut::LoseAnswer, OnPut::FalseConflict, OnPut::LoseRequest, OnPut::Pass]);
    let work = |file: bucketq::QueueFile, name: &'static str| async move {
        let q = file.queue("q")?;
        for i in 0..30 {
            q.enqueue(Payload::text(format!("{name}{i}"))).await?;
        }
        Ok::<_, bucketq::Error>(file)
    };
    let (a, b) = tokio::try_join!(work(a, "a"), work(b, "b"))?;
    assert!(a.metrics()?.conflicts + b.metrics()?.conflicts > 0);
    let mut all: Vec<_> = a.claim(100).await?.into_iter().map(|t| t.payload.bytes).collect();
    all.sort();
    let n = all.len();
    all.dedup();
    assert_eq!((n, all.len()), (60, 60), "nothing lost, nothing doubled");
    a.close().await?;
    b.close().await
}

#[tokio::test]
async fn an_op_without_effect_costs_no_put() -> Result<()> {
    let store: Arc<dyn Store> = Arc::new(Memory::new());
    let puppet = Puppet::over(store);
    let file = opened(puppet.store()).await?;
    let q = file.queue("q")?;
    let job = q.new_job(Payload::text("x"))?;
    q.enqueue_job(job.clone()).await?;
    let held = q.claim(1).await?.remove(0).held();
    file.ack(held).await?;
    let before = puppet.requests().puts;
    file.ack(held).await?;
    q.enqueue_job(job).await?;
    assert!(q.claim(1).await?.is_empty());
    q.resume().await?;
    assert_eq!(puppet.requests().puts, before);
    file.close().await
}
