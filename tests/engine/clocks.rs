//! Clocks that disagree: this machine's, the store's Date, and the time of the newest commit (G4, G8, P28).

use std::sync::Arc;
use std::time::Duration;

use bucketq::env::Clock;
use bucketq::store::Memory;
use bucketq::{Code, Error, Kind, Options, Payload, QueueFile, Result};
use bucketq_tests::clock::{TestClock, pass};
use bucketq_tests::given::{NAME, inline, objects, refused};
use bucketq_tests::puppet::{OnGet, Puppet};

const HOUR_MS: i64 = 3_600_000;
const SKEW_MS: i64 = 5_000;
/// Dates that are wrong beyond the skew, in both directions.
const WRONG_MS: [i64; 5] = [7_000, -7_000, 100_000, -60_000, 400 * 24 * HOUR_MS];

/// A queue file in a store with a clock, on a machine with its own.
async fn clocked(off_ms: i64) -> Result<(Puppet, TestClock, TestClock, QueueFile)> {
    let right = TestClock::start();
    let own = right.off_by(off_ms);
    let puppet = Puppet::over(Arc::new(Memory::new()));
    puppet.tells(&right);
    let file = QueueFile::open_with(puppet.store(), NAME, skewed(), own.env()).await?;
    Ok((puppet, right, own, file))
}

fn skewed() -> Options {
    Options { max_skew: Some(Duration::from_secs(5)), ..inline() }
}

/// Another process on this machine.
async fn another(puppet: &Puppet, own: &TestClock) -> Result<QueueFile> {
    QueueFile::open_with(puppet.store(), NAME, skewed(), own.env()).await
}

fn is_clock_skew(error: &Error) -> bool {
    (error.kind(), error.code()) == (Kind::Unavailable, Code::ClockSkew)
}

