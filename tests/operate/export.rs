//! An export is a plain SQLite file of one settled commit; it exists completely or not at all.

use std::sync::Arc;

use bucketq::store::{Memory, Store};
use bucketq::{Code, Options, Payload, QueueFile, Result};
use bucketq_tests::given::{inline, refused};
use bucketq_tests::puppet::OnPut;
use rusqlite::{Connection, OpenFlags};

use crate::open;

fn jobs_in(path: &std::path::Path) -> i64 {
    let image = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).expect("sqlite opens it");
    let told: String = image.query_row("PRAGMA integrity_check", [], |r| r.get(0)).expect("sqlite reads it");
    assert_eq!(told, "ok");
    image.query_row("SELECT count(*) FROM jobs", [], |r| r.get(0)).expect("it has the table")
}

#[tokio::test]
async fn an_export_is_a_sqlite_file_of_the_newest_commit() -> Result<()> {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let store: Arc<dyn Store> = Arc::new(Memory::new());
    let (file, other) = (open(&store).await?, open(&store).await?);
    for i in 0..7 {
        other.queue("q")?.enqueue(Payload::text(i.to_string())).await?;
    }
    let path = dir.path().join("image.sqlite");
    // This handle has not read the others' commits yet.
    let exported = file.export(&path, false).await?;
    let stats = other.stats(None).await?;
    assert_eq!((exported.commit_seq, &exported.commit_id), (stats.commit_seq, &stats.commit_id));
    assert_eq!(exported.bytes, std::fs::metadata(&path).expect("it is there").len());
    assert_eq!(exported.commit_id.len(), 32);
    assert_eq!(jobs_in(&path), 7);
    let files = std::fs::read_dir(dir.path()).expect("it can be read").count();
    assert_eq!(files, 1, "nothing unfinished is left");
    file.close().await?;
    other.close().await
}

#[tokio::test]
async fn a_file_that_is_there_is_replaced_only_when_told() -> Result<()> {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let store: Arc<dyn Store> = Arc::new(Memory::new());
    let file = open(&store).await?;
    let path = dir.path().join("image.sqlite");
    std::fs::write(&path, "precious").expect("room for it");
    let error = refused(file.export(&path, false).await);
    assert_eq!(error.code(), Code::FileExists, "{error}");
    assert_eq!(std::fs::read(&path).expect("it is there"), b"precious");
    file.export(&path, true).await?;
    assert_eq!(jobs_in(&path), 0);
    let files = std::fs::read_dir(dir.path()).expect("it can be read").count();
    assert_eq!(files, 1, "nothing unfinished is left");
    let nowhere = dir.path().join("no/such/place.sqlite");
    assert_eq!(refused(file.export(&nowhere, false).await).code(), Code::LocalFile);
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn an_export_shows_nothing_that_is_not_settled() -> Result<()> {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let (puppet, file) = bucketq_tests::given::puppet(inline()).await?;
    let q = file.queue("q")?;
    q.enqueue(Payload::text("there")).await?;
    puppet.every_put(OnPut::LoseRequest);
    let lost = tokio::spawn(async move { q.enqueue(Payload::text("under way")).await });
    let path = dir.path().join("image.sqlite");
    let exporting = tokio::spawn({
        let (file, path) = (file.clone(), path.clone());
        async move { file.export(path, false).await }
    });
    // Neither ends before the put does; the export fails because of it, or has the settled state.
    let exported = exporting.await.expect("no panic");
    assert!(lost.await.expect("no panic").is_err());
    if exported.is_ok() {
        assert_eq!(jobs_in(&path), 1);
    } else {
        assert!(!path.exists());
    }
    puppet.every_put(OnPut::Pass);
    Ok(())
}

#[tokio::test]
async fn python_and_a_second_writer_read_an_export_made_by_a_handle_that_only_looks() -> Result<()> {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let url = dir.path().join("jobs").to_str().expect("plain").to_owned();
    let file = QueueFile::open(&url, Options::default()).await?;
    file.queue("q")?.enqueue(Payload::text("x")).await?;
    let looking = QueueFile::open(&url, Options { read_only: true, ..Options::default() }).await?;
    let path = dir.path().join("image.sqlite");
    looking.export(&path, false).await?;
    let program = format!(
        "import sqlite3; db = sqlite3.connect('file:{}?mode=ro', uri=True); print(db.execute('select count(*) from jobs').fetchone()[0])",
        path.display()
    );
    let python = std::process::Command::new("python3").args(["-c", &program]).output();
    let python = python.expect("Python is there: make needs it");
    assert_eq!(String::from_utf8_lossy(&python.stdout).trim(), "1", "{python:?}");
    looking.close().await?;
    file.close().await
}
