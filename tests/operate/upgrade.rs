//! Libraries of several versions share a queue file while they are upgraded one by one. An older one reads files of
//! newer ones for as long as it can, never writes what it does not understand, and its error names the remedy.

use std::sync::Arc;
use std::time::Duration;

use bucketq::internals::head::{FORMAT, Head, WriterEntry};
use bucketq::internals::pages::Pages;
use bucketq::internals::record::{CODEC_NONE, Record};
use bucketq::job::{Dedup, DedupScope};
use bucketq::store::{Memory, Store};
use bucketq::{Code, Error, Kind, Payload, QueueFile, Result, State};
use bucketq_tests::clock::pass;
use bucketq_tests::given::{HEAD, inline, objects, refused};
use bucketq_tests::puppet::Puppet;
use bytes::Bytes;

use crate::{head, open, open_as};

/// A change of a newer library in HEAD.
type Newer = fn(&mut Head);

/// Changes that make a file unwritable for this version and leave it readable.
const UNWRITABLE: [(&str, Newer); 3] = [
    ("format", |h| h.min_writer = FORMAT + 1),
    ("features", |h| h.writer_features = 1 << 7),
    ("schema", |_| ()),
];

/// Changes that make it unreadable.
const UNREADABLE: [Newer; 2] = [|h| h.min_reader = FORMAT + 1, |h| h.reader_features = 1];

/// Commit as a newer library would: it runs this SQL and changes HEAD.
async fn commit_newer(store: &Arc<dyn Store>, sql: &str, change: Newer) -> Result<()> {
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let path = dir.path().join("image.sqlite");
    let file = open_as(store, bucketq::Options { read_only: true, ..inline() }).await?;
    file.export(&path, false).await?;
    file.close().await?;
    let mut pages = Pages::from_image(&std::fs::read(&path).expect("it was exported"))?;
    rusqlite::Connection::open(&path).and_then(|c| c.execute_batch(sql)).expect("sqlite does it");
    let after = std::fs::read(&path).expect("it is there");
    pages.truncate(after.len() as u64);
    pages.write(0, &after);
    let delta = pages.take_changes().delta().encode();
    let known = head(store).await?;
    let record = Record {
        seq: known.commit_seq + 1,
        commit_id: [known.commit_seq as u8; 16],
        prev_commit_id: known.commit_id,
        commit_ms: known.commit_ms,
        writer: [0xee; 8],
        ops: 1,
        page_count: pages.page_count(),
        checksum: pages.checksum().0,
        codec: CODEC_NONE,
        raw_len: delta.len() as u32,
        frame: delta.into(),
    };
    let mut next = Head {
        commit_seq: record.seq,
        commit_id: record.commit_id,
        prev_commit_id: known.commit_id,
        page_count: record.page_count,
        checksum: record.checksum,
        ..known
    };
    next.writers.push(WriterEntry {
        id: record.writer,
        attempt: record.seq,
        commit_id: record.commit_id,
        seq: record.seq,
    });
    next.writers.sort_by_key(|w| w.id);
    next.writers.dedup_by_key(|w| w.id);
    next.tail.push(record);
    change(&mut next);
    store.put_new(HEAD, next.encode().into()).await
}

/// The SQL that each of the changes needs in the database.
fn sql_for(what: &str) -> &'static str {
    if what == "schema" {
        "ALTER TABLE queues ADD COLUMN colour TEXT; PRAGMA user_version = 99"
    } else {
        "INSERT INTO meta VALUES ('a newer library', 1)"
    }
}

/// A queue file with one ready and one leased job.
async fn given() -> Result<(Arc<dyn Store>, QueueFile)> {
    let store: Arc<dyn Store> = Arc::new(Memory::new());
    let file = open(&store).await?;
    let q = file.queue("q")?;
    q.enqueue(Payload::text("leased")).await?;
    q.claim(1).await?;
    q.enqueue(Payload::text("ready")).await?;
    Ok((store, file))
}

fn too_new(error: &Error) {
    assert_eq!((error.kind(), error.code()), (Kind::Corrupt, Code::TooNew), "{error}");
    assert!(error.message().contains("upgrade bucketq"), "it says what to do: {error}");
}

