//! Catching up with others, and discarding unpublished changes that can no longer be published.

use std::sync::Arc;

use bucketq::internals::gap::Gap;
use bucketq::internals::head::Head;
use bucketq::job::{Dedup, DedupScope};
use bucketq::store::{Expect, Got, Memory, Put};
use bucketq::{Code, Kind, Options, Payload, QueueFile, Result, State};
use bucketq_tests::given::{HEAD, object, refused};
use bucketq_tests::ground::Ground;
use bucketq_tests::puppet::{OnGet, OnPut, Puppet};

use crate::fixture::{Machine, abandon, durable, enqueue, texts};

bucketq_tests::on_every_store! {
    a_snapshot_is_refused_while_anything_is_unsynced
    a_lost_race_is_diverged_and_loses_nothing_until_it_is_discarded
    a_snapshot_follows_over_segments_and_bases
    keys_that_were_discarded_are_free_and_those_that_came_back_count
}

async fn a_snapshot_is_refused_while_anything_is_unsynced(ground: &Ground) -> Result<()> {
    let machine = Machine::new();
    let (file, other) = (machine.open(ground).await?, durable(ground).await?);
    enqueue(&other, "foreign").await?;
    assert!(texts(&file).await?.is_empty(), "reads ask nobody");
    enqueue(&file, "mine").await?;
    let error = refused(file.snapshot(false).await);
    assert_eq!((error.kind(), error.code()), (Kind::Invalid, Code::Unsynced), "{error}");
    assert!(error.message().contains("1 local commit"), "{error}");
    file.snapshot(true).await?;
    assert_eq!(texts(&file).await?, ["foreign"]);
    assert_eq!(file.dirty()?.commits, 0);
    abandon(file).await?;
    let file = machine.open(ground).await?;
    assert_eq!(texts(&file).await?, ["foreign"], "what was discarded stays away");
    enqueue(&file, "again").await?;
    file.sync().await?;
    assert_eq!(texts(&other).await?, ["foreign", "again"]);
    file.close().await?;
    other.close().await
}

async fn a_lost_race_is_diverged_and_loses_nothing_until_it_is_discarded(ground: &Ground) -> Result<()> {
    let machine = Machine::new();
    let (mut file, other) = (machine.open(ground).await?, durable(ground).await?);
    enqueue(&file, "mine").await?;
    enqueue(&other, "foreign").await?;
    for _ in 0..2 {
        let error = refused(file.sync().await);
        assert_eq!((error.kind(), error.code()), (Kind::Diverged, Code::Diverged), "{error}");
        assert_eq!(file.dirty()?.commits, 1);
        assert_eq!(texts(&file).await?, ["mine"]);
        assert_eq!(refused(enqueue(&file, "more").await).kind(), Kind::Diverged, "it could not be published");
        assert_eq!(refused(file.snapshot(false).await).kind(), Kind::Invalid);
        abandon(file).await?;
        file = machine.open(ground).await?;
    }
    assert_eq!(texts(&other).await?, ["foreign"]);
    let saved = tempfile::tempdir().expect("made");
    let path = saved.path().join("pending.sqlite");
    file.export_pending(&path).await?;
    assert_eq!(refused(file.export_pending(&path).await).kind(), Kind::Invalid, "nothing is overwritten");
    let copy = rusqlite::Connection::open(&path).expect("a plain SQLite file");
    let jobs: i64 = copy.query_row("SELECT count(*) FROM jobs", [], |row| row.get(0)).expect("it has jobs");
    assert_eq!(jobs, 1);
    let lines = std::fs::read_to_string(saved.path().join("pending.sqlite.jsonl")).expect("there");
    let line: serde_json::Value = serde_json::from_str(lines.trim()).expect("one line of JSON");
    assert_eq!((&line["change"], &line["payload"]), (&"added".into(), &"mine".into()), "{line}");
    file.snapshot(true).await?;
    assert_eq!(texts(&file).await?, ["foreign"]);
    enqueue(&file, "mine again").await?;
    file.sync().await?;
    assert_eq!(texts(&other).await?, ["foreign", "mine again"]);
    file.close().await?;
    other.close().await
}

