//! A queue file whose newest commit is in the future is brought back to the present, with every job.

use std::sync::Arc;
use std::time::Duration;

use bucketq::env::Clock;
use bucketq::job::{Dedup, DedupScope, When};
use bucketq::operate::{FixedTime, check_with, fix_time_with};
use bucketq::store::{Memory, Store};
use bucketq::{Code, Kind, Missed, New, Options, Payload, Queue, QueueFile, Result, Schedule, State, Timing};
use bucketq_tests::clock::{TestClock, pass};
use bucketq_tests::given::{NAME, inline, objects, refused};
use bucketq_tests::puppet::Puppet;

use crate::head;

const HOUR_MS: i64 = 3_600_000;
const DAY_MS: i64 = 24 * HOUR_MS;

async fn open(store: &Arc<dyn Store>, clock: &TestClock) -> Result<QueueFile> {
    QueueFile::open_with(Arc::clone(store), NAME, inline(), clock.env()).await
}

async fn fix(store: &Arc<dyn Store>, clock: &TestClock) -> Result<FixedTime> {
    fix_time_with(Arc::clone(store), NAME, false, inline(), clock.env()).await
}

async fn sound(store: &Arc<dyn Store>) -> Result<()> {
    let report = check_with(Arc::clone(store), NAME, Options::default()).await?;
    assert!(report.is_clean(), "{report:?}");
    Ok(())
}

fn new(q: &Queue, text: &str) -> Result<New> {
    q.new_job(Payload::text(text))
}

fn off(told_ms: i64, clock: &TestClock) -> i64 {
    (told_ms - clock.wall_ms()).abs()
}

