//! Stores that are not there or say no, and clocks that disagree.

use std::sync::Arc;
use std::time::Duration;

use bucketq::config::{Credentials, S3Options};
use bucketq::store::Memory;
use bucketq::{Code, Kind, Options, Payload, QueueFile, Result};
use bucketq_tests::clock::{TestClock, now, pass};
use bucketq_tests::given::{NAME, inline, objects, puppet, refused};
use bucketq_tests::puppet::{OnGet, OnPut, Puppet};
use bucketq_tests::servers;

const HOUR_MS: i64 = 3_600_000;

#[tokio::test]
async fn a_missing_directory_is_told_at_open() {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let path = dir.path().join("no").join("such").join("jobs");
    let error = refused(QueueFile::open(path.to_str().expect("plain"), Options::default()).await);
    assert_eq!((error.kind(), error.code()), (Kind::Unavailable, Code::NoSuchBucket), "{error}");
    assert!(!dir.path().join("no").exists(), "nothing was made");
}

#[tokio::test]
async fn a_server_without_a_route_is_told_at_open_with_the_cause() {
    let endpoint = format!("http://127.0.0.1:{}", servers::free_port().await);
    let credentials =
        Credentials { access_key: "a".into(), secret_key: "very-secret".into(), session_token: None };
    let s3 = S3Options { endpoint: Some(endpoint), credentials: Some(credentials), ..S3Options::default() };
    let options = Options { s3, ..Options::default() };
    let before = now();
    let error = refused(QueueFile::open("s3://bucket/jobs", options).await);
    assert_eq!((error.kind(), error.code()), (Kind::Unavailable, Code::Unreachable), "{error}");
    assert!(std::error::Error::source(&error).is_some() || error.message().contains("connect"), "{error:?}");
    assert!(now() - before < Duration::from_secs(30), "it took {:?}", now() - before);
    assert!(!format!("{error:?}").contains("very-secret"));
}

