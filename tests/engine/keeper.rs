//! Jobs whose leases the keeper renews: extended while they are held, reported when lost, handed back when not started.

use std::time::Duration;

use bucketq::op::{Claim, Op, Outcome};
use bucketq::{Code, Happened, Held, Keeper, LeaseGuard, Loss, Payload, QueueFile, Queues, Result, Token};
use bucketq_tests::clock::{now, pass};
use bucketq_tests::given::{inline, puppet, refused};
use bucketq_tests::puppet::{OnGet, OnPut, Puppet};
use tokio::sync::mpsc;

const LEASE: Duration = Duration::from_secs(12);

/// A queue file with this many jobs, all claimed and renewed by the keeper.
async fn kept(jobs: u32) -> Result<(Puppet, QueueFile, Keeper, Vec<LeaseGuard>)> {
    let (puppet, file) = puppet(inline()).await?;
    let q = file.queue("q")?;
    for _ in 0..jobs {
        q.enqueue(Payload::text("x")).await?;
    }
    let (keeper, task) = Keeper::new(&file)?;
    tokio::spawn(task);
    let taken = if jobs == 0 { vec![] } else { q.claim(jobs).lease(LEASE).await? };
    let kept = taken.iter().map(|t| keeper.keep(t, LEASE)).collect();
    Ok((puppet, file, keeper, kept))
}

/// The attempt number of a job that can be claimed now; `None` if there is none.
async fn attempt(file: &QueueFile) -> Result<Option<u32>> {
    Ok(file.claim(1).lease(LEASE).await?.first().map(|t| t.job.attempt))
}