/// An enqueue with a key; returns whether another job has it.
async fn put(file: &QueueFile, key: &str) -> Result<bool> {
    let q = file.queue("q")?;
    let mut job = q.new_job(Payload::text(key))?;
    job.dedup = Some(Dedup { key: key.into(), scope: DedupScope::Unfinished });
    Ok(q.enqueue_job(job).await?.deduplicated)
}

/// The writer's memory of keys must not outlive discarded changes (decision 18), whether another writer has committed
/// meanwhile or the pages only go back.
async fn keys_that_were_discarded_are_free_and_those_that_came_back_count(ground: &Ground) -> Result<()> {
    let machine = Machine::new();
    let (file, other) = (machine.open(ground).await?, durable(ground).await?);
    // These keys were read in a commit that stays.
    for key in ["earlier", "again"] {
        assert!(!put(&file, key).await?);
        file.sync().await?;
    }
    let mut expected = vec!["earlier".to_owned(), "again".to_owned()];
    for foreign in [None, Some("foreign")] {
        // Here the key passes to another job, which is then never published.
        file.queue("q")?.purge(&[State::Ready]).await?;
        assert!(!put(&file, "again").await? && !put(&file, "only here").await?);
        if let Some(key) = foreign {
            assert!(!put(&other, key).await?);
            expected.push(key.to_owned());
        }
        file.snapshot(true).await?;
        assert!(put(&file, "again").await?, "its first job is back");
        assert!(foreign.is_none() || put(&file, "foreign").await?);
    }
    assert!(!put(&file, "only here").await?);
    file.sync().await?;
    expected.push("only here".to_owned());
    assert_eq!(texts(&other).await?, expected);
    file.close().await?;
    other.close().await
}

