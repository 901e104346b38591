//! A restore makes an image the newest state, in a new lineage; processes that knew the old one notice (P21 to P23).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bucketq::internals::keys;
use bucketq::operate::{Restored, check_with, restore_with};
use bucketq::store::{Memory, Store};
use bucketq::{Code, Held, Kind, Options, Payload, QueueFile, Result, State, restore};
use bucketq_tests::clock::TestClock;
use bucketq_tests::given::{HEAD, NAME, inline, object, objects, refused};
use bucketq_tests::puppet::{OnPut, Puppet};
use bytes::Bytes;
use rusqlite::Connection;
use tempfile::TempDir;

use crate::{grown, head, open};

pub fn dir() -> TempDir {
    tempfile::tempdir().expect("a temporary directory can be made")
}

async fn put_back(store: &Arc<dyn Store>, image: &Path) -> Result<Restored> {
    put_back_as(store, image, inline()).await
}

pub async fn put_back_as(store: &Arc<dyn Store>, image: &Path, options: Options) -> Result<Restored> {
    restore_with(Arc::clone(store), NAME, image, options, TestClock::start().env()).await
}

/// A queue file with two jobs, its image, and a third job enqueued later.
pub async fn given(dir: &TempDir) -> Result<(Arc<dyn Store>, QueueFile, PathBuf)> {
    let store: Arc<dyn Store> = Arc::new(Memory::new());
    let file = open(&store).await?;
    let q = file.queue("q")?;
    q.enqueue(Payload::text("one")).await?;
    q.enqueue(Payload::text("two")).await?;
    let image = dir.path().join("image.sqlite");
    file.export(&image, false).await?;
    q.enqueue(Payload::text("three")).await?;
    Ok((store, file, image))
}

async fn texts(file: &QueueFile) -> Result<Vec<String>> {
    let taken = file.claim(100).await?;
    Ok(taken.iter().map(|t| String::from_utf8_lossy(&t.payload.bytes).into_owned()).collect())
}

async fn sound(store: &Arc<dyn Store>) -> Result<()> {
    let report = check_with(Arc::clone(store), NAME, Options::default()).await?;
    assert!(report.is_clean(), "{report:?}");
    Ok(())
}

#[tokio::test]
async fn a_restored_file_shows_the_image_above_every_commit_known() -> Result<()> {
    let dir = dir();
    let (store, file, image) = given(&dir).await?;
    file.close().await?;
    let before = head(&store).await?;
    let restored = put_back(&store, &image).await?;
    let after = head(&store).await?;
    assert_eq!(after.file_id, before.file_id);
    assert_ne!(after.lineage_id, before.lineage_id);
    assert!(after.commit_seq > before.commit_seq && after.commit_ms >= before.commit_ms);
    assert_eq!((after.base.seq, after.segments.len(), after.tail.len()), (after.commit_seq, 0, 0));
    assert_eq!((restored.commit_seq, restored.replaced), (after.commit_seq, Some(before.commit_seq)));
    assert_eq!(restored.jobs, 2);
    sound(&store).await?;
    let file = open(&store).await?;
    assert_eq!(texts(&file).await?, ["one", "two"]);
    let receipt = file.queue("q")?.enqueue(Payload::text("four")).await?;
    assert!(receipt.commit_seq > restored.commit_seq);
    file.close().await?;
    sound(&store).await
}

#[tokio::test]
async fn an_object_staged_for_spark_is_no_commit_to_restore_above() -> Result<()> {
    let dir = dir();
    let (store, file, image) = given(&dir).await?;
    file.close().await?;
    let before = head(&store).await?;
    let staged = keys::stage(NAME, &before.file_id, &[7; 8], 1_767_225_600_000, &[9; 8]);
    store.put_new(&staged, Bytes::from_static(b"rows")).await?;
    let restored = put_back(&store, &image).await?;
    assert!(restored.commit_seq > before.commit_seq, "{restored:?}");
    assert!(restored.commit_seq < before.commit_seq + 100_000, "{restored:?}");
    sound(&store).await
}

#[tokio::test]
async fn a_key_with_a_number_beyond_all_commits_stops_a_restore_before_it_writes() -> Result<()> {
    let dir = dir();
    let (store, file, image) = given(&dir).await?;
    file.close().await?;
    let before = head(&store).await?;
    let stray = keys::base(NAME, &before.file_id, u64::MAX - 1, &[9; 8]);
    store.put_new(&stray, Bytes::from_static(b"not a base")).await?;
    let error = put_back(&store, &image).await.expect_err("there is no number above it");
    assert_eq!(error.code(), Code::Image, "{error}");
    assert_eq!(head(&store).await?, before);
    Ok(())
}

