//! Local commits made with a wrong clock can be published later, and none of them is lost.

use std::sync::Arc;
use std::time::Duration;

use bucketq::env::Clock;
use bucketq::job::When;
use bucketq::operate::check_with;
use bucketq::store::Memory;
use bucketq::{Code, New, Options, Payload, Result, State};
use bucketq_tests::clock::{TestClock, pass};
use bucketq_tests::given::{NAME, refused};
use bucketq_tests::puppet::Puppet;

use crate::fixture::{Machine, abandon, enqueue, texts, watch};

const HOUR_MS: i64 = 3_600_000;
const WRONG_MS: [i64; 3] = [60_000, HOUR_MS, 400 * 24 * HOUR_MS];

fn telling(right: &TestClock) -> Puppet {
    let puppet = Puppet::over(Arc::new(Memory::new()));
    puppet.tells(right);
    puppet
}

#[tokio::test(start_paused = true)]
async fn what_a_fast_clock_committed_is_published_at_the_right_time_once_the_clock_is_right() -> Result<()> {
    for ahead_ms in WRONG_MS {
        for reopened in [false, true] {
            let machine = Machine::new();
            let right = TestClock::start();
            let puppet = telling(&right);
            let mut file = machine.open_paused(&puppet).await?;
            enqueue(&file, "before").await?;
            file.sync().await?;

            machine.clock().step(ahead_ms);
            enqueue(&file, "fast").await?;
            let q = file.queue("q")?;
            q.enqueue_job(New { when: When::In(600_000), ..q.new_job(Payload::text("delayed"))? }).await?;
            let done = file.claim(1).await?.remove(0);
            file.ack(done.held()).await?;
            let held = file.claim(1).lease(Duration::from_mins(1)).await?.remove(0);
            let dirty = file.dirty()?;
            let error = refused(file.sync().await);
            assert_eq!(error.code(), Code::ClockSkew, "{error}");
            assert_eq!(file.dirty()?, dirty, "nothing is lost");
            enqueue(&file, "later").await?;

            machine.clock().step(-ahead_ms);
            if reopened {
                drop(q);
                abandon(file).await?;
                file = machine.open_paused(&puppet).await?;
            }
            enqueue(&file, "right").await?;
            file.sync().await?;
            assert_eq!(file.dirty()?.commits, 0);

            let other = watch(&machine, &puppet).await?;
            let off = other.stats(None).await?.commit_ms - right.wall_ms();
            assert!(off.abs() <= 1_000, "{ahead_ms}: the sync is {off} ms off");
            let report = check_with(Arc::clone(puppet.beneath()), NAME, Options::default()).await?;
            assert!(report.is_clean(), "{report:?}");
            assert_eq!(texts(&other).await?, ["before", "fast", "delayed", "later", "right"]);
            // The lease ends when its holder thinks, and no job waits for the wrong time.
            let mine = other.claim(10).await?;
            assert_eq!(mine.len(), 2, "{ahead_ms}");
            for taken in mine {
                other.ack(taken.held()).await?;
            }
            pass(Duration::from_secs(62)).await;
            let rest = other.claim(10).await?;
            assert_eq!(rest.iter().map(|t| t.job.id).collect::<Vec<_>>(), [held.job.id], "{ahead_ms}");
            pass(Duration::from_mins(9)).await;
            assert!(other.claim(10).await?.iter().any(|t| &t.payload.bytes[..] == b"delayed"), "{ahead_ms}");
            let page = other.queue("q")?.list(&[State::Done], None, 10).await?;
            assert!(page.jobs[0].finished_ms.is_some_and(|ms| ms <= right.wall_ms()), "{ahead_ms}");
            other.close().await?;
            file.close().await?;
        }
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn once_the_clock_is_right_local_leases_run_out_by_it() -> Result<()> {
    let machine = Machine::new();
    let right = TestClock::start();
    let puppet = telling(&right);
    let file = machine.open_paused(&puppet).await?;
    machine.clock().step(HOUR_MS);
    enqueue(&file, "fast").await?;
    machine.clock().step(-HOUR_MS);
    enqueue(&file, "right").await?;
    assert_eq!(file.claim(2).lease(Duration::from_secs(30)).await?.len(), 2);
    pass(Duration::from_secs(31)).await;
    assert_eq!(file.claim(2).await?.len(), 2);
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn one_wrong_date_at_a_sync_moves_no_time() -> Result<()> {
    for wrong in [100_000, -60_000, 400 * 24 * HOUR_MS] {
        let machine = Machine::new();
        let right = TestClock::start();
        let puppet = telling(&right);
        let file = machine.open_paused(&puppet).await?;
        enqueue(&file, "one").await?;
        abandon(file).await?;
        let file = machine.open_paused(&puppet).await?;
        puppet.next_dates([wrong]);
        file.sync().await?;
        let other = watch(&machine, &puppet).await?;
        let off = other.stats(None).await?.commit_ms - right.wall_ms();
        assert!(off.abs() <= 1_000, "{wrong}: the sync is {off} ms off");
        other.close().await?;
        file.close().await?;
    }
    Ok(())
}
