//! Calls with invalid arguments fail with Invalid and write nothing; a full file takes no more jobs and can be emptied.

use std::time::Duration;

use bucketq::op::{Claim, Op};
use bucketq::store::{Memory, Store};
use bucketq::{
    Backoff, Changes, Code, Dedup, DedupScope, Error, Held, Kind, New, Options, Payload, QueueFile, Queues,
};
use bucketq::{Result, State, Token, When};
use bucketq_tests::given::{inline, objects, opened, puppet, refused};

/// A queue file with one leased job, in a store that counts.
struct Given {
    puppet: bucketq_tests::puppet::Puppet,
    file: QueueFile,
    held: Held,
}

async fn given(options: Options) -> Result<Given> {
    let (puppet, file) = puppet(options).await?;
    file.queue("q")?.enqueue(Payload::text("x")).await?;
    let held = file.claim(1).await?[0].held();
    Ok(Given { puppet, file, held })
}

impl Given {
    /// Each of these ops fails with this code, and causes no request and no byte.
    async fn refuses(&self, code: Code, ops: Vec<Op>) -> Result<()> {
        let (before, requests) = (objects(self.puppet.beneath()).await?, self.puppet.requests());
        let metrics = self.file.metrics()?;
        for op in ops {
            let text = format!("{op:.300?}");
            let error: Error = refused(self.file.call(op).await);
            assert_eq!((error.kind(), error.code()), (Kind::Invalid, code), "{text}: {error}");
        }
        assert_eq!(objects(self.puppet.beneath()).await?, before);
        assert_eq!(self.puppet.requests(), requests);
        assert_eq!(self.file.metrics()?, metrics);
        Ok(())
    }

    fn enqueue(&self, change: impl FnOnce(&mut New)) -> Result<Op> {
        let mut job = self.file.new_job(Payload::text("x"))?;
        change(&mut job);
        Ok(Op::Enqueue { queue: "q".into(), jobs: vec![job] })
    }
}

fn claim(change: impl FnOnce(&mut Claim)) -> Op {
    let mut claim = Claim {
        queues: Queues::Any,
        max: 1,
        lease_ms: Some(60_000),
        worker: "w".into(),
        token: Token([1; 16]),
        again: false,
    };
    change(&mut claim);
    Op::Claim(claim)
}

#[tokio::test(start_paused = true)]
async fn oversized_payloads_and_results_are_refused() -> Result<()> {
    let g = given(inline()).await?;
    let large = |n: usize| Payload::bytes(vec![7; n]);
    let limit = 1024 * 1024;
    let ops = vec![
        g.enqueue(|j| j.payload = large(limit + 1))?,
        Op::Ack { held: g.held, result: Some(large(limit + 1)) },
        Op::Atomic(vec![Op::Ack { held: g.held, result: Some(large(limit + 1)) }]),
    ];
    g.refuses(Code::PayloadTooLarge, ops).await?;
    g.file.call(g.enqueue(|j| j.payload = large(limit))?).await?;
    g.file.close().await?;

    let most = 16 * 1024 * 1024;
    let error = refused(Options { max_payload: most + 1, ..inline() }.check());
    assert_eq!(error.code(), Code::Option);
    let g = given(Options { max_payload: most, ..inline() }).await?;
    g.file.call(g.enqueue(|j| j.payload = large(most))?).await?;
    g.refuses(Code::PayloadTooLarge, vec![g.enqueue(|j| j.payload = large(most + 1))?]).await?;
    g.file.close().await
}

#[tokio::test(start_paused = true)]
async fn negative_and_endless_durations_are_refused() -> Result<()> {
    let g = given(inline()).await?;
    let mut ops = vec![];
    for ms in [-1, i64::MIN, i64::MAX] {
        ops.push(g.enqueue(|j| j.when = When::In(ms))?);
        ops.push(g.enqueue(|j| j.when = When::At(ms))?);
        ops.push(g.enqueue(|j| {
            j.backoff = Some(Backoff::Exponential { base_ms: ms, max_ms: 1, jitter_percent: 0 });
        })?);
        ops.push(g.enqueue(|j| {
            j.backoff = Some(Backoff::Exponential { base_ms: 1, max_ms: ms, jitter_percent: 0 });
        })?);
        ops.push(g.enqueue(|j| {
            j.dedup = Some(Dedup { key: "k".into(), scope: DedupScope::Window(ms) });
        })?);
        ops.push(claim(|c| c.lease_ms = Some(ms)));
        ops.push(Op::Nack { held: g.held, delay_ms: Some(ms), error: None });
        ops.push(Op::Extend { held: g.held, lease_ms: ms, at_least: false });
    }
    ops.push(claim(|c| c.lease_ms = Some(0)));
    ops.push(g.enqueue(|j| j.dedup = Some(Dedup { key: "k".into(), scope: DedupScope::Window(0) }))?);
    g.refuses(Code::Argument, ops).await?;
    let error = refused(g.file.claim(1).lease(Duration::MAX).await);
    assert_eq!(error.kind(), Kind::Invalid);
    g.file.close().await
}

