//! A claim cancelled at any point leaves its jobs claimable at once, with no attempt counted, or was never made.

use std::sync::Arc;
use std::time::Duration;

use bucketq::store::Memory;
use bucketq::{Payload, QueueFile, Result, State};
use bucketq_tests::clock::{now, pass};
use bucketq_tests::given::{inline, on_puppet};
use bucketq_tests::puppet::Puppet;

use crate::steps::{COURSES, MOST, STEP, given, names, polled, polled_closely, quiet};

const LEASE: Duration = Duration::from_hours(1);

async fn fill(file: &QueueFile, jobs: usize) -> Result<()> {
    let q = file.queue("q")?;
    let jobs: Result<Vec<_>> = (0..jobs).map(|i| q.new_job(Payload::text(i.to_string()))).collect();
    q.enqueue_many(jobs?).await.map(drop)
}

/// All three jobs can be claimed now, each for the first time.
async fn all_there(file: &QueueFile, when: &str) -> Result<()> {
    let before = now();
    let taken = file.claim(9).lease(LEASE).await?;
    assert_eq!(names(&taken), ["0", "1", "2"], "{when}");
    assert!(taken.iter().all(|t| t.job.attempt == 1 && t.job.run == 0), "{when}: {taken:?}");
    assert!(now() - before < Duration::from_secs(1), "{when}: no lease had to run out");
    let counts = &file.queues(None).await?[0].counts;
    assert_eq!((counts[&State::Leased], counts[&State::Ready]), (3, 0), "{when}");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_claim_cancelled_at_any_point_holds_nothing() -> Result<()> {
    for course in COURSES {
        let (mut handed_back, mut done_after) = (0, None);
        for n in 0..MOST {
            let (puppet, file) = given().await?;
            fill(&file, 3).await?;
            puppet.next_puts(course.iter().copied());
            if let Some(done) = polled(file.claim(2).lease(LEASE), n).await {
                assert_eq!(names(&done?), ["0", "1"]);
                done_after = Some(n);
                break;
            }
            quiet(&file).await?;
            handed_back += file.metrics()?.handed_back;
            all_there(&file, &format!("{course:?}, dropped after {n} polls")).await?;
            file.close().await?;
        }
        assert!(done_after >= Some(6), "{course:?}: {done_after:?}");
        // Dropped while its put was under way: the jobs were claimed, and handed back.
        assert!(handed_back >= 4, "{course:?}: {handed_back}");
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_claim_dropped_between_two_steps_of_the_writer_holds_nothing() -> Result<()> {
    let (mut handed_back, mut done_after) = (0, None);
    for n in 0..MOST {
        // A store that replies at once: every moment is between two turns of the scheduler.
        let puppet = Puppet::over(Arc::new(Memory::new()));
        let file = on_puppet(&puppet, inline()).await?;
        fill(&file, 3).await?;
        if let Some(done) = polled_closely(file.claim(2).lease(LEASE), n).await {
            assert_eq!(names(&done?), ["0", "1"]);
            done_after = Some(n);
            break;
        }
        quiet(&file).await?;
        handed_back += file.metrics()?.handed_back;
        all_there(&file, &format!("dropped after {n} close polls")).await?;
        file.close().await?;
    }
    assert!(done_after >= Some(2), "{done_after:?}");
    assert!(handed_back > 0, "once the answer lay in the slot");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_waiting_claim_cancelled_at_any_point_holds_nothing() -> Result<()> {
    for course in COURSES {
        let (mut handed_back, mut done_after) = (0, None);
        for n in 0..MOST {
            let (puppet, file) = given().await?;
            // The claim finds no jobs, waits, and these wake it.
            let enqueues = tokio::spawn({
                let file = file.clone();
                async move {
                    pass(STEP * 15).await;
                    fill(&file, 3).await
                }
            });
            let claim = file.claim(2).lease(LEASE).wait(Duration::from_mins(5));
            puppet.next_puts(course.iter().copied());
            let done = polled(claim, n).await;
            enqueues.await.expect("no panic")?;
            if let Some(done) = done {
                assert_eq!(names(&done?), ["0", "1"]);
                done_after = Some(n);
                break;
            }
            quiet(&file).await?;
            handed_back += file.metrics()?.handed_back;
            all_there(&file, &format!("{course:?}, waiting, dropped after {n} polls")).await?;
            file.close().await?;
        }
        assert!(done_after >= Some(18), "{course:?}: {done_after:?}");
        assert!(handed_back >= 4, "{course:?}: {handed_back}");
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn one_of_two_waiting_claims_cancelled_leaves_the_job_to_the_other() -> Result<()> {
    let mut done_after = None;
    for n in 1..MOST {
        let (_, file) = given().await?;
        let cancelled = file.claim(1).lease(LEASE).wait_forever();
        let enqueues = tokio::spawn({
            let file = file.clone();
            async move {
                pass(STEP * 10).await;
                file.queue("q")?.enqueue(Payload::text("x")).await
            }
        });
        // It is behind the first one in the line.
        let other = tokio::spawn({
            let claim = file.claim(1).lease(LEASE).wait_forever();
            async move {
                pass(STEP / 2).await;
                claim.await
            }
        });
        let done = polled(cancelled, n).await;
        enqueues.await.expect("no panic")?;
        if let Some(done) = done {
            assert_eq!(done?.len(), 1);
            other.abort();
            done_after = Some(n);
            break;
        }
        let before = now();
        let taken = other.await.expect("no panic")?;
        assert_eq!(
            (names(&taken), taken[0].job.attempt),
            (vec!["x".to_owned()], 1),
            "dropped after {n} polls"
        );
        assert!(now() - before < Duration::from_secs(10));
        file.close().await?;
    }
    assert!(done_after >= Some(12), "{done_after:?}");
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn every_handle_dropped_while_claims_wait_leaves_nothing_held() -> Result<()> {
    for n in 0..40 {
        let (puppet, file) = given().await?;
        let other = on_puppet(&puppet, inline()).await?;
        let waiting: Vec<_> = (0..4).map(|_| file.claim(1).lease(LEASE).wait_forever()).collect();
        let enqueues = tokio::spawn(async move {
            pass(STEP * 10).await;
            fill(&other, 3).await?;
            Ok::<_, bucketq::Error>(other)
        });
        // The claims have the last handles of the queue file.
        drop(file);
        let all = futures_util::future::join_all(waiting.into_iter().map(|c| polled(c, n)));
        let done = all.await;
        let mut held = 0;
        for claim in done.into_iter().flatten() {
            held += claim?.len();
        }
        let other = enqueues.await.expect("no panic")?;
        // Long enough for the jobs that were handed back, far shorter than a lease.
        pass(Duration::from_secs(10)).await;
        let rest = other.claim(9).lease(LEASE).await?;
        assert_eq!(held + rest.len(), 3, "dropped after {n} polls");
        assert!(rest.iter().all(|t| t.job.attempt == 1));
        let before = puppet.requests();
        pass(Duration::from_hours(1)).await;
        assert_eq!(puppet.requests(), before, "no writer is left that polls");
        other.close().await?;
    }
    Ok(())
}
