//! A store that lies is refused before a queue file is created on it (G10, P24), whatever else goes wrong.
//!
//! Called by run.rs instead of the ordinary story if the plan asks for it.

use std::sync::Arc;
use std::time::Duration;

use bucketq::error::Code;

use crate::bucket::Who;
use crate::clock::pause_ms;
use crate::node;
use crate::rng::Rng;
use crate::store::Life;
use crate::world::World;

/// Some nodes try to open a queue file there, under faults; then one more without any. Returns the faults found.
pub async fn story(world: &Arc<World>) -> Vec<String> {
    let mut bad = Vec::new();
    for n in 0..world.plan.nodes {
        let rng = Rng::new(world.rng.draw());
        for life in 1..=3 {
            let who = Who { node: n, life };
            bad.extend(attempt(world, who, false).await);
            pause_ms(rng.spread(10, 5_000)).await;
        }
    }
    world.heal();
    world.wait_arrived().await;
    bad.extend(attempt(world, Who { node: world.plan.nodes, life: 1 }, true).await);
    let bucket = world.bucket();
    if let Some(key) = bucket.ever.keys().find(|key| !key.contains(".probe-")) {
        bad.push(format!("G10: {key} is written to a store that does not keep its word"));
    }
    if !bucket.landed.is_empty() {
        bad.push("G10: a queue file is made in a store that does not keep its word".into());
    }
    bad
}

async fn attempt(world: &Arc<World>, who: Who, must: bool) -> Option<String> {
    let life = Arc::new(Life::new(who));
    let opened = tokio::select! {
        biased;
        () = life.crash.notified() => return None,
        opened = tokio::time::timeout(Duration::from_hours(1), node::open(world, &life)) => opened,
    };
    world.count_call();
    let how = world.plan.lie;
    match opened {
        Err(_) => Some(format!("{who}: opening takes more than an hour")),
        Ok(Ok(_)) => Some(format!("G10: {who} opens a queue file in a store that lies: {how:?}")),
        Ok(Err(error)) => {
            world.note(|| format!("{who} cannot open: {error}"));
            world.history().told_error(who, &error);
            let refused = error.code() == Code::NoCompareAndSwap;
            let passing = matches!(error.code(), Code::Unreachable | Code::Throttled | Code::Timeout);
            (!refused && (must || !passing)).then(|| format!("G10: {who}, {how:?}: told {error:?}"))
        }
    }
}
