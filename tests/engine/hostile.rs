//! A bucket whose database is hostile, with right hashes: nothing in its schema runs, and reads of its pages return a
//! result or an error.

use std::path::Path;
use std::sync::Arc;

use bucketq::internals::head::{BaseRef, Head};
use bucketq::internals::pages::Pages;
use bucketq::internals::wire::hash;
use bucketq::internals::{base, keys};
use bucketq::store::{Memory, Store};
use bucketq::{Error, Filter, Kind, Payload, QueueFile, Result, State};
use bucketq_tests::clock::TestClock;
use bucketq_tests::given::{HEAD, NAME, inline, object, refused};
use rusqlite::Connection;

/// The image of a queue file with a few jobs in every state, and its HEAD.
async fn given(dir: &Path) -> Result<(Head, Vec<u8>)> {
    let store: Arc<dyn Store> = Arc::new(Memory::new());
    let file = open(&store).await?;
    let q = file.queue("q")?;
    for n in 0..40 {
        q.enqueue(Payload::text("x".repeat(n * 100))).await?;
    }
    for taken in file.claim(10).await? {
        match taken.job.seq % 3 {
            0 => file.ack(taken.held()).await?,
            1 => file.reject(taken.held(), Some("no good".into())).await?,
            _ => {}
        }
    }
    let path = dir.join("image.sqlite");
    file.export(&path, true).await?;
    file.close().await?;
    let head = object(&store, HEAD).await?.expect("it has a HEAD");
    Ok((Head::decode(HEAD, &head)?, std::fs::read(&path).expect("it was exported")))
}

async fn open(store: &Arc<dyn Store>) -> Result<QueueFile> {
    QueueFile::open_with(Arc::clone(store), NAME, inline(), TestClock::start().env()).await
}

/// A bucket with this image as the database at the commit of `head`; every hash is right.
async fn bucket_of(image: &[u8], head: &Head) -> Result<Arc<dyn Store>> {
    let pages = Pages::from_image(image)?;
    let bytes = base::encode(&pages.image())?;
    let base = BaseRef {
        seq: head.commit_seq,
        rand: [9; 8],
        codec: base::CODEC_ZSTD,
        len: bytes.len() as u64,
        hash: hash(&bytes),
    };
    let lies = Head {
        base,
        segments: vec![],
        tail: vec![],
        page_count: pages.page_count(),
        checksum: pages.checksum().0,
        ..head.clone()
    };
    let store: Arc<dyn Store> = Arc::new(Memory::new());
    store.put_new(&keys::base(NAME, &head.file_id, base.seq, &base.rand), bytes.into()).await?;
    store.put_new(HEAD, lies.encode().into()).await?;
    Ok(store)
}

/// The image after a change with SQL.
fn by_hand(dir: &Path, image: &[u8], sql: &str) -> Vec<u8> {
    let path = dir.join("changed.sqlite");
    std::fs::write(&path, image).expect("room for it");
    Connection::open(&path).and_then(|c| c.execute_batch(sql)).expect("sqlite does it");
    std::fs::read(&path).expect("it is there")
}

#[tokio::test]
async fn triggers_of_a_hostile_database_do_not_run() -> Result<()> {
    let dir = tempfile::tempdir().expect("a directory");
    let (head, image) = given(dir.path()).await?;
    let changed = by_hand(
        dir.path(),
        &image,
        "CREATE TRIGGER a AFTER INSERT ON jobs BEGIN DELETE FROM jobs; END;
         CREATE TRIGGER b AFTER UPDATE ON jobs BEGIN UPDATE jobs SET fence = 7; END;
         CREATE TRIGGER c BEFORE DELETE ON jobs BEGIN SELECT RAISE(ABORT, 'never'); END;",
    );
    let file = open(&bucket_of(&changed, &head).await?).await?;
    let before = file.list(Filter::default(), None, 100).await?.jobs.len();
    let told = file.queue("q")?.enqueue(Payload::text("new")).await?;
    assert_eq!(file.list(Filter::default(), None, 100).await?.jobs.len(), before + 1, "no job was deleted");
    let taken = file.claim(1).await?.remove(0);
    assert_ne!(taken.lease.fence, 7);
    file.ack(taken.held()).await?;
    assert!(file.queue("q")?.purge(&[State::Done]).await? > 0, "and deleting is not stopped");
    assert!(file.get(told.id).await?.is_some());
    file.close().await
}

#[tokio::test]
async fn a_view_in_the_place_of_a_table_is_corrupt() -> Result<()> {
    let dir = tempfile::tempdir().expect("a directory");
    let (head, image) = given(dir.path()).await?;
    // Reading it would never end.
    let changed = by_hand(
        dir.path(),
        &image,
        "PRAGMA legacy_alter_table = ON; ALTER TABLE queues RENAME TO real_queues;
         CREATE VIEW queues AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)
             SELECT q.* FROM n, real_queues q;",
    );
    let store = bucket_of(&changed, &head).await?;
    let error: Error = match open(&store).await {
        Ok(file) => refused(file.queues(None).await),
        Err(error) => error,
    };
    assert_eq!(error.kind(), Kind::Corrupt, "{error}");
    Ok(())
}

#[tokio::test]
async fn flipped_bytes_of_a_database_under_right_hashes_are_answered_or_refused() -> Result<()> {
    let dir = tempfile::tempdir().expect("a directory");
    let (head, image) = given(dir.path()).await?;
    let (mut x, mut corrupt, mut answered) = (7_u64, 0, 0);
    let mut below = |bound: usize| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 11) as usize % bound
    };
    for _ in 0..150 {
        let mut changed = image.clone();
        for _ in 0..=below(40) {
            // The beginning of a page locates everything on it: most of the harm is done there.
            let page = below(changed.len() / 4096) * 4096;
            let at = page + if below(2) == 0 { below(64) } else { below(4096) };
            changed[at] = below(256) as u8;
        }
        let store = bucket_of(&changed, &head).await?;
        match work(&store).await {
            Ok(()) => answered += 1,
            // Damage to a single job may also show as a missing job, or one in another state.
            Err(error) => {
                let kind = error.kind();
                assert!(matches!(kind, Kind::Corrupt | Kind::NotFound | Kind::LeaseLost), "{error:?}");
                corrupt += u32::from(kind == Kind::Corrupt);
            }
        }
    }
    assert!(corrupt > 20 && answered > 20, "both happen: {corrupt} corrupt, {answered} answered");
    Ok(())
}

/// A few calls of every kind.
async fn work(store: &Arc<dyn Store>) -> Result<()> {
    let file = open(store).await?;
    file.queues(None).await?;
    for job in file.list(Filter::default(), None, 100).await?.jobs {
        file.get(job.id).await?;
    }
    file.queue("q")?.enqueue(Payload::text("new")).await?;
    for taken in file.claim(5).await? {
        file.ack(taken.held()).await?;
    }
    file.queue("q")?.purge(&[State::Done]).await?;
    file.close().await
}