#[tokio::test]
async fn a_running_process_notices_and_a_fresh_opening_continues() -> Result<()> {
    for reads_first in [true, false] {
        let dir = dir();
        let (store, file, image) = given(&dir).await?;
        put_back(&store, &image).await?;
        if reads_first {
            assert_eq!(refused(file.stats(None).await).code(), Code::RolledBack);
        } else {
            let error = refused(file.queue("q")?.enqueue(Payload::text("x")).await);
            assert_eq!(error.kind(), Kind::Unknown, "{error}");
            assert!(format!("{error:?}").contains("rolled_back"), "{error:?}");
        }
        assert_eq!(refused(file.claim(1).await).code(), Code::RolledBack);
        file.close().await?;
        let fresh = open(&store).await?;
        assert_eq!(texts(&fresh).await?, ["one", "two"]);
        fresh.close().await?;
    }
    Ok(())
}

#[tokio::test]
async fn what_the_old_lineage_left_is_listed_for_collection() -> Result<()> {
    let dir = dir();
    let store = grown(260).await?;
    let before = head(&store).await?;
    let image = dir.path().join("image.sqlite");
    let file = open(&store).await?;
    file.export(&image, false).await?;
    file.close().await?;
    put_back(&store, &image).await?;
    let after = head(&store).await?;
    for s in &before.segments {
        assert!(after.retired.iter().any(|r| (r.kind, r.from, r.seq, r.rand) == (2, s.from, s.to, s.rand)));
    }
    assert!(after.retired.iter().any(|r| (r.kind, r.seq, r.rand) == (1, before.base.seq, before.base.rand)));
    assert!(after.gc_floor >= before.gc_floor);
    sound(&store).await?;
    // And the new lineage collects it.
    let file = open(&store).await?;
    let left = file.collect(Duration::ZERO).await?.left;
    file.close().await?;
    let report = check_with(Arc::clone(&store), NAME, Options::default()).await?;
    assert!(report.is_clean(), "{report:?}");
    assert_eq!((left, report.unreferenced.map(|t| t.count)), (0, Some(0)));
    Ok(())
}

#[tokio::test]
async fn a_missing_head_is_made_anew_under_another_file_id() -> Result<()> {
    let dir = dir();
    let store = grown(260).await?;
    let before = head(&store).await?;
    let image = dir.path().join("image.sqlite");
    let file = open(&store).await?;
    file.export(&image, false).await?;
    store.delete(HEAD).await?;
    let restored = put_back(&store, &image).await?;
    let after = head(&store).await?;
    assert_ne!(after.file_id, before.file_id);
    assert!(after.commit_seq > before.commit_seq, "fences go on growing");
    assert_eq!(restored.replaced, None);
    assert!(restored.foreign.count >= 2, "the old objects are told: {restored:?}");
    sound(&store).await?;
    // The old process sees a replaced file, and a new one works.
    assert!(matches!(refused(file.stats(None).await).code(), Code::RolledBack | Code::HeadMissing));
    file.close().await?;
    let fresh = open(&store).await?;
    assert_eq!(fresh.stats(None).await?.queues[0].counts[&State::Ready], 257);
    fresh.close().await?;
    // No HEAD is created where none may be.
    store.delete(HEAD).await?;
    let options = Options { create: false, ..inline() };
    let refusal = restore_with(Arc::clone(&store), NAME, &image, options, TestClock::start().env()).await;
    assert_eq!(refused(refusal).code(), Code::NoSuchFile);
    Ok(())
}

#[tokio::test]
async fn a_damaged_head_is_replaced_and_a_foreign_or_newer_one_is_not() -> Result<()> {
    let dir = dir();
    let (store, file, image) = given(&dir).await?;
    file.close().await?;
    let good = object(&store, HEAD).await?.expect("there").to_vec();
    let mut newer = head(&store).await?;
    newer.writer_features = 1;
    for (bytes, code) in
        [(b"of somebody else, and long enough".to_vec(), Code::Foreign), (newer.encode(), Code::TooNew)]
    {
        store.put_new(HEAD, bytes.clone().into()).await?;
        let before = objects(&store).await?;
        assert_eq!(refused(put_back(&store, &image).await).code(), code);
        assert_eq!(objects(&store).await?, before, "nothing was written");
    }
    let mut damaged = good;
    damaged[77] ^= 1;
    store.put_new(HEAD, damaged.into()).await?;
    let restored = put_back(&store, &image).await?;
    assert_eq!(restored.replaced, None);
    sound(&store).await?;
    let file = open(&store).await?;
    assert_eq!(texts(&file).await?, ["one", "two"]);
    file.close().await
}

