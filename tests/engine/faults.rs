//! Stores that cannot be reached or that refuse.

use std::sync::Arc;
use std::time::Duration;

use bucketq::config::{Credentials, S3Options};
use bucketq::store::Memory;
use bucketq::{Code, Kind, Options, Payload, QueueFile, Result};
use bucketq_tests::clock::{TestClock, now, pass};
use bucketq_tests::given::{NAME, inline, puppet, refused};
use bucketq_tests::puppet::{OnGet, OnPut, Puppet};
use bucketq_tests::servers;

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

/// Credentials that are withdrawn after a body was sent show nothing about that body (P3, P7).
#[tokio::test(start_paused = true)]
async fn denied_after_a_commit_may_have_been_applied_is_unknown() -> Result<()> {
    for put in [OnPut::LoseAnswer, OnPut::LoseRequest, OnPut::FalseConflict] {
        let (puppet, file) = puppet(inline()).await?;
        puppet.every_put(put);
        puppet.every_get(OnGet::Fail(Code::Denied));
        let error = refused(file.queue("q")?.enqueue(Payload::text("x")).await);
        assert_eq!((error.kind(), error.code()), (Kind::Unknown, Code::OutcomeUnknown), "{put:?}: {error}");
        assert!(error.message().contains("as told"), "the store's answer is told: {error}");
        let error = refused(file.settle().await);
        assert_eq!(error.kind(), Kind::Unavailable, "{put:?}: this fence was not sent: {error}");
        puppet.every_put(OnPut::Pass);
        puppet.every_get(OnGet::Pass);
        file.settle().await?;
        assert_eq!(file.claim(9).await?.len(), 1, "{put:?}");
        file.close().await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_creation_that_may_have_taken_place_is_unknown() -> Result<()> {
    for (put, get) in [
        (OnPut::LoseAnswer, OnGet::Fail(Code::Denied)),
        (OnPut::LoseAnswer, OnGet::Fail(Code::Unreachable)),
        (OnPut::LoseRequest, OnGet::Hang),
    ] {
        let puppet = Puppet::over(Arc::new(Memory::new()));
        puppet.next_gets([OnGet::Absent]);
        puppet.every_get(get);
        puppet.next_puts([put]);
        puppet.every_put(OnPut::Refuse(Code::Denied));
        let opened = QueueFile::open_with(puppet.store(), NAME, inline(), TestClock::start().env()).await;
        let error = refused(opened);
        assert_eq!((error.kind(), error.code()), (Kind::Unknown, Code::OutcomeUnknown), "{put:?}: {error}");
        assert!(error.message().contains("open it again"), "{error}");
    }
    Ok(())
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
