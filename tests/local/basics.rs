//! The ordinary way: change locally, sync, read it elsewhere.

use std::io::{self, Write};
use std::sync::Mutex;
use std::time::Duration;

use bucketq::{Code, Fsync, Held, Kind, Payload, Result, State, Token};
use bucketq_tests::given::refused;
use bucketq_tests::ground::Ground;

use crate::fixture::{Machine, abandon, durable, enqueue, texts};

bucketq_tests::on_every_store! {
    changes_are_local_until_a_sync_publishes_them_in_one_commit
    a_reopened_directory_has_everything_acknowledged_and_goes_on
    claims_and_finishes_are_local_too_and_published_with_the_rest
    order_and_ids_survive_reopening_between_commits_of_one_sync
    two_machines_take_turns
}

async fn changes_are_local_until_a_sync_publishes_them_in_one_commit(ground: &Ground) -> Result<()> {
    let machine = Machine::new();
    let file = machine.open(ground).await?;
    let other = durable(ground).await?;
    let before = other.stats(None).await?.commit_seq;
    let requests = file.metrics()?;
    for text in ["a", "b", "c"] {
        enqueue(&file, text).await?;
    }
    assert_eq!(texts(&file).await?, ["a", "b", "c"]);
    let metrics = file.metrics()?;
    assert_eq!((metrics.puts, metrics.gets), (requests.puts, requests.gets), "nothing asked the store");
    assert_eq!(metrics.local_commits, 3);
    let dirty = file.dirty()?;
    assert_eq!((dirty.commits, dirty.ops), (3, 3));
    assert!(dirty.bytes > 0);
    assert!(texts(&other).await?.is_empty(), "not published");

    let synced = file.sync().await?;
    assert_eq!((synced.commits, synced.ops, synced.commit_seq), (3, 3, before + 1));
    assert_eq!(file.dirty()?, bucketq::Unsynced::default());
    assert_eq!(texts(&other).await?, ["a", "b", "c"]);
    assert_eq!(other.stats(None).await?.commit_seq, before + 1);

    let puts = file.metrics()?.puts;
    assert_eq!(file.sync().await?.commits, 0, "nothing to publish");
    assert_eq!(file.metrics()?.puts, puts);
    file.close().await?;
    other.close().await
}

async fn a_reopened_directory_has_everything_acknowledged_and_goes_on(ground: &Ground) -> Result<()> {
    for fsync in [Fsync::EachCommit, Fsync::Interval(Duration::from_hours(1)), Fsync::Never] {
        let machine = Machine::with(fsync);
        let file = machine.open(ground).await?;
        let had = texts(&file).await?.len();
        enqueue(&file, "a").await?;
        file.sync().await?;
        enqueue(&file, "b").await?;
        abandon(file).await?;
        let file = machine.open(ground).await?;
        assert_eq!(file.metrics()?.gets, 0, "the directory is enough");
        assert_eq!(file.dirty()?.commits, 1);
        assert_eq!(texts(&file).await?[had..], ["a", "b"]);
        enqueue(&file, "c").await?;
        abandon(file).await?;
        let file = machine.open(ground).await?;
        assert_eq!(file.dirty()?.commits, 2);
        file.sync().await?;
        let other = durable(ground).await?;
        assert_eq!(texts(&other).await?[had..], ["a", "b", "c"]);
        file.close().await?;
        other.close().await?;
    }
    Ok(())
}

async fn claims_and_finishes_are_local_too_and_published_with_the_rest(ground: &Ground) -> Result<()> {
    let machine = Machine::new();
    let file = machine.open(ground).await?;
    let q = file.queue("q")?;
    for text in ["a", "b", "c"] {
        enqueue(&file, text).await?;
    }
    let jobs = q.claim(2).await?;
    assert_eq!(jobs.len(), 2);
    file.ack_with(jobs[0].held(), Payload::text("done")).await?;
    let stale = Held { token: Token([9; 16]), ..jobs[1].held() };
    assert_eq!(refused(file.ack(stale).await).code(), Code::LeaseLost);
    abandon(file).await?;
    let file = machine.open(ground).await?;
    file.nack(jobs[1].held(), Some(Duration::ZERO), None).await?;
    file.sync().await?;
    let other = durable(ground).await?;
    let first = other.get(jobs[0].job.id).await?.expect("there");
    assert_eq!((first.job.state, first.result), (State::Done, Some(Payload::text("done"))));
    assert_eq!(other.get(jobs[1].job.id).await?.expect("there").job.state, State::Ready);
    file.close().await?;
    other.close().await
}

