//! Payloads stay in memory only while a caller waits, and the number of waiting bytes is limited.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bucketq::{Code, Kind, Options, Payload, Queue, QueueFile, Result};
use bucketq_tests::clock::pass;
use bucketq_tests::given::{inline, puppet, refused};
use bucketq_tests::puppet::{OnGet, OnPut, Puppet};
use bytes::Bytes;
use futures_util::future::join_all;
use tokio::task::JoinHandle;

const SIZE: usize = 20_000;
static BYTES: [u8; SIZE] = [7; SIZE];

/// Payloads that count how many of them exist in memory.
#[derive(Clone, Debug, Default)]
struct Alive(Arc<AtomicUsize>);

struct One(Alive);

impl AsRef<[u8]> for One {
    fn as_ref(&self) -> &[u8] {
        &BYTES
    }
}

impl Drop for One {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Alive {
    fn payload(&self) -> Payload {
        self.0.fetch_add(1, Ordering::Relaxed);
        Payload::bytes(Bytes::from_owner(One(self.clone())))
    }

    fn now(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    fn enqueue(&self, q: &Queue, times: usize) -> Vec<JoinHandle<Result<()>>> {
        let one = |_| {
            let (q, payload) = (q.clone(), self.payload());
            tokio::spawn(async move { q.enqueue(payload).await.map(drop) })
        };
        (0..times).map(one).collect()
    }
}

/// A queue file over a store that no longer replies, and one enqueue that is on its way to it.
async fn in_an_outage(options: Options) -> Result<(Puppet, QueueFile, JoinHandle<Result<()>>)> {
    let (puppet, file) = puppet(options).await?;
    let q = file.queue("q")?;
    q.enqueue(Payload::text("x")).await?;
    puppet.every_put(OnPut::Swallow);
    puppet.every_get(OnGet::Hang);
    let sent = tokio::spawn(async move { q.enqueue(Payload::text("sent")).await.map(drop) });
    pass(Duration::from_millis(100)).await;
    Ok((puppet, file, sent))
}

#[tokio::test(start_paused = true)]
async fn a_caller_who_has_its_answer_leaves_no_payload_behind_however_long_the_outage_lasts() -> Result<()> {
    let (puppet, file, sent) = in_an_outage(inline()).await?;
    let (q, alive) = (file.queue("q")?, Alive::default());
    for round in 0..4 {
        let waiting = alive.enqueue(&q, 100);
        pass(Duration::from_secs(1)).await;
        assert_eq!(alive.now(), 100, "round {round}: they wait");
        for answer in join_all(waiting).await {
            assert_eq!(refused(answer.expect("no panic")).kind(), Kind::Unavailable);
        }
        assert_eq!(alive.now(), 0, "round {round}: they were told that it is surely not applied");
    }
    assert_eq!(refused(sent.await.expect("no panic")).kind(), Kind::Unknown);
    puppet.every_put(OnPut::Pass);
    puppet.every_get(OnGet::Pass);
    q.enqueue(alive.payload()).await?;
    let jobs = file.claim(100).await?;
    assert!((2..=3).contains(&jobs.len()), "{} jobs: nothing that was refused is there", jobs.len());
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_cancelled_leaves_no_payload_behind() -> Result<()> {
    let (puppet, file, _sent) = in_an_outage(inline()).await?;
    let alive = Alive::default();
    let waiting = alive.enqueue(&file.queue("q")?, 100);
    pass(Duration::from_secs(1)).await;
    assert_eq!(alive.now(), 100);
    waiting.iter().for_each(JoinHandle::abort);
    join_all(waiting).await;
    assert_eq!(alive.now(), 0);
    puppet.every_put(OnPut::Pass);
    puppet.every_get(OnGet::Pass);
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn bytes_that_wait_are_bounded_and_one_call_may_bring_more_when_nothing_waits() -> Result<()> {
    let (puppet, file) = puppet(Options { mailbox_bytes: 5 * SIZE, ..inline() }).await?;
    let (q, alive) = (file.queue("q")?, Alive::default());
    puppet.hold();
    let waiting = alive.enqueue(&q, 5);
    puppet.until_held(1).await;
    let full = refused(q.enqueue(alive.payload()).await);
    assert_eq!((full.kind(), full.code()), (Kind::Full, Code::MailboxFull));
    assert!(full.to_string().contains("mailbox_bytes"), "{full}");
    puppet.let_go();
    assert!(join_all(waiting).await.into_iter().all(|r| r.expect("no panic").is_ok()));
    let many = (0..20).map(|_| q.new_job(alive.payload())).collect::<Result<Vec<_>>>()?;
    q.enqueue_many(many).await?;
    assert_eq!(alive.now(), 0);
    assert_eq!(file.claim(100).await?.len(), 25, "what was refused is not there");
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn headers_and_keys_that_wait_are_bounded_too() -> Result<()> {
    let (puppet, file) = puppet(Options { mailbox_bytes: 5_000, ..inline() }).await?;
    let q = file.queue("q")?;
    let large = || {
        let mut job = q.new_job(Payload::text("x"))?;
        job.headers.insert("trace".into(), "0".repeat(3_000));
        Ok::<_, bucketq::Error>(job)
    };
    puppet.hold();
    let (first, second) = (large()?, large()?);
    let waiting = tokio::spawn({
        let q = q.clone();
        async move { q.enqueue_job(first).await }
    });
    puppet.until_held(1).await;
    assert_eq!(refused(q.enqueue_job(second).await).code(), Code::MailboxFull);
    puppet.let_go();
    waiting.await.expect("no panic")?;
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn enqueues_that_wait_for_room_in_their_queue_leave_no_payload_behind() -> Result<()> {
    let (_, file) = puppet(inline()).await?;
    let (q, alive) = (file.queue("q")?, Alive::default());
    q.enqueue(Payload::text("x")).await?;
    let block = bucketq::policy::Overflow::Block { timeout_ms: 600_000 };
    let changes =
        bucketq::policy::Changes { max_pending: Some(Some(1)), overflow: Some(block), ..Default::default() };
    q.configure(changes).await?;
    let waiting = alive.enqueue(&q, 10);
    pass(Duration::from_secs(1)).await;
    assert_eq!(alive.now(), 10);
    waiting.iter().for_each(JoinHandle::abort);
    join_all(waiting).await;
    assert_eq!(alive.now(), 0);
    file.close().await
}
