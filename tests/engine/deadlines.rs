//! The result of a call whose deadline passes, and the effect of late replies (P7 to P9, P26).

use std::sync::Arc;
use std::time::Duration;

use bucketq::{Code, Kind, Options, Payload, Result, State};
use bucketq_tests::clock::{now, pass};
use bucketq_tests::given::{inline, on_puppet, puppet, refused};
use bucketq_tests::puppet::{OnGet, OnPut, Puppet, Silent};

const DEADLINE: Duration = Duration::from_secs(30);

#[tokio::test(start_paused = true)]
async fn nothing_sent_is_surely_not_applied() -> Result<()> {
    let (puppet, file) = puppet(inline()).await?;
    puppet.every_put(OnPut::Refuse(Code::Unreachable));
    let q = file.queue("q")?;
    let before = now();
    let error = refused(q.enqueue(Payload::text("x")).await);
    assert_eq!((error.kind(), error.code()), (Kind::Unavailable, Code::Unreachable));
    assert!(now() - before >= DEADLINE && now() - before < DEADLINE + Duration::from_secs(3));
    puppet.every_put(OnPut::Pass);
    file.settle().await?;
    assert!(file.claim(1).await?.is_empty(), "and it never comes");
    q.enqueue(Payload::text("y")).await?;
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn a_store_that_comes_back_in_time_is_no_trouble() -> Result<()> {
    let (puppet, file) = puppet(inline()).await?;
    puppet.next_puts([OnPut::Refuse(Code::Unreachable); 5]);
    puppet.next_puts([OnPut::LoseRequest; 3]);
    puppet.next_puts([OnPut::Refuse(Code::Unreachable); 2]);
    puppet.next_puts([OnPut::LoseAnswer]);
    file.queue("q")?.enqueue(Payload::text("x")).await?;
    assert_eq!(file.claim(9).await?.len(), 1);
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn a_put_that_hangs_after_it_landed_is_found() -> Result<()> {
    let (puppet, file) = puppet(inline()).await?;
    puppet.next_puts([OnPut::Hang]);
    let before = now();
    file.queue("q")?.enqueue(Payload::text("x")).await?;
    assert!(now() - before < DEADLINE / 2, "{:?}", now() - before);
    assert_eq!(file.metrics()?.resends, 0);
    assert_eq!(file.claim(9).await?.len(), 1);
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn a_put_that_got_lost_is_sent_again() -> Result<()> {
    let (puppet, file) = puppet(inline()).await?;
    puppet.next_puts([OnPut::Swallow, OnPut::LoseRequest]);
    file.queue("q")?.enqueue(Payload::text("x")).await?;
    assert_eq!(file.metrics()?.resends, 2);
    assert_eq!(file.claim(9).await?.len(), 1);
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn what_was_sent_and_cannot_be_settled_is_unknown_and_settles_later() -> Result<()> {
    for (put, arrives) in [(OnPut::LoseAnswer, true), (OnPut::LoseRequest, false), (OnPut::Hang, true)] {
        let (puppet, file) = puppet(inline()).await?;
        let q = file.queue("q")?;
        let job = q.new_job(Payload::text("x"))?;
        puppet.every_put(put);
        puppet.every_get(OnGet::Hang);
        let before = now();
        let error = refused(q.enqueue_job(job.clone()).await);
        assert_eq!((error.kind(), error.code()), (Kind::Unknown, Code::OutcomeUnknown), "{put:?}");
        assert!(now() - before >= DEADLINE && now() - before < DEADLINE + Duration::from_secs(1));
        puppet.every_put(OnPut::Pass);
        puppet.every_get(OnGet::Pass);
        // The body stays pending until it is settled: here it lands, late or sent again.
        let settled = file.settle().await?;
        let found = file.get(job.id).await?.expect("it is settled as applied");
        assert!(found.job.commit_seq() < settled, "{put:?}");
        assert_eq!(file.metrics()?.resends > 0, !arrives, "{put:?}");
        // Sending it again is harmless.
        assert_eq!(q.enqueue_job(job).await?.commit_seq, found.job.commit_seq());
        assert_eq!(file.claim(9).await?.len(), 1);
        file.close().await?;
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_claim_nobody_waits_for_any_more_is_handed_back_when_it_settles() -> Result<()> {
    let (puppet, file) = puppet(inline()).await?;
    file.queue("q")?.enqueue(Payload::text("x")).await?;
    puppet.every_put(OnPut::LoseAnswer);
    puppet.every_get(OnGet::Hang);
    let error = refused(file.claim(1).lease(Duration::from_hours(1)).await);
    assert_eq!(error.kind(), Kind::Unknown);
    puppet.every_put(OnPut::Pass);
    puppet.every_get(OnGet::Pass);
    let taken = file.claim(1).wait(Duration::from_mins(2)).await?.remove(0);
    assert_eq!(taken.job.attempt, 1, "given back, not expired");
    assert_eq!(file.metrics()?.handed_back, 1);
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn a_claim_answered_after_its_lease_is_handed_back() -> Result<()> {
    let (puppet, file) = puppet(inline()).await?;
    let id = file.queue("q")?.enqueue(Payload::text("x")).await?.id;
    puppet.takes(Duration::from_secs(4));
    assert!(file.claim(1).lease(Duration::from_secs(3)).await?.is_empty(), "not handed out as a live job");
    puppet.takes(Duration::ZERO);
    file.settle().await?;
    let job = file.get(id).await?.expect("there").job;
    assert_eq!((job.state, job.attempt), (State::Ready, 0), "given back unharmed");
    assert_eq!(file.metrics()?.handed_back, 1);
    let taken = file.claim(1).lease(Duration::from_secs(3)).await?.remove(0);
    assert_eq!(taken.job.attempt, 1);
    puppet.takes(Duration::from_secs(4));
    let error = refused(file.extend(taken.held(), Duration::from_secs(3)).await);
    assert_eq!(error.kind(), Kind::LeaseLost);
    puppet.takes(Duration::ZERO);
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_counted_from_before_its_claim_was_sent() -> Result<()> {
    let (puppet, file) = puppet(inline()).await?;
    file.queue("q")?.enqueue(Payload::text("x")).await?;
    puppet.takes(Duration::from_secs(4));
    let before = now();
    let taken = file.claim(1).lease(Duration::from_mins(1)).await?.remove(0);
    assert_eq!(taken.deadline, before + Duration::from_mins(1));
    puppet.takes(Duration::ZERO);
    file.close().await
}

#[tokio::test(start_paused = true)]
async fn a_writer_among_busy_rivals_gets_its_turn() -> Result<()> {
    let (puppet, file) = puppet(Options { deadline: Duration::from_secs(3), ..inline() }).await?;
    let rival = on_puppet(&puppet, inline()).await?;
    let q = file.queue("q")?;
    let busy = rival.queue("busy")?;
    puppet.takes(Duration::from_millis(10));
    let ((), job) = tokio::join!(
        async {
            for _ in 0..200 {
                busy.enqueue(Payload::text("b")).await.expect("the rival has no trouble");
            }
        },
        q.enqueue(Payload::text("x"))
    );
    // The loser gets its turn: the winner leaves it a gap.
    job?;
    puppet.takes(Duration::ZERO);
    assert_eq!(q.claim(9).await?.len(), 1);
    file.close().await?;
    rival.close().await
}

#[tokio::test(start_paused = true)]
async fn a_parked_claim_was_never_sent() -> Result<()> {
    // The only read of the store comes just before the claim's deadline.
    let poll = Duration::from_millis(18_900);
    let options = Options { deadline: Duration::from_secs(3), poll_min: poll, poll_max: poll, ..inline() };
    let (puppet, file) = puppet(options).await?;
    file.queue("q")?.enqueue(Payload::text("x")).await?;
    let taken = file.claim(1).await?.remove(0);
    let waiting = tokio::spawn(file.claim(1).wait(Duration::from_millis(19_901)).into_future());
    pass(Duration::from_secs(1)).await;
    // The commit of another op includes the claim, which finds nothing.
    file.ack(taken.held()).await?;
    pass(Duration::from_secs(10)).await;
    puppet.every_get(OnGet::Hang);
    let answer = waiting.await.expect("no panic");
    assert!(
        answer.as_ref().map_or_else(|e| e.kind() == Kind::Unavailable, Vec::is_empty),
        "no body held this claim: {answer:?}"
    );
    puppet.every_get(OnGet::Pass);
    file.close().await
}

/// An enqueue whose body lands without a reply, while no read works and nothing else can be sent. Returns the kind of
/// its error, and whether the job exists afterwards.
async fn cut_off_after_one_body(options: Options) -> Result<(Kind, bool)> {
    let (puppet, file) = puppet(options).await?;
    let q = file.queue("q")?;
    let job = q.new_job(Payload::text("x"))?;
    puppet.next_puts([OnPut::LoseAnswer]);
    puppet.every_put(OnPut::Refuse(Code::Unreachable));
    puppet.every_get(OnGet::Fail(Code::Denied));
    let error = refused(q.enqueue_job(job.clone()).await);
    puppet.every_put(OnPut::Pass);
    puppet.every_get(OnGet::Pass);
    file.settle().await?;
    let exists = file.get(job.id).await?.is_some();
    file.close().await?;
    Ok((error.kind(), exists))
}

#[tokio::test(start_paused = true)]
async fn a_body_that_was_sent_is_never_reported_as_not_applied() -> Result<()> {
    assert_eq!(cut_off_after_one_body(inline()).await?, (Kind::Unknown, true));
    Ok(())
}

/// A process dies while its put is on its way. Another one, which has stored a commit before or is new, calls `settle()`
/// and does not find the job. Then the put arrives. Returns whether the job exists now.
async fn lands_after_settle(options: Options, has_stored: bool) -> Result<bool> {
    let (slow, dying) = puppet(inline()).await?;
    let quick = Puppet::over(Arc::clone(slow.beneath()));
    let known = if has_stored { Some(on_puppet(&quick, options.clone()).await?) } else { None };
    if let Some(file) = &known {
        file.queue("q")?.enqueue(Payload::text("before")).await?;
        dying.settle().await?;
    }
    let q = dying.queue("q")?;
    let job = q.new_job(Payload::text("late"))?;
    let id = job.id;
    slow.hold();
    let sent = tokio::spawn(async move { q.enqueue_job(job).await });
    slow.until_held(1).await;

    let other = match known {
        Some(file) => file,
        None => on_puppet(&quick, options).await?,
    };
    other.settle().await?;
    assert!(other.get(id).await?.is_none(), "the put is still on its way");
    slow.falls(Silent::Deaf);
    slow.let_go();
    slow.until_released().await;
    pass(Duration::from_secs(1)).await;
    let exists = other.get(id).await?.is_some();
    sent.abort();
    other.close().await?;
    Ok(exists)
}

#[tokio::test(start_paused = true)]
async fn a_put_that_settle_did_not_show_cannot_land_afterwards() -> Result<()> {
    assert!(!lands_after_settle(inline(), true).await?, "settled by a process that has stored a commit");
    assert!(!lands_after_settle(inline(), false).await?, "settled by a new process");
    Ok(())
}

/// The tests above notice a writer that forgets a body, and a `settle()` without a commit.
#[cfg(feature = "mutants")]
#[allow(non_snake_case, reason = "a test has the name of its variant")]
mod mutants {
    use bucketq::broken::Broken;
    use bucketq::{Kind, Options, Result};
    use bucketq_tests::given::inline;

    use super::{cut_off_after_one_body, lands_after_settle};

    fn broken(rule: Broken) -> Options {
        Options { broken: Some(rule), ..inline() }
    }

    #[tokio::test(start_paused = true)]
    async fn ForgetSent() -> Result<()> {
        let told = cut_off_after_one_body(broken(Broken::ForgetSent)).await?;
        println!("caught ForgetSent: {told:?}");
        assert_eq!(told, (Kind::Unavailable, true), "reported as not applied");
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn SettleOnlyReads() -> Result<()> {
        let landed = lands_after_settle(broken(Broken::SettleOnlyReads), true).await?;
        println!("caught SettleOnlyReads: the put landed: {landed}");
        assert!(landed);
        Ok(())
    }

    #[tokio::test(start_paused = true)]
    async fn OpeningSettles() -> Result<()> {
        let landed = lands_after_settle(broken(Broken::OpeningSettles), false).await?;
        println!("caught OpeningSettles: the put landed: {landed}");
        assert!(landed);
        Ok(())
    }
}