async fn order_and_ids_survive_reopening_between_commits_of_one_sync(ground: &Ground) -> Result<()> {
    let machine = Machine::new();
    let mut expected = vec![];
    for round in 0..5 {
        let file = machine.open(ground).await?;
        for i in 0..3 {
            let text = format!("{round}-{i}");
            enqueue(&file, &text).await?;
            expected.push(text);
        }
        if round == 2 {
            file.sync().await?;
        }
        abandon(file).await?;
    }
    let file = machine.open(ground).await?;
    assert_eq!(texts(&file).await?, expected);
    file.sync().await?;
    let other = durable(ground).await?;
    assert_eq!(texts(&other).await?, expected);
    let mut claimed = vec![];
    for job in other.claim(100).await? {
        claimed.push(String::from_utf8(job.payload.bytes.to_vec()).expect("text"));
    }
    assert_eq!(claimed, expected);
    file.close().await?;
    other.close().await
}

async fn two_machines_take_turns(ground: &Ground) -> Result<()> {
    let (one, two) = (Machine::new(), Machine::new());
    let (a, b) = (one.open(ground).await?, two.open(ground).await?);
    let mut expected = vec![];
    for round in 0..4 {
        for (name, file) in [("a", &a), ("b", &b)] {
            file.snapshot(false).await?;
            assert_eq!(texts(file).await?, expected);
            let text = format!("{name}{round}");
            enqueue(file, &text).await?;
            file.sync().await?;
            expected.push(text);
        }
    }
    a.close().await?;
    let a = one.open(ground).await?;
    a.snapshot(false).await?;
    assert_eq!(texts(&a).await?, expected);
    a.close().await?;
    b.close().await
}

#[tokio::test]
async fn a_waiting_claim_gets_a_local_job_without_asking_the_store() -> Result<()> {
    let (machine, ground) = (Machine::new(), Ground::memory());
    let file = machine.open(&ground).await?;
    let (waiter, gets) = (file.clone(), file.metrics()?.gets);
    let claim = tokio::spawn(async move { waiter.claim(1).wait(Duration::from_secs(20)).await });
    enqueue(&file, "a").await?;
    let jobs = claim.await.expect("no panic")?;
    assert_eq!(jobs.len(), 1);
    file.nack(jobs[0].held(), Some(Duration::from_millis(30)), None).await?;
    assert_eq!(file.claim(1).wait(Duration::from_secs(20)).await?.len(), 1, "due by the clock");
    assert_eq!(file.metrics()?.gets, gets);
    file.close().await
}

#[tokio::test]
async fn in_durable_mode_sync_has_nothing_to_do_and_snapshot_is_a_look() -> Result<()> {
    let ground = Ground::memory();
    let (file, other) = (durable(&ground).await?, durable(&ground).await?);
    enqueue(&file, "a").await?;
    let puts = file.metrics()?.puts;
    let synced = file.sync().await?;
    assert_eq!((synced.commits, synced.ops), (0, 0));
    assert_eq!(file.metrics()?.puts, puts);
    assert_eq!(file.dirty()?, bucketq::Unsynced::default());
    enqueue(&other, "b").await?;
    assert_eq!(file.snapshot(false).await?, synced.commit_seq + 1);
    let path = tempfile::tempdir().expect("made").path().join("x.sqlite");
    assert_eq!(refused(file.export_pending(&path).await).kind(), Kind::Invalid);
    assert_eq!(file.directory()?, None);
    file.close().await?;
    other.close().await
}

/// Warnings of all tests in this process: a subscriber for one thread does not work while others run.
static WARNINGS: Mutex<Vec<u8>> = Mutex::new(Vec::new());

struct Lines;

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        WARNINGS.lock().expect("no panic").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn leaving_without_a_sync_warns_with_the_number_of_commits() -> Result<()> {
    let subscriber = tracing_subscriber::fmt().with_max_level(tracing_subscriber::filter::LevelFilter::WARN);
    let subscriber = subscriber.with_ansi(false).with_writer(|| Lines).finish();
    // Another test of this process may have set it.
    let _ = tracing_subscriber::util::SubscriberInitExt::try_init(subscriber);
    let (machine, ground) = (Machine::new(), Ground::memory());
    let warnings = || {
        let all = String::from_utf8(WARNINGS.lock().expect("no panic").clone()).expect("text");
        let here = machine.directory().display().to_string();
        all.lines().filter(|l| l.contains(&here)).map(str::to_owned).collect::<Vec<_>>()
    };
    let file = machine.open(&ground).await?;
    enqueue(&file, "a").await?;
    enqueue(&file, "b").await?;
    file.close().await?;
    let told = warnings();
    assert!(told.len() == 1 && told[0].contains("commits=2"), "{told:?}");
    let file = machine.open(&ground).await?;
    file.sync().await?;
    file.close().await?;
    assert_eq!(warnings(), told, "everything is published");
    Ok(())
}
