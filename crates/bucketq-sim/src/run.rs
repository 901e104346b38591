//! One seed from beginning to end: work, heal, drain, be quiet, read everything, check.
//!
//! Called by the `sim` binary and by tests/sim. The report has all results; nothing is printed here.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bucketq::QueueFile;
use bucketq::env::Clock;
use bucketq::job::State;
use bucketq::op::{Held, Op};
use tokio::task::JoinSet;

use crate::archive;
use crate::bucket::Who;
use crate::check;
use crate::clock::{EPOCH_MS, pause_ms};
use crate::crowd;
use crate::expired_archives;
use crate::local;
use crate::loss;
use crate::node;
use crate::plan::{Operator, Wrong};
use crate::policies;
use crate::refusal;
use crate::replay;
use crate::rng::Rng;
use crate::store::Life;
use crate::turned;
use crate::variants::Variant;
use crate::waits;
use crate::work;
use crate::workload::{Client, QUEUES};
use crate::world::World;

/// The result of one seed.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// Calls made.
    pub ops: u64,
    /// Commits in the chain.
    pub commits: u64,
    /// Faults injected.
    pub faults: u64,
    /// Broken promises; empty if every promise was kept.
    pub violations: Vec<String>,
    /// Hash of all events, in order.
    pub trace: u64,
    /// Number of events.
    pub events: u64,
    /// Errors that callers got, by code.
    pub errors: BTreeMap<&'static str, u64>,
    /// Ops reported as done, by name.
    pub done: BTreeMap<&'static str, u64>,
    /// True time that passed.
    pub virtual_ms: u64,
}

/// Runs a seed; `print` writes the trace to standard error.
pub fn run(seed: u64, variant: Option<Variant>, print: bool) -> Report {
    let story = || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .map_err(|e| e.to_string())?;
        Ok(runtime.block_on(story(seed, variant, print)))
    };
    let told: Result<Report, String> =
        std::panic::catch_unwind(AssertUnwindSafe(story)).unwrap_or_else(|_| Err("it panics".into()));
    told.unwrap_or_else(|what| Report { seed, violations: vec![what], ..Report::default() })
}

async fn story(seed: u64, variant: Option<Variant>, print: bool) -> Report {
    let world = World::new(seed, variant, print);
    world.note(|| format!("{:?}", world.plan));
    let violations = if world.plan.refusal {
        refusal::story(&world).await
    } else if world.plan.local {
        local::story(&world).await
    } else if let Some(lie) = world.plan.turns {
        turned::story(&world, lie).await
    } else if world.plan.crowd {
        crowd::story(&world).await
    } else {
        lives(&world).await
    };
    let (trace, events) = world.trace();
    let history = world.history().clone();
    let commits = world.bucket().landed.len() as u64;
    Report {
        seed,
        ops: world.calls(),
        commits,
        faults: world.faults(),
        violations,
        trace,
        events,
        done: history.done(),
        errors: history.errors,
        virtual_ms: world.now_ms(),
    }
}

/// The ordinary story: all nodes work, then the history is judged.
async fn lives(world: &Arc<World>) -> Vec<String> {
    let mut nodes = JoinSet::new();
    for n in 0..world.plan.nodes {
        nodes.spawn(node::live(world.clone(), n));
    }
    let troubles = tokio::spawn(troubles(world.clone()));
    let lived = tokio::time::timeout(Duration::from_hours(4), async {
        while let Some(end) = nodes.join_next().await {
            if end.is_err() {
                world.history().odd.push("a node panics".into());
            }
        }
    });
    if lived.await.is_err() {
        world.history().odd.push(format!("the clients do not come to an end: {} calls", world.calls()));
        world.end();
        nodes.abort_all();
    }
    troubles.abort();
    world.heal();
    if world.bucket().meddled {
        return check::always(&world.plan, &world.history(), &world.bucket());
    }
    let cleaned = tokio::time::timeout(Duration::from_hours(12), clean_up(world)).await;
    // The effects of a commit that the store lost are excused; the reaction of the losers is judged.
    let history = loss::without_lost(&world.history(), &world.bucket());
    let mut violations = loss::judge(&world.history(), &world.bucket());
    match cleaned {
        Ok(Ok(jobs)) => violations.extend(check::all(&world.plan, &history, &world.bucket(), &jobs)),
        Ok(Err(what)) => {
            violations.extend(check::always(&world.plan, &history, &world.bucket()));
            violations.push(what);
        }
        Err(_) => violations.push("G5: cleaning up does not come to an end".into()),
    }
    if world.plan.deep && violations.is_empty() {
        violations.extend(replay::walk(world, &history).await);
    }
    violations
}