#[tokio::test]
async fn an_image_that_is_no_sound_queue_file_is_refused_and_nothing_is_written() -> Result<()> {
    let dir = dir();
    let (store, file, image) = given(&dir).await?;
    file.close().await?;
    let before = objects(&store).await?;
    let good = std::fs::read(&image).expect("it is there");
    let by_hand = |sql: &str| {
        let path = dir.path().join("changed.sqlite");
        std::fs::write(&path, &good).expect("room for it");
        Connection::open(&path).and_then(|c| c.execute_batch(sql)).expect("sqlite does it");
        std::fs::read(&path).expect("it is there")
    };
    let mut flipped = good.clone();
    let at = good.len() - 2000;
    flipped[at..at + 1500].fill(0xa5);
    let cases: Vec<(&str, Vec<u8>, Code)> = vec![
        ("text", b"no database".to_vec(), Code::Image),
        ("cut", good[..good.len() - 4096].to_vec(), Code::Image),
        ("damaged", flipped, Code::Image),
        ("another application", by_hand("PRAGMA application_id = 7"), Code::Image),
        ("wal", by_hand("PRAGMA journal_mode = WAL"), Code::Image),
        ("counts", by_hand("UPDATE queues SET dead = 5"), Code::Image),
        ("an index more", by_hand("CREATE INDEX mine ON jobs (worker)"), Code::Image),
        (
            "a trigger",
            by_hand("CREATE TRIGGER t AFTER DELETE ON jobs BEGIN DELETE FROM names; END"),
            Code::Image,
        ),
        ("a newer schema", by_hand("PRAGMA user_version = 99"), Code::TooNew),
        (
            "a commit beyond all numbers",
            by_hand("UPDATE jobs SET fence = 1 << 39 WHERE seq = (SELECT min(seq) FROM jobs)"),
            Code::Image,
        ),
    ];
    for (what, bytes, code) in cases {
        let path = dir.path().join("case.sqlite");
        std::fs::write(&path, bytes).expect("room for it");
        let error = refused(put_back(&store, &path).await);
        assert_eq!(error.code(), code, "{what}: {error}");
        assert_eq!(objects(&store).await?, before, "{what}: nothing was written");
    }
    let beside = dir.path().join("image.sqlite-journal");
    std::fs::write(&beside, "half of a change").expect("room for it");
    assert_eq!(refused(put_back(&store, &image).await).code(), Code::Image);
    assert_eq!(refused(put_back(&store, &dir.path().join("none")).await).code(), Code::LocalFile);
    assert_eq!(objects(&store).await?, before);
    Ok(())
}

#[tokio::test]
async fn a_repaired_image_can_be_restored() -> Result<()> {
    let dir = dir();
    let (store, file, image) = given(&dir).await?;
    file.close().await?;
    Connection::open(&image)
        .and_then(|c| c.execute_batch("UPDATE queues SET paused = 1; VACUUM"))
        .expect("sqlite does it");
    put_back(&store, &image).await?;
    sound(&store).await?;
    let file = open(&store).await?;
    assert!(texts(&file).await?.is_empty(), "paused");
    file.queue("q")?.resume().await?;
    assert_eq!(texts(&file).await?.len(), 2);
    file.close().await
}

