//! Handles: one writer for each process and queue file, closing, dropping.

use std::time::Duration;

use bucketq::store::Memory;
use bucketq::{Code, Kind, Options, Payload, QueueFile, Result};
use bucketq_tests::clock::pass;
use bucketq_tests::given::{inline, on_puppet, puppet, refused};
use bucketq_tests::puppet::OnPut;
use futures_util::FutureExt;

#[tokio::test]
async fn openings_of_one_url_share_a_writer() -> Result<()> {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let path = dir.path().join("jobs");
    let path = path.to_str().expect("a plain path");
    let a = QueueFile::open(path, Options::default()).await?;
    let b = QueueFile::open(&format!("file://{path}"), Options::default()).await?;
    a.queue("q")?.enqueue(Payload::text("x")).await?;
    assert_eq!(b.metrics()?.commits, 1);
    assert_eq!(b.claim(1).await?.len(), 1);
    assert_eq!(a.metrics()?, b.metrics()?);
    assert_eq!(b.metrics()?.conflicts, 0);
    a.close().await?;
    // The other one continues.
    b.queue("q")?.enqueue(Payload::text("y")).await?;
    b.close().await?;
    let c = QueueFile::open(path, Options::default()).await?;
    assert_eq!(c.metrics()?.commits, 0, "the last handle had ended the writer");
    c.close().await
}

#[cfg(unix)]
#[tokio::test]
async fn one_directory_written_in_several_ways_has_one_writer() -> Result<()> {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let real = dir.path().join("real");
    std::os::unix::fs::symlink(&real, dir.path().join("link")).expect("a link can be made");
    let here = std::env::current_dir().expect("there is one");
    let up = "../".repeat(here.components().count() - 1);
    let relative = format!("{up}{}", dir.path().strip_prefix("/").expect("it is absolute").display());
    let url = |part: &str| format!("{relative}/{part}/jobs");
    // The first one creates the directory.
    let mut files = vec![QueueFile::open(&format!("{}/jobs", real.display()), Options::default()).await?];
    files[0].queue("q")?.enqueue(Payload::text("x")).await?;
    for url in [url("real"), url("link"), url("link/."), url("real/../link")] {
        files.push(QueueFile::open(&url, Options::default()).await?);
        assert_eq!(files.last().expect("pushed").metrics()?.commits, 1, "{url}");
    }
    for file in files {
        file.close().await?;
    }
    Ok(())
}

#[tokio::test]
async fn openings_at_the_same_time_share_a_writer() -> Result<()> {
    let open = || QueueFile::open("memory://opened-at-once", Options::default());
    let files = futures_util::future::try_join_all((0..8).map(|_| open())).await?;
    files[0].queue("q")?.enqueue(Payload::text("x")).await?;
    assert!(files.iter().all(|f| f.metrics().is_ok_and(|m| m.commits == 1)));
    for file in files {
        file.close().await?;
    }
    Memory::forget("opened-at-once");
    Ok(())
}

#[tokio::test]
async fn other_options_for_what_is_open_are_invalid() -> Result<()> {
    let url = "memory://other-options";
    let file = QueueFile::open(url, Options::default()).await?;
    let other = Options { mailbox: 7, ..Options::default() };
    let error = refused(QueueFile::open(url, other.clone()).await);
    assert_eq!((error.kind(), error.code()), (Kind::Invalid, Code::OptionsDiffer));
    file.close().await?;
    QueueFile::open(url, other).await?.close().await?;
    Memory::forget("other-options");
    Ok(())
}