/// It can be read, every op is refused, and the bucket stays as it is.
async fn only_reads(store: &Arc<dyn Store>, file: &QueueFile, what: &str) -> Result<()> {
    let before = objects(store).await?;
    let stats = file.stats(None).await?;
    assert_eq!(stats.queues[0].counts[&State::Ready], 1, "{what}");
    assert_eq!(stats.commit_seq, head(store).await?.commit_seq, "{what}");
    let page = file.list(bucketq::Filter::default(), None, 10).await?;
    let job = page.jobs.iter().find(|j| j.state == State::Ready).expect("one is ready").id;
    assert_eq!(&file.get(job).await?.expect("it was listed").payload.bytes[..], b"ready");
    assert!(!file.history(3).await?.is_empty());
    too_new(&refused(file.queue("q")?.enqueue(Payload::text("x")).await));
    too_new(&refused(file.claim(1).await));
    too_new(&refused(file.claim(1).wait_forever().await));
    too_new(&refused(file.cancel(job).await));
    too_new(&refused(file.settle().await));
    too_new(&refused(file.collect(Duration::ZERO).await));
    assert_eq!(objects(store).await?, before, "{what}: nothing was written");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_file_for_newer_writers_is_opened_for_reading() -> Result<()> {
    for (what, change) in UNWRITABLE {
        let (store, file) = given().await?;
        file.close().await?;
        commit_newer(&store, sql_for(what), change).await?;
        let file = open(&store).await?;
        only_reads(&store, &file, what).await?;
        // And it follows later commits of newer ones.
        commit_newer(&store, "INSERT INTO meta VALUES ('another', 2)", change).await?;
        only_reads(&store, &file, what).await?;
        file.close().await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_file_that_becomes_newer_under_a_running_process_is_only_read_from_then_on() -> Result<()> {
    for (what, change) in UNWRITABLE {
        for reads_first in [true, false] {
            let (store, file) = given().await?;
            commit_newer(&store, sql_for(what), change).await?;
            if reads_first {
                file.stats(None).await?;
            } else {
                // It is sent, loses, and is not sent again: surely not applied.
                too_new(&refused(file.queue("q")?.enqueue(Payload::text("x")).await));
            }
            only_reads(&store, &file, what).await?;
            file.close().await?;
        }
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_waiting_claim_is_told_that_the_file_has_become_newer() -> Result<()> {
    for (what, change) in UNWRITABLE {
        let store: Arc<dyn Store> = Arc::new(Memory::new());
        let file = open(&store).await?;
        let waiting = tokio::spawn(file.claim(1).wait_forever().into_future());
        pass(Duration::from_millis(1)).await;
        commit_newer(&store, sql_for(what), change).await?;
        pass(Duration::from_secs(20)).await;
        assert!(waiting.is_finished(), "{what}");
        too_new(&refused(waiting.await.expect("no panic")));
        file.close().await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_file_for_newer_readers_is_refused_at_open_and_stops_a_running_process() -> Result<()> {
    for change in UNREADABLE {
        let (store, file) = given().await?;
        commit_newer(&store, sql_for("format"), change).await?;
        let before = objects(&store).await?;
        too_new(&refused(open(&store).await));
        let q = file.queue("q")?;
        // It was sent, and its outcome is in a HEAD that this version cannot read.
        let error = refused(q.enqueue(Payload::text("x")).await);
        assert_eq!(error.kind(), Kind::Unknown, "{error}");
        assert!(format!("{error:?}").contains("too_new"), "{error:?}");
        too_new(&refused(q.enqueue(Payload::text("x")).await));
        too_new(&refused(file.stats(None).await));
        assert_eq!(objects(&store).await?, before);
        file.close().await?;
    }
    Ok(())
}

/// Fields that a newer library adds at the end of the header outlive the commits of this one, even with uploads.
#[tokio::test]
async fn header_fields_of_newer_libraries_are_carried_on() -> Result<()> {
    let (store, file) = given().await?;
    // They come after the field of the gap, which this version knows.
    let extra = Bytes::from(
        [&[0; 24], &b"fields of a later version, sixty-four bytes of them in all, more"[..]].concat(),
    );
    let mut newer = head(&store).await?;
    newer.format = FORMAT + 1;
    newer.extra = extra.clone();
    newer.commit_id = [9; 16];
    let last = newer.tail.last_mut().expect("a tail");
    last.commit_id = [9; 16];
    store.put_new(HEAD, newer.encode().into()).await?;
    // That replaced the last commit under this handle; a new one does not know the old commit.
    file.close().await?;
    let file = open(&store).await?;
    let q = file.queue("q")?;
    for i in 0..300 {
        q.enqueue(Payload::bytes(crate::noise(i, 2_500))).await?;
    }
    file.close().await?;
    let after = head(&store).await?;
    assert_eq!(after.extra, extra);
    assert!(after.base.seq > 0 && !after.segments.is_empty(), "it went through uploads");
    let dir = tempfile::tempdir().expect("a temporary directory can be made");
    let image = dir.path().join("image.sqlite");
    let file = open(&store).await?;
    file.export(&image, false).await?;
    file.close().await?;
    let env = bucketq::Env::default();
    let _ = bucketq::operate::restore_with(Arc::clone(&store), "jobs", &image, inline(), env).await?;
    assert_eq!(head(&store).await?.extra, extra, "also through a restore");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn who_may_only_read_sends_only_gets() -> Result<()> {
    let (store, file) = given().await?;
    file.close().await?;
    commit_newer(&store, sql_for("schema"), |_| ()).await?;
    let puppet = Puppet::over(store);
    let file = open_as(&puppet.store(), inline()).await?;
    too_new(&refused(file.claim(1).await));
    file.stats(None).await?;
    file.close().await?;
    let requests = puppet.requests();
    assert_eq!((requests.puts, requests.new, requests.lists, requests.deletes), (0, 0, 0, 0));
    Ok(())
}

/// In Local mode a change is refused before it is saved locally: it could never be published.
#[tokio::test]
async fn a_file_for_newer_writers_takes_no_local_changes() -> Result<()> {
    for (what, change) in UNWRITABLE {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let url = dir.path().join("jobs").to_str().expect("plain").to_owned();
        let file = QueueFile::open(&url, bucketq::Options::default()).await?;
        file.queue("q")?.enqueue(Payload::text("ready")).await?;
        file.close().await?;
        let store: Arc<dyn Store> =
            Arc::new(bucketq::store::FileStore::open(dir.path(), &bucketq::Env::default())?);
        commit_newer(&store, sql_for(what), change).await?;
        let before = objects(&store).await?;
        let options = bucketq::Options {
            mode: bucketq::Mode::Local,
            cache: Some(dir.path().join("state")),
            ..bucketq::Options::default()
        };
        let file = QueueFile::open(&url, options).await?;
        too_new(&refused(file.queue("q")?.enqueue(Payload::text("x")).await));
        too_new(&refused(file.claim(1).await));
        assert_eq!(file.stats(None).await?.queues[0].counts[&State::Ready], 1);
        assert_eq!(file.dirty()?.commits, 0, "{what}: nothing is kept that could not be published");
        let _ = file.sync().await;
        file.close().await?;
        assert_eq!(objects(&store).await?, before, "{what}: nothing was written");
    }
    Ok(())
}

/// Keys of version 1 still prevent duplicates, before and after the first commit of this version, whichever writer
/// makes it.
#[tokio::test]
async fn dedup_keys_of_a_file_of_version_1_count_on_through_the_upgrade() -> Result<()> {
    let store: Arc<dyn Store> = Arc::new(Memory::new());
    let golden = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("format/golden/bucket");
    for entry in std::fs::read_dir(golden).expect("it is kept") {
        let path = entry.expect("it can be read").path();
        let key = path.file_name().and_then(|name| name.to_str()).expect("plain").to_owned();
        store.put_new(&key, std::fs::read(&path).expect("it can be read").into()).await?;
    }
    // The keys of an unfinished job, of a finished job in a window, and of one whose window is over.
    let keys = "UPDATE jobs SET dedup = 'unfinished' WHERE state = 3;
        INSERT INTO dedup SELECT queue, 'unfinished', id, seq, NULL FROM jobs WHERE state = 3;
        INSERT INTO dedup SELECT queue, 'window', id, seq, 253402300799000 FROM jobs WHERE state = 5;
        INSERT INTO dedup SELECT queue, 'over', id, seq + 1, 1 FROM jobs WHERE state = 5";
    commit_newer(&store, keys, |_| ()).await?;
    let open = || QueueFile::open_with(Arc::clone(&store), "jobs", inline(), bucketq::Env::default());
    let (first, second) = (open().await?, open().await?);
    let put = async |file: &QueueFile, key: &str| {
        let q = file.queue("emails")?;
        let mut job = q.new_job(Payload::text(key))?;
        job.dedup = Some(Dedup { key: key.into(), scope: DedupScope::Window(3_600_000) });
        q.enqueue_job(job).await
    };
    let schema = async |file: &QueueFile| {
        let dir = tempfile::tempdir().expect("a temporary directory can be made");
        let path = dir.path().join("image.sqlite");
        file.export(&path, false).await?;
        let conn = rusqlite::Connection::open(&path).expect("a plain SQLite file");
        let version: i32 =
            conn.pragma_query_value(None, "user_version", |row| row.get(0)).expect("it has one");
        Ok::<_, Error>(version)
    };
    assert_eq!(schema(&first).await?, 1, "looking changes nothing");
    let over = put(&first, "over").await?;
    assert!(!over.deduplicated, "its window is over");
    assert_eq!(schema(&second).await?, bucketq::internals::db::SCHEMA_VERSION);
    for file in [&first, &second] {
        for (key, state) in [("unfinished", State::Ready), ("window", State::Done), ("over", State::Ready)] {
            let told = put(file, key).await?;
            let job = file.get(told.id).await?.expect("it is there").job;
            assert_eq!((told.deduplicated, job.state), (true, state), "{key}");
        }
    }
    for job in second.claim(9).await? {
        second.ack(job.held()).await?;
    }
    assert!(!put(&first, "unfinished").await?.deduplicated, "it is free once its job is done");
    assert!(put(&second, "window").await?.deduplicated);
    second.close().await?;
    first.close().await?;
    let report = bucketq::operate::check_with(store, "jobs", inline()).await?;
    assert_eq!(report.problems, []);
    Ok(())
}