/// Stalls, outages, stepped clocks and the operator, until the clients stop.
async fn troubles(world: Arc<World>) {
    let rng = world.rng.fork();
    let mut operator = world.plan.operator;
    let mut behind =
        world.clocks.iter().any(|c| c.wall_ms() < EPOCH_MS + world.now_ms().cast_signed() - world.off_ms / 2);
    if world.plan.trouble_ms == 0 {
        return;
    }
    while !world.is_over() {
        pause_ms(rng.spread(world.plan.trouble_ms / 4, world.plan.trouble_ms * 2)).await;
        let node = rng.below(world.plan.nodes as u64) as usize;
        match rng.below(5) {
            0 | 1 if world.plan.sleeps => world.sleep(node, rng.spread(100, world.plan.lease_ms.1 * 2)),
            0 | 1 => world.stall(node, rng.spread(100, world.plan.lease_ms.1 * 2)),
            2 | 3 => world.cut(node, rng.spread(500, 45_000)),
            _ => behind = set_clocks(&world, &rng, node, behind),
        }
        if world.calls() > world.plan.budget / 2
            && let Some(deed) = operator.take()
        {
            let seq = world.bucket().seq();
            let restore =
                (deed == Operator::Restores && seq > 2).then(|| seq - 1 - rng.below((seq - 1).min(8)));
            if deed == Operator::Deletes || restore.is_some() {
                world.fault(|| format!("the operator {deed:?} HEAD {seq} {restore:?}"));
                world.bucket().meddle(restore);
                if rng.one_in(2) {
                    // The node comes back when the others are past what it knows.
                    world.stall(node, rng.spread(5_000, 60_000));
                }
            }
        }
    }
}

/// Sets a clock, or makes a Date wrong. Returns whether the clock that is behind at times is behind now.
fn set_clocks(world: &World, rng: &Rng, node: usize, behind: bool) -> bool {
    let step = |node: usize, by: i64| {
        world.fault(|| format!("the clock of n{node} is set by {by} ms"));
        world.clocks[node].step(by);
    };
    match world.plan.wrong {
        Wrong::Set(node) => {
            let by = rng.spread(10, 600_000).cast_signed();
            if rng.one_in(2) {
                world.odd_dates(node, rng.spread(500, 30_000), 0);
            }
            if rng.one_in(3) {
                world.fault(|| format!("the clock of n{node} is set right"));
                world.clocks[node].set(world.plan.clocks[node].0);
            } else {
                step(node, if rng.one_in(2) { by } else { -by });
            }
        }
        Wrong::Behind(node) => step(node, if behind { world.off_ms } else { -world.off_ms }),
        Wrong::Store => {
            let by = rng.spread(world.plan.max_skew_ms + 3_000, 60_000).cast_signed();
            world.odd_dates(node, rng.spread(500, 30_000), if rng.one_in(2) { by } else { -by });
        }
        Wrong::Ahead(_) | Wrong::FirstDate | Wrong::None => {}
    }
    !behind
}

/// A fresh node finishes every job, then nothing happens for hours, then everything is read.
async fn clean_up(world: &Arc<World>) -> Result<check::Jobs, String> {
    let who = Who { node: world.plan.nodes, life: 1 };
    let life = Arc::new(Life::new(who));
    // A wrong clock may have left HEAD's time ahead: that passes.
    let mut opened = node::open(world, &life).await;
    for _ in 0..200 {
        if opened.is_ok() {
            break;
        }
        pause_ms(30_000).await;
        opened = node::open(world, &life).await;
    }
    let file = opened.map_err(|e| format!("G7: it cannot be opened at the end: {e:?}"))?;
    let client = Client { world: world.clone(), file: file.clone(), who, rng: Rng::new(world.rng.draw()) };
    for _ in 0..1_000 {
        if file.settle().await.is_ok() {
            break;
        }
        pause_ms(1_000).await;
    }
    for queue in QUEUES {
        client.insist(Op::Resume { queue: queue.to_owned() }, None).await;
    }
    client.insist(policies::no_more_ticks(), None).await;
    drain(&client).await?;
    // Late requests arrive after this node has begun: they must be refused as too late, or be finished as well.
    world.wait_arrived().await;
    waits::judge(world, &client).await?;
    pause_ms(300_000).await;
    file.settle().await.map_err(|e| format!("G5: it does not settle at the end: {e:?}"))?;
    drain(&client).await?;
    // Archive everything first, so that nothing happens by itself when it is to be quiet.
    if world.plan.keep.is_some() {
        archive_all(world, &file).await?;
    }
    let mut read = archive::Read::new();
    let jobs = everything(world, &file, &mut read).await?;
    let listed = jobs.listed;
    collected(world, &file, &listed).await?;
    quiet(world, &client).await?;
    drop(client);
    file.close().await.map_err(|e| format!("it does not close at the end: {e:?}"))?;
    let cold = Arc::new(Life::new(Who { node: world.plan.nodes, life: 2 }));
    let file = node::open(world, &cold).await.map_err(|e| format!("G7: it cannot be opened cold: {e:?}"))?;
    let again = everything(world, &file, &mut archive::Read::new()).await?;
    if again.jobs != jobs.jobs || again.listed != listed {
        return Err("G7: opened cold it shows other jobs".into());
    }
    Ok(jobs.jobs)
}