#[tokio::test(start_paused = true)]
async fn empty_and_overlong_names_are_refused() -> Result<()> {
    let g = given(inline()).await?;
    // Bytes count, not letters.
    for name in [String::new(), "x".repeat(201), "ü".repeat(101)] {
        assert_eq!(refused(g.file.queue(&name)).kind(), Kind::Invalid);
        let mut job = g.file.new_job(Payload::text("x"))?;
        let mut ops = vec![
            Op::Enqueue { queue: name.clone(), jobs: vec![job.clone()] },
            claim(|c| c.queues = Queues::Named(vec!["q".into(), name.clone()])),
            Op::Purge { queue: name.clone(), states: vec![State::Done] },
            Op::Pause { queue: name.clone() },
            Op::Resume { queue: name.clone() },
            Op::Atomic(vec![Op::Pause { queue: name.clone() }]),
            g.enqueue(|j| j.dedup = Some(Dedup { key: name.clone(), scope: DedupScope::Unfinished }))?,
        ];
        job.group = Some(name.clone());
        ops.push(Op::Enqueue { queue: "q".into(), jobs: vec![job] });
        if !name.is_empty() {
            ops.push(claim(|c| c.worker.clone_from(&name)));
        }
        g.refuses(Code::Argument, ops).await?;
    }
    let longest = "ü".repeat(100);
    g.file.queue(&longest)?.enqueue(Payload::text("x")).await?;
    g.file.close().await
}

#[tokio::test(start_paused = true)]
async fn counts_and_numbers_out_of_range_are_refused() -> Result<()> {
    let g = given(inline()).await?;
    let zero = Held { token: Token([0; 16]), ..g.held };
    let ops = vec![
        claim(|c| c.max = 0),
        claim(|c| c.max = 10_001),
        claim(|c| c.queues = Queues::Named(vec![])),
        claim(|c| c.token = Token([0; 16])),
        Op::Ack { held: zero, result: None },
        Op::Enqueue { queue: "q".into(), jobs: vec![] },
        Op::Atomic(vec![]),
        Op::Atomic(vec![claim(|_| ())]),
        Op::Purge { queue: "q".into(), states: vec![] },
        g.enqueue(|j| j.max_attempts = Some(0))?,
        g.enqueue(|j| j.backoff = Some(Backoff::Exponential { base_ms: 1, max_ms: 1, jitter_percent: 101 }))?,
        g.enqueue(|j| j.headers = [("k".to_owned(), "v".repeat(256 * 1024))].into())?,
        g.enqueue(|j| j.payload.content_type = "t".repeat(101))?,
    ];
    g.refuses(Code::Argument, ops).await?;
    g.file.close().await
}

#[tokio::test(start_paused = true)]
async fn a_lease_of_twice_the_skew_or_less_is_refused() -> Result<()> {
    let g = given(Options { max_skew: Some(Duration::from_secs(5)), ..inline() }).await?;
    assert_eq!(g.file.max_skew()?, Duration::from_secs(5));
    let short = vec![
        claim(|c| c.lease_ms = Some(10_000)),
        claim(|c| c.lease_ms = Some(1)),
        Op::Extend { held: g.held, lease_ms: 10_000, at_least: false },
        Op::Atomic(vec![Op::Extend { held: g.held, lease_ms: 10_000, at_least: false }]),
        Op::Configure { queue: "q".into(), changes: Box::new(lease(Some(10_000))) },
    ];
    g.refuses(Code::Argument, short).await?;
    g.file.claim(1).lease(Duration::from_millis(10_001)).await?;
    g.file.extend(g.held, Duration::from_millis(10_001)).await?;
    for allowed in [Some(10_001), None] {
        g.file.call(Op::Configure { queue: "q".into(), changes: Box::new(lease(allowed)) }).await?;
    }
    g.file.close().await
}

fn lease(lease_ms: Option<i64>) -> Changes {
    Changes { lease_ms: Some(lease_ms), ..Changes::default() }
}

#[tokio::test]
async fn the_skew_is_the_files_and_not_the_handles() -> Result<()> {
    let store: std::sync::Arc<dyn Store> = std::sync::Arc::new(Memory::new());
    let made = Options { max_skew: Some(Duration::from_secs(7)), ..Options::default() };
    let first = QueueFile::open_with(store.clone(), "jobs", made, bucketq::Env::default()).await?;
    let second = opened(store).await?;
    assert_eq!(second.max_skew()?, Duration::from_secs(7));
    first.close().await?;
    second.close().await
}

#[tokio::test(start_paused = true)]
async fn a_file_at_its_limit_is_full_and_can_be_worked_off() -> Result<()> {
    let (puppet, file) = puppet(Options { max_file: 256 * 1024, ..inline() }).await?;
    let q = file.queue("q")?;
    let mut stored = 0;
    let full = loop {
        match q.enqueue(Payload::bytes(vec![stored as u8; 900])).await {
            Ok(_) => stored += 1,
            Err(error) => break error,
        }
        assert!(stored < 400, "256 KiB hold no 400 jobs of 900 bytes");
    };
    assert_eq!((full.kind(), full.code()), (Kind::Full, Code::FileFull));
    assert!(stored > 10, "{stored} jobs");
    let before = objects(puppet.beneath()).await?;
    assert_eq!(refused(q.enqueue(Payload::bytes(vec![0; 900])).await).code(), Code::FileFull);
    assert_eq!(objects(puppet.beneath()).await?, before, "nothing was written");

    let taken = q.claim(1_000).await?;
    assert_eq!(taken.len(), stored);
    // An op that does not fit fails alone: its worker still holds the job.
    let error = refused(file.ack_with(taken[0].held(), Payload::bytes(vec![1; 250 * 1024])).await);
    assert_eq!(error.code(), Code::FileFull);
    for t in &taken {
        file.ack(t.held()).await?;
    }
    assert_eq!(q.purge(&[State::Done]).await?, stored as u64);
    q.enqueue(Payload::bytes(vec![0; 900])).await?;
    file.close().await
}
