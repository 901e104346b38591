//! Machines that sleep: leases expire meanwhile, and timers stop (G4).

use std::sync::Arc;
use std::time::Duration;

use bucketq::store::Memory;
use bucketq::{Keeper, Loss, Payload, QueueFile, Result};
use bucketq_tests::clock::{TestClock, pass};
use bucketq_tests::given::{NAME, inline};
use bucketq_tests::puppet::Puppet;
use tokio::sync::mpsc;

const LEASE: Duration = Duration::from_mins(1);

/// A machine that holds a job, and another one.
async fn given() -> Result<(TestClock, QueueFile, QueueFile)> {
    let puppet = Puppet::over(Arc::new(Memory::new()));
    let clock = TestClock::start();
    let mine = QueueFile::open_with(puppet.store(), NAME, inline(), clock.env()).await?;
    let theirs = QueueFile::open_with(puppet.store(), NAME, inline(), clock.env()).await?;
    mine.queue("q")?.enqueue(Payload::text("x")).await?;
    Ok((clock, mine, theirs))
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_ran_out_while_the_machine_slept_is_lost_when_it_wakes() -> Result<()> {
    let (clock, mine, theirs) = given().await?;
    let (keeper, task) = Keeper::new(&mine)?;
    tokio::spawn(task);
    let taken = mine.claim(1).lease(LEASE).await?.remove(0);
    let kept = keeper.keep(&taken, LEASE);
    kept.work();
    let (tell, mut told) = mpsc::unbounded_channel();
    kept.on_lost(move |how| _ = tell.send(how));
    pass(Duration::from_secs(1)).await;
    clock.slept(LEASE * 2);
    assert!(kept.is_lost(), "its holder can tell at once");
    assert_eq!(theirs.claim(1).await?.len(), 1, "it is somebody else's");
    // The timer of the next extend has 19 s left: the worker learns of the loss before.
    pass(Duration::from_secs(2)).await;
    assert!(matches!(told.try_recv(), Ok(Loss::RanOut | Loss::Taken)));
    mine.close().await?;
    theirs.close().await
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_due_when_the_machine_wakes_is_extended_before_it_runs_out() -> Result<()> {
    let (clock, mine, theirs) = given().await?;
    let (keeper, task) = Keeper::new(&mine)?;
    tokio::spawn(task);
    let taken = mine.claim(1).lease(LEASE).await?.remove(0);
    let kept = keeper.keep(&taken, LEASE);
    kept.work();
    pass(Duration::from_secs(1)).await;
    clock.slept(Duration::from_secs(55));
    pass(Duration::from_secs(10)).await;
    assert!(!kept.is_lost());
    assert!(kept.remaining() > LEASE / 2, "{:?}", kept.remaining());
    assert!(theirs.claim(1).await?.is_empty());
    mine.close().await?;
    theirs.close().await
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_ran_out_while_all_clocks_of_a_machine_stood_still_is_looked_at_when_its_wall_clock_jumps()
-> Result<()> {
    for lost in [true, false] {
        let (right, mine, theirs) = given().await?;
        let (keeper, task) = Keeper::new(&mine)?;
        tokio::spawn(task);
        let taken = mine.claim(1).lease(LEASE).await?.remove(0);
        let kept = keeper.keep(&taken, LEASE);
        kept.work();
        let (tell, mut told) = mpsc::unbounded_channel();
        kept.on_lost(move |how| _ = tell.send(how));
        pass(Duration::from_secs(1)).await;
        // A paused virtual machine: only the wall clock shows that time has passed.
        right.step(2 * 60_000);
        if lost {
            assert_eq!(theirs.claim(1).await?.len(), 1, "it is somebody else's");
        }
        // The next extend is due in 19 s.
        pass(Duration::from_secs(2)).await;
        assert_eq!(told.try_recv().ok(), lost.then_some(Loss::Taken));
        assert_eq!(kept.is_lost(), lost);
        assert!(theirs.claim(1).await?.is_empty(), "it is extended");
        mine.close().await?;
        theirs.close().await?;
    }
    Ok(())
}