#[tokio::test(start_paused = true)]
async fn denied_is_told_at_open_and_later_and_surely_not_applied() -> Result<()> {
    for put in [false, true] {
        let puppet = Puppet::over(Arc::new(Memory::new()));
        if put {
            puppet.every_put(OnPut::Refuse(Code::Denied));
        } else {
            puppet.every_get(OnGet::Fail(Code::Denied));
        }
        let before = now();
        let opened = QueueFile::open_with(puppet.store(), NAME, inline(), TestClock::start().env()).await;
        let error = refused(opened);
        assert_eq!((error.kind(), error.code()), (Kind::Unavailable, Code::Denied), "{error}");
        assert_eq!(now(), before, "trying again is hopeless");
    }
    let (puppet, file) = puppet(inline()).await?;
    let q = file.queue("q")?;
    pass(Duration::from_millis(1)).await;
    puppet.every_put(OnPut::Refuse(Code::Denied));
    let before = now();
    assert_eq!(refused(q.enqueue(Payload::text("x")).await).code(), Code::Denied);
    puppet.every_get(OnGet::Fail(Code::Denied));
    assert_eq!(refused(file.stats(None).await).code(), Code::Denied);
    assert_eq!(now(), before);
    puppet.every_put(OnPut::Pass);
    puppet.every_get(OnGet::Pass);
    assert!(file.queues(None).await?.is_empty(), "it was not applied");
    q.enqueue(Payload::text("y")).await?;
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn a_passing_fault_at_open_is_ridden_out_and_a_lasting_one_told() -> Result<()> {
    let puppet = Puppet::over(Arc::new(Memory::new()));
    puppet.next_puts([OnPut::LoseAnswer, OnPut::FalseConflict]);
    let open = || QueueFile::open_with(puppet.store(), NAME, inline(), TestClock::start().env());
    open().await?.close().await?;
    puppet.every_get(OnGet::Fail(Code::Unreachable));
    let before = now();
    assert_eq!(refused(open().await).code(), Code::Unreachable);
    assert!(now() - before < Duration::from_secs(10));
    puppet.every_get(OnGet::Hang);
    assert_eq!(refused(open().await).kind(), Kind::Unavailable);
    Ok(())
}

/// A queue file in a store with a clock, on a machine with its own.
async fn clocked(off_ms: i64) -> Result<(Puppet, TestClock, TestClock, QueueFile)> {
    let right = TestClock::start();
    let own = right.off_by(off_ms);
    let puppet = Puppet::over(Arc::new(Memory::new()));
    puppet.tells(&right);
    let file = QueueFile::open_with(puppet.store(), NAME, skewed(), own.env()).await?;
    Ok((puppet, right, own, file))
}

fn skewed() -> Options {
    Options { max_skew: Some(Duration::from_secs(5)), ..inline() }
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_wrong_from_the_start_is_corrected_by_the_stores() -> Result<()> {
    use bucketq::env::Clock;
    for off_ms in [-24 * HOUR_MS, -7_000, 0, 7_000, 24 * HOUR_MS] {
        let (_, right, _, file) = clocked(off_ms).await?;
        file.queue("q")?.enqueue(Payload::text("x")).await?;
        let off = file.stats(None).await?.commit_ms - right.wall_ms();
        assert!(off.abs() <= 1_000, "{off} ms with a clock off by {off_ms} ms");
        file.close().await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_set_is_corrected_before_it_commits_and_never_makes_two_holders() -> Result<()> {
    use bucketq::env::Clock;
    for step in [HOUR_MS, -HOUR_MS] {
        let (puppet, right, own, file) = clocked(0).await?;
        let other = QueueFile::open_with(puppet.store(), NAME, skewed(), right.env()).await?;
        let q = file.queue("q")?;
        q.enqueue(Payload::text("x")).await?;
        pass(Duration::from_millis(1)).await;
        let held = other.claim(1).await?.remove(0);
        file.stats(None).await?;
        own.step(step);
        let before = objects(puppet.beneath()).await?;
        // Within the lease of the other holder, and without a word from the store nothing goes.
        pass(Duration::from_secs(1)).await;
        puppet.every_get(OnGet::Fail(Code::Denied));
        assert_eq!(refused(q.enqueue(Payload::text("y")).await).kind(), Kind::Unavailable, "step {step}");
        puppet.every_get(OnGet::Pass);
        assert!(file.claim(1).await?.is_empty(), "step {step}: somebody else holds it");
        assert_eq!(objects(puppet.beneath()).await?, before, "step {step}");
        q.enqueue(Payload::text("z")).await?;
        let off = file.stats(None).await?.commit_ms - right.wall_ms();
        assert!(off.abs() <= 1_000, "step {step}: {off} ms");
        other.ack(held.held()).await?;
        assert_eq!(other.claim(9).await?.len(), 1);
        file.close().await?;
        other.close().await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_store_whose_clock_went_away_from_ours_is_clock_skew() -> Result<()> {
    for step in [HOUR_MS, -HOUR_MS, 7_000, -7_000] {
        let (puppet, right, _, file) = clocked(0).await?;
        let q = file.queue("q")?;
        q.enqueue(Payload::text("x")).await?;
        right.step(step);
        pass(Duration::from_millis(1)).await;
        file.stats(None).await?;
        let before = objects(puppet.beneath()).await?;
        for error in [
            refused(q.enqueue(Payload::text("y")).await),
            refused(file.claim(1).await),
            refused(file.settle().await),
        ] {
            let got = (error.kind(), error.code());
            assert_eq!(got, (Kind::Unavailable, Code::ClockSkew), "step {step}: {error}");
        }
        assert_eq!(objects(puppet.beneath()).await?, before, "step {step}");
        right.step(-step);
        q.enqueue(Payload::text("z")).await?;
        assert_eq!(file.claim(9).await?.len(), 2, "what was refused is not there");
        file.close().await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_small_step_is_slewed_and_a_slow_answer_is_no_skew() -> Result<()> {
    let (puppet, _, own, file) = clocked(0).await?;
    let q = file.queue("q")?;
    own.step(4_000);
    q.enqueue(Payload::text("x")).await?;
    puppet.takes(Duration::from_secs(8));
    q.enqueue(Payload::text("y")).await?;
    q.enqueue(Payload::text("z")).await?;
    puppet.takes(Duration::ZERO);
    q.enqueue(Payload::text("z")).await?;
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn without_a_date_a_head_from_the_future_is_refused() -> Result<()> {
    let puppet = Puppet::over(Arc::new(Memory::new()));
    let right = TestClock::start();
    let fast = right.off_by(HOUR_MS);
    let theirs = QueueFile::open_with(puppet.store(), NAME, skewed(), fast.env()).await?;
    theirs.queue("q")?.enqueue(Payload::text("x")).await?;
    let mine = QueueFile::open_with(puppet.store(), NAME, skewed(), right.env()).await?;
    assert_eq!(mine.queues(None).await?.len(), 1, "reading is no trouble");
    let before = objects(puppet.beneath()).await?;
    for error in [
        refused(mine.queue("q")?.enqueue(Payload::text("y")).await),
        refused(mine.claim(1).await),
        refused(mine.settle().await),
    ] {
        assert_eq!((error.kind(), error.code()), (Kind::Unavailable, Code::ClockSkew), "{error}");
    }
    assert_eq!(objects(puppet.beneath()).await?, before);
    right.step(HOUR_MS);
    assert_eq!(mine.claim(1).await?.len(), 1);
    mine.close().await?;
    theirs.close().await
}