/// Leases in an image stay valid: the token counts, and the lease ends when it would have ended.
#[tokio::test]
async fn leases_in_the_image_run_out_as_they_would_have() -> Result<()> {
    let dir = dir();
    let store: Arc<dyn Store> = Arc::new(Memory::new());
    let clock = TestClock::start();
    let open = || QueueFile::open_with(Arc::clone(&store), NAME, inline(), clock.env());
    let file = open().await?;
    let q = file.queue("q")?;
    q.enqueue(Payload::text("held")).await?;
    q.enqueue(Payload::text("left")).await?;
    let held: Vec<Held> =
        q.claim(2).lease(Duration::from_mins(10)).await?.iter().map(bucketq::ClaimedJob::held).collect();
    let image = dir.path().join("image.sqlite");
    file.export(&image, false).await?;
    file.close().await?;
    restore_with(Arc::clone(&store), NAME, &image, inline(), clock.env()).await?;
    let file = open().await?;
    assert!(file.claim(2).await?.is_empty(), "both are leased still");
    file.ack(held[0]).await?;
    clock.step(11 * 60_000);
    let again = file.claim(2).await?;
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].held().id, held[1].id);
    assert_eq!(refused(file.ack(held[1]).await).code(), Code::LeaseLost);
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn lost_answers_and_conflicts_are_settled() -> Result<()> {
    for put in [OnPut::LoseAnswer, OnPut::LoseRequest, OnPut::FalseConflict, OnPut::Refuse(Code::Unreachable)]
    {
        let dir = dir();
        let (store, file, image) = given(&dir).await?;
        file.close().await?;
        let puppet = Puppet::over(Arc::clone(&store));
        puppet.next_puts([put]);
        let restored = put_back(&puppet.store(), &image).await?;
        assert_eq!(head(&store).await?.commit_seq, restored.commit_seq, "{put:?}");
        assert_eq!(puppet.requests().new, 1, "{put:?}: one upload is enough");
        let landed = matches!(put, OnPut::LoseAnswer | OnPut::FalseConflict);
        assert_eq!(
            puppet.requests().puts,
            if landed { 1 } else { 2 },
            "{put:?}: what landed is not sent again"
        );
        sound(&store).await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn others_who_commit_meanwhile_are_overtaken() -> Result<()> {
    let dir = dir();
    let (store, file, image) = given(&dir).await?;
    let puppet = Puppet::over(Arc::clone(&store));
    puppet.hold();
    let restoring = tokio::spawn({
        let (store, image) = (puppet.store(), image.clone());
        async move { put_back(&store, &image).await }
    });
    puppet.until_held(1).await;
    file.queue("q")?.enqueue(Payload::text("in between")).await?;
    puppet.let_go();
    let restored = restoring.await.expect("no panic")?;
    assert_eq!(head(&store).await?.commit_seq, restored.commit_seq);
    assert_eq!(puppet.requests().puts, 2, "the first one lost");
    let fresh = open(&store).await?;
    assert_eq!(texts(&fresh).await?, ["one", "two"]);
    fresh.close().await?;
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn a_store_that_never_answers_leaves_the_outcome_unknown() -> Result<()> {
    let dir = dir();
    let (store, file, image) = given(&dir).await?;
    file.close().await?;
    let puppet = Puppet::over(store);
    puppet.every_put(OnPut::LoseRequest);
    assert_eq!(refused(put_back(&puppet.store(), &image).await).code(), Code::OutcomeUnknown);
    puppet.every_put(OnPut::Refuse(Code::Denied));
    assert_eq!(refused(put_back(&puppet.store(), &image).await).code(), Code::Denied);
    Ok(())
}

#[tokio::test]
async fn by_url_in_a_directory_and_into_another_place() -> Result<()> {
    let dir = dir();
    let url = |name: &str| dir.path().join(name).to_str().expect("plain").to_owned();
    let file = QueueFile::open(&url("one"), Options::default()).await?;
    file.queue("q")?.enqueue(Payload::text("x")).await?;
    let image = dir.path().join("image.sqlite");
    file.export(&image, false).await?;
    file.close().await?;
    for name in ["one", "two"] {
        restore(&url(name), &image, Options::default()).await?;
        let report = bucketq::check(&url(name), Options::default()).await?;
        assert!(report.is_clean(), "{report:?}");
        assert_eq!(report.jobs, 1);
    }
    let only = Options { read_only: true, ..Options::default() };
    assert_eq!(refused(restore(&url("one"), &image, only).await).code(), Code::ReadOnly);
    Ok(())
}

#[tokio::test]
async fn on_a_real_server_with_and_without_a_head() -> Result<()> {
    let Some(server) = bucketq_tests::servers::s3().await else { return Ok(()) };
    let dir = dir();
    let options = Options { s3: server.options(), ..Options::default() };
    let url = format!(
        "s3://{}/restore-{:016x}/jobs",
        bucketq_tests::servers::BUCKET,
        u64::from_le_bytes(bucketq::Env::default().bytes())
    );
    let file = QueueFile::open(&url, options.clone()).await?;
    file.queue("q")?.enqueue(Payload::text("x")).await?;
    let image = dir.path().join("image.sqlite");
    file.export(&image, false).await?;
    file.queue("q")?.enqueue(Payload::text("y")).await?;
    restore(&url, &image, options.clone()).await?;
    assert_eq!(refused(file.stats(None).await).code(), Code::RolledBack);
    file.close().await?;
    restore(&format!("{url}-copy"), &image, options.clone()).await?;
    for url in [url.clone(), format!("{url}-copy")] {
        let report = bucketq::check(&url, options.clone()).await?;
        assert!(report.is_clean() && report.jobs == 1, "{report:?}");
    }
    Ok(())
}

/// An operator copies an old HEAD back from bucket versioning, which is no restore (P23): a process that knew a newer
/// commit stops, and one that starts afterwards cannot notice it.
#[tokio::test(start_paused = true)]
async fn an_old_head_copied_back_is_noticed_by_who_knew_better_and_by_nobody_else() -> Result<()> {
    let dir = dir();
    let (store, file, _) = given(&dir).await?;
    let old = object(&store, HEAD).await?.expect("there");
    file.queue("q")?.enqueue(Payload::text("acknowledged")).await?;
    store.put_new(HEAD, old).await?;
    assert_eq!(refused(file.stats(None).await).code(), Code::RolledBack);
    file.close().await?;
    let cold = open(&store).await?;
    assert_eq!(texts(&cold).await?, ["one", "two", "three"]);
    cold.close().await?;
    sound(&store).await
}
