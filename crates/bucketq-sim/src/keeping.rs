//! Workers whose leases the engine renews: its keeper extends them while they work. The workers also extend them by
//! hand, to longer and to shorter ones, often when the keeper is about to do so as well.
//!
//! Called by work.rs in seeds whose plan asks for it. A worker relies on the keeper and stops when the lease is lost:
//! G4 is judged by the time until which it relies on its lease.

use std::time::Duration;

use bucketq::error::Kind;
use bucketq::{ClaimedJob, Keeper, LeaseGuard};

use crate::clock::pause_ms;
use crate::workload::Client;

/// Work on a job for up to several leases. Returns false if the lease was lost meanwhile.
pub async fn work(
    client: &Client,
    keeper: &Keeper,
    n: usize,
    taken: &ClaimedJob,
    lease_ms: u64,
) -> Option<LeaseGuard> {
    let rng = &client.rng;
    let kept = keeper.keep(taken, Duration::from_millis(lease_ms));
    kept.work();
    let end = client.world.now_ms() + rng.spread(10, lease_ms * 3);
    let mut begun = client.world.now_ms();
    while client.world.now_ms() < end {
        if !believes(client, n, &kept) {
            return None;
        }
        let left = u64::try_from(kept.remaining().as_millis()).unwrap_or(u64::MAX);
        if rng.one_in(3) {
            // Shortly before the keeper does so: its extend then waits behind this one.
            let due = (begun + lease_ms / 3).saturating_sub(client.world.now_ms());
            pause_ms(due.saturating_sub(rng.below(2 * client.world.plan.latency_ms.1)).min(left)).await;
            if !by_hand(client, n, &kept, lease_ms).await {
                return None;
            }
            begun = client.world.now_ms();
        } else {
            pause_ms(rng.spread(1, lease_ms).min(left)).await;
        }
    }
    believes(client, n, &kept).then_some(kept)
}

/// Records until when the worker relies on its lease. Returns false if the lease is over, or if there was a gap.
fn believes(client: &Client, n: usize, kept: &LeaseGuard) -> bool {
    let now = client.world.now_ms();
    let mut history = client.world.history();
    let hold = &mut history.holds[n];
    if kept.is_lost() || hold.until_ms < now {
        hold.until_ms = hold.until_ms.min(now);
        return false;
    }
    hold.until_ms = now + u64::try_from(kept.remaining().as_millis()).unwrap_or(0);
    true
}

/// Extend the lease by hand: much longer, or a little shorter. Returns false if the worker has to stop.
async fn by_hand(client: &Client, n: usize, kept: &LeaseGuard, lease_ms: u64) -> bool {
    if !believes(client, n, kept) {
        return false;
    }
    let least = 2 * client.world.plan.max_skew_ms + 1;
    let longer = lease_ms * client.rng.between(4, 8);
    let asked = if client.rng.one_in(4) { (lease_ms * 2 / 3).max(least) } else { longer };
    let who = client.who;
    client.world.note(|| format!("{who} extends hold {n} by hand to {asked}"));
    client.world.count_call();
    let sure = client.world.now_ms() + asked - client.world.plan.max_skew_ms;
    {
        // Until the reply comes, a shorter lease may count already.
        let hold = &mut client.world.history().holds[n];
        hold.until_ms = hold.until_ms.min(sure);
    }
    let told = kept.extend(&client.file, Duration::from_millis(asked)).await;
    client
        .world
        .note(|| format!("{who} extends hold {n}: {:?}", told.as_ref().err().map(ToString::to_string)));
    if let Err(error) = &told {
        client.world.history().told_error(who, error);
    }
    believes(client, n, kept) && !matches!(&told, Err(e) if e.kind() == Kind::Closed)
}