#[tokio::test]
async fn without_create_a_missing_file_is_not_found_and_not_made() -> Result<()> {
    let options = Options { create: false, ..Options::default() };
    for _ in 0..2 {
        let error = refused(QueueFile::open("memory://never-made", options.clone()).await);
        assert_eq!((error.kind(), error.code()), (Kind::NotFound, Code::NoSuchFile));
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_close_answers_what_was_sent_before() -> Result<()> {
    let (puppet, file) = puppet(inline()).await?;
    let q = file.queue("q")?;
    puppet.hold();
    let sent: Vec<_> = (0..20)
        .map(|i| {
            tokio::spawn({
                let q = q.clone();
                async move { q.enqueue(Payload::text(i.to_string())).await }
            })
        })
        .collect();
    puppet.until_held(1).await;
    let closing = tokio::spawn(file.clone().close());
    pass(Duration::from_millis(1)).await;
    assert!(!closing.is_finished(), "what was sent is not answered yet");
    assert_eq!(refused(q.enqueue(Payload::text("late")).await).kind(), Kind::Closed);
    puppet.let_go();
    closing.await.expect("no panic")?;
    for job in sent {
        job.await.expect("no panic")?;
    }
    let again = on_puppet(&puppet, inline()).await?;
    assert_eq!(again.claim(100).await?.len(), 20);
    again.close().await
}

#[tokio::test(start_paused = true)]
async fn everything_on_a_closed_handle_says_closed() -> Result<()> {
    let (puppet, file) = puppet(inline()).await?;
    let (copy, q) = (file.clone(), file.queue("q")?);
    file.close().await?;
    let before = puppet.requests();
    let errors = [
        refused(q.enqueue(Payload::text("x")).await),
        refused(copy.claim(1).await),
        refused(copy.claim(1).wait_forever().await),
        refused(copy.stats(None).await),
        refused(copy.stats(Some(Duration::from_hours(1))).await),
        refused(copy.settle().await),
        refused(copy.metrics()),
        refused(copy.new_job(Payload::text("x"))),
    ];
    assert!(errors.iter().all(|e| e.kind() == Kind::Closed), "{errors:?}");
    assert_eq!(puppet.requests(), before);
    copy.close().await
}

#[tokio::test(start_paused = true)]
async fn claims_that_wait_end_when_their_handle_is_closed() -> Result<()> {
    let (_, file) = puppet(inline()).await?;
    let waiting: Vec<_> = (0..5).map(|_| tokio::spawn(file.claim(1).wait_forever().into_future())).collect();
    pass(Duration::from_millis(1)).await;
    file.close().await?;
    for claim in waiting {
        assert_eq!(refused(claim.await.expect("no panic")).kind(), Kind::Closed);
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_dropped_handle_leaves_its_claims_waiting_and_the_last_one_ends_the_writer() -> Result<()> {
    let (puppet, file) = puppet(inline()).await?;
    let other = on_puppet(&puppet, inline()).await?;
    let waiting = tokio::spawn(file.claim(1).wait_forever().into_future());
    pass(Duration::from_millis(1)).await;
    drop(file);
    other.queue("q")?.enqueue(Payload::text("x")).await?;
    assert_eq!(waiting.await.expect("no panic")?.len(), 1);
    other.close().await?;
    // No handle is left: nothing reads the store any more.
    pass(Duration::from_secs(1)).await;
    let before = puppet.requests();
    pass(Duration::from_hours(1)).await;
    assert_eq!(puppet.requests(), before);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_close_ends_although_the_store_never_answers() -> Result<()> {
    let (puppet, file) = puppet(inline()).await?;
    let q = file.queue("q")?;
    puppet.every_put(OnPut::Swallow);
    puppet.every_get(bucketq_tests::puppet::OnGet::Hang);
    let lost = tokio::spawn(async move { q.enqueue(Payload::text("x")).await });
    pass(Duration::from_secs(1)).await;
    let closed = tokio::time::timeout(Duration::from_mins(5), file.close()).await;
    assert_eq!(refused(lost.await.expect("no panic")).kind(), Kind::Unknown);
    assert!(closed.is_ok(), "every caller has had its answer for minutes");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_handle_closed_twice_is_closed() -> Result<()> {
    let (_, file) = puppet(inline()).await?;
    let copy = file.clone();
    file.close().await?;
    assert!(copy.close().now_or_never().expect("at once").is_ok());
    Ok(())
}