async fn a_snapshot_follows_over_segments_and_bases(ground: &Ground) -> Result<()> {
    let machine = Machine::new();
    let file = machine.open(ground).await?;
    let options = Options { tail: 1024, max_head: 24 * 1024, ..Options::default() };
    let other = bucketq::QueueFile::open_with(
        ground.store(),
        bucketq_tests::given::NAME,
        options,
        bucketq::Env::default(),
    )
    .await?;
    for round in 0..3 {
        for i in 0..40 {
            enqueue(&other, &format!("{round} {i} {}", "x".repeat(900))).await?;
        }
        file.snapshot(false).await?;
        assert_eq!(texts(&file).await?, texts(&other).await?);
    }
    // Large local commits use segments too.
    for i in 0..10 {
        let random: [u8; 6_000] = bucketq::Env::default().bytes();
        let text: String = random.iter().map(|b| char::from(b'a' + b % 26)).collect();
        enqueue(&file, &format!("{i} {text}")).await?;
    }
    file.sync().await?;
    assert_eq!(texts(&file).await?, texts(&other).await?);
    abandon(file).await?;
    let file = machine.open(ground).await?;
    assert_eq!(texts(&file).await?, texts(&other).await?);
    file.close().await?;
    other.close().await
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_that_cannot_reach_the_store_changes_nothing() -> Result<()> {
    let machine = Machine::new();
    let puppet = Puppet::over(Arc::new(Memory::new()));
    let file = machine.open_paused(&puppet).await?;
    enqueue(&file, "mine").await?;
    puppet.every_get(OnGet::Fail(Code::Unreachable));
    let error = refused(file.snapshot(true).await);
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
    assert_eq!(texts(&file).await?, ["mine"]);
    assert_eq!(file.dirty()?.commits, 1);
    puppet.every_get(OnGet::Pass);
    file.sync().await?;
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn what_is_discarded_cannot_land_afterwards() -> Result<()> {
    for landed in [false, true] {
        let machine = Machine::new();
        let puppet = Puppet::over(Arc::new(Memory::new()));
        let file = machine.open_paused(&puppet).await?;
        enqueue(&file, "mine").await?;
        puppet.every_put(if landed { OnPut::LoseAnswer } else { OnPut::LoseRequest });
        puppet.every_get(OnGet::Fail(Code::Unreachable));
        refused(file.sync().await);
        // While the outcome is unknown, it is not dropped.
        assert!(file.snapshot(true).await.is_err());
        assert_eq!(texts(&file).await?, ["mine"]);
        puppet.every_put(OnPut::Pass);
        puppet.every_get(OnGet::Pass);
        let head = object(puppet.beneath(), HEAD).await?;
        file.snapshot(true).await?;
        assert_eq!(texts(&file).await?.len(), usize::from(landed), "landed {landed}");
        // The body that was lost meets another version now.
        assert_eq!(object(puppet.beneath(), HEAD).await? == head, landed);
        enqueue(&file, "next").await?;
        file.sync().await?;
        file.close().await?;
    }
    Ok(())
}

/// A gap asks other writers to send nothing for a while. A local commit sends nothing, and must not follow HEAD either.
#[tokio::test]
async fn a_local_commit_waits_for_no_gap_of_another_writer() -> Result<()> {
    let (machine, ground) = (Machine::new(), Ground::memory());
    let other = durable(&ground).await?;
    enqueue(&other, "foreign").await?;
    let store = ground.store();
    let Got::Object { bytes, version, .. } = store.get(HEAD, None).await? else { panic!("no HEAD") };
    let mut head = Head::decode(HEAD, &bytes)?;
    head.set_gap(Some(Gap { writer: [7; 8], ms: 600_000 }));
    let put = store.put_if(HEAD, head.encode().into(), &Expect::Is(version)).await;
    assert!(matches!(put, Put::Stored { .. }), "{put:?}");
    let file = machine.open(&ground).await?;
    let before = file.metrics()?;
    enqueue(&file, "mine").await?;
    assert_eq!(file.metrics()?.gets, before.gets, "HEAD is read before a sync only");
    assert_eq!(texts(&file).await?, ["foreign", "mine"]);
    assert_eq!(file.dirty()?.commits, 1);
    file.close().await?;
    other.close().await
}

#[tokio::test]
async fn an_export_tells_each_job_that_differs() -> Result<()> {
    let (machine, ground) = (Machine::new(), Ground::memory());
    let file = machine.open(&ground).await?;
    let q = file.queue("q")?;
    for text in ["same", "acked", "purged"] {
        enqueue(&file, text).await?;
    }
    let purged = q.enqueue(Payload::text("purged")).await?;
    file.cancel(purged.id).await?;
    file.sync().await?;
    let jobs = file.claim(2).await?;
    file.ack(jobs[1].held()).await?;
    file.release(jobs[0].held()).await?;
    q.purge(&[State::Cancelled]).await?;
    q.enqueue(Payload::bytes(vec![0xff, 0x00])).await?;
    let saved = tempfile::tempdir().expect("made");
    file.export_pending(&saved.path().join("x")).await?;
    let text = std::fs::read_to_string(saved.path().join("x.jsonl")).expect("there");
    let mut told: Vec<(String, String)> = vec![];
    for line in text.lines() {
        let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
        let payload = line["payload"].as_str().or(line["payload_hex"].as_str()).expect("a payload");
        told.push((line["change"].as_str().expect("a word").to_owned(), payload.to_owned()));
        assert!(line["job"]["id"].is_string(), "{line}");
    }
    let expected = [("changed", "same"), ("changed", "acked"), ("added", "ff00"), ("removed", "purged")];
    assert_eq!(
        told,
        expected.map(|(a, b)| (a.to_owned(), b.to_owned())),
        "a job given back has another token"
    );
    file.close().await
}