#[tokio::test(start_paused = true)]
async fn one_wrong_date_hands_no_job_to_two_and_moves_no_time() -> Result<()> {
    for wrong in WRONG_MS {
        // The wrong Date comes in the first reply, in a later one, or in several.
        for dates in [vec![wrong], vec![0, wrong], vec![wrong, wrong], vec![wrong, 0, -wrong]] {
            let (puppet, right, _, holder) = clocked(0).await?;
            let q = holder.queue("q")?;
            q.enqueue(Payload::text("x")).await?;
            let held = holder.claim(1).lease(Duration::from_mins(2)).await?.remove(0);
            pass(Duration::from_secs(69)).await;

            puppet.next_dates(dates.clone());
            let other = another(&puppet, &right).await?;
            assert!(other.claim(1).await?.is_empty(), "{dates:?}: its holder has 51 s left");
            other.queue("q")?.enqueue(Payload::text("y")).await?;
            let off = other.stats(None).await?.commit_ms - right.wall_ms();
            assert!(off.abs() <= SKEW_MS, "{dates:?}: the newest commit is {off} ms off");

            // The lease of a job claimed now lasts as long for others as for its holder.
            let theirs = other.claim(1).lease(Duration::from_mins(1)).await?.remove(0);
            pass(Duration::from_secs(40)).await;
            assert!(holder.claim(1).await?.is_empty(), "{dates:?}");
            other.ack(theirs.held()).await?;
            holder.ack(held.held()).await?;
            other.close().await?;
            holder.close().await?;
        }
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_queue_file_is_made_at_the_right_time_whatever_the_first_date_says() -> Result<()> {
    for wrong in WRONG_MS {
        let right = TestClock::start();
        let puppet = Puppet::over(Arc::new(Memory::new()));
        puppet.tells(&right);
        puppet.next_dates([wrong]);
        let file = another(&puppet, &right).await?;
        let off = file.stats(None).await?.commit_ms - right.wall_ms();
        assert!(off.abs() <= SKEW_MS, "{wrong}: it was made {off} ms off");
        file.close().await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_wrong_clock_makes_no_queue_file_and_commits_nothing_and_both_times_are_told() -> Result<()> {
    for off_ms in [-24 * HOUR_MS, -7_000, 7_000, 24 * HOUR_MS] {
        let right = TestClock::start();
        let own = right.off_by(off_ms);
        let puppet = Puppet::over(Arc::new(Memory::new()));
        puppet.tells(&right);
        let error = refused(another(&puppet, &own).await);
        assert!(is_clock_skew(&error), "{off_ms}: {error}");
        assert!(objects(puppet.beneath()).await?.is_empty(), "{off_ms}");

        let file = another(&puppet, &right).await?;
        file.queue("q")?.enqueue(Payload::text("x")).await?;
        let before = objects(puppet.beneath()).await?;
        let mine = another(&puppet, &own).await?;
        assert_eq!(mine.queues(None).await?.len(), 1, "reading is no trouble");
        let error = refused(mine.queue("q")?.enqueue(Payload::text("y")).await);
        assert!(is_clock_skew(&error), "{off_ms}: {error}");
        for clock in [&right, &own] {
            let said = clock.wall_ms() / 60_000 % 60;
            assert!(error.message().contains(&format!(":{said:02}:")), "{off_ms}: {error}");
        }
        assert!(error.message().contains("NTP"), "{error}");
        assert_eq!(objects(puppet.beneath()).await?, before, "{off_ms}");
        // Once it is set right, it works again.
        own.step(-off_ms);
        mine.queue("q")?.enqueue(Payload::text("y")).await?;
        mine.close().await?;
        file.close().await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_clock_within_the_skew_is_corrected_by_the_dates() -> Result<()> {
    for off_ms in [-4_500, -2_000, 0, 2_000, 4_500] {
        let (_, right, _, file) = clocked(off_ms).await?;
        file.queue("q")?.enqueue(Payload::text("x")).await?;
        let off = file.stats(None).await?.commit_ms - right.wall_ms();
        assert!(off.abs() <= 1_500, "{off} ms with a clock off by {off_ms} ms");
        file.close().await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_slow_first_answer_fixes_no_wrong_time() -> Result<()> {
    for off_ms in [0, 2_000, -2_000, 4_000, -4_000] {
        let right = TestClock::start();
        let own = right.off_by(off_ms);
        let puppet = Puppet::over(Arc::new(Memory::new()));
        puppet.tells(&right);
        another(&puppet, &right).await?.close().await?;
        puppet.takes(Duration::from_secs(17));
        let patient = Options { deadline: Duration::from_mins(1), ..skewed() };
        let file = QueueFile::open_with(puppet.store(), NAME, patient, own.env()).await?;
        puppet.takes(Duration::from_millis(20));
        let q = file.queue("q")?;
        for n in 0..5 {
            q.enqueue(Payload::text("x")).await?;
            pass(Duration::from_millis(300)).await;
            let off = file.stats(None).await?.commit_ms - right.wall_ms();
            assert!(off.abs() <= SKEW_MS, "{off_ms}, commit {n}: {off} ms off");
        }
        file.close().await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_is_set_wrong_commits_nothing_until_it_is_set_right() -> Result<()> {
    for step in [HOUR_MS, -HOUR_MS] {
        let (puppet, right, own, file) = clocked(0).await?;
        let other = another(&puppet, &right).await?;
        let q = file.queue("q")?;
        q.enqueue(Payload::text("x")).await?;
        pass(Duration::from_millis(1)).await;
        let held = other.claim(1).await?.remove(0);
        file.stats(None).await?;
        own.step(step);
        let before = objects(puppet.beneath()).await?;
        pass(Duration::from_secs(1)).await;
        // Nothing is committed, with or without a reply from the store.
        puppet.every_get(OnGet::Fail(Code::Denied));
        assert_eq!(refused(q.enqueue(Payload::text("y")).await).kind(), Kind::Unavailable, "step {step}");
        puppet.every_get(OnGet::Pass);
        for error in [refused(q.enqueue(Payload::text("y")).await), refused(file.claim(1).await)] {
            assert!(is_clock_skew(&error), "step {step}: {error}");
        }
        assert_eq!(objects(puppet.beneath()).await?, before, "step {step}");
        own.step(-step);
        assert!(file.claim(1).await?.is_empty(), "step {step}: another writer holds it");
        q.enqueue(Payload::text("z")).await?;
        let off = file.stats(None).await?.commit_ms - right.wall_ms();
        assert!(off.abs() <= 1_000, "step {step}: {off} ms");
        other.ack(held.held()).await?;
        assert_eq!(other.claim(9).await?.len(), 1);
        file.close().await?;
        other.close().await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_store_whose_clock_went_away_from_ours_is_clock_skew() -> Result<()> {
    for step in [HOUR_MS, -HOUR_MS, 7_000, -7_000] {
        let (puppet, right, _, file) = clocked(0).await?;
        let q = file.queue("q")?;
        q.enqueue(Payload::text("x")).await?;
        right.step(step);
        pass(Duration::from_millis(1)).await;
        file.stats(None).await?;
        let before = objects(puppet.beneath()).await?;
        for error in [
            refused(q.enqueue(Payload::text("y")).await),
            refused(file.claim(1).await),
            refused(file.settle().await),
        ] {
            let got = (error.kind(), error.code());
            assert_eq!(got, (Kind::Unavailable, Code::ClockSkew), "step {step}: {error}");
        }
        assert_eq!(objects(puppet.beneath()).await?, before, "step {step}");
        right.step(-step);
        q.enqueue(Payload::text("z")).await?;
        assert_eq!(file.claim(9).await?.len(), 2, "what was refused is not there");
        file.close().await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_small_step_is_slewed_and_a_slow_answer_is_no_skew() -> Result<()> {
    let (puppet, _, own, file) = clocked(0).await?;
    let q = file.queue("q")?;
    own.step(4_000);
    q.enqueue(Payload::text("x")).await?;
    puppet.takes(Duration::from_secs(8));
    q.enqueue(Payload::text("y")).await?;
    q.enqueue(Payload::text("z")).await?;
    puppet.takes(Duration::ZERO);
    q.enqueue(Payload::text("z")).await?;
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn without_a_date_a_head_from_the_future_is_refused() -> Result<()> {
    let puppet = Puppet::over(Arc::new(Memory::new()));
    let right = TestClock::start();
    let fast = right.off_by(HOUR_MS);
    let theirs = QueueFile::open_with(puppet.store(), NAME, skewed(), fast.env()).await?;
    theirs.queue("q")?.enqueue(Payload::text("x")).await?;
    let mine = QueueFile::open_with(puppet.store(), NAME, skewed(), right.env()).await?;
    assert_eq!(mine.queues(None).await?.len(), 1, "reading is no trouble");
    let before = objects(puppet.beneath()).await?;
    for error in [
        refused(mine.queue("q")?.enqueue(Payload::text("y")).await),
        refused(mine.claim(1).await),
        refused(mine.settle().await),
    ] {
        assert_eq!((error.kind(), error.code()), (Kind::Unavailable, Code::ClockSkew), "{error}");
    }
    assert_eq!(objects(puppet.beneath()).await?, before);
    right.step(HOUR_MS);
    assert_eq!(mine.claim(1).await?.len(), 1);
    mine.close().await?;
    theirs.close().await
}
