//! The option `read_only`: everything can be read and nothing is ever written.

use std::sync::Arc;
use std::time::Duration;

use bucketq::store::{FileStore, Memory, Store};
use bucketq::{Code, Env, Filter, Kind, Op, Options, Payload, QueueFile, Result};
use bucketq_tests::given::{inline, objects, refused};
use bucketq_tests::puppet::Puppet;

use crate::{grown, open_as};

fn looking() -> Options {
    Options { read_only: true, ..inline() }
}

#[tokio::test(start_paused = true)]
async fn queries_work_ops_are_refused_and_only_gets_are_sent() -> Result<()> {
    let store = grown(260).await?;
    let puppet = Puppet::over(Arc::clone(&store));
    let before = objects(&store).await?;
    let file = open_as(&puppet.store(), looking()).await?;
    assert_eq!(file.stats(None).await?.queues.len(), 1);
    let page = file.list(Filter::default(), None, 10).await?;
    assert!(file.get(page.jobs[0].id).await?.is_some());
    assert!(!file.history(10).await?.is_empty());
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    file.export(dir.path().join("image.sqlite"), false).await?;
    let q = file.queue("q")?;
    let refusals = [
        refused(q.enqueue(Payload::text("x")).await),
        refused(file.claim(1).await),
        refused(file.claim(1).wait_forever().await),
        refused(file.cancel(page.jobs[0].id).await),
        refused(file.call(Op::Pause { queue: "q".into() }).await),
        refused(file.settle().await),
        refused(file.collect(Duration::ZERO).await),
    ];
    for error in refusals {
        assert_eq!((error.kind(), error.code()), (Kind::Invalid, Code::ReadOnly), "{error}");
    }
    file.close().await?;
    let requests = puppet.requests();
    assert!(requests.gets > 0);
    assert_eq!((requests.puts, requests.new, requests.lists, requests.deletes), (0, 0, 0, 0));
    assert_eq!(objects(&store).await?, before);
    Ok(())
}

#[tokio::test]
async fn nothing_is_made_where_nothing_is() -> Result<()> {
    let store: Arc<dyn Store> = Arc::new(Memory::new());
    let error = refused(open_as(&store, looking()).await);
    assert_eq!(error.code(), Code::NoSuchFile, "{error}");
    assert!(objects(&store).await?.is_empty());
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let url = dir.path().join("sub/jobs").to_str().expect("plain").to_owned();
    let options = Options { read_only: true, ..Options::default() };
    assert_eq!(refused(QueueFile::open(&url, options).await).code(), Code::NoSuchBucket);
    assert!(!dir.path().join("sub").exists());
    Ok(())
}

#[tokio::test]
async fn it_follows_a_writer_of_the_same_process() -> Result<()> {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let url = dir.path().join("jobs").to_str().expect("plain").to_owned();
    let file = QueueFile::open(&url, Options::default()).await?;
    let look = QueueFile::open(&url, Options { read_only: true, ..Options::default() }).await?;
    for n in 1..4 {
        file.queue("q")?.enqueue(Payload::text("x")).await?;
        assert_eq!(look.queues(None).await?[0].counts.values().sum::<u64>(), n);
    }
    look.close().await?;
    file.close().await
}

/// Even in a read-only directory.
#[cfg(unix)]
#[tokio::test]
async fn files_of_others_in_the_directory_are_left_alone() -> Result<()> {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let store = FileStore::open(dir.path(), &Env::default())?;
    let file = QueueFile::open_with(Arc::new(store), "jobs", Options::default(), Env::default()).await?;
    file.queue("q")?.enqueue(Payload::text("x")).await?;
    file.close().await?;
    let abandoned = dir.path().join(".jobs.head.0123456789abcdef.tmp");
    let made = std::fs::File::create(&abandoned).expect("room for it");
    let long_ago = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000);
    made.set_modified(long_ago).expect("its owner may");
    let url = dir.path().join("jobs").to_str().expect("plain").to_owned();
    let look = QueueFile::open(&url, Options { read_only: true, ..Options::default() }).await?;
    assert_eq!(look.stats(None).await?.queues.len(), 1);
    assert!(abandoned.exists(), "who only looks tidies up nothing");
    look.close().await?;
    QueueFile::open(&url, Options::default()).await?.close().await?;
    assert!(!abandoned.exists(), "a writer does");
    Ok(())
}
