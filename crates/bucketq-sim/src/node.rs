//! A process: opens the queue file, runs its clients, dies or closes, and comes back.
//!
//! Called by run.rs. A crash ends the life's store (no request reaches the bucket any more, no reply comes back) and
//! aborts its clients; the writer it leaves behind hangs forever.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bucketq::QueueFile;
use bucketq::env::Env;
use bucketq::error::{Code, Error, Kind};
use tokio::task::JoinSet;

use crate::archive;
use crate::bucket::Who;
use crate::clock::pause_ms;
use crate::judge::reach;
use crate::plan::Wrong;
use crate::rng::{Rng, SimEntropy};
use crate::store::{FaultyStore, Life};
use crate::variants::Variant;
use crate::workload;
use crate::world::World;

/// The name of the queue file.
pub const NAME: &str = "jobs";

/// How a life ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Crash,
    Close,
    Drop,
}

/// One node from the first open until the clients stop.
pub async fn live(world: Arc<World>, node: usize) {
    let rng = Rng::new(world.rng.draw());
    pause_ms(rng.below(500)).await;
    // No process can notice a wrong clock while it is alone with an idle queue file. So a node that is ahead goes
    // first, and a node that is behind waits until others have committed.
    let waits = match world.plan.wrong {
        Wrong::Ahead(first) => node != first,
        Wrong::Behind(last) => node == last,
        _ => false,
    };
    while waits && world.bucket().seq() == 0 && !world.is_over() {
        pause_ms(100).await;
    }
    let mut life = 0;
    while !world.is_over() {
        life += 1;
        let who = Who { node, life };
        if !one_life(&world, who, &rng).await {
            return;
        }
        pause_ms(rng.spread(10, 20_000)).await;
    }
}

/// Returns false if the node does not come back.
async fn one_life(world: &Arc<World>, who: Who, rng: &Rng) -> bool {
    let life = Arc::new(Life::new(who));
    let opened = tokio::select! {
        biased;
        () = life.crash.notified() => None,
        opened = open(world, &life) => Some(opened),
    };
    let file = match opened {
        None => return true,
        Some(Ok(file)) => file,
        Some(Err(error)) => {
            world.note(|| format!("{who} cannot open: {error}"));
            world.history().told_error(who, &error);
            judge_open(world, &life, &error);
            return !(world.bucket().meddled && error.code() != Code::Unreachable);
        }
    };
    world.bucket().opened.insert(who);
    let mut clients = JoinSet::new();
    workload::spawn(world, &file, who, &life, rng, &mut clients);
    let (keeps, handle) = (world.clone(), file.clone());
    if world.plan.keep.is_some() {
        clients.spawn(async move {
            archive::configure(keeps, handle).await;
            false
        });
    }
    let planned = match world.plan.trouble_ms {
        0 => 3_600_000,
        mean => rng.spread(mean / 2, mean * 8),
    };
    let mut end = tokio::select! {
        biased;
        () = life.crash.notified() => End::Crash,
        () = world.wait_over() => End::Close,
        () = pause_ms(planned) => [End::Crash, End::Close, End::Drop][rng.below(3) as usize],
        () = workload::halted(&mut clients) => End::Close,
    };
    let deceived = world.bucket().deceived();
    if deceived && world.is_over() {
        // A process that read a commit which the operator or the store then removed must report it before it ends.
        must_notice(world, &file, who).await;
    }
    world.note(|| format!("{who} ends: {end:?}"));
    if end == End::Crash {
        life.end();
        world.fault(|| format!("{who} crashes"));
    }
    clients.shutdown().await;
    world.history().died(who, world.now_ms());
    if end == End::Close {
        let most = world.plan.options.deadline + Duration::from_mins(1);
        tokio::select! {
            biased;
            () = life.crash.notified() => end = End::Crash,
            closed = file.close() => if let Err(error) = closed {
                world.history().told_error(who, &error);
            },
            () = awake_for(world, who.node, most) => {
                world.history().odd.push(format!("{who}: close takes more than {most:?}"));
            }
        }
    }
    if end == End::Crash {
        life.end();
    }
    true
}

/// Wait until this node has been free of stalls for this long.
async fn awake_for(world: &World, node: usize, most: Duration) {
    loop {
        let begun = world.now_ms();
        tokio::time::sleep(most).await;
        if world.stalled_until(node) <= begun {
            return;
        }
    }
}

/// Open the queue file for this life.
pub async fn open(world: &Arc<World>, life: &Arc<Life>) -> Result<QueueFile, Error> {
    let store = Arc::new(FaultyStore::new(world.clone(), life.clone()));
    let fixed = world.variant.map_or(0, Variant::fixed_entropy);
    let entropy = Arc::new(SimEntropy::new(world.rng.fork(), fixed));
    // The last clock belongs to the node that cleans up, and is right.
    let unseen = world.variant == Some(Variant::ClockUnseen);
    let clock = if unseen { world.clocks.last() } else { world.clocks.get(life.who.node) };
    let Some(clock) = clock else { return Err(Error::invalid("a node without a clock")) };
    let env = Env::new(clock.clone(), entropy);
    QueueFile::open_with(store, NAME, world.plan.options.clone(), env).await
}

fn judge_open(world: &World, life: &Life, error: &Error) {
    let who = life.who;
    let fine = match error.code() {
        Code::Unreachable | Code::Throttled | Code::Timeout | Code::Contended | Code::OutcomeUnknown => true,
        Code::ClockSkew => world.plan.wrong != Wrong::None,
        // A probe that fails refuses the store; but a store that keeps its promises is not refused.
        Code::NoCompareAndSwap => life.misled.load(Ordering::Relaxed),
        Code::Corrupt | Code::Foreign | Code::TooNew => world.plan.damaged,
        _ => false,
    };
    if !fine && !world.bucket().meddled {
        world.history().odd.push(format!("{who} cannot open: {error:?}"));
    }
}

/// After the operator or the store removed a commit: each process that knew it must report that, and its writer must
/// report that the store lost it.
async fn must_notice(world: &Arc<World>, file: &QueueFile, who: Who) {
    world.heal();
    let (known, lost, own) = {
        let bucket = world.bucket();
        let own = bucket.betrayal.as_ref().is_some_and(|lost| lost.by == who);
        let known = bucket.known.get(&who).copied();
        (
            known,
            known.is_some_and(|(seq, id)| {
                bucket.chain.get(&seq) != Some(&id) && bucket.head().is_none_or(|l| seq >= reach(&l.head))
            }),
            own,
        )
    };
    if !lost {
        return;
    }
    for _ in 0..20 {
        match file.settle().await {
            Ok(seq) => {
                let what = format!(
                    "P21, P22, P25: {who} knew commit {known:?}, which is gone, and settles at {seq}"
                );
                return world.history().odd.push(what);
            }
            Err(e) if e.kind() == Kind::Closed => return,
            Err(e) => {
                world.history().told_error(who, &e);
                match e.code() {
                    // With a clock that is refused it writes nothing either.
                    Code::StoreBroken | Code::ClockSkew => return,
                    Code::RolledBack | Code::HeadMissing if !own => return,
                    Code::RolledBack | Code::HeadMissing => {
                        let what = format!("P25: the store lost commit {known:?} of {who}, which gets {e:?}");
                        return world.history().odd.push(what);
                    }
                    _ => pause_ms(5_000).await,
                }
            }
        }
    }
    world.history().odd.push(format!("P21, P22, P25: {who} does not notice that commit {known:?} is gone"));
}