/// Archive all jobs that may leave, and expire the objects that become too old by then.
async fn archive_all(world: &Arc<World>, file: &QueueFile) -> Result<(), String> {
    let endless = |e| format!("G5: the archive does not come to an end: {e:?}");
    file.archive().await.map_err(endless)?;
    if let Some(age) = world.plan.archive_ms() {
        // The newest commit may be ahead of this node's clock.
        pause_ms(age.unsigned_abs() + world.plan.max_skew_ms + 1_000).await;
        file.archive().await.map_err(endless)?;
        for object in file.archives(None, 0).await.map_err(endless)?.objects {
            let policy = file.queue(&object.queue).map_err(endless)?.policy().await.map_err(endless)?;
            if policy.archive_ms.is_some() {
                return Err(format!("retention: {} is too old and still on the list", object.key));
            }
        }
    }
    let expired = expired_archives::look(world).await?;
    world.history().expired = expired;
    Ok(())
}

/// Every existing job, in the file and in the archive.
async fn everything(
    world: &Arc<World>,
    file: &QueueFile,
    read: &mut archive::Read,
) -> Result<archive::Whole, String> {
    let object = |key: &str| world.bucket().object(key);
    let expired = world.history().expired.clone();
    let whole = archive::whole(file, object, (&expired, u64::MAX), read).await;
    let whole = whole.map_err(|e| format!("G7: it cannot be read at the end: {e:?}"))?;
    if let Some(bad) = whole.bad.first() {
        return Err(bad.clone());
    }
    world.history().left.clone_from(&whole.left);
    Ok(whole)
}

/// P16: objects that nothing refers to are collected when a caller requests it, and no process lists more often.
async fn collected(world: &Arc<World>, file: &QueueFile, listed: &BTreeSet<String>) -> Result<(), String> {
    world.bucket().asked_to_collect += 1;
    let told = file.collect(Duration::ZERO).await;
    let (left, too_often, too_soon) = {
        let (history, bucket) = (world.history(), world.bucket());
        let too_soon = expired_archives::collected_too_soon(&history.expired, &bucket);
        (bucket.unreferenced(listed), bucket.lists_too_often(), too_soon)
    };
    match (told, too_often) {
        (Err(error), _) => Err(format!("P16: nothing is collected at the end: {error:?}")),
        (Ok(_), Some(what)) => Err(what),
        (Ok(_), None) if too_soon.is_some() => Err(too_soon.unwrap_or_default()),
        (Ok(told), None) if !left.is_empty() => {
            Err(format!("P16: {left:?} are left although nothing refers to them; told {told:?}"))
        }
        (Ok(_), None) => Ok(()),
    }
}

/// G5: every unfinished job can be claimed and finished within bounded time.
async fn drain(client: &Client) -> Result<(), String> {
    let bound = client.world.now_ms() + 3_600_000;
    let lease = client.world.plan.lease_ms.1;
    while client.world.now_ms() < bound {
        let jobs = work::claim(client, 100, lease, 0, None).await.unwrap_or_default();
        let none = jobs.is_empty();
        for (n, taken) in jobs {
            let held = Held { id: taken.job.id, token: taken.lease.token };
            let (fence, until) = {
                let mut history = client.world.history();
                history.stop(n, client.world.now_ms());
                (history.holds[n].fence, history.holds[n].until_ms)
            };
            client.call(Op::Ack { held, result: None }, false, Some((fence, until))).await;
        }
        if none {
            match client.file.queues(None).await {
                Ok(queues) => {
                    let live = |s: &State| !s.is_finished();
                    let left = queues
                        .iter()
                        .flat_map(|q| &q.counts)
                        .filter(|(s, _)| live(s))
                        .map(|(_, n)| n)
                        .sum::<u64>();
                    if left == 0 {
                        return Ok(());
                    }
                }
                Err(error) => client.world.note(|| format!("drain: {error:?}")),
            }
            pause_ms(1_000).await;
        }
    }
    Err("G5: some jobs cannot be finished within an hour".into())
}

/// G9: hours without work cost no PUT, no LIST and no GET; a waiting claim costs no PUT and no LIST.
async fn quiet(world: &Arc<World>, client: &Client) -> Result<(), String> {
    let count = || world.bucket().counts;
    let before = count();
    pause_ms(3 * 3_600_000).await;
    let idle = count();
    if idle != before {
        return Err(format!("G9: three idle hours cost {before:?} -> {idle:?}"));
    }
    let waiting = wait_in_vain(&client.file);
    tokio::select! {
        biased;
        got = waiting => return Err(format!("G9: a waiting claim on an empty file ends with {got}")),
        () = pause_ms(600_000) => {}
    }
    // The claim that was dropped here is handed back, which costs nothing, as it had no jobs.
    let after = count();
    if (after.puts, after.lists) != (idle.puts, idle.lists) {
        return Err(format!("G9: ten minutes of waiting cost {idle:?} -> {after:?}"));
    }
    Ok(())
}

async fn wait_in_vain(file: &QueueFile) -> String {
    let request = file.claim(1).lease(Duration::from_mins(1)).wait(Duration::from_hours(1));
    format!("{:?}", request.await.map(|jobs| jobs.len()))
}