#[tokio::test(start_paused = true)]
async fn a_clock_ahead_once_refuses_everybody_until_the_time_is_fixed_and_no_job_is_lost() -> Result<()> {
    for ahead_ms in [100_000, 400 * DAY_MS] {
        let store: Arc<dyn Store> = Arc::new(Memory::new());
        let right = TestClock::start();
        let fast = right.off_by(ahead_ms);
        let file = open(&store, &right).await?;
        let q = file.queue("q")?;
        q.enqueue(Payload::text("before")).await?;
        let held = file.claim(1).lease(Duration::from_mins(1)).await?.remove(0);
        file.close().await?;

        let theirs = open(&store, &fast).await?;
        theirs.extend(held.held(), Duration::from_mins(1)).await?;
        let q = theirs.queue("q")?;
        q.enqueue(Payload::text("claimed")).await?;
        let theirs_held = theirs.claim(1).lease(Duration::from_mins(2)).await?.remove(0);
        q.enqueue(Payload::text("done")).await?;
        let done = theirs.claim(1).await?.remove(0);
        theirs.ack(done.held()).await?;
        q.enqueue(Payload::text("ready")).await?;
        theirs.close().await?;

        let file = open(&store, &right).await?;
        let error = refused(file.queue("q")?.enqueue(Payload::text("refused")).await);
        assert_eq!((error.kind(), error.code()), (Kind::Unavailable, Code::ClockSkew), "{error}");
        assert!(error.message().contains("fix-time"), "{error}");

        let fixed = fix(&store, &right).await?;
        assert!(fixed.ahead && fixed.commit_seq.is_some(), "{fixed:?}");
        assert!(off(fixed.now_ms, &right) < 100 && off(fixed.was_ms, &fast) < 100, "{fixed:?}");
        assert!(off(head(&store).await?.commit_ms, &right) < 100);
        sound(&store).await?;
        let before = objects(&store).await?;
        let again = fix(&store, &right).await?;
        assert_eq!((again.ahead, again.commit_seq), (false, None), "{again:?}");
        assert_eq!(objects(&store).await?, before, "the second time nothing is written");

        // The others notice (P21).
        assert_eq!(refused(file.queue("q")?.enqueue(Payload::text("x")).await).code(), Code::RolledBack);
        file.close().await?;

        let file = open(&store, &right).await?;
        let q = file.queue("q")?;
        q.enqueue(Payload::text("after")).await?;
        let counts = |state: State| {
            let q = q.clone();
            async move { Ok::<_, bucketq::Error>(q.list(&[state], None, 100).await?.jobs.len()) }
        };
        assert_eq!((counts(State::Leased).await?, counts(State::Ready).await?), (2, 2));
        assert_eq!(counts(State::Done).await?, 1);
        // A worker that claimed in the future holds its job for as long as it requested, and its token counts.
        let mine = file.claim(10).await?;
        assert_eq!(mine.len(), if ahead_ms > DAY_MS { 3 } else { 2 }, "{ahead_ms}");
        pass(Duration::from_secs(119)).await;
        assert!(!file.claim(10).await?.iter().any(|t| t.job.id == theirs_held.job.id), "{ahead_ms}");
        file.ack(theirs_held.held()).await?;
        // A lease of unknown length ends within a day, or at once.
        pass(Duration::from_millis(u64::try_from(ahead_ms.min(DAY_MS)).unwrap_or(0))).await;
        let rest = file.claim(10).await?;
        assert!(rest.iter().chain(&mine).any(|t| t.job.id == held.job.id), "{ahead_ms}");
        sound(&store).await?;
        file.close().await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn delays_windows_and_schedules_that_began_later_than_now_begin_now() -> Result<()> {
    let store: Arc<dyn Store> = Arc::new(Memory::new());
    let right = TestClock::start();
    let fast = right.off_by(30 * DAY_MS);
    let file = open(&store, &right).await?;
    let at = right.wall_ms() + 10 * DAY_MS;
    // In a queue of its own: a claim with the wrong clock makes jobs due by that clock.
    let q = file.queue("later")?;
    q.enqueue_job(New { when: When::At(at), ..new(&q, "asked for")? }).await?;
    file.close().await?;
    let theirs = open(&store, &fast).await?;
    let q = theirs.queue("q")?;
    q.enqueue_job(New { when: When::In(600_000), ..new(&q, "delayed")? }).await?;
    q.enqueue(Payload::text("again")).await?;
    let again = q.claim(1).await?.remove(0);
    theirs.nack(again.held(), Some(Duration::from_mins(20)), None).await?;
    let key = |q: &Queue| -> Result<New> {
        let dedup = Dedup { key: "once".into(), scope: DedupScope::Window(HOUR_MS / 2) };
        Ok(New { dedup: Some(dedup), when: When::In(40 * DAY_MS), ..new(q, "once")? })
    };
    q.enqueue_job(key(&q)?).await?;
    let timing = Timing::Every { every_ms: HOUR_MS, from_ms: None };
    q.schedule("hourly", Schedule { timing, missed: Missed::Skip, job: new(&q, "tick")? }).await?;
    theirs.close().await?;

    let fixed = fix(&store, &right).await?;
    assert_eq!(fixed.schedules, 1, "{fixed:?}");
    sound(&store).await?;
    let file = open(&store, &right).await?;
    let texts = async || -> Result<Vec<String>> {
        let taken = file.claim(100).await?;
        let mut all = vec![];
        for t in taken {
            all.push(String::from_utf8_lossy(&t.payload.bytes).into_owned());
            file.ack(t.held()).await?;
        }
        all.sort();
        Ok(all)
    };
    assert!(texts().await?.is_empty());
    let q = file.queue("q")?;
    assert!(q.enqueue_job(key(&q)?).await?.deduplicated);
    pass(Duration::from_mins(11)).await;
    assert_eq!(texts().await?, ["delayed"]);
    pass(Duration::from_mins(10)).await;
    assert_eq!(texts().await?, ["again"]);
    pass(Duration::from_mins(10)).await;
    assert!(!q.enqueue_job(key(&q)?).await?.deduplicated, "its window is over");
    pass(Duration::from_mins(30)).await;
    assert_eq!(texts().await?, ["tick"]);
    pass(Duration::from_hours(9 * 24)).await;
    assert!(!texts().await?.contains(&"asked for".to_owned()));
    pass(Duration::from_hours(25)).await;
    assert!(texts().await?.contains(&"asked for".to_owned()), "its time has come");
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn it_only_looks_when_told_to_and_a_wrong_clock_fixes_nothing() -> Result<()> {
    let puppet = Puppet::over(Arc::new(Memory::new()));
    let right = TestClock::start();
    let options = Options { max_skew: Some(Duration::from_secs(5)), ..inline() };
    let fast = right.off_by(HOUR_MS);
    let file = QueueFile::open_with(puppet.store(), NAME, options.clone(), fast.env()).await?;
    file.queue("q")?.enqueue(Payload::text("x")).await?;
    file.close().await?;
    let before = objects(puppet.beneath()).await?;
    let fix = async |clock: &TestClock, only_look| {
        fix_time_with(puppet.store(), NAME, only_look, options.clone(), clock.env()).await
    };
    let looked = fix(&right, true).await?;
    assert_eq!((looked.ahead, looked.commit_seq), (true, None), "{looked:?}");
    assert_eq!(objects(puppet.beneath()).await?, before);
    puppet.tells(&right);
    for wrong in [-HOUR_MS, HOUR_MS] {
        let error = refused(fix(&right.off_by(wrong), false).await);
        assert_eq!((error.kind(), error.code()), (Kind::Unavailable, Code::ClockSkew), "{error}");
    }
    assert_eq!(objects(puppet.beneath()).await?, before);
    assert!(fix(&right, false).await?.commit_seq.is_some());
    let nothing = refused(fix_time_with(puppet.store(), "other", false, options.clone(), right.env()).await);
    assert_eq!(nothing.code(), Code::NoSuchFile);
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn what_others_commit_meanwhile_is_brought_back_with_the_rest() -> Result<()> {
    let puppet = Puppet::over(Arc::new(Memory::new()));
    let right = TestClock::start();
    let fast = right.off_by(HOUR_MS);
    let theirs = QueueFile::open_with(Arc::clone(puppet.beneath()), NAME, inline(), fast.env()).await?;
    theirs.queue("q")?.enqueue(Payload::text("one")).await?;
    puppet.hold();
    let (store, env) = (puppet.store(), right.env());
    let fixing = tokio::spawn(async move { fix_time_with(store, NAME, false, inline(), env).await });
    puppet.until_held(1).await;
    theirs.queue("q")?.enqueue(Payload::text("two")).await?;
    puppet.let_go();
    let fixed = fixing.await.expect("it does not panic")?;
    assert!(fixed.commit_seq.is_some());
    sound(puppet.beneath()).await?;
    let file = QueueFile::open_with(puppet.store(), NAME, inline(), right.env()).await?;
    assert_eq!(file.claim(10).await?.len(), 2);
    file.close().await?;
    theirs.close().await
}