#[tokio::test(start_paused = true)]
async fn a_kept_job_stays_its_holders_until_it_is_ended() -> Result<()> {
    let (_, file, _keeper, kept) = kept(1).await?;
    kept[0].work();
    for _ in 0..20 {
        pass(LEASE / 2).await;
        assert!(!kept[0].is_lost());
        assert!(kept[0].remaining() > LEASE / 2);
        assert_eq!(attempt(&file).await?, None);
    }
    kept[0].end();
    pass(LEASE).await;
    assert!(!kept[0].is_lost(), "an ended job is nobody's business");
    assert_eq!(attempt(&file).await?, Some(2));
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn many_kept_jobs_are_extended_in_one_commit_each_third_of_the_lease() -> Result<()> {
    let (puppet, file, _keeper, kept) = kept(50).await?;
    pass(Duration::from_secs(1)).await;
    let before = puppet.requests().puts;
    pass(LEASE * 10).await;
    let puts = puppet.requests().puts - before;
    assert!((28..=33).contains(&puts), "{puts} puts for fifty jobs in ten leases");
    assert!(kept.iter().all(|k| !k.is_lost()));
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn a_keeper_without_jobs_asks_nothing() -> Result<()> {
    let (puppet, file, _keeper, kept) = kept(3).await?;
    file.atomic(kept.iter().map(|k| bucketq::Op::Ack { held: k.held(), result: None }).collect()).await?;
    kept.iter().for_each(LeaseGuard::end);
    pass(Duration::from_secs(1)).await;
    let before = puppet.requests();
    pass(Duration::from_hours(1)).await;
    assert_eq!(puppet.requests(), before);
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn a_job_taken_away_is_lost_at_the_next_extend() -> Result<()> {
    let (_, file, _keeper, kept) = kept(1).await?;
    file.call(bucketq::Op::Cancel { id: kept[0].held().id, leased: true }).await?;
    assert!(!kept[0].is_lost(), "nobody has asked yet");
    pass(LEASE / 2).await;
    assert!(kept[0].is_lost());
    assert_eq!(refused(kept[0].extend(&file, LEASE).await).code(), Code::LeaseLost);
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn a_job_is_lost_when_its_lease_runs_out_over_a_store_that_fails_and_kept_on_when_it_works_again()
-> Result<()> {
    let (puppet, file, _keeper, kept) = kept(1).await?;
    kept[0].work();
    puppet.every_put(OnPut::Refuse(Code::Unreachable));
    pass(Duration::from_secs(11)).await;
    assert!(!kept[0].is_lost());
    pass(Duration::from_secs(1)).await;
    assert!(kept[0].is_lost());
    puppet.every_put(OnPut::Pass);
    pass(LEASE * 4).await;
    assert!(!kept[0].is_lost(), "nobody else has claimed it meanwhile");
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn a_job_nobody_worked_on_is_handed_back_when_dropped() -> Result<()> {
    let (_, file, keeper, mut kept) = kept(2).await?;
    kept[0].give_back();
    assert!(kept[0].is_ended());
    drop(kept.pop());
    keeper.flush().await;
    assert_eq!(attempt(&file).await?, Some(1));
    assert_eq!(attempt(&file).await?, Some(1));
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn a_job_somebody_worked_on_is_left_to_its_lease_when_dropped() -> Result<()> {
    let (_, file, keeper, kept) = kept(1).await?;
    kept[0].work();
    drop(kept);
    keeper.flush().await;
    assert_eq!(attempt(&file).await?, None);
    pass(LEASE).await;
    assert_eq!(attempt(&file).await?, Some(2));
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn a_longer_lease_is_extended_less_often() -> Result<()> {
    let (puppet, file, _keeper, kept) = kept(1).await?;
    kept[0].extend(&file, LEASE * 100).await?;
    assert!(kept[0].remaining() > LEASE * 99);
    let before = puppet.requests().puts;
    pass(LEASE * 30).await;
    assert_eq!(puppet.requests().puts, before);
    pass(LEASE * 10).await;
    assert_eq!(puppet.requests().puts, before + 1);
    assert!(kept[0].remaining() > LEASE * 80);
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn a_job_that_is_only_watched_is_lost_when_its_lease_runs_out_and_handed_back_before() -> Result<()> {
    let (_, file, keeper, kept) = kept(0).await?;
    assert!(kept.is_empty());
    file.queue("q")?.enqueue(Payload::text("x")).await?;
    let taken = file.claim(1).lease(LEASE).await?;
    drop(keeper.watch_only(&taken[0], LEASE));
    keeper.flush().await;
    let taken = file.claim(1).lease(LEASE).await?;
    assert_eq!(taken[0].job.attempt, 1);
    let watched = keeper.watch_only(&taken[0], LEASE);
    watched.extend(&file, LEASE).await?;
    pass(LEASE).await;
    assert!(watched.is_lost());
    assert_eq!(attempt(&file).await?, Some(2));
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn the_task_ends_with_what_it_keeps() -> Result<()> {
    let (_, file) = puppet(inline()).await?;
    let (keeper, task) = Keeper::new(&file)?;
    let task = tokio::spawn(task);
    file.queue("q")?.enqueue(Payload::text("x")).await?;
    let taken = file.claim(1).lease(LEASE).await?;
    let kept = keeper.keep(&taken[0], LEASE);
    drop(keeper);
    pass(LEASE).await;
    assert!(!task.is_finished());
    drop(kept);
    task.await.expect("no panic");
    assert_eq!(attempt(&file).await?, Some(1));
    file.close().await
}

/// Losses of these jobs as the keeper reports them.
fn losses(kept: &[LeaseGuard]) -> mpsc::UnboundedReceiver<(usize, Loss)> {
    let (tx, rx) = mpsc::unbounded_channel();
    for (i, one) in kept.iter().enumerate() {
        let tx = tx.clone();
        one.on_lost(move |how| _ = tx.send((i, how)));
    }
    rx
}

#[tokio::test(start_paused = true)]
async fn who_holds_a_job_is_told_once_when_its_lease_runs_out_and_so_are_those_who_watch() -> Result<()> {
    let (puppet, file, _keeper, mut kept) = kept(2).await?;
    let mut events = file.events(100)?;
    let mut lost = losses(&kept);
    kept[0].work();
    drop(kept.pop());
    pass(Duration::from_secs(1)).await;
    while events.try_next().is_some() {}
    puppet.every_put(OnPut::Refuse(Code::Unreachable));
    pass(LEASE * 5 / 6).await;
    assert_eq!(lost.try_recv().ok(), None);
    pass(Duration::from_millis(1_010)).await;
    assert_eq!(lost.try_recv().ok(), Some((0, Loss::RanOut)), "the one that was dropped is nobody's");
    let told = events.try_next().expect("an event");
    let Happened::LeaseLost { job, reason: Loss::RanOut } = &told.what else { panic!("{told:?}") };
    assert_eq!((job.id, &*job.queue, job.attempt), (kept[0].held().id, "q", 1));
    assert!(told.commit_seq > 0 && told.commit_ms > 0);
    puppet.every_put(OnPut::Pass);
    file.call(bucketq::Op::Cancel { id: kept[0].held().id, leased: true }).await?;
    pass(LEASE * 2).await;
    assert!(kept[0].is_lost());
    assert_eq!(lost.try_recv().ok(), None, "told once");
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn who_holds_a_job_that_was_taken_away_is_told_by_the_extend_or_by_what_is_refused_before() -> Result<()>
{
    let (_, file, _keeper, kept) = kept(3).await?;
    let mut lost = losses(&kept);
    for one in &kept {
        file.call(bucketq::Op::Cancel { id: one.held().id, leased: true }).await?;
    }
    kept[1].refused();
    assert_eq!(lost.try_recv().ok(), Some((1, Loss::Taken)));
    assert!(kept[1].is_lost());
    kept[2].end();
    kept[2].refused();
    pass(LEASE / 2).await;
    assert_eq!(lost.try_recv().ok(), Some((0, Loss::Taken)));
    assert_eq!(lost.try_recv().ok(), None, "an ended job is not lost");
    // A late listener gets it at once.
    assert_eq!(losses(&kept[..1]).try_recv().ok(), Some((0, Loss::Taken)));
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn a_job_that_was_deleted_is_lost_and_told_once() -> Result<()> {
    let (_, file, _keeper, kept) = kept(1).await?;
    let mut lost = losses(&kept);
    file.call(bucketq::Op::Purge { queue: "q".into(), states: vec![bucketq::State::Leased] }).await?;
    let mut events = file.events(100)?;
    pass(LEASE * 2).await;
    assert_eq!(lost.try_recv().ok(), Some((0, Loss::Taken)));
    assert_eq!(lost.try_recv().ok(), None);
    let told = events.try_next().expect("an event");
    assert!(matches!(told.what, Happened::LeaseLost { reason: Loss::Taken, .. }), "{told:?}");
    assert_eq!(events.try_next(), None);
    assert!(kept[0].is_lost());
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn a_job_that_is_only_watched_is_told_lost_at_its_end_and_an_extended_one_later() -> Result<()> {
    let (_, file, keeper, _) = kept(0).await?;
    file.queue("q")?.enqueue(Payload::text("x")).await?;
    let taken = file.claim(1).lease(LEASE).await?;
    let watched = [keeper.watch_only(&taken[0], LEASE)];
    let mut lost = losses(&watched);
    pass(LEASE / 2).await;
    watched[0].extend(&file, LEASE).await?;
    pass(Duration::from_millis(11_999)).await;
    assert_eq!(lost.try_recv().ok(), None);
    pass(Duration::from_millis(11)).await;
    assert_eq!(lost.try_recv().ok(), Some((0, Loss::RanOut)));
    assert!(watched[0].is_lost());
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn an_extend_by_hand_is_not_shortened_by_one_of_the_keeper_that_lands_after_it() -> Result<()> {
    let (puppet, file, _keeper, kept) = kept(1).await?;
    kept[0].work();
    puppet.hold();
    let behind = async {
        puppet.until_held(1).await;
        // The keeper sends its own extend, which waits behind the manual one.
        pass(LEASE / 2).await;
        puppet.let_go();
    };
    let (by_hand, ()) = tokio::join!(kept[0].extend(&file, LEASE * 50), behind);
    by_hand?;
    pass(Duration::from_secs(1)).await;
    assert!(kept[0].remaining() > LEASE * 48);
    pass(LEASE * 2).await;
    assert_eq!(attempt(&file).await?, None, "its holder believes in {:?}", kept[0].remaining());
    assert!(!kept[0].is_lost());
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn a_shorter_extend_by_hand_counts_and_the_lease_is_kept_with_that_length() -> Result<()> {
    let (_, file, _keeper, kept) = kept(1).await?;
    kept[0].work();
    kept[0].extend(&file, LEASE / 4).await?;
    assert!(kept[0].remaining() <= LEASE / 4);
    for _ in 0..10 {
        pass(LEASE / 3).await;
        assert!(!kept[0].is_lost());
        assert_eq!(attempt(&file).await?, None);
    }
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn a_shorter_extend_by_hand_counts_from_when_it_was_sent_if_its_outcome_is_unknown() -> Result<()> {
    let (puppet, file, keeper, _) = kept(0).await?;
    file.queue("q")?.enqueue(Payload::text("x")).await?;
    let taken = file.claim(1).lease(LEASE * 100).await?;
    let kept = keeper.keep(&taken[0], LEASE * 100);
    kept.work();
    puppet.every_put(OnPut::Swallow);
    puppet.every_get(OnGet::Hang);
    assert_eq!(refused(kept.extend(&file, LEASE).await).code(), Code::OutcomeUnknown);
    assert!(kept.is_lost(), "it may have landed, and then its holder has nothing left");
    puppet.every_put(OnPut::Refuse(Code::Unreachable));
    puppet.every_get(OnGet::Fail(Code::Unreachable));
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_lease_without_end_is_extended_by_hand_and_stays_without_end() -> Result<()> {
    let (_, file, keeper, _) = kept(0).await?;
    file.queue("q")?.enqueue(Payload::text("x")).await?;
    let taken = file.claim(1).without_end().await?;
    let kept = [keeper.keep(&taken[0], LEASE)];
    kept[0].work();
    let mut lost = losses(&kept);
    kept[0].extend(&file, LEASE).await?;
    pass(LEASE * 10).await;
    assert!(!kept[0].is_lost());
    assert!(kept[0].remaining() > LEASE * 1_000);
    assert_eq!(lost.try_recv().ok(), None);
    assert!(file.extend(taken[0].held(), LEASE).await? > now() + LEASE * 1_000);
    assert_eq!(attempt(&file).await?, None);
    file.ack(taken[0].held()).await
}

#[tokio::test(start_paused = true)]
async fn jobs_of_a_claim_sent_again_are_held_from_their_claim_on() -> Result<()> {
    let (_, file) = puppet(inline()).await?;
    file.queue("q")?.enqueue(Payload::text("x")).await?;
    let claim = |again| {
        Op::Claim(Claim {
            queues: Queues::Any,
            max: 1,
            lease_ms: Some(12_000),
            worker: "raw".into(),
            token: Token([7; 16]),
            again,
        })
    };
    let sent = now();
    let first = file.call(claim(false)).await?;
    pass(Duration::from_secs(8)).await;
    let again = file.call(claim(true)).await?;
    let (Outcome::Claimed(jobs), Outcome::Claimed(same)) = (&first.outcome, &again.outcome) else {
        panic!("claims claim")
    };
    assert_eq!(jobs[0].lease, same[0].lease);
    assert!(first.began - sent <= Duration::from_millis(10));
    assert!(again.began - sent <= Duration::from_millis(10), "{:?} later", again.began - sent);
    file.extend(Held { id: jobs[0].job.id, token: Token([7; 16]) }, LEASE).await?;
    pass(Duration::from_secs(10)).await;
    let again = file.call(claim(true)).await?;
    let Outcome::Claimed(same) = &again.outcome else { panic!("claims claim") };
    let lasts = same[0].lease.expires_ms - same[0].job.claimed_ms.expect("it was claimed");
    let ends = again.began + Duration::from_millis(lasts.unsigned_abs());
    assert!(
        (ends - sent).as_millis().abs_diff(20_000) <= 10,
        "the extended lease ends at 20 s: {:?}",
        ends - sent
    );
    file.close().await
}
